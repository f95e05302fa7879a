//! What others see of a job: its published state, and its events in the log.

use std::time::Instant;

use nodus_protocol::JobName;
use nodus_protocol::checkpoint::Outcome;
use nodus_protocol::control::{CheckpointProgress, Condition, JobDetail, JobEvent, JobInfo};
use nodus_protocol::job::{Phase, StopReason};
use nodus_protocol::units::{ByteSize, format_duration};

use super::lifecycle::{Parked, Stage};
use super::place::Place;
use super::record::Record;
use super::task::JobTask;
use super::timestamp;

/// What is known from the record alone.
pub(super) fn bare(record: &Record, place: &Place, phase: Phase) -> JobDetail {
    let first = &record.spec.recovery.checkpoint.paths[0];
    JobDetail {
        info: JobInfo {
            name: record.spec.name.clone(),
            uid: record.owner.uid,
            phase,
            reason: None,
            message: record.message.clone(),
            attempt: record.attempt_number(),
            retries: record.counters.retries,
            created: record.created,
            finished: record.finished,
            latest_checkpoint: record.latest.clone(),
            progress: record.progress,
        },
        spec: record.spec.clone(),
        attempts: record.attempts.iter().map(|attempt| attempt.info.clone()).collect(),
        wall_time: record.wall_time_at(timestamp()),
        cadence: None,
        subscribers: 0,
        last_outcome: record.last_outcome.clone(),
        in_progress: None,
        conditions: Vec::new(),
        state_dir: place.physical(first).to_string_lossy().into_owned(),
    }
}

impl JobTask {
    /// The job as others see it now.
    pub(super) fn detail(&self) -> JobDetail {
        let mut detail = bare(&self.record, &self.place, self.life.phase());
        detail.info.reason = self.reason();
        detail.subscribers = u32::try_from(self.coordinator.subscribers()).unwrap_or(u32::MAX);
        detail.in_progress = self.in_progress();
        let mut conditions = self.conditions.clone();
        if self.wakes.checkpoint.is_some() {
            let decision = self.cadence_decision();
            if let Some(constrained) = decision.condition() {
                conditions.insert("CadenceConstrained", constrained.message);
            }
            detail.cadence = Some(decision.info(Instant::now(), timestamp()));
        }
        detail.conditions = conditions
            .into_iter()
            .map(|(name, message)| Condition { name: name.to_owned(), message })
            .collect();
        detail
    }

    fn reason(&self) -> Option<StopReason> {
        match self.life.stage() {
            Stage::Parked(Parked::Failed(reason)) => Some(*reason),
            _ => None,
        }
    }

    fn in_progress(&self) -> Option<CheckpointProgress> {
        let (seq, stage) = self.coordinator.in_progress()?;
        let control = self.copying.as_ref().filter(|copying| copying.seq == seq);
        let copied = control.map_or(0, |copying| copying.control.done());
        let total = control.and_then(|copying| copying.control.total());
        Some(CheckpointProgress { seq, stage, copied, total })
    }
}

/// One line an event: warnings where something was lost, the rest for those who follow.
pub(super) fn log(job: &JobName, event: &JobEvent) {
    match event {
        JobEvent::Phase { phase: Phase::Failed, reason: Some(StopReason::Stopped), .. } => {
            tracing::info!(%job, "the job was stopped");
        }
        JobEvent::Phase { phase: Phase::Failed, reason, message } => {
            let reason = reason.map(|reason| reason.to_string());
            tracing::warn!(%job, reason, message, "the job failed");
        }
        JobEvent::Phase { phase, message, .. } => {
            tracing::info!(%job, %phase, message, "the job changed its phase");
        }
        JobEvent::Restoring { seq, .. } => tracing::info!(%job, seq, "restoring"),
        JobEvent::AttemptStarted { attempt, restored_from, restore_reason } => {
            tracing::info!(%job, attempt, restored_from, restore_reason, "attempt started");
        }
        JobEvent::AttemptEnded { attempt, end } => {
            tracing::info!(%job, attempt, %end, "attempt ended");
        }
        JobEvent::CheckpointRequested { seq, cause, urgent, subscribers } => {
            tracing::info!(%job, seq, %cause, urgent, subscribers, "checkpoint requested");
        }
        JobEvent::CheckpointCaptured { seq, held_up_ms } => {
            tracing::info!(%job, seq, held_up_ms, "checkpoint captured");
        }
        JobEvent::CheckpointEnded { seq, cause, outcome, took_ms } => {
            log_outcome(job, *seq, &cause.to_string(), outcome, *took_ms);
        }
        JobEvent::Notice { source, deadline } => {
            let deadline = deadline.map(|at| at.to_string());
            tracing::warn!(%job, source, deadline, "the capacity is about to go away");
        }
        JobEvent::Progress(progress) => {
            tracing::debug!(%job, completed = progress.completed, total = progress.total, "progress");
        }
        JobEvent::Warning { message } => tracing::warn!(%job, message, "warning"),
        _ => tracing::debug!(%job, ?event, "event"),
    }
}

fn log_outcome(job: &JobName, seq: u64, cause: &str, outcome: &Outcome, took_ms: u64) {
    let took = format_duration(std::time::Duration::from_millis(took_ms));
    match outcome {
        Outcome::Committed(done) => {
            let (bytes, stored) =
                (ByteSize(done.bytes).approx(), ByteSize(done.stored_bytes).approx());
            let consistency = done.consistency;
            tracing::info!(%job, seq, cause, %consistency, files = done.files, bytes, stored, took, "checkpoint committed");
        }
        Outcome::Skipped { reason } => {
            tracing::info!(%job, seq, cause, %reason, "checkpoint skipped");
        }
        Outcome::Failed { reason, message } => {
            tracing::warn!(%job, seq, cause, %reason, message, "checkpoint failed");
        }
    }
}
