//! One job's checkpoints: who is asked first, when the capture begins, and what is known then.
//!
//! ```text
//!            trigger               all acks, or the deadline              Ended
//!   Idle ---------------> Waiting --------------------------> Copying ----------> Idle, or the next
//!     \                      | save failed                       ^
//!      \                     v                                   |
//!       \                  Idle                                  |
//!        `--- nobody to ask, or the attempt has ended -----------'
//! ```
//!
//! There is at most one checkpoint at a time. A trigger that meets one that still waits for acks is
//! merged into it, and can only make it more urgent. One that meets a later stage waits for its end,
//! merged with others that do, and then runs at once: a copy that has begun is never abandoned, so
//! what was nearly safe becomes safe, and something newer follows.
//!
//! Nothing here reads a clock or touches a socket or a file: [`Coordinator::on`] takes what happened
//! and the time, and returns what to do. Judging the files themselves is left to the capture.

mod asking;
mod copying;
mod event;
mod request;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::{Cause, Outcome};
use nodus_protocol::control::{CheckpointStage, JobEvent};
use nodus_protocol::event::AgentMessage;

use crate::events::ClientId;
use copying::{Copying, end_message};
pub use event::{Action, Cost, Done, Event, NotAcked, Pid, Settings, Trigger, Trust, WaiterId};
use request::{Request, Wish};

/// Takes one job's triggers and runs its checkpoints one after another.
#[derive(Debug)]
pub struct Coordinator {
    settings: Settings,
    next_seq: u64,
    attempt: Attempt,
    subscribers: BTreeMap<ClientId, Subscriber>,
    owing: Owing,
    stage: Stage,
    queued: Option<Wish>,
    armed: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Attempt {
    None,
    Running,
    /// What its files can be trusted with, now that nobody writes them any more.
    Ended(Trust),
}

#[derive(Clone, Copy, Debug)]
struct Subscriber {
    pid: Pid,
    notify: bool,
}

/// The processes that did not answer the newest request: if they die so, they may have died in the
/// middle of a save.
#[derive(Debug, Default)]
struct Owing {
    seq: u64,
    pids: BTreeSet<Pid>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Waiting(Box<Request>),
    Copying(Copying),
}

impl Coordinator {
    /// A coordinator without an attempt; `next_seq` is above every seq that was ever used.
    #[must_use]
    pub fn new(next_seq: u64, settings: Settings) -> Self {
        Self {
            settings,
            next_seq,
            attempt: Attempt::None,
            subscribers: BTreeMap::new(),
            owing: Owing::default(),
            stage: Stage::Idle,
            queued: None,
            armed: None,
        }
    }

    /// What to do about `event`, in this order.
    pub fn on(&mut self, now: Instant, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        // What a client says after the deadline is late even if the timer has not been seen yet. A
        // death is not: it has to be known before the capture begins.
        if matches!(event, Event::Trigger(_) | Event::Subscribed { .. } | Event::Ack { .. }) {
            self.settle(now, &mut out);
        }
        match event {
            Event::Trigger(trigger) => self.trigger(now, trigger, &mut out),
            Event::Subscribed { client, pid, subscription } => {
                self.subscribe(now, client, pid, &subscription, &mut out);
            }
            Event::Left { client } => self.leave(now, client),
            Event::Ack { pid, ack } => self.ack(now, pid, ack, &mut out),
            Event::Captured { seq } => self.captured(now, seq, &mut out),
            Event::Ended { seq, outcome } => self.ended(now, seq, outcome, &mut out),
            Event::AttemptStarted => self.attempt_started(),
            Event::AttemptEnded { clean } => self.attempt_ended(now, clean, &mut out),
            Event::Woke => self.armed = None,
        }
        self.settle(now, &mut out);
        out
    }

    /// The number the next checkpoint will have.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// How many connections ask to be told before each checkpoint.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.subscribers.len()
    }

    /// The checkpoint that is being taken, and how far it is.
    #[must_use]
    pub fn in_progress(&self) -> Option<(u64, CheckpointStage)> {
        match &self.stage {
            Stage::Idle => None,
            Stage::Waiting(request) => Some((request.seq, CheckpointStage::Waiting)),
            Stage::Copying(copying) => {
                let stage = match copying.captured {
                    None => CheckpointStage::Capturing,
                    Some(_) => CheckpointStage::Archiving,
                };
                Some((copying.seq, stage))
            }
        }
    }

    fn trigger(&mut self, now: Instant, trigger: Trigger, out: &mut Vec<Action>) {
        match (&mut self.stage, &self.attempt) {
            (Stage::Waiting(request), _) => {
                if request.tighten(now, trigger, self.settings.ack_timeout) {
                    let message = request.message(now);
                    out.extend(request.waiting().map(|client| send(client, &message)));
                }
            }
            (Stage::Copying(_), Attempt::Running) => match &mut self.queued {
                Some(wish) => wish.merge(trigger),
                None => self.queued = Some(Wish::new(now, trigger)),
            },
            // After the end the files stay as they are, so the exit checkpoint serves everybody.
            (Stage::Copying(copying), _) => match &mut self.queued {
                Some(wish) => wish.merge(trigger),
                None => copying.wish.merge(trigger),
            },
            (Stage::Idle, Attempt::Running) => self.ask(now, Wish::new(now, trigger), out),
            (Stage::Idle, _) => {
                out.extend(trigger.waiter.map(|waiter| Action::Rejected { waiter }));
            }
        }
    }

    fn capture(&mut self, copying: Copying, trust: Trust, freeze: bool, out: &mut Vec<Action>) {
        let seq = copying.seq;
        if let Trust::NotAcked { reason, .. } = trust
            && matches!(reason, NotAcked::TimedOut | NotAcked::GoneBeforeAck | NotAcked::NoTime)
        {
            let message = format!("checkpoint {seq} is taken without an ack: {reason}");
            out.push(Action::Emit(JobEvent::Warning { message }));
        }
        out.push(Action::Capture { seq, cause: copying.wish.cause, trust, freeze });
        self.stage = Stage::Copying(copying);
    }

    fn captured(&mut self, now: Instant, seq: u64, out: &mut Vec<Action>) {
        let Stage::Copying(copying) = &mut self.stage else { return };
        if copying.seq != seq || copying.captured.is_some() {
            return;
        }
        copying.captured = Some(now);
        let held_up_ms = millis(copying.held_up(now));
        self.notify(&AgentMessage::Captured { seq }, out);
        out.push(Action::Emit(JobEvent::CheckpointCaptured { seq, held_up_ms }));
    }

    fn ended(&mut self, now: Instant, seq: u64, outcome: Outcome, out: &mut Vec<Action>) {
        match &self.stage {
            Stage::Copying(copying) if copying.seq == seq => {}
            _ => return,
        }
        let Stage::Copying(copying) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        let cost = copying.cost(now, &outcome);
        self.finish(now, seq, copying.wish, outcome, cost, out);
        if let Some(wish) = self.queued.take() {
            match self.attempt {
                Attempt::Ended(trust) => self.capture_after_end(now, wish, trust, out),
                Attempt::Running | Attempt::None => self.ask(now, wish, out),
            }
        }
    }

    fn finish(
        &mut self,
        now: Instant,
        seq: u64,
        wish: Wish,
        outcome: Outcome,
        cost: Option<Cost>,
        out: &mut Vec<Action>,
    ) {
        self.notify(&end_message(seq, &outcome), out);
        let Wish { cause, waiters, since, .. } = wish;
        let took_ms = millis(now.saturating_duration_since(since));
        let ended = JobEvent::CheckpointEnded { seq, cause, outcome: outcome.clone(), took_ms };
        out.push(Action::Emit(ended));
        out.push(Action::Done(Done { seq, cause, outcome, cost, waiters }));
    }

    fn attempt_started(&mut self) {
        self.attempt = Attempt::Running;
        self.owing = Owing::default();
    }

    fn attempt_ended(&mut self, now: Instant, clean: bool, out: &mut Vec<Action>) {
        if !matches!(self.attempt, Attempt::Running) {
            return;
        }
        self.subscribers.clear();
        let open = match &self.stage {
            Stage::Waiting(_) => true,
            Stage::Idle | Stage::Copying(_) => !self.owing.pids.is_empty(),
        };
        let reason = if open { NotAcked::GoneBeforeAck } else { NotAcked::Exited };
        let trust = match clean {
            true => Trust::Acked,
            false => Trust::NotAcked { request_open_at_death: open, reason },
        };
        self.attempt = Attempt::Ended(trust);
        self.take_exit_checkpoint(now, trust, out);
    }

    /// Nobody is left to ask, so the newest saved files are captured at once, or right after the
    /// copy that is under way.
    fn take_exit_checkpoint(&mut self, now: Instant, trust: Trust, out: &mut Vec<Action>) {
        let exit = Trigger {
            cause: Cause::Exit,
            urgent: false,
            deadline: None,
            expected_copy: Duration::ZERO,
            waiter: None,
        };
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Idle => self.capture_after_end(now, Wish::new(now, exit), trust, out),
            Stage::Waiting(request) => {
                self.armed = None;
                let Request { seq, mut wish, .. } = *request;
                wish.merge(exit);
                self.capture(Copying::after_end(seq, wish, now), trust, false, out);
            }
            Stage::Copying(copying) => {
                self.stage = Stage::Copying(copying);
                match &mut self.queued {
                    Some(wish) => wish.merge(exit),
                    None => self.queued = Some(Wish::new(now, exit)),
                }
            }
        }
    }

    fn capture_after_end(&mut self, now: Instant, wish: Wish, trust: Trust, out: &mut Vec<Action>) {
        let seq = self.take_seq();
        self.capture(Copying::after_end(seq, wish, now), trust, false, out);
    }

    fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    fn notify(&self, message: &AgentMessage, out: &mut Vec<Action>) {
        let told = self.subscribers.iter().filter(|(_, subscriber)| subscriber.notify);
        out.extend(told.map(|(client, _)| send(*client, message)));
    }
}

fn send(client: ClientId, message: &AgentMessage) -> Action {
    Action::Send { client, message: message.clone() }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
