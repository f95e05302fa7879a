//! Capturing, copying and committing one checkpoint, on a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::identity::Credentials;
use nodus_checkpoint::process::{self, OpenFiles};
use nodus_checkpoint::snapshot::{
    self, Asked, CaptureOptions, Captured, CommitInput, Finished, object_of,
};
use nodus_checkpoint::store::{Epoch, JobStore, WriterLock};
use nodus_checkpoint::{Error, Result, Root};
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::{
    Cause, CheckpointInfo, CheckpointState, Committed, Consistency, FailureReason, Outcome,
};
use nodus_protocol::control::JobEvent;

use super::lifecycle::{self, Intent, Stage};
use super::place::Place;
use super::record::{Left, Owner, Record};
use super::task::{JobTask, Note};
use super::timestamp;
use crate::attempt::{Frozen, Running};
use crate::cadence::{Decision, Moment};
use crate::coordinator::{self, NotAcked, Trust};
use crate::engine::Shared;

/// The condition of a job whose last attempt left files that no checkpoint has.
pub(super) const FILES_NOT_STORED: &str = "FilesNotStored";

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
    /// The epoch under which it wrote.
    epoch: Option<Epoch>,
}

impl Copied {
    pub(super) fn outcome(&self) -> &Outcome {
        &self.outcome
    }
}

/// What a copy needs, apart from the job's task.
pub(super) struct CopyJob {
    shared: Arc<Shared>,
    record: Record,
    running: Option<Arc<Running>>,
    roots: Vec<Root>,
    /// Opened for the copy where it is not open yet, as after a restart of the agent.
    epoch: Option<Epoch>,
    seq: u64,
    cause: Cause,
    trust: Trust,
    freeze: bool,
    /// Directories of the agent that may lie inside the job's paths.
    ours: Vec<PathBuf>,
    /// Files that were open for writing when the program was told to end.
    writing_when_told: OpenFiles,
    control: Control,
    started: Timestamp,
}

impl JobTask {
    /// Starts the capture that the coordinator decided on.
    pub(super) fn capture(&mut self, seq: u64, cause: Cause, trust: Trust, freeze: bool) {
        // The number is used up before anything carries it.
        self.record.next_seq = self.record.next_seq.max(seq + 1);
        self.save();
        let (reason, why) = match self.life.intent() {
            Some(Intent::Delete) => (FailureReason::Internal, "the job is being deleted"),
            Some(Intent::Fence) => (FailureReason::Fenced, "a later attempt owns the job"),
            _ => return self.copy(seq, cause, trust, freeze),
        };
        self.not_copied(seq, cause, reason, why.to_owned());
    }

    fn copy(&mut self, seq: u64, cause: Cause, trust: Trust, freeze: bool) {
        let control = Control::new();
        self.copying = Some(Copying { seq, control: control.clone() });
        let trust = if self.after_reboot { in_doubt(trust) } else { trust };
        self.left = left(trust);
        let live = self.live.as_ref();
        let job = CopyJob {
            running: live.map(|live| Arc::clone(&live.running)),
            freeze,
            writing_when_told: live.map(|live| live.writing_when_told.clone()).unwrap_or_default(),
            ..self.copy_job((seq, cause), trust, control)
        };
        let post = self.post.clone();
        tokio::spawn(async move {
            let shared = Arc::clone(&job.shared);
            // Never closed while a job's task runs.
            let permit = shared.copies.acquire().await;
            let (failed, note) = (job.failed_info(), post.clone());
            let copied = tokio::task::spawn_blocking(move || job.run(Some(&note))).await;
            drop(permit);
            let copied = copied.unwrap_or_else(|panic| {
                failed
                    .because(FailureReason::Internal, format!("the copy ended abnormally: {panic}"))
            });
            let _ = post.send(Note::Copied(Box::new(copied))).await;
        });
    }

    /// The copy of what an attempt left whose exit checkpoint failed.
    pub(super) fn copy_of_left(&self, left: Left, control: Control) -> CopyJob {
        let trust = match left.clean {
            true => Trust::Acked,
            false => Trust::NotAcked {
                request_open_at_death: left.request_open,
                reason: NotAcked::Exited,
            },
        };
        self.copy_job((self.record.next_seq, Cause::Exit), trust, control)
    }

    fn copy_job(&self, (seq, cause): (u64, Cause), trust: Trust, control: Control) -> CopyJob {
        CopyJob {
            shared: Arc::clone(&self.shared),
            record: self.record.clone(),
            running: None,
            roots: self.place.roots(&self.record.spec),
            epoch: self.epoch.clone(),
            seq,
            cause,
            trust,
            freeze: false,
            ours: own_dirs(&self.shared, &self.place),
            writing_when_told: OpenFiles::default(),
            control,
            started: timestamp(),
        }
    }

    /// Nobody wants the copy that is under way any more.
    pub(super) fn cancel_copying(&self) {
        if let Some(copying) = &self.copying {
            copying.control.cancel();
        }
    }

    fn not_copied(&self, seq: u64, cause: Cause, reason: FailureReason, message: String) {
        let attempt = self.record.attempt_number();
        let epoch = self.record.attempt().map_or(0, |attempt| attempt.epoch);
        let info = blank_info(seq, attempt, epoch, cause, timestamp());
        let copied = FailedInfo(info).because(reason, message);
        let post = self.post.clone();
        tokio::spawn(async move {
            let _ = post.send(Note::Copied(Box::new(copied))).await;
        });
    }

    pub(super) fn copied(&mut self, copied: Copied) {
        let Copied { seq, outcome, info, epoch } = copied;
        self.copying = None;
        if self.epoch.is_none() && epoch.is_some() {
            self.epoch_opened(epoch);
        }
        self.remember_checkpoint(info, &outcome);
        if let Outcome::Failed { reason: FailureReason::Fenced, message } = &outcome {
            // Before anybody is told of the end, which could start the next attempt.
            self.fenced(message);
        }
        // Before the next copy can begin, which would count on what this deletes.
        self.retain();
        self.coordinate(coordinator::Event::Ended { seq, outcome });
    }

    /// Somebody else owns the job now: what runs here is ended, since nothing of it is kept.
    pub(super) fn fenced(&mut self, message: &str) {
        if self.conditions.insert("Fenced", message.to_owned()).is_none() {
            self.record.message = Some(message.to_owned());
            self.warn(format!("a later attempt elsewhere owns the job: {message}"));
        }
        if matches!(self.life.stage(), Stage::Running { .. } | Stage::Ending { .. }) {
            self.live_on(lifecycle::Event::End(Intent::Fence));
        }
    }

    /// The checkpoint of what an attempt had left is over.
    pub(super) fn left_stored(&mut self, copied: Copied) {
        let Copied { seq, outcome, info, .. } = copied;
        if !matches!(outcome, Outcome::Failed { .. }) {
            self.record.unsaved = None;
            self.conditions.remove(FILES_NOT_STORED);
        }
        self.remember_checkpoint(info, &outcome);
        self.emit(JobEvent::CheckpointEnded { seq, cause: Cause::Exit, outcome, took_ms: 0 });
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
        // One that is being taken plans the next when it ends.
        let idle = self.coordinator.in_progress().is_none();
        let due = idle && self.can_checkpoint().is_ok() && self.life.intent().is_none();
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

/// What is known of the files that such a capture is of.
fn left(trust: Trust) -> Left {
    match trust {
        Trust::Acked => Left { clean: true, request_open: false },
        Trust::NotAcked { request_open_at_death, .. } => {
            Left { clean: false, request_open: request_open_at_death }
        }
    }
}

impl CopyJob {
    /// The number of the epoch under which the attempt may write.
    fn epoch_number(&self) -> u64 {
        self.record.attempt().map_or(0, |attempt| attempt.epoch)
    }

    fn failed_info(&self) -> FailedInfo {
        let attempt = self.record.attempt_number();
        FailedInfo(blank_info(self.seq, attempt, self.epoch_number(), self.cause, self.started))
    }

    /// Captures, copies and commits with nobody to be told of the capture.
    pub(super) fn run_alone(self) -> Copied {
        self.run(None)
    }

    fn run(mut self, post: Option<&tokio::sync::mpsc::Sender<Note>>) -> Copied {
        let copied = self.copied(post);
        Copied { epoch: self.epoch, ..copied }
    }

    fn copied(&mut self, post: Option<&tokio::sync::mpsc::Sender<Note>>) -> Copied {
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
                Copied { seq: record.seq, outcome, info, epoch: None }
            }
            Ok(Finished::Skipped(reason)) => failed.skipped(reason),
            Err(error) => failed.because(error.reason(), error.chain()),
        }
    }

    fn copy(&mut self, post: Option<&tokio::sync::mpsc::Sender<Note>>) -> Result<Finished> {
        let (store, _lock) = open_for_writing_to(&self.shared, &self.record)?;
        let epoch = match self.epoch.take() {
            Some(epoch) => epoch,
            None => store.resume_epoch(self.epoch_number())?,
        };
        self.epoch = Some(epoch.clone());
        let captured = self.capture(&store, &epoch, post)?;
        let at = timestamp();
        if let Some(post) = post {
            // Where the task is gone, nobody is left to be told.
            let _ = post.blocking_send(Note::Captured { seq: self.seq });
        }
        captured.finish(&CommitInput {
            attempt: self.record.attempt_number(),
            cause: self.cause,
            started: self.started,
            captured: at,
            asked: asked(self.trust),
            now: &timestamp,
        })
    }

    fn capture(
        &mut self,
        store: &JobStore,
        epoch: &Epoch,
        post: Option<&tokio::sync::mpsc::Sender<Note>>,
    ) -> Result<Captured> {
        let frozen = self.freeze(post);
        let mut open = self.writing_when_told.clone();
        if let Some(running) = &self.running {
            let now = open_for_writing(running);
            open.writable.extend(now.writable);
            open.unknown.extend(now.unknown);
        }
        if !open.unknown.is_empty() {
            // Whatever those processes are writing, we would not see it.
            self.trust = in_doubt(self.trust);
        }
        let options = CaptureOptions {
            roots: self.roots.clone(),
            credentials: credentials(&self.record.owner),
            max_size: self.record.spec.recovery.checkpoint.max_size.0,
            threads: self.shared.settings.threads,
            open_for_writing: open.writable,
            exclude: self.ours.iter().filter_map(|dir| object_of(dir)).collect(),
        };
        let captured = snapshot::capture(store, epoch, self.seq, &options, &self.control);
        drop(frozen);
        captured
    }

    /// Holds the program still where that was asked for; one that cannot be is captured as it runs.
    fn freeze(&self, post: Option<&tokio::sync::mpsc::Sender<Note>>) -> Option<Frozen> {
        let running = self.running.as_ref().filter(|_| self.freeze)?;
        match running.freeze() {
            Ok(frozen) => Some(frozen),
            Err(error) => {
                let message = format!("{error}: checkpoint {} is taken as it runs", self.seq);
                let _ = post.map(|post| post.blocking_send(Note::Warning(message)));
                None
            }
        }
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

/// Files that processes of the attempt hold open for writing.
pub(super) fn open_for_writing(running: &Running) -> OpenFiles {
    let pids: Vec<u32> = running.processes().into_iter().map(i32::unsigned_abs).collect();
    process::open_for_writing(&pids)
}

/// The identity under which the job's files are touched; ourselves, where we are not root.
pub(crate) fn credentials(owner: &Owner) -> Option<Credentials> {
    (rustix::process::geteuid().is_root() && owner.uid != 0).then(|| owner.credentials())
}

fn open_for_writing_to(shared: &Shared, record: &Record) -> Result<(JobStore, WriterLock)> {
    let store = open_store(shared, record)?;
    let lock = store.lock()?.ok_or_else(|| {
        let job = &record.spec.name;
        Error::Refused(format!("another process is writing to the store of job {job}"))
    })?;
    // A process that was killed in a copy left half of it, and its job may run on for days.
    store.sweep(&lock)?;
    Ok((store, lock))
}

pub(super) fn open_store(shared: &Shared, record: &Record) -> Result<JobStore> {
    let (name, uid) = (&record.spec.name, record.owner.uid);
    own_store(&shared.settings.store, name, uid)?.ok_or_else(|| {
        let path: &Path = &shared.settings.store;
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        Error::io("find the job's checkpoints in", path, gone)
    })
}

/// The job's part of the store; `None` where it has none.
///
/// # Errors
/// [`Error::Refused`] where a job of that name there belongs to another user: the stores of nodes
/// can be one directory.
pub(crate) fn own_store(store: &Path, name: &JobName, uid: u32) -> Result<Option<JobStore>> {
    let there = JobStore::open(store, name)?;
    match there {
        Some(other) if other.record().uid != uid => Err(Error::Refused(format!(
            "the checkpoints of job {name} in {} belong to another user",
            store.display()
        ))),
        there => Ok(there),
    }
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
        Copied { seq: info.seq, outcome, info, epoch: None }
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
