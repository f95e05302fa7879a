use nodus_protocol::checkpoint::{Committed, Consistency, FailureReason, Skipped};
use nodus_protocol::event::{Ack, AckStatus, Subscription};
use nodus_protocol::spec::{Integration, Quiesce};

use super::*;

const ACK_TIMEOUT: Duration = Duration::from_secs(600);

/// A coordinator whose clock the test moves, with everything that it has asked for.
struct Rig {
    coordinator: Coordinator,
    begin: Instant,
    now: Instant,
    seen: Vec<Action>,
}

fn settings() -> Settings {
    Settings { integration: Integration::Auto, ack_timeout: ACK_TIMEOUT, quiesce: Quiesce::None }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn committed() -> Outcome {
    Outcome::Committed(Committed {
        consistency: Consistency::Acked,
        files: 1,
        bytes: 10,
        stored_bytes: 5,
    })
}

fn saved(seq: u64) -> Ack {
    Ack { seq, status: AckStatus::Saved, message: None, step: None }
}

fn interval() -> Trigger {
    Trigger {
        cause: Cause::Interval,
        urgent: false,
        deadline: None,
        expected_copy: Duration::ZERO,
        waiter: None,
    }
}

fn not_acked(reason: NotAcked) -> Trust {
    Trust::NotAcked { request_open_at_death: false, reason }
}

const GONE: Trust =
    Trust::NotAcked { request_open_at_death: true, reason: NotAcked::GoneBeforeAck };

impl Rig {
    fn with(settings: Settings) -> Self {
        let now = Instant::now();
        let coordinator = Coordinator::new(7, settings);
        let mut rig = Self { coordinator, begin: now, now, seen: Vec::new() };
        rig.on(Event::AttemptStarted);
        rig
    }

    fn new() -> Self {
        Self::with(settings())
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let actions = self.coordinator.on(self.now, event);
        self.seen.extend(actions.clone());
        actions
    }

    fn after(&mut self, duration: Duration) -> &mut Self {
        self.now += duration;
        self
    }

    fn woke(&mut self) -> Vec<Action> {
        self.on(Event::Woke)
    }

    fn trigger(&mut self, trigger: Trigger) -> Vec<Action> {
        self.on(Event::Trigger(trigger))
    }

    fn suspend(&mut self, within: u64, copy: u64) -> Vec<Action> {
        let trigger = Trigger {
            cause: Cause::Suspend,
            urgent: true,
            deadline: Some(self.now + secs(within)),
            expected_copy: secs(copy),
            waiter: Some(WaiterId(99)),
        };
        self.trigger(trigger)
    }

    fn subscribe(&mut self, client: u64, pid: u32) -> Vec<Action> {
        self.subscribe_with(client, pid, false)
    }

    fn subscribe_with(&mut self, client: u64, pid: u32, notify: bool) -> Vec<Action> {
        let subscription = Subscription { notify, rank: None, client: None };
        self.on(Event::Subscribed { client: ClientId(client), pid: Pid(pid), subscription })
    }

    fn leave(&mut self, client: u64) -> Vec<Action> {
        self.on(Event::Left { client: ClientId(client) })
    }

    fn ack(&mut self, pid: u32, seq: u64) -> Vec<Action> {
        self.on(Event::Ack { pid: Pid(pid), ack: saved(seq) })
    }

    fn end(&mut self, seq: u64, outcome: Outcome) -> Vec<Action> {
        self.on(Event::Captured { seq });
        self.on(Event::Ended { seq, outcome })
    }

    fn wakes_at(&self) -> Option<Duration> {
        let wake = self.seen.iter().rev().find_map(|action| match action {
            Action::WakeAt(at) => Some(*at),
            _ => None,
        });
        wake.map(|at| at - self.begin)
    }
}

fn captures(actions: &[Action]) -> Vec<(u64, Cause, Trust)> {
    let capture = |action: &Action| match action {
        Action::Capture { seq, cause, trust, .. } => Some((*seq, *cause, *trust)),
        _ => None,
    };
    actions.iter().filter_map(capture).collect()
}

/// (client, seq, urgent, milliseconds left) of each request.
fn requests(actions: &[Action]) -> Vec<(u64, u64, bool, Option<u64>)> {
    let request = |action: &Action| match action {
        Action::Send {
            client,
            message: AgentMessage::Request { seq, urgent, deadline_ms, .. },
        } => Some((client.0, *seq, *urgent, *deadline_ms)),
        _ => None,
    };
    actions.iter().filter_map(request).collect()
}

fn done(actions: &[Action]) -> Vec<&Done> {
    let mut found = Vec::new();
    for action in actions {
        if let Action::Done(done) = action {
            found.push(done);
        }
    }
    found
}

fn sent(actions: &[Action], to: u64) -> Vec<&AgentMessage> {
    let mut found = Vec::new();
    for action in actions {
        if let Action::Send { client: ClientId(client), message } = action
            && *client == to
        {
            found.push(message);
        }
    }
    found
}

#[test]
fn request_ack_capture_commit() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    let asked = rig.trigger(interval());
    assert_eq!(requests(&asked), [(1, 7, false, None)]);
    assert!(captures(&asked).is_empty(), "nothing is captured before the ack");
    assert!(asked.contains(&Action::Emit(JobEvent::CheckpointRequested {
        seq: 7,
        cause: Cause::Interval,
        urgent: false,
        subscribers: 1,
    })));
    assert_eq!(rig.coordinator.in_progress(), Some((7, CheckpointStage::Waiting)));
    assert_eq!(rig.wakes_at(), Some(ACK_TIMEOUT));

    let acked = rig.after(secs(3)).ack(10, 7);
    assert_eq!(captures(&acked), [(7, Cause::Interval, Trust::Acked)]);
    let captured = rig.after(secs(1)).on(Event::Captured { seq: 7 });
    let held_up = JobEvent::CheckpointCaptured { seq: 7, held_up_ms: 4000 };
    assert_eq!(captured, [Action::Emit(held_up)]);
    assert_eq!(rig.coordinator.in_progress(), Some((7, CheckpointStage::Archiving)));
    let ended = rig.after(secs(5)).on(Event::Ended { seq: 7, outcome: committed() });
    let cost = Cost { held_up: secs(4), until_committed: secs(9), committed: true };
    assert_eq!(done(&ended)[0].cost, Some(cost));
    assert!(ended.contains(&Action::Emit(JobEvent::CheckpointEnded {
        seq: 7,
        cause: Cause::Interval,
        outcome: committed(),
        took_ms: 9000,
    })));
    assert_eq!(rig.coordinator.in_progress(), None);
    assert_eq!(requests(&rig.trigger(interval())), [(1, 8, false, None)]);
}

#[test]
fn every_subscriber_acks_or_is_waited_for() {
    let mut rig = Rig::new();
    for client in 1..=3 {
        rig.subscribe(client, 10 * client as u32);
    }
    assert_eq!(requests(&rig.trigger(interval())).len(), 3);
    assert!(captures(&rig.ack(10, 7)).is_empty());
    assert!(captures(&rig.ack(30, 7)).is_empty());
    assert_eq!(captures(&rig.ack(20, 7)), [(7, Cause::Interval, Trust::Acked)]);
}

#[test]
fn one_that_leaves_is_no_longer_waited_for_but_does_not_count_as_an_ack() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.subscribe(2, 20);
    rig.trigger(interval());
    rig.ack(10, 7);
    assert!(captures(&rig.leave(2)).is_empty());
    assert_eq!(rig.wakes_at(), Some(request::REJOIN_GRACE));
    let gone_on = rig.after(request::REJOIN_GRACE).woke();
    assert_eq!(captures(&gone_on), [(7, Cause::Interval, GONE)]);
}

#[test]
fn one_that_left_after_its_ack_has_answered() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.subscribe(2, 20);
    rig.trigger(interval());
    rig.ack(10, 7);
    rig.leave(1);
    assert_eq!(captures(&rig.ack(20, 7)), [(7, Cause::Interval, Trust::Acked)]);
}

#[test]
fn one_that_joins_while_a_request_is_open_is_asked_and_waited_for() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.suspend(30, 10);
    let joined = rig.after(secs(5)).subscribe(2, 20);
    assert_eq!(requests(&joined), [(2, 7, true, Some(15_000))]);
    assert!(captures(&rig.ack(10, 7)).is_empty());
    assert_eq!(captures(&rig.ack(20, 7)), [(7, Cause::Suspend, Trust::Acked)]);
}

#[test]
fn subscribing_twice_is_one_subscription() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.subscribe(1, 10);
    assert_eq!(rig.coordinator.subscribers(), 1);
    assert_eq!(requests(&rig.trigger(interval())).len(), 1);
    assert!(rig.subscribe(1, 10).is_empty(), "it was asked already");
    assert_eq!(captures(&rig.ack(10, 7)).len(), 1);
}

#[test]
fn an_ack_counts_for_the_process_on_whichever_of_its_connections() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.subscribe(2, 10);
    assert_eq!(requests(&rig.trigger(interval())).len(), 2);
    rig.leave(1);
    assert_eq!(captures(&rig.ack(10, 7)), [(7, Cause::Interval, Trust::Acked)]);
}

#[test]
fn c65_a_connection_that_is_lost_and_made_again_is_asked_again() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    rig.leave(1);
    let back = rig.after(request::REJOIN_GRACE / 2).subscribe(2, 10);
    assert_eq!(requests(&back), [(2, 7, false, None)]);
    assert!(captures(&rig.after(request::REJOIN_GRACE).woke()).is_empty());
    assert_eq!(captures(&rig.ack(10, 7)), [(7, Cause::Interval, Trust::Acked)]);
}

#[test]
fn acks_of_strangers_and_for_other_seqs_change_nothing() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    for (pid, seq) in [(10, 6), (10, 8), (11, 7)] {
        assert!(rig.ack(pid, seq).is_empty(), "pid {pid} acked {seq}");
    }
    let failed = Ack { status: AckStatus::Failed, ..saved(7) };
    assert!(rig.on(Event::Ack { pid: Pid(11), ack: failed }).is_empty());
    assert_eq!(captures(&rig.ack(10, 7)).len(), 1);
}

#[test]
fn c67_acks_without_a_request_or_repeated() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    assert!(rig.ack(10, 7).is_empty(), "no request is open");
    rig.trigger(interval());
    assert_eq!(captures(&rig.ack(10, 7)).len(), 1);
    assert!(rig.ack(10, 7).is_empty());
    assert!(rig.ack(10, 7).is_empty());
    assert_eq!(done(&rig.end(7, committed())).len(), 1);
    assert!(captures(&rig.trigger(interval())).is_empty());
    assert!(rig.ack(10, 7).is_empty(), "request 8 stays open until its own ack");
    assert_eq!(captures(&rig.ack(10, 8)).len(), 1);
}

#[test]
fn unchanged_is_as_good_as_saved() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    let ack = Ack { status: AckStatus::Unchanged, ..saved(7) };
    let acked = rig.on(Event::Ack { pid: Pid(10), ack });
    assert_eq!(captures(&acked), [(7, Cause::Interval, Trust::Acked)]);
}

#[test]
fn a_failed_save_fails_the_checkpoint_and_copies_nothing() {
    let mut rig = Rig::new();
    rig.subscribe_with(1, 10, true);
    rig.trigger(Trigger { waiter: Some(WaiterId(1)), ..interval() });
    let ack = Ack { status: AckStatus::Failed, message: Some("disk quota".to_owned()), ..saved(7) };
    let actions = rig.on(Event::Ack { pid: Pid(10), ack });
    assert!(captures(&actions).is_empty());
    let message = "disk quota".to_owned();
    let outcome = Outcome::Failed { reason: FailureReason::SaveFailed, message };
    assert_eq!(done(&actions)[0].outcome, outcome);
    assert_eq!(done(&actions)[0].waiters, [WaiterId(1)]);
    assert!(matches!(sent(&actions, 1)[..], [AgentMessage::Failed { seq: 7, .. }]));
    assert_eq!(requests(&rig.trigger(interval())), [(1, 8, false, None)], "seq 7 is used up");
}

#[test]
fn a_program_that_dies_after_a_failed_save_may_have_left_half_a_file() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    let ack = Ack { status: AckStatus::Failed, ..saved(7) };
    rig.on(Event::Ack { pid: Pid(10), ack });
    let ended = rig.on(Event::AttemptEnded { clean: false });
    assert_eq!(captures(&ended), [(8, Cause::Exit, GONE)]);
}

#[test]
fn nobody_to_ask_means_capture_at_once() {
    let mut rig = Rig::new();
    let nobody = not_acked(NotAcked::NoSubscriber);
    assert_eq!(captures(&rig.trigger(interval())), [(7, Cause::Interval, nobody)]);

    let mut rig = Rig::with(Settings { integration: Integration::None, ..settings() });
    rig.subscribe_with(1, 10, true);
    let actions = rig.trigger(interval());
    assert!(requests(&actions).is_empty());
    assert_eq!(captures(&actions), [(7, Cause::Interval, not_acked(NotAcked::NotAsked))]);
    let told = rig.on(Event::Captured { seq: 7 });
    assert_eq!(sent(&told, 1), [&AgentMessage::Captured { seq: 7 }]);
}

#[test]
fn only_a_program_that_is_not_asked_is_frozen() {
    let freezing = Settings { quiesce: Quiesce::Freeze, ..settings() };
    let frozen = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Capture { freeze: true, .. }))
    };
    let mut rig = Rig::with(freezing);
    assert!(frozen(&rig.trigger(interval())));
    rig.end(7, committed());
    rig.subscribe(1, 10);
    rig.trigger(interval());
    assert!(!frozen(&rig.ack(10, 8)));
    rig.end(8, committed());
    assert!(!frozen(&rig.on(Event::AttemptEnded { clean: true })));
}

#[test]
fn an_ordinary_request_waits_for_the_ack_timeout_and_goes_on() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    let early = rig.after(ACK_TIMEOUT - secs(1)).woke();
    assert!(captures(&early).is_empty());
    assert_eq!(rig.wakes_at(), Some(ACK_TIMEOUT), "a timer that came early is set again");
    let late = rig.after(secs(1)).woke();
    assert_eq!(captures(&late), [(7, Cause::Interval, not_acked(NotAcked::TimedOut))]);
    assert!(rig.on(Event::Captured { seq: 7 }).contains(&Action::Emit(
        // It worked on while it was waited for.
        JobEvent::CheckpointCaptured { seq: 7, held_up_ms: 0 }
    )));
}

#[test]
fn c17_an_ack_after_the_deadline_does_not_make_it_acked() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    let asked = rig.suspend(30, 10);
    assert_eq!(requests(&asked), [(1, 7, true, Some(20_000))]);
    assert_eq!(rig.wakes_at(), Some(secs(20)));
    // The ack is seen before the timer is.
    let late = rig.after(secs(21)).ack(10, 7);
    assert_eq!(captures(&late), [(7, Cause::Suspend, not_acked(NotAcked::TimedOut))]);
    assert!(captures(&rig.ack(10, 7)).is_empty());
}

#[test]
fn c17_a_deadline_without_time_for_an_ack_goes_on_at_once() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    let actions = rig.suspend(30, 40);
    assert!(requests(&actions).is_empty());
    assert_eq!(captures(&actions), [(7, Cause::Suspend, not_acked(NotAcked::NoTime))]);
}

#[test]
fn a_trigger_that_meets_an_open_request_is_merged_into_it() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.subscribe(2, 20);
    rig.trigger(Trigger { cause: Cause::Request, waiter: Some(WaiterId(1)), ..interval() });
    rig.ack(20, 7);
    assert!(rig.after(secs(1)).trigger(interval()).is_empty(), "nothing changes");

    let urgent = rig.suspend(30, 10);
    assert_eq!(requests(&urgent), [(1, 7, true, Some(20_000))], "only who has not answered");
    assert_eq!(rig.wakes_at(), Some(secs(21)));

    assert!(requests(&rig.suspend(300, 10)).is_empty(), "it is never loosened");
    assert!(requests(&rig.trigger(interval())).is_empty());
    assert_eq!(requests(&rig.suspend(15, 10)), [(1, 7, true, Some(5_000))]);

    assert_eq!(captures(&rig.ack(10, 7)), [(7, Cause::Suspend, Trust::Acked)]);
    let ended = rig.end(7, committed());
    assert_eq!(done(&ended)[0].waiters.len(), 4);
    assert_eq!(rig.coordinator.in_progress(), None, "nothing is left to run");
}

#[test]
fn c50_triggers_that_meet_a_copy_become_one_checkpoint_after_it() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    rig.ack(10, 7);
    for waiter in 0..5 {
        let missed = rig.trigger(Trigger { waiter: Some(WaiterId(waiter)), ..interval() });
        assert!(missed.is_empty());
    }
    rig.on(Event::Captured { seq: 7 });
    assert!(rig.suspend(60, 10).is_empty());
    let ended = rig.after(secs(5)).on(Event::Ended { seq: 7, outcome: committed() });
    assert!(done(&ended)[0].waiters.is_empty(), "what they asked for is newer");
    assert_eq!(requests(&ended), [(1, 8, true, Some(45_000))]);
    rig.ack(10, 8);
    let ended = rig.end(8, committed());
    assert_eq!(done(&ended)[0].cause, Cause::Suspend);
    assert_eq!(done(&ended)[0].waiters.len(), 6);
    assert_eq!(rig.coordinator.in_progress(), None);
}

#[test]
fn c06_a_program_that_dies_with_a_request_open_has_not_acknowledged() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    rig.leave(1);
    let died = rig.after(secs(0)).on(Event::AttemptEnded { clean: false });
    assert_eq!(captures(&died), [(7, Cause::Exit, GONE)]);
    let told = died.iter().find_map(|action| match action {
        Action::Emit(JobEvent::Warning { message }) => Some(message.clone()),
        _ => None,
    });
    assert!(told.unwrap().contains("went away before it acknowledged"));
}

#[test]
fn c06_a_program_that_only_hangs_up_is_reported_within_two_seconds() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    rig.leave(1);
    let wake = rig.wakes_at().unwrap();
    assert!(wake < secs(2));
    let gone_on = rig.after(wake).woke();
    assert_eq!(captures(&gone_on), [(7, Cause::Interval, GONE)]);
}

#[test]
fn exit_0_with_a_request_open_is_as_good_as_an_ack() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    let ended = rig.on(Event::AttemptEnded { clean: true });
    assert_eq!(captures(&ended), [(7, Cause::Exit, Trust::Acked)]);
}

#[test]
fn the_exit_checkpoint_is_taken_at_once() {
    for (clean, trust) in [(true, Trust::Acked), (false, not_acked(NotAcked::Exited))] {
        let mut rig = Rig::new();
        rig.subscribe_with(1, 10, true);
        let ended = rig.on(Event::AttemptEnded { clean });
        assert_eq!(captures(&ended), [(7, Cause::Exit, trust)]);
        let ended = rig.end(7, committed());
        assert!(sent(&ended, 1).is_empty(), "nobody is there any more");
        assert_eq!(done(&ended)[0].cost, None, "it says nothing about a running program");
        assert!(rig.on(Event::AttemptEnded { clean }).is_empty());
    }
}

#[test]
fn the_exit_checkpoint_follows_a_copy_that_is_under_way() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.trigger(interval());
    rig.ack(10, 7);
    rig.trigger(Trigger { waiter: Some(WaiterId(1)), ..interval() });
    assert!(rig.on(Event::AttemptEnded { clean: false }).is_empty());
    let waits = Trigger { waiter: Some(WaiterId(2)), ..interval() };
    assert!(rig.trigger(waits).is_empty());
    let ended = rig.end(7, committed());
    assert_eq!(captures(&ended), [(8, Cause::Exit, not_acked(NotAcked::Exited))]);
    rig.trigger(Trigger { waiter: Some(WaiterId(3)), ..interval() });
    let ended = rig.end(8, Outcome::Skipped { reason: Skipped::Unchanged });
    assert_eq!(done(&ended)[0].waiters, [WaiterId(1), WaiterId(2), WaiterId(3)]);
}

#[test]
fn a_request_that_timed_out_is_still_open_when_the_program_dies() {
    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.suspend(30, 10);
    rig.after(secs(20)).woke();
    rig.end(7, committed());
    let ended = rig.on(Event::AttemptEnded { clean: false });
    assert_eq!(captures(&ended), [(8, Cause::Exit, GONE)]);

    let mut rig = Rig::new();
    rig.subscribe(1, 10);
    rig.suspend(30, 10);
    rig.after(secs(20)).woke();
    rig.end(7, committed());
    rig.ack(10, 7);
    let ended = rig.on(Event::AttemptEnded { clean: false });
    let exited = not_acked(NotAcked::Exited);
    assert_eq!(captures(&ended), [(8, Cause::Exit, exited)], "the late ack ended the save");
}

#[test]
fn without_an_attempt_a_waiter_is_turned_away() {
    let mut rig = Rig { coordinator: Coordinator::new(1, settings()), ..Rig::new() };
    let rejected = [Action::Rejected { waiter: WaiterId(5) }];
    let asks = Trigger { waiter: Some(WaiterId(5)), ..interval() };
    assert_eq!(rig.trigger(asks), rejected);
    assert!(rig.trigger(interval()).is_empty());
    rig.on(Event::AttemptStarted);
    rig.on(Event::AttemptEnded { clean: true });
    rig.end(1, committed());
    assert_eq!(rig.trigger(asks), rejected);
}

#[test]
fn those_who_want_to_know_are_told_how_it_ended() {
    let mut rig = Rig::new();
    rig.subscribe_with(1, 10, true);
    rig.subscribe_with(2, 20, false);
    let failed =
        Outcome::Failed { reason: FailureReason::NoSpace, message: "no space left".to_owned() };
    let outcomes = [committed(), failed, Outcome::Skipped { reason: Skipped::Empty }];
    for (seq, outcome) in (7..).zip(outcomes) {
        rig.trigger(interval());
        rig.ack(10, seq);
        rig.ack(20, seq);
        let captured = rig.on(Event::Captured { seq });
        assert_eq!(sent(&captured, 1), [&AgentMessage::Captured { seq }]);
        let ended = rig.on(Event::Ended { seq, outcome: outcome.clone() });
        assert_eq!(sent(&ended, 1), [&end_message(seq, &outcome)]);
        assert!(sent(&captured, 2).is_empty() && sent(&ended, 2).is_empty());
        assert!(rig.on(Event::Ended { seq, outcome }).is_empty(), "it ends once");
    }
    assert_eq!(rig.coordinator.next_seq(), 10, "failed and skipped ones use up their seq");
}
