//! Doing what the pure parts decide, and telling those who wait.

use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::{Cause, Outcome};
use nodus_protocol::control::{CheckpointDone, ProblemCode};

use super::lifecycle::{self, Action, Intent, Stage};
use super::place::copies_files;
use super::record::Standing;
use super::task::{JobTask, Waiter};
use super::timestamp;
use crate::coordinator::{self, Trigger, WaiterId};
use crate::engine::Refusal;

impl JobTask {
    /// Tells the lifecycle, and does what follows.
    pub(super) fn live_on(&mut self, event: lifecycle::Event) {
        match self.life.on(Instant::now(), event) {
            Ok(actions) => {
                self.act(actions);
                self.rested();
            }
            // Two pieces of work raced to their ends; the lifecycle is as before.
            Err(refused) => tracing::debug!(job = %self.name, ?event, %refused, "event came late"),
        }
    }

    pub(super) fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Prepare => self.prepare(),
                Action::Save(cause) => {
                    let deadline = self.ending_deadline();
                    self.trigger(cause, true, Some(deadline), Some(Waiter::Ending));
                }
                Action::Terminate => self.terminate(),
                Action::SaveExit => self.save_exit(),
                Action::WakeAt(at) => self.wakes.life = Some(at),
                Action::Remove => self.remove(),
            }
        }
    }

    pub(super) fn save_exit(&mut self) {
        self.exit_seq = None;
        self.exit_outcome = None;
        let writes = self.record.attempt().is_some_and(|attempt| attempt.epoch > 0);
        if writes && copies_files(&self.record.spec) {
            self.trigger(Cause::Exit, true, None, Some(Waiter::Exit));
        } else {
            self.exit_saved();
        }
    }

    pub(super) fn trigger(
        &mut self,
        cause: Cause,
        urgent: bool,
        deadline: Option<Instant>,
        waiter: Option<Waiter>,
    ) {
        let waiter = waiter.map(|waiter| {
            self.next_waiter += 1;
            self.waiters.insert(WaiterId(self.next_waiter), waiter);
            WaiterId(self.next_waiter)
        });
        let expected_copy = self
            .cadence
            .costs()
            .map_or(Duration::ZERO, |costs| costs.until_committed.saturating_sub(costs.held_up));
        let trigger = Trigger { cause, urgent, deadline, expected_copy, waiter };
        self.coordinate(coordinator::Event::Trigger(trigger));
    }

    /// Tells the coordinator, and does what follows.
    pub(super) fn coordinate(&mut self, event: coordinator::Event) {
        for action in self.coordinator.on(Instant::now(), event) {
            match action {
                coordinator::Action::Send { client, message } => {
                    self.shared.hub.send(client, &message);
                }
                coordinator::Action::Capture { seq, cause, trust, freeze } => {
                    self.capture(seq, cause, trust, freeze);
                }
                coordinator::Action::WakeAt(at) => self.wakes.coordinator = Some(at),
                coordinator::Action::Done(done) => self.checkpoint_done(&done),
                coordinator::Action::Rejected { waiter } => self.rejected(waiter),
                coordinator::Action::Emit(event) => self.emit(event),
            }
        }
    }

    pub(super) fn checkpoint_done(&mut self, done: &coordinator::Done) {
        self.account(done);
        for id in &done.waiters {
            match self.waiters.remove(id) {
                Some(Waiter::Asked(reply)) => {
                    let outcome = Some(done.outcome.clone());
                    let phase = self.life.phase();
                    let _ = reply.send(Ok(CheckpointDone { seq: Some(done.seq), outcome, phase }));
                }
                Some(Waiter::Ending) => {
                    self.last_done = Some((done.seq, done.outcome.clone()));
                    self.live_on(lifecycle::Event::Saved);
                }
                Some(Waiter::Exit) => {
                    if matches!(done.outcome, Outcome::Committed(_)) {
                        self.exit_seq = Some(done.seq);
                    }
                    self.exit_outcome = Some(done.outcome.clone());
                    // Of the two that end an attempt, whichever stored its files.
                    let stored = matches!(done.outcome, Outcome::Committed(_));
                    if stored || self.last_done.is_none() {
                        self.last_done = Some((done.seq, done.outcome.clone()));
                    }
                    self.exit_saved();
                }
                None => {}
            }
        }
    }

    pub(super) fn rejected(&mut self, waiter: WaiterId) {
        match self.waiters.remove(&waiter) {
            Some(Waiter::Asked(reply)) => {
                let why = format!("cannot checkpoint job {}: its program has ended", self.name);
                let _ = reply.send(Err(Refusal::new(ProblemCode::Conflict, why)));
            }
            Some(Waiter::Ending) => self.live_on(lifecycle::Event::Saved),
            Some(Waiter::Exit) => self.exit_saved(),
            None => {}
        }
    }

    /// Writes down and answers where the job has come to rest.
    pub(super) fn rested(&mut self) {
        let Stage::Parked(parked) = *self.life.stage() else { return };
        if self.life.intent() == Some(Intent::Delete) {
            return;
        }
        let standing = Standing::parked(parked);
        let finishes = self.life.phase().is_finished() && self.record.finished.is_none();
        if self.record.standing != standing || finishes {
            self.record.standing = standing;
            if finishes {
                self.record.finished = Some(timestamp());
            }
            self.save();
            self.wakes.retention = Some(Instant::now());
        }
        for reply in std::mem::take(&mut self.resting) {
            let (seq, outcome) = self.last_done.clone().unzip();
            let _ = reply.send(Ok(CheckpointDone { seq, outcome, phase: self.life.phase() }));
        }
    }
}
