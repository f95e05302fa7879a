//! Request and acknowledgement: nothing is captured before the last ack, and nobody's silence holds
//! up anybody else.

use std::time::{Duration, Instant};

use nodus_tests::wait::{self, LONG};
use nodus_tests::{Agent, Events, Job, stored};
use serde_json::{Value, json};

/// Long enough for what must not happen to have happened.
const A_WHILE: Duration = Duration::from_millis(300);

fn still_waiting(job: &Job, seq: u64) {
    let detail = job.describe();
    assert_eq!(detail["inProgress"]["seq"], seq, "{detail}");
    assert_eq!(detail["inProgress"]["stage"], "Waiting", "{detail}");
}

#[test]
fn nothing_is_captured_before_the_last_ack() {
    let agent = Agent::ready();
    let (job, mut first) = Job::start(&agent, "train", "");
    first.spawn();
    let mut second = job.next_process();
    let mut one = first.events();
    one.subscribe_notify();
    let mut two = second.subscriber();
    job.wait_for_subscribers(2);
    first.save("a", "old");
    first.save("b", "old");

    let asked = job.ask();
    let seq = one.expect_request();
    assert_eq!(two.expect_request(), seq, "both are asked");
    first.save("a", "new");
    one.ack(seq);
    one.expect_no("checkpoint.captured", A_WHILE);
    still_waiting(&job, seq);
    second.save("b", "new");
    two.ack(seq);
    one.expect("checkpoint.captured");
    one.expect("checkpoint.committed");

    let done = stored(asked);
    assert_eq!(done["seq"], seq);
    assert_eq!(done["outcome"]["consistency"], "Acked", "{done}");
    for name in ["a", "b"] {
        assert_eq!(job.restored_file(seq, name), "new", "{name}");
    }
}

#[test]
fn each_checkpoint_is_asked_for_with_a_new_number() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.subscriber();
    job.wait_for_subscribers(1);
    let mut last = 0;
    for round in 0..3 {
        puppet.save("a", &round.to_string());
        let asked = job.ask();
        let seq = events.expect_request();
        assert!(seq > last, "{seq} after {last}");
        events.ack(seq);
        assert_eq!(stored(asked)["seq"], seq);
        last = seq;
    }
}

#[test]
fn an_ack_for_another_request_or_from_a_stranger_changes_nothing() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");

    let asked = job.ask();
    let seq = events.expect_request();
    events.ack(seq + 1);
    events.ack(seq.wrapping_sub(1));
    let mut stranger = Events::connect(&agent.events_socket("train")).expect("it listens");
    let refused = stranger.send_bytes(format!("{}\n", ack(seq)).as_bytes());
    if refused.is_ok() {
        let said = stranger.next_within(LONG).expect("the connection is not just cut");
        assert_eq!(said.expect("a stranger is told so")["type"], "error");
    }
    events.expect_no("checkpoint.captured", A_WHILE);
    still_waiting(&job, seq);
    events.ack(seq);
    assert_eq!(stored(asked)["outcome"]["consistency"], "Acked");
}

fn ack(seq: u64) -> Value {
    json!({ "type": "checkpoint.ack", "seq": seq })
}

#[test]
fn c67_an_ack_without_a_request_or_said_three_times_counts_once() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    events.subscribe_notify();
    events.ack(1);
    job.wait_for_subscribers(1);

    puppet.save("a", "1");
    let asked = job.ask();
    let first = events.expect_request();
    for _ in 0..3 {
        events.ack(first);
    }
    events.expect("checkpoint.committed");
    assert_eq!(stored(asked)["seq"], first);

    puppet.save("a", "2");
    let asked = job.ask();
    let second = events.expect_request();
    events.ack(first);
    events.expect_no("checkpoint.captured", A_WHILE);
    still_waiting(&job, second);
    events.ack(second);
    assert_eq!(stored(asked)["outcome"]["consistency"], "Acked");
}

#[test]
fn an_ack_after_the_deadline_changes_nothing() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "ackTimeout: 1s");
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");

    let asked = job.ask();
    let first = events.expect_request();
    events.expect("checkpoint.committed");
    let done = stored(asked);
    assert_eq!(done["outcome"]["consistency"], "Quiet", "nobody answered, nothing moved: {done}");
    events.ack(first);

    puppet.save("a", "2");
    let asked = job.ask();
    let second = events.expect_request();
    events.expect_no("checkpoint.captured", A_WHILE);
    events.ack(second);
    assert_eq!(stored(asked)["outcome"]["consistency"], "Acked");
    assert_eq!(job.checkpoint(first)["consistency"], "Quiet");
}

#[test]
fn a_program_that_never_answers_blocks_neither_its_suspend_nor_another_job() {
    let agent = nodus_tests::AgentConfig::default().quick_suspend().start();
    let ctl = agent.ctl();
    let (silent_job, mut silent) = Job::start(&agent, "silent", "");
    let (brisk_job, mut brisk) = Job::start(&agent, "brisk", "");
    let mut mute = silent.subscriber();
    silent.save("a", "1");
    brisk.subscriber().answer_all();
    brisk.save("a", "1");
    silent_job.wait_for_subscribers(1);
    brisk_job.wait_for_subscribers(1);

    let mut suspend = ctl.start(&["suspend", "silent"]);
    let request = mute.expect("checkpoint.request");
    assert_eq!(request["urgent"], true, "{request}");
    assert!(request["deadlineMs"].is_u64(), "{request}");
    assert_eq!(ctl.phase("silent"), "Suspending");
    let asked = Instant::now();
    brisk_job.checkpoint_now();
    assert!(asked.elapsed() < Duration::from_secs(2), "the other job waited");
    assert_eq!(suspend.ends().code(), Some(0), "{:?}", suspend.stderr());
    assert_eq!(ctl.phase("silent"), "Suspended");
    assert_eq!(silent_job.stored().len(), 1);
}

#[test]
fn a_suspend_makes_an_open_request_urgent() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.subscriber();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");
    let _asked = job.ask();
    let request = events.expect("checkpoint.request");
    assert_eq!(request["urgent"], false);
    let mut suspend = job.ctl().start(&["suspend", "train"]);
    let again = events.expect("checkpoint.request");
    assert_eq!((&again["seq"], &again["urgent"]), (&request["seq"], &json!(true)));
    events.ack(again["seq"].as_u64().expect("a number"));
    assert_eq!(suspend.ends().code(), Some(0), "{:?}", suspend.stderr());
    assert_eq!(job.ctl().phase("train"), "Suspended");
}

#[test]
fn one_that_leaves_is_not_waited_for_and_one_that_joins_is_asked() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.spawn();
    let mut other = job.next_process();
    let leaver = puppet.subscriber();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");

    let asked = job.ask();
    wait::until("the request", LONG, || job.describe()["inProgress"]["stage"] == "Waiting");
    let mut joiner = other.subscriber();
    let seq = joiner.expect_request();
    drop(leaver);
    joiner.ack(seq);
    assert_eq!(stored(asked)["seq"], seq);
}

#[test]
fn c65_a_subscriber_that_goes_away_holds_nothing_up() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    puppet.save("a", "1");
    for round in 0..5 {
        let events = puppet.subscriber();
        job.wait_for_subscribers(1);
        puppet.save("a", &round.to_string());
        let asked = job.ask();
        if round % 2 == 0 {
            events.shut(std::net::Shutdown::Both);
        }
        drop(events);
        stored(asked);
    }
    assert_eq!(job.ctl().phase("train"), "Running");
}

#[test]
fn a_save_that_failed_is_not_copied() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);
    puppet.save("a", "half");
    let mut asked = job.ask();
    let seq = events.expect_request();
    events.send(&json!({
        "type": "checkpoint.ack", "seq": seq, "status": "failed", "message": "no room for it"
    }));
    assert_eq!(events.expect("checkpoint.failed")["reason"], "SaveFailed");
    assert_eq!(asked.ends().code(), Some(1), "{:?}", asked.stderr());
    let listed = job.checkpoint(seq);
    assert_eq!((&listed["state"], &listed["reason"]), (&json!("Failed"), &json!("SaveFailed")));
    assert!(listed["message"].to_string().contains("no room for it"), "{listed}");
}

#[test]
fn a_job_that_is_not_to_be_asked_is_not_asked() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "integration: None");
    let mut events = puppet.subscriber();
    puppet.save("a", "1");
    assert_eq!(stored(job.ask())["outcome"]["consistency"], "Quiet");
    events.expect_no("checkpoint.request", A_WHILE);
}

#[test]
fn the_published_client_answers_by_request_id_on_another_connection() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut listening = puppet.subscriber();
    let mut sending = puppet.events();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");
    let asked = job.ask();
    let request = listening.expect("checkpoint.request");
    let seq = request["seq"].as_u64().expect("a number");
    assert_eq!(request["requestId"], seq.to_string());
    let ready = json!({
        "id": "evt-7-1", "type": "checkpoint.ready", "requestId": request["requestId"]
    });
    sending.send(&ready);
    assert_eq!(stored(asked)["outcome"]["consistency"], "Acked");
}

#[test]
fn the_program_itself_can_ask_for_one() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    events.subscribe_notify();
    puppet.save("a", "1");
    events.send(&json!({ "type": "checkpoint.now" }));
    let seq = events.expect_request();
    events.ack(seq);
    assert_eq!(events.expect("checkpoint.committed")["seq"], seq);
    assert_eq!(job.stored(), [seq]);
}

#[test]
fn progress_is_shown_whether_sent_or_printed() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let shows = |completed: u64| {
        wait::until("the progress", LONG, || job.describe()["progress"]["completed"] == completed);
    };
    puppet.events().send(&json!({ "type": "progress", "completed": 42, "total": 120 }));
    shows(42);
    puppet.print(r#"nodus.event {"type":"progress","completed":43,"total":120}"#);
    shows(43);
}

#[test]
fn what_is_not_understood_gets_an_error_and_the_connection_stays() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    for line in ["nonsense", "{}", r#"{"type":"checkpoint.ack"}"#, "[1]"] {
        events.send_bytes(format!("{line}\n").as_bytes()).expect("it stays");
        events.expect("error");
    }
    events.send(&json!({ "type": "tomorrow.thing", "x": 1 }));
    events.subscribe();
    job.wait_for_subscribers(1);
}
