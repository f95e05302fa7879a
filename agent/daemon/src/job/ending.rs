//! The end of an attempt, and what is made of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nodus_checkpoint::outcomes;
use nodus_protocol::control::JobEvent;
use nodus_protocol::job::{AttemptEnd, Interruption};

use super::attempts::chain;
use super::copying::{open_for_writing, open_store};
use super::lifecycle::{self, Stage};
use super::record::Standing;
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::{Ended, ExitRecord, ExitStatus, Running};
use crate::coordinator;

/// How much longer than its grace period the end of an attempt may take.
pub(super) const STOP_SLACK: Duration = Duration::from_secs(5);

/// What supervised the attempt is gone.
pub(super) const LOST: AttemptEnd = AttemptEnd::Interrupted { by: Interruption::NodeFailure };

/// Failures in a row from the same checkpoint that make it suspect.
const SUSPECT_AFTER: u32 = 2;

impl JobTask {
    /// SIGTERM, the grace period, SIGKILL.
    pub(super) fn terminate(&mut self) {
        let grace = self.shared.settings.stop_grace;
        let Some(live) = &mut self.live else { return };
        // After the end nobody can see any more what was half-written.
        let running = &live.running;
        live.writing_when_told = tokio::task::block_in_place(|| open_for_writing(running));
        let running = Arc::clone(&live.running);
        let (name, post) = (self.name.clone(), self.post.clone());
        tokio::spawn(async move {
            if tokio::time::timeout(grace + STOP_SLACK, running.stop(grace)).await.is_err() {
                tracing::error!(job = %name, "an attempt does not end after SIGKILL");
                let message = "the attempt does not end after SIGKILL".to_owned();
                let _ = post.send(Note::Warning(message)).await;
            }
        });
    }

    pub(super) fn live_deadline(&mut self, deadline: Option<Instant>) {
        if let Some(live) = &mut self.live {
            live.deadline = deadline;
        }
    }

    /// Until when the checkpoint before an ending has to be committed.
    pub(super) fn ending_deadline(&self) -> Instant {
        let notice = self.live.as_ref().and_then(|live| live.deadline);
        notice.unwrap_or_else(|| Instant::now() + self.shared.settings.suspend_timeout)
    }

    /// How long the attempt has run.
    pub(super) fn ran(&self) -> Duration {
        let started = self.record.attempt().map(|attempt| attempt.info.started);
        let ran = started.map(|started| timestamp().duration_since(started));
        ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default()
    }

    /// The program is over.
    pub(super) fn ended(&mut self, end: AttemptEnd) {
        if !matches!(self.life.stage(), Stage::Running { .. }) {
            return;
        }
        let told = self.life.intent().is_some();
        self.live_on_end(end, told);
    }

    fn live_on_end(&mut self, end: AttemptEnd, told: bool) {
        let clean = end == AttemptEnd::Exited { code: 0 };
        self.coordinate(coordinator::Event::AttemptEnded { clean });
        self.wakes.checkpoint = None;
        let ran = self.ran();
        self.remember_uptime(end, told, ran);
        // The lifecycle says whose doing it was; the record needs that before anything follows.
        let mut preview = self.life.clone();
        let _ = preview.on(Instant::now(), lifecycle::Event::Ended(end));
        let attributed = match preview.stage() {
            Stage::Ending { end } => *end,
            _ => end,
        };
        self.attempt_over(attributed);
        self.live_on(lifecycle::Event::Ended(end));
    }

    pub(super) fn attempt_over(&mut self, end: AttemptEnd) {
        self.record.attempt_ended(end, timestamp());
        self.save();
        self.log_ended.cancel();
        self.shared.members.remove(&self.name);
        let attempt = self.record.attempt_number();
        self.emit(JobEvent::AttemptEnded { attempt, end });
    }

    fn remember_uptime(&self, end: AttemptEnd, told: bool, ran: Duration) {
        let interrupted = matches!(end, AttemptEnd::Interrupted { .. }) && !told;
        self.shared.remember_uptime(ran, interrupted);
    }

    /// The exit checkpoint is over: what comes next is decided, and counted.
    pub(super) fn exit_saved(&mut self) {
        let Stage::Ending { end } = *self.life.stage() else { return };
        self.live = None;
        self.after_reboot = false;
        self.note_outcome(end);
        let progressed = self.progressed();
        let next = self.record.decide(end, progressed, crate::engine::jitter());
        self.say_why(end, &next);
        self.epoch = None;
        self.live_on(lifecycle::Event::ExitSaved(next));
        if let Stage::Waiting { .. } = self.life.stage() {
            self.record.standing = Standing::Due;
            self.save();
        }
    }

    fn progressed(&self) -> bool {
        let committed = self.record.attempt().is_some_and(|attempt| attempt.committed.is_some());
        committed || self.exit_seq.is_some()
    }

    fn say_why(&mut self, end: AttemptEnd, next: &crate::recovery::Next) {
        use crate::recovery::Next;
        self.record.message = match next {
            Next::StartAgain { after, counts_retry: true } => Some(format!(
                "attempt {} ended with {end}; retry {} of {} in {}",
                self.record.attempt_number(),
                self.record.counters.retries,
                self.record.spec.recovery.max_retries,
                nodus_protocol::units::format_duration(*after),
            )),
            Next::Failed(_) => {
                let why = self.record.message.take();
                let ended = format!("attempt {} ended with {end}", self.record.attempt_number());
                Some(why.map_or(ended.clone(), |why| format!("{ended}: {why}")))
            }
            _ => None,
        };
    }

    /// Records on the checkpoint that the attempt started from what became of it (C12).
    fn note_outcome(&mut self, end: AttemptEnd) {
        let failed = matches!(
            end,
            AttemptEnd::Exited { code: 1.. | ..=-1 }
                | AttemptEnd::Signaled { .. }
                | AttemptEnd::NotStarted
        );
        let Some(epoch) = self.epoch.clone() else { return };
        let number = self.record.attempt_number();
        let from = self.record.attempt().and_then(|attempt| attempt.info.restored_from);
        let suspects = if failed {
            self.record.note_failure(SUSPECT_AFTER, self.exit_seq)
        } else {
            self.record.stuck = None;
            Vec::new()
        };
        let committed = self.record.attempt().is_some_and(|attempt| attempt.committed.is_some());
        let became = match (committed || end == (AttemptEnd::Exited { code: 0 }), failed) {
            (true, _) => outcomes::Ended::Progressed,
            (false, true) => outcomes::Ended::Failed,
            (false, false) => outcomes::Ended::Interrupted,
        };
        let noted = tokio::task::block_in_place(|| {
            let store = open_store(&self.shared, &self.record)?;
            if let Some(from) = from {
                outcomes::record_attempt(&store, &epoch, from, number, became)?;
            }
            suspects.iter().try_for_each(|seq| outcomes::mark_suspect(&store, &epoch, *seq))
        });
        if let Err(error) = noted {
            self.warn(format!("cannot record how attempt {number} ended: {}", error.chain()));
        }
        if !suspects.is_empty() {
            let list: Vec<String> = suspects.iter().map(u64::to_string).collect();
            self.warn(format!(
                "checkpoint {} is Suspect: {SUSPECT_AFTER} attempts in a row that started from it failed",
                list.join(", ")
            ));
        }
    }
}

pub(super) fn attempt_end(record: &ExitRecord) -> AttemptEnd {
    match record.status {
        ExitStatus::Code(code) => AttemptEnd::Exited { code },
        ExitStatus::Signal(signal) => AttemptEnd::Signaled { signal, oom: record.oom },
    }
}

/// How a running attempt ended, as its shim tells or fails to tell.
pub(super) async fn watch(running: &Running) -> AttemptEnd {
    match running.wait().await {
        Ok(Ended::Exited(record)) => attempt_end(&record),
        Ok(Ended::Lost { left }) => {
            if !left.is_empty() {
                tracing::error!(?left, "processes of a lost attempt cannot be ended");
            }
            LOST
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot find out how an attempt ended");
            LOST
        }
    }
}
