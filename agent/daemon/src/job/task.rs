//! The task that owns one job and carries out what its pure parts decide.
//!
//! Everything that can change the job arrives here one after the other: questions of users, events
//! of training programs, notes from the work this task has started, and its own timers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nodus_checkpoint::control::Control;
use nodus_checkpoint::store::Epoch;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::Outcome;
use nodus_protocol::control::{CheckpointDone, JobEvent, JobInfo, TimedEvent};
use nodus_protocol::event::ProgramMessage;
use nodus_protocol::job::AttemptEnd;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::attempts::Live;
use super::copying::Copying;
use super::finding::standing_of;
use super::lifecycle::Lifecycle;
use super::place::Place;
use super::preparing::Preparing;
use super::record::{Left, Record, Standing};
use super::{Ask, JobHandle, MAX_EVENTS, MAX_QUESTIONS, Published, Reply, timestamp};
use crate::cadence::Cadence;
use crate::coordinator::{Coordinator, WaiterId};
use crate::engine::Shared;
use crate::events::ClientEvent;
use crate::socket;

/// Notes that the work of one job can leave before its task reads them.
const MAX_NOTES: usize = 64;

/// Nothing is due: the task looks again all the same.
const IDLE: Duration = Duration::from_secs(3600);

/// Why a job's task has ended.
pub enum Over {
    /// The job is removed.
    Removed {
        /// Who waits for that, to be told once nobody can find the job any more.
        tell: Vec<Reply<()>>,
    },
    /// The process ends; the job is as its record says.
    Kept,
}

/// What work that the task has started reports to it.
pub(super) enum Note {
    /// The files are as the next attempt needs them.
    Prepared(Box<Preparing>),
    /// A checkpoint is being restored.
    Restoring {
        /// Which.
        seq: u64,
        /// Its logical bytes.
        bytes: u64,
    },
    /// The program of the attempt runs, or could not be started.
    Started(Box<Result<Live, String>>),
    /// The program is over, since then.
    Ended(AttemptEnd, Timestamp),
    /// The epoch of an attempt that was found again.
    Epoch(Box<nodus_checkpoint::Result<Epoch>>),
    /// The copy no longer depends on the program's files.
    Captured {
        /// Of which checkpoint.
        seq: u64,
    },
    /// A capture or copy is over.
    Copied(Box<super::copying::Copied>),
    /// The program printed an event, which ends there in its log.
    Printed(ProgramMessage, u64),
    /// Something that an operator should know.
    Warning(String),
    /// Every trace of the job is removed.
    Removed(Result<(), String>),
}

/// Who waits for a checkpoint.
pub(super) enum Waiter {
    /// A user, for this checkpoint.
    Asked(Reply<CheckpointDone>),
    /// The lifecycle, before it ends the attempt.
    Ending,
    /// The lifecycle, after the attempt has ended.
    Exit,
}

/// When the task has to look at something by itself.
#[derive(Default)]
pub(super) struct Wakes {
    pub(super) life: Option<Instant>,
    pub(super) coordinator: Option<Instant>,
    pub(super) checkpoint: Option<Instant>,
    pub(super) retention: Option<Instant>,
    pub(super) progress: Option<Instant>,
    /// When `maxWallTime` is used up.
    pub(super) limit: Option<Instant>,
    /// When removing the traces of the job is tried again.
    pub(super) removal: Option<Instant>,
}

impl Wakes {
    fn next(&self, now: Instant) -> Instant {
        let jobs = [self.life, self.coordinator, self.checkpoint, self.limit];
        let files = [self.retention, self.progress, self.removal];
        jobs.into_iter().chain(files).flatten().min().unwrap_or(now + IDLE)
    }
}

/// Takes a timer that is due.
pub(super) fn take_due(wake: &mut Option<Instant>, now: Instant) -> bool {
    wake.take_if(|at| *at <= now).is_some()
}

/// One job's task, before it runs.
pub struct JobTask {
    pub(super) shared: Arc<Shared>,
    pub(super) name: JobName,
    pub(super) place: Place,
    pub(super) record: Record,
    pub(super) life: Lifecycle,
    pub(super) coordinator: Coordinator,
    pub(super) cadence: Cadence,
    /// When the newest checkpoint of this attempt ended.
    pub(super) last_checkpoint: Option<Instant>,
    pub(super) wakes: Wakes,
    pub(super) live: Option<Live>,
    pub(super) epoch: Option<Epoch>,
    pub(super) copying: Option<Copying>,
    /// What stops the restore that is under way.
    pub(super) preparing: Option<Control>,
    /// How often the next attempt could not be prepared.
    pub(super) tries: u32,
    pub(super) conditions: BTreeMap<&'static str, String>,
    pub(super) post: mpsc::Sender<Note>,
    pub(super) waiters: BTreeMap<WaiterId, Waiter>,
    pub(super) next_waiter: u64,
    /// Users who wait for the job to have come to rest.
    pub(super) resting: Vec<Reply<CheckpointDone>>,
    pub(super) deleting: Vec<Reply<()>>,
    /// How the checkpoint before an ending went, for those who wait for the rest.
    pub(super) last_done: Option<(u64, Outcome)>,
    /// The exit checkpoint that was committed in this ending.
    pub(super) exit_seq: Option<u64>,
    /// How the exit checkpoint ended.
    pub(super) exit_outcome: Option<Outcome>,
    /// What is known of the files that the newest capture was of.
    pub(super) left: Left,
    /// Whether the exit checkpoint is of files that a power cut may have left half-written.
    pub(super) after_reboot: bool,
    /// Tells who reads the log of the attempt that no more will come.
    pub(super) log_ended: CancellationToken,
    pub(super) removed: bool,
    questions: mpsc::Receiver<Ask>,
    notes: mpsc::Receiver<Note>,
    pub(super) clients: mpsc::Receiver<ClientEvent>,
    pub(super) view: watch::Sender<Arc<Published>>,
    events: broadcast::Sender<TimedEvent>,
}

impl JobTask {
    /// The task of the job that this record describes, and the handle by which others reach it.
    #[must_use]
    pub fn new(shared: Arc<Shared>, record: Record) -> (JobHandle, Self) {
        let name = record.spec.name.clone();
        let place = shared.settings.layout.place(&name);
        let (asks, questions) = mpsc::channel(MAX_QUESTIONS);
        let (post, notes) = mpsc::channel(MAX_NOTES);
        let (events, _) = broadcast::channel(MAX_EVENTS);
        let clients = shared.hub.add_job(name.clone());
        if matches!(record.standing, Standing::Running { .. }) {
            shared.members.expect(&name);
        }
        let now = Instant::now();
        let policy = &record.spec.recovery;
        let life = standing_of(&record, now);
        let coordinator = Coordinator::new(record.next_seq, (&policy.checkpoint).into());
        let interval = policy.checkpoint.interval;
        let cadence = Cadence::new(interval, policy.expected_run_time, record.costs);
        let detail = super::view::bare(&record, &place, life.phase());
        let published = Published { detail, unstored: record.unstored.clone() };
        let (view, seen) = watch::channel(Arc::new(published));
        let handle = JobHandle {
            uid: record.owner.uid,
            owner: record.owner.clone(),
            place: place.clone(),
            questions: asks,
            view: seen,
            events: events.clone(),
        };
        let task = Self {
            shared,
            name,
            place,
            record,
            life,
            coordinator,
            cadence,
            last_checkpoint: None,
            wakes: Wakes::default(),
            live: None,
            epoch: None,
            copying: None,
            preparing: None,
            tries: 0,
            conditions: BTreeMap::new(),
            post,
            waiters: BTreeMap::new(),
            next_waiter: 0,
            resting: Vec::new(),
            deleting: Vec::new(),
            last_done: None,
            exit_seq: None,
            exit_outcome: None,
            left: Left { clean: false, request_open: false },
            after_reboot: false,
            log_ended: CancellationToken::new(),
            removed: false,
            questions,
            notes,
            clients,
            view,
            events,
        };
        (handle, task)
    }

    /// Runs the job until it is removed or the process ends.
    pub async fn run(mut self) -> Over {
        self.open_socket().await;
        self.find_again().await;
        let closing = self.shared.closing.clone();
        loop {
            self.publish();
            if self.removed {
                self.shared.hub.remove_job(&self.name);
                return Over::Removed { tell: std::mem::take(&mut self.deleting) };
            }
            let due = tokio::time::Instant::from_std(self.wakes.next(Instant::now()));
            tokio::select! {
                Some(question) = self.questions.recv() => self.question(question),
                Some(note) = self.notes.recv() => self.note(note),
                Some(event) = self.clients.recv() => self.client(event),
                () = tokio::time::sleep_until(due) => self.woke(Instant::now()),
                () = closing.cancelled() => {
                    // What is not done by now is done by the next process.
                    self.cancel_copying();
                    self.cancel_preparing();
                    self.save();
                    return Over::Kept;
                }
            }
        }
    }

    /// Lets the job's programs in through a socket of its own.
    async fn open_socket(&mut self) {
        let owner = &self.record.owner;
        let place = socket::Place {
            path: self.place.events_socket(),
            mode: 0o600,
            owner: Some(socket::Owner { uid: owner.uid, gid: owner.gid }),
            dir_mode: 0o755,
        };
        if let Err(error) = self.shared.hub.bind_job_socket(&self.name, place).await {
            self.warn(format!("programs cannot reach the events socket: {error}"));
            self.conditions.insert("EventsSocketUnavailable", error.to_string());
        }
    }

    /// Writes the record. A failure is shown and does not stop the job: its program costs money.
    pub(super) fn save(&mut self) {
        self.record.costs = self.cadence.costs();
        let saved = tokio::task::block_in_place(|| self.record.save(&self.place.records));
        match saved {
            Ok(()) => {
                self.conditions.remove("RecordNotSaved");
            }
            Err(error) => {
                let message = error.chain();
                tracing::error!(job = %self.name, error = message, "cannot write the job's record");
                self.conditions.insert("RecordNotSaved", message);
            }
        }
    }

    /// Shows an event to whoever follows the job.
    pub(super) fn emit(&mut self, event: JobEvent) {
        super::view::log(&self.name, &event);
        // No receiver is no error: nobody follows.
        let _ = self.events.send(TimedEvent { at: timestamp(), event });
    }

    pub(super) fn warn(&mut self, message: String) {
        self.emit(JobEvent::Warning { message });
    }

    pub(super) fn publish(&mut self) {
        let detail = self.detail();
        let JobInfo { phase, reason, message, .. } = detail.info.clone();
        let published = Published { detail, unstored: self.record.unstored.clone() };
        let before = self.view.send_replace(Arc::new(published)).detail.info.phase;
        if before != phase {
            self.emit(JobEvent::Phase { phase, reason, message });
        }
    }
}
