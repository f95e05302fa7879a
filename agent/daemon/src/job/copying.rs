//! Capturing, copying and committing one checkpoint, on a thread of its own.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::identity::Credentials;
use nodus_checkpoint::snapshot::{
    self, Asked, CaptureOptions, Captured, CommitInput, Finished, object_of,
};
use nodus_checkpoint::store::{Epoch, JobStore, WriterLock};
use nodus_checkpoint::{Error, Result, Root, process};
use nodus_protocol::checkpoint::{
    Cause, CheckpointInfo, CheckpointState, Committed, Consistency, FailureReason, Outcome,
};

use super::place::Place;
use super::record::{Owner, Record};
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::Running;
use crate::cadence::{Decision, Moment};
use crate::coordinator::{self, Trust};
use crate::engine::Shared;

/// A checkpoint that is being copied.
pub(super) struct Copying {
    pub(super) seq: u64,
    pub(super) control: Control,
}

/// A capture and copy that is over.
pub(super) struct Copied {
    seq: u64,
    outcome: Outcome,
    info: CheckpointInfo,
}

/// What a copy needs, apart from the job's task.
struct Job {
    shared: Arc<Shared>,
    record: Record,
    running: Option<Arc<Running>>,
    roots: Vec<Root>,
    epoch: Epoch,
    seq: u64,
    cause: Cause,
    trust: Trust,
    freeze: bool,
    /// Directories of the agent that may lie inside the job's paths.
    ours: Vec<PathBuf>,
    /// Files that were open for writing when the program was told to end.
    writing_when_told: HashSet<FileId>,
    control: Control,
    started: Timestamp,
}

impl JobTask {
    /// Starts the capture that the coordinator decided on.
    pub(super) fn capture(&mut self, seq: u64, cause: Cause, trust: Trust, freeze: bool) {
        // The number is used up before anything carries it.
        self.record.next_seq = self.record.next_seq.max(seq + 1);
        self.save();
        let started = timestamp();
        let Some(epoch) = self.epoch.clone() else {
            let message = "the store did not answer when the attempt began".to_owned();
            self.not_copied(seq, cause, started, FailureReason::StoreUnavailable, message);
            return;
        };
        let control = Control::new();
        self.copying = Some(Copying { seq, control: control.clone() });
        let live = self.live.as_ref();
        let trust = if self.after_reboot { in_doubt(trust) } else { trust };
        let job = Job {
            shared: Arc::clone(&self.shared),
            record: self.record.clone(),
            running: live.map(|live| Arc::clone(&live.running)),
            roots: self.place.roots(&self.record.spec),
            epoch,
            seq,
            cause,
            trust,
            freeze,
            ours: own_dirs(&self.shared, &self.place),
            writing_when_told: live.map(|live| live.writing_when_told.clone()).unwrap_or_default(),
            control,
            started,
        };
        let post = self.post.clone();
        tokio::spawn(async move {
            let shared = Arc::clone(&job.shared);
            // Never closed while a job's task runs.
            let permit = shared.copies.acquire().await;
            let (failed, note) = (job.failed_info(), post.clone());
            let copied = tokio::task::spawn_blocking(move || job.run(&note)).await;
            drop(permit);
            let copied = copied.unwrap_or_else(|panic| {
                failed
                    .because(FailureReason::Internal, format!("the copy ended abnormally: {panic}"))
            });
            let _ = post.send(Note::Copied(Box::new(copied))).await;
        });
    }

    fn not_copied(
        &mut self,
        seq: u64,
        cause: Cause,
        started: Timestamp,
        reason: FailureReason,
        message: String,
    ) {
        let attempt = self.record.attempt_number();
        let epoch = self.record.attempt().map_or(0, |attempt| attempt.epoch);
        let info = blank_info(seq, attempt, epoch, cause, started);
        let copied = FailedInfo(info).because(reason, message);
        let post = self.post.clone();
        tokio::spawn(async move {
            let _ = post.send(Note::Copied(Box::new(copied))).await;
        });
    }

    pub(super) fn copied(&mut self, copied: Copied) {
        let Copied { seq, outcome, info } = copied;
        self.copying = None;
        if let Outcome::Failed { reason: FailureReason::Fenced, message } = &outcome {
            self.conditions.insert("Fenced", message.clone());
        }
        self.remember_checkpoint(info, &outcome);
        // Before the next copy can begin, which would count on what this deletes.
        self.retain();
        self.coordinate(coordinator::Event::Ended { seq, outcome });
    }

    /// Keeps what people ask about a checkpoint, and what the next attempt depends on.
    fn remember_checkpoint(&mut self, info: CheckpointInfo, outcome: &Outcome) {
        let committed = matches!(outcome, Outcome::Committed(_));
        let (seq, cause) = (info.seq, info.cause);
        self.record.checkpoint_ended(info, outcome.clone(), timestamp());
        if committed
            && cause != Cause::Exit
            && let Some(attempt) = self.record.attempts.last_mut()
        {
            attempt.committed = Some(seq);
        }
        match outcome {
            Outcome::Failed { reason, message } => {
                self.conditions.insert("CheckpointFailed", format!("{reason}: {message}"));
            }
            _ => {
                self.conditions.remove("CheckpointFailed");
            }
        }
        self.save();
    }

    /// Takes what a checkpoint cost into the cadence, and plans the next one. One that ended
    /// without a copy (the program could not save) is remembered here.
    pub(super) fn account(&mut self, done: &coordinator::Done) {
        let known = self.record.last_outcome.as_ref().is_some_and(|last| last.seq == done.seq);
        if !known {
            let attempt = self.record.attempt_number();
            let epoch = self.record.attempt().map_or(0, |attempt| attempt.epoch);
            let mut info = blank_info(done.seq, attempt, epoch, done.cause, timestamp());
            explain(&mut info, &done.outcome);
            self.remember_checkpoint(info, &done.outcome);
        }
        let committed = matches!(done.outcome, Outcome::Committed(_));
        if let Some(cost) = &done.cost {
            self.cadence.observe(cost);
        }
        if committed || done.cause == Cause::Interval {
            self.last_checkpoint = Some(Instant::now());
        }
        self.plan_checkpoint();
    }

    /// Sets the timer of the next checkpoint.
    pub(super) fn plan_checkpoint(&mut self) {
        let due = self.can_checkpoint().is_ok() && self.life.intent().is_none();
        self.wakes.checkpoint = due.then(|| self.cadence_decision().next_at);
    }

    /// What the cadence says now.
    pub(super) fn cadence_decision(&self) -> Decision {
        let now = Instant::now();
        let started = self.live.as_ref().map_or(now, |live| live.since);
        let limit = self.record.spec.recovery.max_wall_time;
        let left = limit.map(|limit| limit.saturating_sub(self.record.wall_time_at(timestamp())));
        self.cadence.next(&Moment {
            started,
            last: self.last_checkpoint,
            ends_at: left.and_then(|left| now.checked_add(left)),
            between_interruptions: self.shared.mean_between_interruptions(),
        })
    }
}

/// After a power cut nobody vouches for files that were not synced.
fn in_doubt(trust: Trust) -> Trust {
    match trust {
        Trust::Acked => Trust::Acked,
        Trust::NotAcked { reason, .. } => Trust::NotAcked { request_open_at_death: true, reason },
    }
}

impl Job {
    fn failed_info(&self) -> FailedInfo {
        let attempt = self.record.attempt_number();
        FailedInfo(blank_info(self.seq, attempt, self.epoch.number(), self.cause, self.started))
    }

    fn run(self, post: &tokio::sync::mpsc::Sender<Note>) -> Copied {
        let failed = self.failed_info();
        match self.copy(post) {
            Ok(Finished::Committed(record)) => {
                let outcome = Outcome::Committed(Committed {
                    consistency: record.consistency,
                    files: record.files,
                    bytes: record.bytes,
                    stored_bytes: record.stored_bytes,
                });
                let info = record.info(&nodus_checkpoint::format::Outcomes::default());
                Copied { seq: record.seq, outcome, info }
            }
            Ok(Finished::Skipped(reason)) => failed.skipped(reason),
            Err(error) => failed.because(error.reason(), error.chain()),
        }
    }

    fn copy(&self, post: &tokio::sync::mpsc::Sender<Note>) -> Result<Finished> {
        let (store, _lock) = open_for_writing_to(&self.shared, &self.record)?;
        let captured = self.capture(&store)?;
        let at = timestamp();
        // Where the task is gone, nobody is left to be told.
        let _ = post.blocking_send(Note::Captured { seq: self.seq });
        captured.finish(&CommitInput {
            attempt: self.record.attempt_number(),
            cause: self.cause,
            started: self.started,
            captured: at,
            asked: asked(self.trust),
            now: &timestamp,
        })
    }

    fn capture(&self, store: &JobStore) -> Result<Captured> {
        let frozen = match &self.running {
            Some(running) if self.freeze => running.freeze().ok(),
            _ => None,
        };
        let mut open = self.writing_when_told.clone();
        if let Some(running) = &self.running {
            open.extend(open_for_writing(running));
        }
        let options = CaptureOptions {
            roots: self.roots.clone(),
            credentials: credentials(&self.record.owner),
            max_size: self.record.spec.recovery.checkpoint.max_size.0,
            threads: self.shared.settings.threads,
            open_for_writing: open,
            exclude: self.ours.iter().filter_map(|dir| object_of(dir)).collect(),
        };
        let captured = snapshot::capture(store, &self.epoch, self.seq, &options, &self.control);
        drop(frozen);
        captured
    }
}

/// The trust in the words of the checkpoint crate.
fn asked(trust: Trust) -> Asked {
    match trust {
        Trust::Acked => Asked::Acked,
        Trust::NotAcked { request_open_at_death, .. } => Asked::NotAcked { request_open_at_death },
    }
}

/// Directories of the agent, wherever the job's paths are.
pub(super) fn own_dirs(shared: &Shared, place: &Place) -> Vec<PathBuf> {
    let mut own = shared.settings.own_dirs.clone();
    own.extend([place.records.clone(), place.runtime.clone()]);
    own
}

/// Device and inode of a file.
pub(super) type FileId = (u64, u64);

/// Files that processes of the attempt hold open for writing.
pub(super) fn open_for_writing(running: &Running) -> HashSet<FileId> {
    let pids: Vec<u32> = running.processes().into_iter().map(i32::unsigned_abs).collect();
    process::open_for_writing(&pids).writable
}

/// The identity under which the job's files are touched; ourselves, where we are not root.
pub(super) fn credentials(owner: &Owner) -> Option<Credentials> {
    (rustix::process::geteuid().is_root() && owner.uid != 0).then(|| owner.credentials())
}

fn open_for_writing_to(shared: &Shared, record: &Record) -> Result<(JobStore, WriterLock)> {
    let store = open_store(shared, record)?;
    let lock = store.lock()?.ok_or_else(|| {
        let job = &record.spec.name;
        Error::Refused(format!("another process is writing to the store of job {job}"))
    })?;
    Ok((store, lock))
}

pub(super) fn open_store(shared: &Shared, record: &Record) -> Result<JobStore> {
    let name = &record.spec.name;
    JobStore::open(&shared.settings.store, name)?.ok_or_else(|| {
        let path: &Path = &shared.settings.store;
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        Error::io("find the job's checkpoints in", path, gone)
    })
}

/// A checkpoint of which nothing is known but that it was wanted.
pub(super) fn blank_info(
    seq: u64,
    attempt: u32,
    epoch: u64,
    cause: Cause,
    started: Timestamp,
) -> CheckpointInfo {
    CheckpointInfo {
        seq,
        attempt,
        epoch,
        cause,
        state: CheckpointState::Failed,
        consistency: None::<Consistency>,
        started,
        captured: None,
        committed: None,
        files: 0,
        bytes: 0,
        stored_bytes: 0,
        bases: Vec::new(),
        reason: None,
        message: None,
        torn: Vec::new(),
        notes: Vec::new(),
    }
}

/// A checkpoint that was not stored, until it is known why.
struct FailedInfo(CheckpointInfo);

impl FailedInfo {
    fn because(self, reason: FailureReason, message: String) -> Copied {
        self.ended(Outcome::Failed { reason, message })
    }

    fn skipped(self, reason: nodus_protocol::checkpoint::Skipped) -> Copied {
        self.ended(Outcome::Skipped { reason })
    }

    fn ended(self, outcome: Outcome) -> Copied {
        let mut info = self.0;
        explain(&mut info, &outcome);
        Copied { seq: info.seq, outcome, info }
    }
}

/// Puts the outcome of a checkpoint that was not stored into its listing.
fn explain(info: &mut CheckpointInfo, outcome: &Outcome) {
    match outcome {
        Outcome::Committed(_) => info.state = CheckpointState::Committed,
        Outcome::Skipped { reason } => {
            info.state = CheckpointState::Skipped;
            info.reason = Some(reason.to_string());
        }
        Outcome::Failed { reason, message } => {
            info.state = CheckpointState::Failed;
            info.reason = Some(reason.to_string());
            info.message = Some(message.clone());
        }
    }
}
