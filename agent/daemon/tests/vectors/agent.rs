//! The agent under test: the events server and the coordinator, with a copy that ends as told.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use nodus_agent::coordinator::{Action, Coordinator, Event, Pid, Settings, Trigger, Trust};
use nodus_agent::events::{ClientEvent, EventsHub, Limits, Peer, Via, Whose};
use nodus_agent::socket::{Bound, Place};
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::{Cause, Committed, Consistency, FailureReason, Outcome, Skipped};
use nodus_protocol::event::{ProgramMessage, Progress};
use nodus_protocol::spec::{Integration, Quiesce};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::script::Copied;

/// What the test sees of the agent, each kind in its order.
pub(crate) struct Agent {
    pub(crate) triggers: mpsc::UnboundedSender<(Trigger, Copied)>,
    pub(crate) captures: mpsc::UnboundedReceiver<bool>,
    pub(crate) ends: mpsc::UnboundedReceiver<Outcome>,
    pub(crate) progress: mpsc::UnboundedReceiver<Progress>,
    pub(crate) subscribers: watch::Receiver<usize>,
}

/// The shell around the coordinator.
struct Shell {
    hub: EventsHub,
    coordinator: Coordinator,
    /// How the copies of the triggers to come end.
    copies: VecDeque<Copied>,
    wake: Option<Instant>,
    captures: mpsc::UnboundedSender<bool>,
    ends: mpsc::UnboundedSender<Outcome>,
    progress: mpsc::UnboundedSender<Progress>,
    subscribers: watch::Sender<usize>,
}

impl Agent {
    /// Serves one job at `path`, whose next checkpoint has this number.
    pub(crate) async fn start(path: &Path, next_seq: u64) -> Self {
        let job: JobName = "vectors".parse().unwrap();
        let resolved = job.clone();
        let resolver = move |_: Peer, _: &Via| Whose::Job(resolved.clone());
        let hub = EventsHub::new(Box::new(resolver), Limits::default());
        let clients = hub.add_job(job);
        let place = Place { path: path.to_owned(), mode: 0o600, owner: None, dir_mode: 0o700 };
        let bound = Bound::bind(place).await.unwrap();
        let server = hub.clone();
        tokio::spawn(
            async move { server.serve(bound, Via::Common, CancellationToken::new()).await },
        );

        let settings = Settings {
            integration: Integration::Auto,
            ack_timeout: Duration::from_secs(600),
            quiesce: Quiesce::None,
        };
        let (triggers, triggered) = mpsc::unbounded_channel();
        let (captures, captured) = mpsc::unbounded_channel();
        let (ends, ended) = mpsc::unbounded_channel();
        let (progress, progressed) = mpsc::unbounded_channel();
        let (subscribers, subscribed) = watch::channel(0);
        let mut shell = Shell {
            hub,
            coordinator: Coordinator::new(next_seq, settings),
            copies: VecDeque::new(),
            wake: None,
            captures,
            ends,
            progress,
            subscribers,
        };
        shell.on(Event::AttemptStarted);
        tokio::spawn(shell.run(clients, triggered));
        Self {
            triggers,
            captures: captured,
            ends: ended,
            progress: progressed,
            subscribers: subscribed,
        }
    }
}

impl Shell {
    async fn run(
        mut self,
        mut clients: mpsc::Receiver<ClientEvent>,
        mut triggers: mpsc::UnboundedReceiver<(Trigger, Copied)>,
    ) {
        loop {
            let wake = self.wake.map(tokio::time::Instant::from_std);
            let far = tokio::time::Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                Some(event) = clients.recv() => self.client(event),
                Some((trigger, copied)) = triggers.recv() => {
                    self.copies.push_back(copied);
                    self.on(Event::Trigger(trigger));
                }
                () = tokio::time::sleep_until(wake.unwrap_or(far)) => {
                    self.wake = None;
                    self.on(Event::Woke);
                }
                else => return,
            }
        }
    }

    fn client(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Left { client } => self.on(Event::Left { client }),
            ClientEvent::Message { client, peer, message } => {
                let pid = Pid(peer.pid);
                match message {
                    ProgramMessage::Subscribe(subscription) => {
                        self.on(Event::Subscribed { client, pid, subscription });
                    }
                    ProgramMessage::Ack(ack) => self.on(Event::Ack { pid, ack }),
                    ProgramMessage::Now => {
                        self.copies.push_back(Copied::Committed);
                        self.on(Event::Trigger(trigger(Cause::Request, false)));
                    }
                    // The test may be over.
                    ProgramMessage::Progress(progress) => drop(self.progress.send(progress)),
                    other => panic!("not for the job: {other:?}"),
                }
            }
        }
    }

    fn on(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.coordinator.on(Instant::now(), event) {
                self.act(action, &mut events);
            }
        }
        self.subscribers.send_replace(self.coordinator.subscribers());
    }

    fn act(&mut self, action: Action, events: &mut VecDeque<Event>) {
        match action {
            Action::Send { client, message } => drop(self.hub.send(client, &message)),
            Action::Capture { seq, trust, .. } => {
                let copied = self.copies.pop_front().unwrap_or_default();
                let _ = self.captures.send(trust == Trust::Acked);
                if copied != Copied::Failed {
                    events.push_back(Event::Captured { seq });
                }
                events.push_back(Event::Ended { seq, outcome: outcome(copied, trust) });
            }
            Action::WakeAt(at) => self.wake = Some(at),
            Action::Done(done) => drop(self.ends.send(done.outcome)),
            Action::Rejected { .. } | Action::Emit(_) => {}
        }
    }
}

pub(crate) fn trigger(cause: Cause, urgent: bool) -> Trigger {
    Trigger { cause, urgent, deadline: None, expected_copy: Duration::ZERO, waiter: None }
}

fn outcome(copied: Copied, trust: Trust) -> Outcome {
    let consistency = if trust == Trust::Acked { Consistency::Acked } else { Consistency::Quiet };
    match copied {
        Copied::Committed => {
            Outcome::Committed(Committed { consistency, files: 1, bytes: 10, stored_bytes: 7 })
        }
        Copied::Skipped => Outcome::Skipped { reason: Skipped::Unchanged },
        Copied::Failed => Outcome::Failed {
            reason: FailureReason::NoSpace,
            message: "cannot write to the store: no space left".to_owned(),
        },
    }
}
