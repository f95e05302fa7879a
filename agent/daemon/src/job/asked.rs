//! What users ask of a job.

use std::time::Instant;

use nodus_protocol::checkpoint::Cause;
use nodus_protocol::control::{CheckpointDone, JobEvent, ProblemCode};

use super::lifecycle::{self, Intent, Parked, Refused, Stage};
use super::place::copies_files;
use super::record::{Standing, Wish};
use super::task::{JobTask, Waiter};
use super::{Reclaim, Reply, timestamp};
use crate::engine::Refusal;

impl JobTask {
    pub(super) fn end(&mut self, verb: &str, intent: Intent, reply: Reply<CheckpointDone>) {
        match self.life.on(Instant::now(), lifecycle::Event::End(intent)) {
            Ok(actions) => {
                self.last_done = None;
                self.resting.push(reply);
                self.note_wish(intent);
                self.act(actions);
                self.rested();
            }
            Err(refused) => {
                let _ = reply.send(Err(Refusal::not_now(&self.name, verb, refused)));
            }
        }
    }

    /// Writes down what somebody wants, so that it still happens after a restart of the agent.
    pub(super) fn note_wish(&mut self, intent: Intent) {
        let wanted = match intent {
            Intent::Suspend | Intent::Interrupt(_) => Some(Wish::Suspend),
            Intent::Stop => Some(Wish::Stop),
            Intent::Delete => None,
        };
        match &mut self.record.standing {
            Standing::Running { wish } | Standing::Ending { wish } => {
                *wish = wanted.or(*wish);
                self.save();
            }
            _ => {}
        }
    }

    pub(super) fn delete(&mut self, reply: Reply<()>) {
        match self.life.on(Instant::now(), lifecycle::Event::End(Intent::Delete)) {
            Ok(actions) => {
                self.deleting.push(reply);
                self.act(actions);
            }
            Err(Refused::Deleting) => self.deleting.push(reply),
            Err(refused) => {
                let _ = reply.send(Err(Refusal::not_now(&self.name, "delete", refused)));
            }
        }
    }

    pub(super) fn resume(&mut self) -> Result<(), Refusal> {
        let not_now = |refused| Refusal::not_now(&self.name, "resume", refused);
        let failed = matches!(self.life.stage(), Stage::Parked(Parked::Failed(_)));
        let actions = self.life.on(Instant::now(), lifecycle::Event::Resume).map_err(not_now)?;
        if failed {
            // Whoever resumes a failed job has looked at it: its limits begin anew.
            self.record.counters = crate::recovery::Counters {
                wall_time: self.record.counters.wall_time,
                ..Default::default()
            };
            self.record.finished = None;
        }
        self.record.message = None;
        self.record.standing = Standing::Due;
        self.wakes.retention = None;
        self.save();
        self.act(actions);
        Ok(())
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
        let deadline = reclaim.within.map(|within| timestamp() + within);
        self.emit(JobEvent::Notice { source: reclaim.source, deadline });
        match reclaim.ends {
            Some(by) => {
                let within = reclaim.within.map(|within| Instant::now() + within);
                self.live_deadline(within);
                self.end("end", Intent::Interrupt(by), reply);
            }
            None => {
                let within = reclaim.within.unwrap_or(self.shared.settings.suspend_timeout);
                self.checkpoint(reclaim.cause, true, Some(Instant::now() + within), reply);
            }
        }
    }
}
