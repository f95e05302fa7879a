//! What holds whatever happens, in whatever order.

use nodus_protocol::checkpoint::{FailureReason, Skipped};
use nodus_protocol::event::{Ack, AckStatus, Subscription};
use nodus_protocol::spec::{Integration, Quiesce};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Trigger { cause: Cause, urgent: bool, within: Option<u64>, copy: u64 },
    Subscribe { client: u64, pid: u32 },
    Leave { client: u64 },
    Ack { pid: u32, offset: u64, status: AckStatus },
    Captured { offset: u64 },
    Ended { offset: u64, outcome: usize },
    Started,
    Died { clean: bool },
    Woke,
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let causes = [Cause::Interval, Cause::Request, Cause::Suspend, Cause::Reclaim];
    let statuses = [AckStatus::Saved, AckStatus::Saved, AckStatus::Unchanged, AckStatus::Failed];
    // Mostly the seq in question, now and then the one before or after it.
    let offset = || prop::sample::select(&[1u64, 1, 1, 1, 0, 2][..]);
    let within = prop::option::of(0u64..400);
    prop_oneof![
        4 => (prop::sample::select(causes.to_vec()), any::<bool>(), within, 0u64..100).prop_map(
            |(cause, urgent, within, copy)| Step::Trigger { cause, urgent, within, copy }
        ),
        // A client belongs to one process: 0 and 3 to process 0, and so on.
        3 => (0u64..6).prop_map(|client| Step::Subscribe { client, pid: client as u32 % 3 }),
        2 => (0u64..6).prop_map(|client| Step::Leave { client }),
        6 => (0u32..4, offset(), prop::sample::select(statuses.to_vec()))
            .prop_map(|(pid, offset, status)| Step::Ack { pid, offset, status }),
        3 => offset().prop_map(|offset| Step::Captured { offset }),
        4 => (offset(), 0usize..3).prop_map(|(offset, outcome)| Step::Ended { offset, outcome }),
        2 => Just(Step::Started),
        1 => any::<bool>().prop_map(|clean| Step::Died { clean }),
        2 => Just(Step::Woke),
        3 => (0u64..700).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

fn outcome(which: usize) -> Outcome {
    let message = "no space left".to_owned();
    match which {
        0 => Outcome::Skipped { reason: Skipped::Unchanged },
        1 => Outcome::Failed { reason: FailureReason::NoSpace, message },
        _ => Outcome::Failed { reason: FailureReason::Internal, message },
    }
}

/// An observer that knows only the events and the actions, and checks them against each other.
struct Observer {
    coordinator: Coordinator,
    now: Instant,
    running: bool,
    /// The newest request: its seq, and the process and answer of every client it was sent to.
    request: u64,
    asked: BTreeMap<ClientId, (Pid, bool)>,
    /// Processes that lost a connection without having answered on any.
    deserters: BTreeSet<Pid>,
    /// When the last of them did.
    deserted: Option<Instant>,
    clients: BTreeMap<ClientId, Pid>,
    wake: Option<Instant>,
    in_flight: Option<u64>,
    newest_seq: u64,
    waiters: u64,
    answered: BTreeMap<WaiterId, u32>,
}

impl Observer {
    fn new(settings: Settings) -> Self {
        Self {
            coordinator: Coordinator::new(5, settings),
            now: Instant::now(),
            running: false,
            request: 4,
            asked: BTreeMap::new(),
            deserters: BTreeSet::new(),
            deserted: None,
            clients: BTreeMap::new(),
            wake: None,
            in_flight: None,
            newest_seq: 4,
            waiters: 0,
            answered: BTreeMap::new(),
        }
    }

    fn take(&mut self, step: Step) {
        let event = match step {
            Step::Trigger { cause, urgent, within, copy } => {
                self.waiters += 1;
                Event::Trigger(Trigger {
                    cause,
                    urgent,
                    deadline: within.map(|within| self.now + Duration::from_secs(within)),
                    expected_copy: Duration::from_secs(copy),
                    waiter: Some(WaiterId(self.waiters)),
                })
            }
            Step::Subscribe { client, pid } => {
                let (client, pid) = (ClientId(client), Pid(pid));
                self.clients.insert(client, pid);
                Event::Subscribed { client, pid, subscription: Subscription::default() }
            }
            Step::Leave { client } => Event::Left { client: ClientId(client) },
            Step::Ack { pid, offset, status } => {
                let ack = Ack { seq: self.request + offset - 1, status, message: None, step: None };
                Event::Ack { pid: Pid(pid), ack }
            }
            Step::Captured { offset } => Event::Captured { seq: self.newest_seq + offset - 1 },
            Step::Ended { offset, outcome: which } => {
                Event::Ended { seq: self.newest_seq + offset - 1, outcome: outcome(which) }
            }
            Step::Started => Event::AttemptStarted,
            Step::Died { clean } => Event::AttemptEnded { clean },
            Step::Woke => Event::Woke,
            Step::Pass { seconds } => {
                self.now += Duration::from_secs(seconds);
                return;
            }
        };
        self.send(event);
    }

    fn send(&mut self, event: Event) {
        self.before(&event);
        let woke = event == Event::Woke;
        let actions = self.coordinator.on(self.now, event);
        for action in &actions {
            self.check(action);
        }
        if woke && let Some((_, CheckpointStage::Waiting)) = self.coordinator.in_progress() {
            assert!(self.wake.unwrap() > self.now, "a request is open past its deadline");
        }
    }

    fn before(&mut self, event: &Event) {
        match event {
            Event::Ack { pid, ack }
                if ack.seq == self.request && ack.status != AckStatus::Failed =>
            {
                self.deserters.remove(pid);
                for (asked, answered) in self.asked.values_mut() {
                    *answered |= asked == pid;
                }
            }
            Event::Left { client } => {
                if let Some((pid, false)) = self.asked.remove(client)
                    && !self.asked.values().any(|(other, _)| *other == pid)
                {
                    self.deserters.insert(pid);
                    self.deserted = Some(self.now);
                }
            }
            // A deadline without room for the copy is over at once, without a timer.
            Event::Trigger(Trigger { deadline: Some(deadline), expected_copy, .. })
                if *deadline <= self.now + *expected_copy =>
            {
                self.wake = Some(self.now);
            }
            Event::Ended { seq, .. } if self.in_flight == Some(*seq) => self.in_flight = None,
            Event::AttemptStarted => self.running = true,
            Event::AttemptEnded { .. } => self.running = false,
            _ => {}
        }
    }

    fn check(&mut self, action: &Action) {
        match action {
            Action::Send { client, message: AgentMessage::Request { seq, .. } } => {
                if *seq != self.request {
                    assert_eq!(*seq, self.newest_seq + 1, "a request takes the next seq");
                    (self.request, self.newest_seq) = (*seq, *seq);
                    self.asked.clear();
                    self.deserters.clear();
                }
                let pid = self.clients[client];
                self.deserters.remove(&pid);
                self.asked.insert(*client, (pid, false));
            }
            Action::Capture { seq, trust, .. } => self.check_capture(*seq, *trust),
            Action::WakeAt(at) => self.wake = Some(*at),
            Action::Done(done) => {
                assert!(done.seq <= self.newest_seq);
                for waiter in &done.waiters {
                    *self.answered.entry(*waiter).or_default() += 1;
                }
            }
            Action::Rejected { waiter } => {
                assert!(!self.running, "only without an attempt is somebody turned away");
                *self.answered.entry(*waiter).or_default() += 1;
            }
            Action::Send { .. } | Action::Emit(_) => {}
        }
    }

    fn check_capture(&mut self, seq: u64, trust: Trust) {
        assert_eq!(self.in_flight.replace(seq), None, "two copies at once");
        let asked = seq == self.request;
        assert!(if asked { seq == self.newest_seq } else { seq == self.newest_seq + 1 });
        self.newest_seq = seq;
        let all_answered = self.asked.values().all(|(_, answered)| *answered);
        match trust {
            Trust::Acked if self.running => {
                assert!(asked && all_answered && self.deserters.is_empty(), "not acked by all");
            }
            Trust::NotAcked { reason: NotAcked::TimedOut, .. } if self.running => {
                assert!(self.now >= self.wake.unwrap(), "not before the deadline");
            }
            Trust::NotAcked { reason: NotAcked::GoneBeforeAck, .. } if self.running => {
                let grace_over = self.now >= self.deserted.unwrap() + request::REJOIN_GRACE;
                let late = self.now >= self.wake.unwrap();
                assert!(all_answered && !self.deserters.is_empty() && (grace_over || late));
            }
            Trust::NotAcked { reason, .. } if self.running => {
                assert!(!asked, "{reason:?} although it was asked");
            }
            Trust::NotAcked { request_open_at_death, .. } => {
                assert!(request_open_at_death || !asked, "it died with this request open");
            }
            Trust::Acked => {}
        }
    }

    /// Lets the attempt end and every copy come to its end.
    fn drain(mut self) -> (u64, BTreeMap<WaiterId, u32>) {
        self.send(Event::AttemptEnded { clean: false });
        while let Some(seq) = self.in_flight {
            self.send(Event::Captured { seq });
            self.send(Event::Ended { seq, outcome: outcome(0) });
        }
        assert_eq!(self.coordinator.in_progress(), None);
        (self.waiters, self.answered)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_happens(
        steps in prop::collection::vec(step(), 0..80),
        integration in prop::sample::select(&[Integration::Auto, Integration::None][..]),
    ) {
        let ack_timeout = Duration::from_secs(600);
        let mut observer =
            Observer::new(Settings { integration, ack_timeout, quiesce: Quiesce::None });
        observer.send(Event::AttemptStarted);
        for step in steps {
            observer.take(step);
        }
        let (waiters, answered) = observer.drain();
        prop_assert_eq!(answered.len() as u64, waiters, "everyone who asked is told");
        prop_assert!(answered.values().all(|times| *times == 1), "and only once: {:?}", answered);
    }
}
