//! The end of an attempt, and what is made of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodus_checkpoint::error::chain;
use nodus_checkpoint::outcomes;
use nodus_protocol::checkpoint::Outcome;
use nodus_protocol::control::JobEvent;
use nodus_protocol::job::{AttemptEnd, Interruption};

use super::copying::{FILES_NOT_STORED, open_for_writing, open_store};
use super::lifecycle::{self, Intent, Stage};
use super::record::Standing;
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::{Ended, ExitRecord, ExitStatus, Running};
use crate::coordinator;

/// The program is done.
const CLEAN: AttemptEnd = AttemptEnd::Exited { code: 0 };

/// What the clients of an attempt that is over may have left unread: as much as there is room for.
const MAX_LAST_WORDS: usize = 1024;

/// What supervised the attempt is gone.
pub(super) const LOST: AttemptEnd = AttemptEnd::Interrupted { by: Interruption::NodeFailure };

/// Failures in a row from the same checkpoint that make it suspect.
const SUSPECT_AFTER: u32 = 2;

impl JobTask {
    /// SIGTERM, the grace period, SIGKILL.
    pub(super) fn terminate(&mut self) {
        if let Standing::Running { told, .. } = &mut self.record.standing {
            // Before it can obey: an exit with 0 would be taken for success after a restart.
            *told = true;
            self.save();
        }
        let grace = self.shared.settings.stop_grace;
        let Some(live) = &mut self.live else { return };
        // After the end nobody can see any more what was half-written.
        let running = &live.running;
        live.writing_when_told = tokio::task::block_in_place(|| open_for_writing(running));
        let running = Arc::clone(&live.running);
        let post = self.post.clone();
        tokio::spawn(async move {
            // It has bounds of its own, and ends with killing whatever does not move.
            if let Err(error) = running.stop(grace).await {
                let message = format!("the attempt does not end: {}", chain(&error));
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
    pub(super) fn ran(&self, until: Timestamp) -> Duration {
        let started = self.record.attempt().map(|attempt| attempt.info.started);
        let ran = started.map(|started| until.duration_since(started));
        ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default()
    }

    /// The program is over, since then.
    pub(super) fn ended(&mut self, end: AttemptEnd, at: Timestamp) {
        if !matches!(self.life.stage(), Stage::Running { .. }) {
            return;
        }
        // An ack that came before the end counts, whichever of the two is seen first here.
        for _ in 0..MAX_LAST_WORDS {
            let Ok(event) = self.clients.try_recv() else { break };
            self.client(event);
        }
        let told = self.life.intent().is_some();
        self.coordinate(coordinator::Event::AttemptEnded { clean: end == CLEAN });
        self.wakes.checkpoint = None;
        self.wakes.limit = None;
        self.remember_uptime(end, told, self.ran(at));
        // The lifecycle says whose doing it was; the record needs that before anything follows.
        let mut preview = self.life.clone();
        let _ = preview.on(Instant::now(), lifecycle::Event::Ended(end));
        let attributed = match preview.stage() {
            Stage::Ending { end } => *end,
            _ => end,
        };
        self.attempt_over(attributed, at);
        self.live_on(lifecycle::Event::Ended(end));
    }

    pub(super) fn attempt_over(&mut self, end: AttemptEnd, at: Timestamp) {
        self.record.attempt_ended(end, at);
        self.save();
        self.log_ended.cancel();
        self.shared.members.remove(&self.name);
        let attempt = self.record.attempt_number();
        self.emit(JobEvent::AttemptEnded { attempt, end });
    }

    fn remember_uptime(&self, end: AttemptEnd, told: bool, ran: Duration) {
        let interrupted = matches!(end, AttemptEnd::Interrupted { .. }) && !told;
        tokio::task::block_in_place(|| self.shared.remember_uptime(ran, interrupted));
    }

    /// The exit checkpoint is over: what comes next is decided, and counted.
    pub(super) fn exit_saved(&mut self) {
        let Stage::Ending { end } = *self.life.stage() else { return };
        self.live = None;
        self.after_reboot = false;
        self.note_outcome(end);
        self.note_left();
        let progressed = self.record.progressed(self.exit_seq);
        let next = self.record.decide(end, progressed, crate::engine::jitter());
        self.say_why(end, &next);
        self.epoch = None;
        self.live_on(lifecycle::Event::ExitSaved(next));
        if let Stage::Waiting { .. } = self.life.stage() {
            self.record.standing = Standing::Due;
            self.save();
        }
    }

    /// Remembers whether the attempt has left files that no checkpoint has.
    fn note_left(&mut self) {
        let failed = matches!(self.exit_outcome, Some(Outcome::Failed { .. }));
        let fenced = self.life.intent() == Some(Intent::Fence);
        self.record.unsaved = (failed && !fenced).then_some(self.left);
        self.say_left();
    }

    /// Shows that the files an attempt left are not stored.
    pub(super) fn say_left(&mut self) {
        if self.record.unsaved.is_none() {
            self.conditions.remove(FILES_NOT_STORED);
            return;
        }
        let number = self.record.attempt_number();
        let message = format!(
            "the checkpoint at the end of attempt {number} failed; its files are kept where they \
             are, and stored before the next attempt starts"
        );
        self.conditions.insert(FILES_NOT_STORED, message);
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

/// How a running attempt ended and when, as its shim tells or fails to tell.
pub(super) async fn watch(running: &Running) -> (AttemptEnd, Timestamp) {
    let end = match running.wait().await {
        Ok(Ended::Exited(record)) => return (attempt_end(&record), record.ended),
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
    };
    (end, timestamp())
}
