//! What the agent remembers of a job over its own restarts.
//!
//! One JSON file a job, replaced as a whole before anything that depends on it happens. It is the
//! agent's own (mode 0600): the environment in it may hold secrets.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use nodus_checkpoint::identity::Credentials;
use nodus_protocol::checkpoint::{CheckpointInfo, Outcome};
use nodus_protocol::control::{AttemptInfo, LastOutcome};
use nodus_protocol::event::Progress;
use nodus_protocol::job::{AttemptEnd, Interruption, StopReason};
use nodus_protocol::spec::JobSpec;
use serde::{Deserialize, Serialize};

use super::lifecycle::{Intent, Parked};
use crate::recovery::{self, Counters, Next};

/// The version of the file.
const FORMAT: u32 = 1;

/// The name of the file in the job's record directory.
pub const FILE: &str = "job.json";

/// Attempts that are remembered one by one; older ones are only counted.
const MAX_ATTEMPTS: usize = 200;

/// Checkpoints that were not stored and are still listed.
const MAX_UNSTORED: usize = 50;

/// Everything remembered of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    format: u32,
    /// The job as submitted.
    pub spec: JobSpec,
    /// The environment of whoever submitted it.
    pub environment: BTreeMap<String, String>,
    /// Whose it is.
    pub owner: Owner,
    /// When it was submitted.
    pub created: Timestamp,
    /// When it succeeded or failed.
    #[serde(default)]
    pub finished: Option<Timestamp>,
    /// Where it is, in the words that survive a restart.
    pub standing: Standing,
    /// Why it is there, in a sentence.
    #[serde(default)]
    pub message: Option<String>,
    /// Its newest attempts, oldest first.
    pub attempts: Vec<AttemptRecord>,
    /// Retries, attempts without progress, and the time of attempts that are over.
    pub counters: Counters,
    /// The number of the next checkpoint; numbers below it are used up.
    pub next_seq: u64,
    /// How far the program said it is.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// The newest checkpoint that a restore can use.
    #[serde(default)]
    pub latest: Option<CheckpointInfo>,
    /// How the newest checkpoint ended.
    #[serde(default)]
    pub last_outcome: Option<LastOutcome>,
    /// Checkpoints that were skipped or failed, oldest first.
    #[serde(default)]
    pub unstored: Vec<CheckpointInfo>,
    /// What checkpoints of this job cost, for the cadence.
    #[serde(default)]
    pub costs: Option<crate::cadence::Costs>,
    /// Attempts that failed in a row without progress, and what they started from.
    #[serde(default)]
    pub stuck: Option<Stuck>,
    /// Files that the newest attempt left and no checkpoint has: an older one must not be
    /// restored over them before they are stored.
    #[serde(default)]
    pub unsaved: Option<Left>,
}

/// What is known of files that an attempt left and no checkpoint has yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Left {
    /// Whether the program had ended with 0.
    pub clean: bool,
    /// Whether it ended before it had answered a request.
    pub request_open: bool,
}

/// Who owns a job: its attempts and the copies of its files run as this user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The user's further groups.
    pub groups: Vec<u32>,
}

impl Owner {
    /// The identity under which the job's files are touched.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }
}

/// Where a job is, in the words that survive a restart of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "at")]
pub enum Standing {
    /// The next attempt is due.
    Due,
    /// The newest attempt was started, and maybe somebody wants it to end.
    Running {
        /// What they want.
        #[serde(default)]
        wish: Option<Wish>,
        /// Whether its program was told to end: then an exit with 0 does not mean that it is done.
        #[serde(default)]
        told: bool,
    },
    /// The newest attempt is over, but its exit checkpoint is not taken yet.
    Ending {
        /// What somebody wanted.
        #[serde(default)]
        wish: Option<Wish>,
    },
    /// Until `resume`.
    Suspended,
    /// Interrupted together with the process that ran it.
    Interrupted {
        /// By what.
        by: Interruption,
    },
    /// For good.
    Succeeded,
    /// Until somebody resumes it.
    Failed {
        /// Why.
        reason: StopReason,
    },
    /// Its traces are being removed.
    Deleting,
}

/// What somebody wants of a running attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Suspend.
    Suspend,
    /// Stop.
    Stop,
    /// Delete.
    Delete,
}

impl Standing {
    /// The intent that a wish stands for, after a restart.
    #[must_use]
    pub fn intent(self) -> Option<Intent> {
        match self {
            Self::Running { wish, .. } | Self::Ending { wish } => wish.map(|wish| match wish {
                Wish::Suspend => Intent::Suspend,
                Wish::Stop => Intent::Stop,
                Wish::Delete => Intent::Delete,
            }),
            Self::Deleting => Some(Intent::Delete),
            _ => None,
        }
    }

    /// The words for a parked job.
    #[must_use]
    pub fn parked(parked: Parked) -> Self {
        match parked {
            Parked::Suspended => Self::Suspended,
            Parked::Succeeded => Self::Succeeded,
            Parked::Failed(reason) => Self::Failed { reason },
            Parked::Interrupted(by) => Self::Interrupted { by },
        }
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    /// What people are shown of it.
    #[serde(flatten)]
    pub info: AttemptInfo,
    /// The epoch under which it may write; 0 where it writes nothing.
    pub epoch: u64,
    /// The newest checkpoint that it committed while it ran.
    #[serde(default)]
    pub committed: Option<u64>,
    /// How much of its log has been looked through for events.
    #[serde(default)]
    pub log_offset: u64,
    /// The cursor that it was handed.
    #[serde(default)]
    pub cursor: Option<u64>,
}

impl AttemptRecord {
    /// An attempt that is about to be started.
    #[must_use]
    pub fn new(info: AttemptInfo, epoch: u64, cursor: Option<u64>) -> Self {
        Self { info, epoch, committed: None, log_offset: 0, cursor }
    }
}

/// Attempts that failed in a row without committing anything while they ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The checkpoint that the first of them started from.
    pub base: u64,
    /// The exit checkpoints that they left: no better than what they started from.
    pub left: Vec<u64>,
    /// How many.
    pub failures: u32,
}

impl Record {
    /// A job that was just submitted.
    #[must_use]
    pub fn new(
        spec: JobSpec,
        environment: BTreeMap<String, String>,
        owner: Owner,
        created: Timestamp,
    ) -> Self {
        Self {
            format: FORMAT,
            spec,
            environment,
            owner,
            created,
            finished: None,
            standing: Standing::Due,
            message: None,
            attempts: Vec::new(),
            counters: Counters::default(),
            next_seq: 1,
            progress: None,
            latest: None,
            last_outcome: None,
            unstored: Vec::new(),
            costs: None,
            stuck: None,
            unsaved: None,
        }
    }

    /// Reads the record of a job.
    ///
    /// # Errors
    /// Where it cannot be read, or was written by a version that this one does not know.
    pub fn load(records: &Path) -> nodus_checkpoint::Result<Self> {
        let path = records.join(FILE);
        let cannot = |error: std::io::Error| nodus_checkpoint::Error::io("read", &path, error);
        let bytes = std::fs::read(&path).map_err(cannot)?;
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| cannot(error.into()))?;
        if record.format != FORMAT {
            let text = format!("its format is {}, known is {FORMAT}", record.format);
            return Err(cannot(std::io::Error::new(std::io::ErrorKind::InvalidData, text)));
        }
        Ok(record)
    }

    /// Writes the record, durably and all at once.
    ///
    /// # Errors
    /// Where it cannot be written; then the old one stays.
    pub fn save(&self, records: &Path) -> nodus_checkpoint::Result<()> {
        let bytes = serde_json::to_vec(self).expect("plain data with string keys");
        nodus_checkpoint::durable::publish(&records.join(FILE), &bytes)
    }

    /// The newest attempt.
    #[must_use]
    pub fn attempt(&self) -> Option<&AttemptRecord> {
        self.attempts.last()
    }

    /// The number of the newest attempt; 0 before the first.
    #[must_use]
    pub fn attempt_number(&self) -> u32 {
        self.attempt().map_or(0, |attempt| attempt.info.number)
    }

    /// Remembers that an attempt was started.
    ///
    /// Returns the number of the attempt that is forgotten for it, where there are too many.
    pub fn attempt_started(&mut self, attempt: AttemptRecord) -> Option<u32> {
        let full = self.attempts.len() == MAX_ATTEMPTS;
        let forgotten = full.then(|| self.attempts.remove(0).info.number);
        self.attempts.push(attempt);
        self.standing = Standing::Running { wish: None, told: false };
        self.message = None;
        forgotten
    }

    /// Remembers that the newest attempt ended.
    pub fn attempt_ended(&mut self, end: AttemptEnd, at: Timestamp) {
        let wish = match self.standing {
            Standing::Running { wish, .. } => wish,
            _ => None,
        };
        self.standing = Standing::Ending { wish };
        let Some(attempt) = self.attempts.last_mut() else { return };
        attempt.info.end = Some(end);
        attempt.info.ended = Some(at);
    }

    /// Whether the newest attempt brought the job further: it committed a checkpoint, at its exit
    /// at the latest, or it moved the cursor.
    #[must_use]
    pub fn progressed(&self, exit: Option<u64>) -> bool {
        let Some(attempt) = self.attempt() else { return false };
        let reached = self.progress.map_or(0, |progress| progress.completed);
        exit.is_some() || attempt.committed.is_some() || reached > attempt.cursor.unwrap_or(0)
    }

    /// Decides what comes after the newest attempt, and counts it.
    pub fn decide(&mut self, end: AttemptEnd, progressed: bool, jitter: f64) -> Next {
        let policy = recovery::Policy::new(&self.spec.recovery, recovery::Backoff::default());
        let ran = self.attempt().map_or(Duration::ZERO, |attempt| ran(&attempt.info, None));
        let attempt = recovery::Attempt { end, ran, progressed };
        let (next, counters) = recovery::next(attempt, self.counters, &policy, jitter);
        self.counters = counters;
        next
    }

    /// Remembers how a checkpoint ended.
    pub fn checkpoint_ended(&mut self, info: CheckpointInfo, outcome: Outcome, at: Timestamp) {
        let seq = info.seq;
        self.next_seq = self.next_seq.max(seq + 1);
        if !matches!(outcome, Outcome::Committed(_)) {
            if self.unstored.len() == MAX_UNSTORED {
                self.unstored.remove(0);
            }
            self.unstored.push(info);
        }
        self.last_outcome = Some(LastOutcome { seq, at, result: outcome });
    }

    /// Time over all attempts, the running one included.
    #[must_use]
    pub fn wall_time_at(&self, now: Timestamp) -> Duration {
        let running = self.attempt().filter(|attempt| attempt.info.ended.is_none());
        let so_far = running.map_or(Duration::ZERO, |attempt| ran(&attempt.info, Some(now)));
        self.counters.wall_time.saturating_add(so_far)
    }

    /// Notes what a failed attempt says about the checkpoint it started from, and returns those
    /// that are now suspect: what it started from, and what such attempts left at their exits.
    ///
    /// An exit checkpoint is no progress here: a program that dies right after it started may have
    /// changed a file or two, and would otherwise be started from those for ever.
    pub fn note_failure(&mut self, limit: u32, exit: Option<u64>) -> Vec<u64> {
        let Some(attempt) = self.attempts.last() else { return Vec::new() };
        let Some(from) = attempt.info.restored_from else { return Vec::new() };
        if attempt.committed.is_some() {
            self.stuck = None;
            return Vec::new();
        }
        let known =
            self.stuck.take().filter(|stuck| stuck.base == from || stuck.left.contains(&from));
        let mut stuck = known.unwrap_or(Stuck { base: from, left: Vec::new(), failures: 0 });
        stuck.failures += 1;
        stuck.left.extend(exit);
        let suspects = if stuck.failures >= limit {
            std::iter::once(stuck.base).chain(stuck.left.iter().copied()).collect()
        } else {
            Vec::new()
        };
        self.stuck = (stuck.failures < limit).then_some(stuck);
        suspects
    }
}

/// How long an attempt ran; a clock that was set back makes it nothing, not less.
fn ran(attempt: &AttemptInfo, now: Option<Timestamp>) -> Duration {
    let until = attempt.ended.or(now).unwrap_or(attempt.started);
    Duration::try_from(until.duration_since(attempt.started)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let spec = JobSpec::from_yaml("name: n\ncommand: [a]\n").unwrap();
        let owner = Owner { uid: 1, gid: 1, groups: vec![] };
        Record::new(spec, BTreeMap::new(), owner, Timestamp::UNIX_EPOCH)
    }

    fn start(record: &mut Record, number: u32, from: u64, committed: Option<u64>) {
        let info = AttemptInfo {
            number,
            started: Timestamp::UNIX_EPOCH,
            ended: None,
            end: None,
            restored_from: Some(from),
            restore_reason: None,
        };
        record.attempt_started(AttemptRecord { committed, ..AttemptRecord::new(info, 1, None) });
    }

    #[test]
    fn it_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = record();
        start(&mut record, 1, 3, None);
        record.attempt_ended(AttemptEnd::Exited { code: 1 }, Timestamp::from_second(90).unwrap());
        record.save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), record);
        assert_eq!(record.wall_time_at(Timestamp::UNIX_EPOCH), Duration::ZERO);
        record.decide(AttemptEnd::Exited { code: 1 }, false, 0.0);
        assert_eq!(record.counters.wall_time, Duration::from_secs(90));
        assert_eq!(record.counters.retries, 1);
        assert_eq!(record.standing, Standing::Ending { wish: None });
    }

    #[test]
    fn a_cursor_that_moves_is_progress() {
        let mut record = record();
        start(&mut record, 1, 0, None);
        assert!(!record.progressed(None));
        record.progress = Some(Progress { completed: 4, total: None });
        assert!(record.progressed(None));
        record.attempts[0].cursor = Some(4);
        assert!(!record.progressed(None), "it was handed that");
        assert!(record.progressed(Some(1)));
    }

    #[test]
    fn what_was_written_before_a_field_existed_is_read() {
        let old: Standing = serde_json::from_str(r#"{"at":"Running","wish":"Suspend"}"#).unwrap();
        assert_eq!(old, Standing::Running { wish: Some(Wish::Suspend), told: false });
    }

    #[test]
    fn old_attempts_are_forgotten_one_by_one() {
        let mut record = record();
        for number in 1..=u32::try_from(MAX_ATTEMPTS).unwrap() {
            start(&mut record, number, 0, None);
        }
        let info = record.attempt().unwrap().info.clone();
        assert_eq!(record.attempt_started(AttemptRecord::new(info, 1, None)), Some(1));
        assert_eq!(record.attempts.len(), MAX_ATTEMPTS);
    }

    /// C12: two failures in a row from the same checkpoint make it suspect, and so those that
    /// these attempts left when they exited.
    #[test]
    fn c12_two_failures_without_progress() {
        let mut record = record();
        start(&mut record, 2, 12, None);
        assert_eq!(record.note_failure(2, Some(13)), [0u64; 0]);
        start(&mut record, 3, 13, None);
        assert_eq!(record.note_failure(2, Some(14)), [12, 13, 14]);
        start(&mut record, 4, 11, Some(15));
        assert_eq!(record.note_failure(2, None), [0u64; 0]);
        start(&mut record, 5, 15, None);
        assert_eq!(record.note_failure(2, None), [0u64; 0]);
    }
}
