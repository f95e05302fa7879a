//! What users ask of a job.

use std::time::{Duration, Instant};

use nodus_protocol::checkpoint::Cause;
use nodus_protocol::control::{CheckpointDone, JobEvent, ProblemCode};
use nodus_protocol::job::StopReason;

use super::lifecycle::{self, Intent, Parked, Refused, Stage};
use super::place::copies_files;
use super::record::{Standing, Wish};
use super::task::{JobTask, Waiter};
use super::{Reclaim, Reply, timestamp};
use crate::engine::Refusal;
use crate::recovery::Counters;

/// A notice of something further away than this is one of this.
const LONGEST_NOTICE: Duration = Duration::from_secs(365 * 24 * 3600);

impl JobTask {
    pub(super) fn end(&mut self, verb: &str, intent: Intent, reply: Reply<CheckpointDone>) {
        match self.life.on(Instant::now(), lifecycle::Event::End(intent)) {
            Ok(actions) => {
                if self.resting.is_empty() {
                    self.last_done = None;
                }
                self.resting.push(reply);
                self.note_wish();
                self.cancel_preparing();
                self.act(actions);
                self.rested();
            }
            Err(refused) => {
                let _ = reply.send(Err(Refusal::not_now(&self.name, verb, refused)));
            }
        }
    }

    /// Writes down what somebody wants, so that it still happens after a restart of the agent.
    fn note_wish(&mut self) {
        // Where the job has come to rest already, that is written down instead.
        let Some(intent) = self.life.intent() else { return };
        let wanted = match intent {
            Intent::Suspend | Intent::Interrupt(_) => Wish::Suspend,
            Intent::Stop => Wish::Stop,
            Intent::Delete => Wish::Delete,
            Intent::TimeUp | Intent::Fence => return, // Found out again.
        };
        match &mut self.record.standing {
            Standing::Running { wish, .. } | Standing::Ending { wish } => *wish = Some(wanted),
            // Its next attempt is being prepared, and will not be started any more.
            standing @ Standing::Due => {
                *standing = match (wanted, intent) {
                    (_, Intent::Interrupt(by)) => Standing::Interrupted { by },
                    (Wish::Suspend, _) => Standing::Suspended,
                    (Wish::Stop, _) => Standing::Failed { reason: StopReason::Stopped },
                    (Wish::Delete, _) => Standing::Deleting,
                }
            }
            _ => return,
        }
        self.save();
    }

    pub(super) fn delete(&mut self, reply: Reply<()>) {
        match self.life.on(Instant::now(), lifecycle::Event::End(Intent::Delete)) {
            Ok(actions) => {
                self.deleting.push(reply);
                self.note_wish();
                self.cancel_preparing();
                self.cancel_copying();
                self.act(actions);
            }
            Err(Refused::Deleting) => {
                self.deleting.push(reply);
                if self.wakes.removal.take().is_some() {
                    self.remove();
                }
            }
            Err(refused) => {
                let _ = reply.send(Err(Refusal::not_now(&self.name, "delete", refused)));
            }
        }
    }

    pub(super) fn resume(&mut self) -> Result<(), Refusal> {
        let not_now = |refused| Refusal::not_now(&self.name, "resume", refused);
        let failed = match self.life.stage() {
            Stage::Parked(Parked::Failed(reason)) => Some(*reason),
            _ => None,
        };
        let actions = self.life.on(Instant::now(), lifecycle::Event::Resume).map_err(not_now)?;
        if let Some(reason) = failed {
            self.forgive(reason);
        }
        self.tries = 0;
        self.record.message = None;
        self.record.standing = Standing::Due;
        self.wakes.retention = None;
        self.save();
        self.act(actions);
        Ok(())
    }

    /// Whoever resumes a failed job has looked at it: what it failed for begins anew.
    fn forgive(&mut self, reason: StopReason) {
        let used = self.record.counters.wall_time;
        let wall_time = if reason == StopReason::WallTimeExceeded { Duration::ZERO } else { used };
        self.record.counters = Counters { wall_time, ..Counters::default() };
        self.record.finished = None;
        if reason == StopReason::RestoreFailed {
            // Where the store has lost what it had, that was said.
            self.record.latest = None;
        }
    }

    /// Whether a checkpoint of this job can be taken now.
    pub(super) fn can_checkpoint(&self) -> Result<(), Refusal> {
        let refuse = |why: String| Err(Refusal::new(ProblemCode::Conflict, why));
        if !copies_files(&self.record.spec) {
            let kind = self.record.spec.recovery.continuity;
            return refuse(format!("job {} is {kind}: its files are not copied", self.name));
        }
        match self.life.stage() {
            Stage::Running { .. } => Ok(()),
            Stage::Ending { .. } => refuse(format!(
                "cannot checkpoint job {}: its program has ended, and a last one is being taken",
                self.name
            )),
            _ => refuse(format!(
                "cannot checkpoint job {}: it is {}, and only a running job can be",
                self.name,
                self.life.phase()
            )),
        }
    }

    pub(super) fn checkpoint(
        &mut self,
        cause: Cause,
        urgent: bool,
        deadline: Option<Instant>,
        reply: Reply<CheckpointDone>,
    ) {
        match self.can_checkpoint() {
            Ok(()) => self.trigger(cause, urgent, deadline, Some(Waiter::Asked(reply))),
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
            }
        }
    }

    pub(super) fn reclaim(&mut self, reclaim: Reclaim, reply: Reply<CheckpointDone>) {
        let within = reclaim.within.map(|within| within.min(LONGEST_NOTICE));
        let deadline = within.and_then(|within| timestamp().checked_add(within).ok());
        self.emit(JobEvent::Notice { source: reclaim.source, deadline });
        match reclaim.ends {
            Some(by) => {
                self.live_deadline(within.map(|within| Instant::now() + within));
                self.end("end", Intent::Interrupt(by), reply);
            }
            None => {
                let within = within.unwrap_or(self.shared.settings.suspend_timeout);
                self.checkpoint(reclaim.cause, true, Some(Instant::now() + within), reply);
            }
        }
    }
}
