//! The sockets: found again after every kind of death, closed to strangers, and served whatever a
//! client does to them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use nodus_tests::wait::{self, LONG};
use nodus_tests::{Agent, AgentConfig, Events, Job, Running, is_root, skipped, training};
use serde_json::json;

const A_WHILE: Duration = Duration::from_millis(300);

/// A user that owns nothing here.
const NOBODY: u32 = 65534;

fn answers(agent: &Agent) -> bool {
    agent.ctl().run(&["list"]).status == 0
}

/// Starts a second agent with the configuration of the first; how it ended and what it said.
fn second_agent(agent: &Agent) -> (Option<i32>, String) {
    let mut second = Running::start(&mut agent.command());
    let status = second.ends();
    (status.code(), second.stderr().join("\n") + &second.stdout().join("\n"))
}

#[test]
fn c60_a_socket_left_behind_does_not_keep_it_from_starting() {
    let mut agent = Agent::ready();
    agent.kill_9();
    assert!(agent.control_socket().exists(), "kill -9 leaves it");
    agent.start();
    assert!(answers(&agent));
}

#[test]
fn c60_a_second_agent_is_refused_and_the_first_keeps_serving() {
    let agent = Agent::ready();
    let (status, said) = second_agent(&agent);
    assert!(status.is_some_and(|code| code != 0), "{status:?}");
    assert!(said.contains("in use"), "{said}");
    assert!(answers(&agent));
}

#[test]
fn c60_something_else_at_the_path_is_not_removed() {
    let mut agent = AgentConfig::default().stopped();
    fs::create_dir_all(agent.runtime_dir()).expect("a new directory");
    let path = agent.control_socket();
    let elsewhere = agent.home().join("elsewhere");
    fs::write(&elsewhere, "mine").expect("a new file");
    let refused = |agent: &mut Agent| {
        agent.start_unready();
        let status = agent.process().ends();
        assert_ne!(status.code(), Some(0));
        let ready = agent.notify().wait_for("READY=1", Duration::from_millis(10));
        assert!(!ready, "it was never ready");
        let said = agent.log();
        assert!(said.contains("control.sock"), "it names the path: {said}");
        agent.kill_9();
    };
    fs::write(&path, "mine").expect("a new file");
    refused(&mut agent);
    assert_eq!(fs::read_to_string(&path).expect("it is still there"), "mine");
    fs::remove_file(&path).expect("it is still there");

    fs::create_dir(&path).expect("a new directory");
    refused(&mut agent);
    fs::remove_dir(&path).expect("it is still there");

    symlink(&elsewhere, &path).expect("a new link");
    refused(&mut agent);
    assert_eq!(fs::read_link(&path).expect("it is still there"), elsewhere);
    assert_eq!(fs::read_to_string(&elsewhere).expect("it is still there"), "mine");
}

#[test]
fn c60_of_two_that_start_at_once_one_wins_and_is_reachable() {
    let mut agent = Agent::ready();
    for round in 0..10 {
        agent.kill_9();
        let mut both = [agent.command(), agent.command()].map(|mut one| Running::start(&mut one));
        let mut ended = Vec::new();
        wait::until("one of two to give up", LONG, || {
            ended = both.iter_mut().map(|one| one.ended_within(Duration::ZERO)).collect();
            ended.iter().any(Option::is_some)
        });
        wait::until("the other to answer", LONG, || answers(&agent));
        let alive = both
            .iter_mut()
            .filter_map(|one| one.ended_within(Duration::ZERO).is_none().then_some(one));
        assert_eq!(alive.count(), 1, "round {round}");
        drop(both);
        agent.start();
    }
}

#[test]
fn c61_a_path_that_is_too_long_is_an_error_with_the_limit() {
    let mut agent = AgentConfig::default().long_runtime_dir().stopped();
    agent.start_unready();
    let status = agent.process().ends();
    assert_ne!(status.code(), Some(0));
    let said = agent.log();
    assert!(said.contains("107"), "the limit is named: {said}");
    let socket = agent.runtime_dir().join("events.sock");
    let length = socket.as_os_str().len().to_string();
    assert!(said.contains(&length), "the length is named: {said}");
    let sockets = walkdir::WalkDir::new(agent.home()).into_iter().filter_map(Result::ok);
    let cut: Vec<_> = sockets
        .filter(|entry| entry.file_type().is_socket() && entry.file_name() != "notify")
        .collect();
    assert!(cut.is_empty(), "no socket with a cut name: {cut:?}");
}

#[test]
fn c62_the_mode_of_the_sockets_does_not_depend_on_the_umask() {
    let modes = [0o000, 0o077].map(|umask| {
        let agent = AgentConfig::default().umask(umask).start();
        let (_job, _puppet) = Job::start(&agent, "train", "");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode();
        let events = agent.events_socket("train");
        let directory = events.parent().expect("it is in a directory");
        assert_eq!(mode(directory) & 0o022, 0, "only its owner can change {directory:?}");
        [mode(&agent.control_socket()), mode(&agent.runtime_dir()), mode(&events), mode(directory)]
            .map(|mode| mode & 0o7777)
    });
    assert_eq!(modes[0], modes[1], "{modes:?}");
}

#[test]
fn c62_another_user_never_gets_a_connection() {
    if !is_root() {
        return skipped("c62", "another user's process needs root");
    }
    let agent = Agent::ready();
    // In a tight loop, from before the socket exists until after.
    let knock = "
import socket, sys, time
end = time.time() + 3
while time.time() < end:
    knock = socket.socket(socket.AF_UNIX)
    try:
        knock.connect(sys.argv[1])
        knock.sendall(b'{\"type\":\"checkpoint.subscribe\"}\\n')
        knock.settimeout(1)
        print('connected', knock.recv(4096).decode() or 'and closed', flush=True)
    except OSError:
        pass
    finally:
        knock.close()
print('gave up', flush=True)
";
    let (first, _puppet) = Job::start(&agent, "first", "");
    let near = agent.events_socket("first");
    let path = near.to_str().expect("a plain name").replace("/first/", "/second/");
    let mut python = std::process::Command::new(training::python());
    python.args(["-c", knock, &path]);
    std::os::unix::process::CommandExt::uid(&mut python, NOBODY);
    let stranger = Running::start(&mut python);
    let (second, _puppet) = Job::start(&agent, "second", "");
    stranger.says("gave up");
    for line in stranger.stdout() {
        // Whoever gets that far is told to go, and has subscribed to nothing.
        assert!(!line.starts_with("connected") || line.contains("error"), "{line}");
    }
    assert_eq!(second.describe()["subscribers"], 0);
    assert_eq!(first.describe()["subscribers"], 0);
}

#[test]
fn c62_a_directory_that_everyone_can_write_is_refused() {
    let mut agent = AgentConfig::default().stopped();
    fs::create_dir_all(agent.runtime_dir()).expect("a new directory");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(agent.runtime_dir(), open).expect("one's own directory");
    agent.start_unready();
    let status = agent.process().ends();
    assert_ne!(status.code(), Some(0));
    assert!(!agent.control_socket().exists());
}

/// The bytes of two acks and a subscription, in every packaging that a stream can bring.
#[test]
fn c63_messages_arrive_however_they_are_cut() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut round = 0;
    let mut check = |cut: &dyn Fn(&mut Events, &str)| {
        round += 1;
        puppet.save("a", &round.to_string());
        let mut events = puppet.events();
        cut(&mut events, "{\"type\":\"checkpoint.subscribe\",\"notify\":true}\n");
        job.wait_for_subscribers(1);
        let asked = job.ask();
        let seq = events.expect_request();
        let other = seq + 1000;
        cut(
            &mut events,
            &format!(
                "{{\"type\":\"checkpoint.ack\",\"seq\":{other},\"note\":\"Ünïcödé\"}}\n\
                 {{\"type\":\"checkpoint.ack\",\"seq\":{seq},\"note\":\"Ünïcödé\"}}\n"
            ),
        );
        events.expect("checkpoint.committed");
        assert_eq!(nodus_tests::stored(asked)["outcome"]["consistency"], "Acked");
        drop(events);
        job.wait_for_subscribers(0);
    };
    check(&|events, text| {
        for byte in text.as_bytes() {
            events.send_bytes(&[*byte]).expect("the agent reads");
        }
    });
    check(&|events, text| events.send_bytes(text.as_bytes()).expect("the agent reads"));
    check(&|events, text| {
        events.send_bytes(text.replace('\n', "\r\n").as_bytes()).expect("the agent reads");
    });
    check(&|events, text| {
        let spaced = text.replace('\n', "\n\n\r\n");
        events.send_bytes(spaced.as_bytes()).expect("the agent reads");
    });
}

#[test]
fn c63_a_last_line_without_its_end_is_not_executed() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut events = puppet.events();
    events.subscribe_notify();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");
    let asked = job.ask();
    let seq = events.expect_request();
    let mut unfinished = puppet.events();
    let ack = json!({ "type": "checkpoint.ack", "seq": seq }).to_string();
    unfinished.send_bytes(ack.as_bytes()).expect("the agent reads");
    drop(unfinished);
    events.expect_no("checkpoint.captured", A_WHILE);
    events.ack(seq);
    nodus_tests::stored(asked);
}

fn resident_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("the agent runs");
    let pages: u64 =
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm has numbers");
    pages * 4096
}

#[test]
fn c64_an_endless_line_costs_the_agent_nothing() {
    const LIMIT: usize = 64 << 10;
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut endless = puppet.events();
    let mut other = puppet.events();
    let before = resident_bytes(agent.pid());
    let megabyte = vec![b'a'; 1 << 20];
    let cut_off = (0..1024).any(|_| endless.send_bytes(&megabyte).is_err());
    assert!(cut_off, "the agent took a line of 1 GiB");
    let after = resident_bytes(agent.pid());
    assert!(after < before + (8 << 20), "from {before} to {after} bytes");

    // Two legal lines, longer together than one may be, in a single write.
    let padding = "x".repeat(LIMIT * 9 / 10);
    let long = |completed: u64| {
        json!({ "type": "progress", "completed": completed, "total": 9, "pad": padding })
            .to_string()
    };
    let both = format!("{}\n{}\n", long(1), long(2));
    other.send_bytes(both.as_bytes()).expect("the agent reads");
    wait::until("both to be read", LONG, || job.describe()["progress"]["completed"] == 2);

    let deep = format!("{{\"type\":\"x\",\"a\":{}\n", "[".repeat(60_000));
    other.send_bytes(deep.as_bytes()).expect("the agent reads");
    other.expect("error");
    other.subscribe();
    job.wait_for_subscribers(1);
}

#[test]
fn c65_a_client_that_closes_while_the_agent_writes_is_just_gone() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    for round in 0..10 {
        puppet.save("a", &round.to_string());
        let events = puppet.subscriber();
        events.shut(std::net::Shutdown::Read);
        job.wait_for_subscribers(1);
        let asked = job.ask();
        drop(events);
        nodus_tests::stored(asked);
    }
    assert!(answers(&agent));
}

#[test]
fn c66_a_client_that_does_not_read_is_dropped_and_delays_nobody() {
    let agent = Agent::ready();
    let (deaf, mut silent) = Job::start(&agent, "deaf", "");
    let (brisk, mut quick) = Job::start(&agent, "brisk", "");
    quick.subscriber().answer_all();
    brisk.wait_for_subscribers(1);
    let mut unread = silent.subscriber();
    deaf.wait_for_subscribers(1);
    // Each of these lines is owed an answer, and nobody takes the answers.
    let garbage = "nonsense\n".repeat(1000);
    let flood = std::thread::spawn(move || {
        let dropped = (0..10_000).any(|_| unread.send_bytes(garbage.as_bytes()).is_err());
        assert!(dropped, "it was never dropped");
    });
    for round in 0..5 {
        quick.save("a", &round.to_string());
        let start = Instant::now();
        brisk.checkpoint_now();
        let took = start.elapsed();
        assert!(took < Duration::from_millis(1500), "{took:?}\n{}", agent.log());
    }
    flood.join().expect("the flood ends in a cut");
    deaf.wait_for_subscribers(0);
    let _again = silent.subscriber();
    deaf.wait_for_subscribers(1);
}

#[test]
fn c68_a_running_program_finds_the_new_socket_of_a_restarted_agent() {
    let mut agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut before = puppet.subscriber();
    job.wait_for_subscribers(1);
    agent.kill_9_and_restart();
    before.expect_closed();
    // As a client does that tries again until it is let in.
    let path = puppet.env("NODUS_EVENTS_SOCKET").expect("every attempt has an events socket");
    let again = || puppet.events_at(&path).ok();
    let mut after = wait::some("the new socket", Duration::from_secs(5), again);
    after.subscribe();
    job.wait_for_subscribers(1);
    puppet.save("a", "1");
    let asked = job.ask();
    let seq = after.expect_request();
    after.ack(seq);
    assert_eq!(nodus_tests::stored(asked)["outcome"]["consistency"], "Acked");
}

#[test]
fn c68_the_example_subscribes_again_within_seconds() {
    let mut agent = Agent::ready();
    let ctl = agent.ctl();
    let options = ["--env", "STEPS=10000", "--env", "STEP_SECONDS=0.05"];
    ctl.submit("train", &options, &[training::python(), &training::example()]);
    let subscribed = || ctl.describe("train")["subscribers"] == 1;
    wait::until("the example to subscribe", LONG, subscribed);
    agent.kill_9_and_restart();
    wait::until("the example to subscribe again", Duration::from_secs(5), subscribed);
    let seq = ctl.checkpoint_now("train");
    assert_eq!(ctl.checkpoint("train", seq)["consistency"], "Acked");
}

#[test]
fn c69_a_socket_that_was_cleaned_away_is_bound_again() {
    let agent = Agent::ready();
    let (job, mut puppet) = Job::start(&agent, "train", "");
    let mut existing = puppet.subscriber();
    job.wait_for_subscribers(1);
    let events = agent.events_socket("train");
    let mode = |path: &Path| fs::metadata(path).map(|found| found.permissions().mode()).ok();
    let before = (mode(&agent.control_socket()), mode(&events));
    for entry in fs::read_dir(agent.runtime_dir()).expect("it is there").filter_map(Result::ok) {
        if !entry.path().is_dir() {
            fs::remove_file(entry.path()).expect("sockets and locks can be removed");
        }
    }
    fs::remove_file(&events).expect("it is there");

    wait::until("both to be back", Duration::from_secs(30), || {
        (mode(&agent.control_socket()), mode(&events)) == before
    });
    assert!(answers(&agent));
    let _new = puppet.subscriber();
    job.wait_for_subscribers(2);
    existing.send(&json!({ "type": "progress", "completed": 5 }));
    wait::until("the old connection to go on", LONG, || {
        job.describe()["progress"]["completed"] == 5
    });
    let (status, _) = second_agent(&agent);
    assert!(status.is_some_and(|code| code != 0), "a missing lock file lets no second one in");
    assert!(answers(&agent));
}

#[test]
fn a_user_sees_and_controls_only_their_own_jobs() {
    if !is_root() {
        return skipped("a user's own jobs", "another user's process needs root");
    }
    let agent = Agent::ready();
    let (_job, _puppet) = Job::start(&agent, "train", "");
    let nobody = agent.ctl().as_user(NOBODY);
    assert!(!nobody.run(&["list"]).ok().stdout.contains("train"));
    for command in ["describe", "suspend", "stop", "delete", "logs"] {
        nobody.run(&[command, "train"]).ends_with(4);
    }
    nobody.run(&["checkpoint", "now", "train"]).ends_with(4);
    assert_eq!(agent.ctl().phase("train"), "Running");
}

#[test]
fn the_agent_stops_when_it_is_told_to_and_leaves_jobs_alone() {
    let mut agent = Agent::ready();
    let (job, puppet) = Job::start(&agent, "train", "");
    assert_eq!(agent.stop().code(), Some(0));
    assert!(Path::new(&format!("/proc/{}", puppet.pid())).exists());
    agent.start();
    assert_eq!(job.describe()["attempt"], 1);
    job.wait_for_phase("Running");
}
