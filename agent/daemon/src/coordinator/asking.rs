//! From a trigger to the moment the capture begins: asking, and counting the answers.

use std::mem;
use std::time::Instant;

use nodus_protocol::checkpoint::{FailureReason, Outcome};
use nodus_protocol::control::JobEvent;
use nodus_protocol::event::{Ack, AckStatus, Subscription};
use nodus_protocol::spec::{Integration, Quiesce};

use super::copying::Copying;
use super::event::{Action, NotAcked, Pid, Trust};
use super::request::{Request, Standing, Wish};
use super::{Coordinator, Owing, Stage, Subscriber, send};
use crate::events::ClientId;

impl Coordinator {
    /// Begins a checkpoint of a running program.
    pub(super) fn ask(&mut self, now: Instant, wish: Wish, out: &mut Vec<Action>) {
        let seq = self.take_seq();
        let until = wish.ack_deadline(now, self.settings.ack_timeout);
        let unasked = if self.settings.integration == Integration::None {
            Some(NotAcked::NotAsked)
        } else if self.subscribers.is_empty() {
            Some(NotAcked::NoSubscriber)
        } else if until <= now {
            Some(NotAcked::NoTime)
        } else {
            None
        };
        match unasked {
            None => self.request(now, Request::new(seq, wish, now, until), out),
            Some(reason) => {
                if reason != NotAcked::NoTime {
                    self.owing = Owing::default();
                }
                let trust = Trust::NotAcked { request_open_at_death: false, reason };
                let freeze = self.settings.quiesce == Quiesce::Freeze;
                self.capture(Copying::of_running(seq, wish, now, now), trust, freeze, out);
            }
        }
    }

    fn request(&mut self, now: Instant, mut request: Request, out: &mut Vec<Action>) {
        let message = request.message(now);
        for (client, subscriber) in &self.subscribers {
            request.ask(*client, subscriber.pid);
            out.push(send(*client, &message));
        }
        out.push(Action::Emit(JobEvent::CheckpointRequested {
            seq: request.seq,
            cause: request.wish.cause,
            urgent: request.wish.urgent,
            subscribers: u32::try_from(self.subscribers.len()).unwrap_or(u32::MAX),
        }));
        self.owing = Owing::default();
        self.stage = Stage::Waiting(Box::new(request));
    }

    pub(super) fn subscribe(
        &mut self,
        now: Instant,
        client: ClientId,
        pid: Pid,
        subscription: &Subscription,
        out: &mut Vec<Action>,
    ) {
        self.subscribers.insert(client, Subscriber { pid, notify: subscription.notify });
        if let Stage::Waiting(request) = &mut self.stage
            && !request.is_asked(client)
        {
            request.ask(client, pid);
            out.push(send(client, &request.message(now)));
        }
    }

    pub(super) fn leave(&mut self, now: Instant, client: ClientId) {
        self.subscribers.remove(&client);
        if let Stage::Waiting(request) = &mut self.stage {
            request.leave(now, client);
        }
    }

    pub(super) fn ack(&mut self, now: Instant, pid: Pid, ack: Ack, out: &mut Vec<Action>) {
        let failed = ack.status == AckStatus::Failed;
        match &mut self.stage {
            Stage::Waiting(request) if request.seq == ack.seq => {
                if !failed {
                    request.answer(pid);
                } else if request.asks(pid) {
                    self.save_failed(now, pid, ack.message, out);
                }
            }
            // Too late for the checkpoint, but the process is not in the middle of a save any more.
            _ if ack.seq == self.owing.seq && !failed => {
                self.owing.pids.remove(&pid);
            }
            _ => {}
        }
    }

    /// A process says that its files may be half written: they are not copied.
    fn save_failed(
        &mut self,
        now: Instant,
        pid: Pid,
        message: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let Stage::Waiting(request) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        self.armed = None;
        self.owing = Owing { seq: request.seq, pids: request.owing() };
        self.owing.pids.insert(pid);
        let message = message.unwrap_or_else(|| "the program could not save".to_owned());
        let outcome = Outcome::Failed { reason: FailureReason::SaveFailed, message };
        let Request { seq, wish, .. } = *request;
        self.finish(now, seq, wish, outcome, None, out);
    }

    /// Goes on where nothing is waited for any more, and asks to be woken where something is.
    pub(super) fn settle(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Stage::Waiting(request) = &self.stage else { return };
        let standing = request.standing(now);
        if let Standing::Waiting(until) = standing {
            if self.armed.replace(until) != Some(until) {
                out.push(Action::WakeAt(until));
            }
            return;
        }
        let Stage::Waiting(request) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        self.armed = None;
        self.owing = Owing { seq: request.seq, pids: request.owing() };
        let request_open_at_death = request.somebody_left();
        let (trust, since) = match standing {
            Standing::Waiting(_) | Standing::Answered => (Trust::Acked, request.since),
            Standing::Deserted => {
                let reason = NotAcked::GoneBeforeAck;
                (Trust::NotAcked { request_open_at_death, reason }, now)
            }
            Standing::TimedOut => {
                let reason = NotAcked::TimedOut;
                (Trust::NotAcked { request_open_at_death, reason }, now)
            }
        };
        let Request { seq, wish, .. } = *request;
        self.capture(Copying::of_running(seq, wish, now, since), trust, false, out);
    }
}
