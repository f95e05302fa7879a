//! What the control API (`/v1`) takes and answers, as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::JobName;
use crate::checkpoint::{CheckpointInfo, Outcome};
use crate::event::Progress;
use crate::job::{AttemptEnd, Phase, StopReason};
use crate::spec::{Continuity, JobSpec};
use crate::units;

/// `POST /v1/jobs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Submit {
    /// The job.
    pub spec: JobSpec,
    /// The environment of whoever submits it; `spec.env` goes over it. Never shown again.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// A line of `GET /v1/jobs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobInfo {
    /// Its name.
    pub name: JobName,
    /// Whose it is.
    pub uid: u32,
    /// Where it is.
    pub phase: Phase,
    /// Why it is there, where the phase alone does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<StopReason>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The newest attempt; 0 before the first.
    pub attempt: u32,
    /// Failures of the program so far.
    pub retries: u32,
    /// When it was submitted.
    pub created: Timestamp,
    /// When it succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// The newest checkpoint that a restore can use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_checkpoint: Option<CheckpointInfo>,
    /// How far the program says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// `GET /v1/jobs/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobDetail {
    /// What the listing shows.
    #[serde(flatten)]
    pub info: JobInfo,
    /// The job as it was submitted, with every default filled in.
    pub spec: JobSpec,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptInfo>,
    /// Time over all attempts.
    #[serde(with = "units::duration")]
    pub wall_time: Duration,
    /// When the next checkpoint is due, and why then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cadence: Option<CadenceInfo>,
    /// Connections that asked to be told before each checkpoint.
    pub subscribers: u32,
    /// How the newest checkpoint, stored or not, ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_outcome: Option<LastOutcome>,
    /// The checkpoint that is being taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<CheckpointProgress>,
    /// What an operator should know: `CadenceConstrained`, `StoreUnavailable` and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Where the state directory and the log of the newest attempt are on this node.
    pub state_dir: String,
}

/// The newest checkpoint that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastOutcome {
    /// Its number.
    pub seq: u64,
    /// When it ended.
    pub at: Timestamp,
    /// How it ended.
    pub result: Outcome,
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Its name, UpperCamelCase.
    pub name: String,
    /// The same in a sentence.
    pub message: String,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptInfo {
    /// Counts from 1.
    pub number: u32,
    /// When its program was started.
    pub started: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<AttemptEnd>,
    /// The checkpoint it started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<u64>,
    /// Why that one: which newer ones were passed over, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_reason: Option<String>,
}

/// The interval, its inputs and the rule that decided (DESIGN 4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CadenceInfo {
    /// The interval in force.
    #[serde(with = "units::duration")]
    pub interval: Duration,
    /// The name of the rule that decided.
    pub rule: String,
    /// When the next checkpoint is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// B: how long a checkpoint holds the program up.
    #[serde(default, with = "units::opt_duration", skip_serializing_if = "Option::is_none")]
    pub held_up: Option<Duration>,
    /// D: how long until a checkpoint is committed.
    #[serde(default, with = "units::opt_duration", skip_serializing_if = "Option::is_none")]
    pub until_committed: Option<Duration>,
    /// M: the mean time between interruptions.
    #[serde(default, with = "units::opt_duration", skip_serializing_if = "Option::is_none")]
    pub between_interruptions: Option<Duration>,
    /// The expected run time.
    #[serde(default, with = "units::opt_duration", skip_serializing_if = "Option::is_none")]
    pub expected_run_time: Option<Duration>,
}

/// A checkpoint under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointProgress {
    /// Its number.
    pub seq: u64,
    /// `Waiting` for acks, `Capturing`, `Archiving` or `Committing`.
    pub stage: CheckpointStage,
    /// Bytes copied so far.
    pub copied: u64,
    /// Bytes there are to copy, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// The stages of a checkpoint, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CheckpointStage {
    /// For acks.
    Waiting,
    /// The short part that decides consistency.
    Capturing,
    /// The copy.
    Archiving,
    /// Making it durable.
    Committing,
}

/// `POST /v1/jobs/NAME/checkpoint`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointNow {
    /// Tell the program that it is urgent.
    pub urgent: bool,
}

/// How a checkpoint that somebody asked for ended; also the answer of `suspend`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDone {
    /// Its number; absent where none was taken, as for a job that is not running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The job's phase now.
    pub phase: Phase,
}

/// `POST /v1/jobs/NAME/restore`: puts a checkpoint's files somewhere else than the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreTo {
    /// Which; the one that the next attempt would start from where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// An absolute directory on the agent's node.
    pub to: String,
}

/// What `restore` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreDone {
    /// Which checkpoint it was.
    pub seq: u64,
    /// Why that one, where a newer one was passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where the files are.
    pub to: String,
    /// Entries of every type.
    pub files: u64,
    /// Logical bytes of regular files.
    pub bytes: u64,
    /// What a reader should know: links that point nowhere, attributes that could not be set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What `POST /v1/jobs/NAME/checkpoints/SEQ/verify` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyDone {
    /// Which checkpoint it was.
    pub seq: u64,
    /// Logical bytes that were read and compared with their hashes.
    pub bytes: u64,
    /// What is wrong with it; nothing where it is as it was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// Server-sent events of `GET /v1/jobs/NAME/events`; also the lines of standalone mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum JobEvent {
    /// The job went to another phase.
    Phase {
        /// To this one.
        phase: Phase,
        /// Why, for `Failed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<StopReason>,
        /// A sentence about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A checkpoint is being restored.
    Restoring {
        /// Which.
        seq: u64,
        /// Its logical bytes.
        bytes: u64,
    },
    /// An attempt's program runs.
    AttemptStarted {
        /// Which.
        attempt: u32,
        /// From which checkpoint.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restored_from: Option<u64>,
        /// Why that one, where a newer one was passed over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restore_reason: Option<String>,
    },
    /// An attempt is over.
    AttemptEnded {
        /// Which.
        attempt: u32,
        /// How.
        end: AttemptEnd,
    },
    /// The program is asked to complete its files.
    CheckpointRequested {
        /// Which.
        seq: u64,
        /// Why.
        cause: crate::checkpoint::Cause,
        /// Whether the capacity is about to go away.
        urgent: bool,
        /// How many are asked.
        subscribers: u32,
    },
    /// The copy no longer depends on the program's files.
    CheckpointCaptured {
        /// Which.
        seq: u64,
        /// How long the program was held up.
        held_up_ms: u64,
    },
    /// A checkpoint ended.
    CheckpointEnded {
        /// Which.
        seq: u64,
        /// Why it was taken.
        cause: crate::checkpoint::Cause,
        /// How it ended.
        outcome: Outcome,
        /// From its trigger to its end.
        took_ms: u64,
    },
    /// The capacity is about to go away.
    Notice {
        /// Who said so.
        source: String,
        /// When it goes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Timestamp>,
    },
    /// The program said how far it is.
    Progress(Progress),
    /// Something an operator should know.
    Warning {
        /// What.
        message: String,
    },
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedEvent {
    /// When.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub event: JobEvent,
}

/// `POST /v1/notices`: capacity of this node is about to go away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Notice {
    /// In how long; at once where absent.
    #[serde(default, with = "units::opt_duration", skip_serializing_if = "Option::is_none")]
    pub r#in: Option<Duration>,
    /// Who says so.
    #[serde(default)]
    pub source: String,
}

/// An error of the control API: a problem as RFC 9457 describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:nodus:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What kind of error, for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was attempted, on what, and what would be allowed.
    pub detail: String,
}

/// The codes of [`Problem`]; each is one kind of thing that a caller would do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemCode {
    /// The request itself is wrong.
    Invalid,
    /// No job or checkpoint of that name that the caller may see.
    NotFound,
    /// The job exists, or is in a phase in which this cannot be done.
    Conflict,
    /// The caller may not do this.
    Forbidden,
    /// The store does not answer.
    StoreUnavailable,
    /// A fault of the agent.
    Internal,
}

impl ProblemCode {
    /// The code, its title and its HTTP status.
    #[must_use]
    pub fn parts(self) -> (&'static str, &'static str, u16) {
        match self {
            Self::Invalid => ("invalid", "Invalid request", 422),
            Self::NotFound => ("not-found", "Not found", 404),
            Self::Conflict => ("conflict", "Not possible now", 409),
            Self::Forbidden => ("forbidden", "Not allowed", 403),
            Self::StoreUnavailable => ("store-unavailable", "Store unavailable", 503),
            Self::Internal => ("internal", "Internal error", 500),
        }
    }
}

impl Problem {
    /// A problem of this kind.
    #[must_use]
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        let (name, title, status) = code.parts();
        Self {
            kind: format!("urn:nodus:problem:{name}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
        }
    }
}

/// What a store directory says of a job, for `--store DIR` without an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredJob {
    /// Its name.
    pub name: JobName,
    /// How its files are treated.
    pub continuity: Continuity,
    /// Its checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointInfo>,
}
