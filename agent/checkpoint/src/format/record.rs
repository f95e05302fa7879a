//! The small JSON records beside the data.

use jiff::Timestamp;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::{Cause, CheckpointInfo, CheckpointState, Consistency};
use serde::{Deserialize, Serialize};

use super::manifest::Hash;

/// `job.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// [`super::FORMAT`].
    pub format: u32,
    /// The job.
    pub job: JobName,
    /// Random, made once.
    pub id: String,
    /// When.
    pub created: Timestamp,
    /// Whose it is.
    pub uid: u32,
}

/// `epochs/<epoch>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochRecord {
    /// [`super::FORMAT`].
    pub format: u32,
    /// Its number, as its name.
    pub epoch: u64,
    /// The attempt that may write under it.
    pub attempt: u32,
    /// The first seq that it will use.
    pub first_seq: u64,
    /// Where.
    pub node: String,
    /// When.
    pub started: Timestamp,
}

/// `checkpoint.json`, the commit record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitRecord {
    /// [`super::FORMAT`].
    pub format: u32,
    /// Whose it is.
    pub job: JobName,
    /// Its number, as the directory's name.
    pub seq: u64,
    /// The attempt that it was taken from.
    pub attempt: u32,
    /// The epoch that it was written under.
    pub epoch: u64,
    /// What made the agent take it.
    pub cause: Cause,
    /// How far it can be trusted.
    pub consistency: Consistency,
    /// Whether every subscriber acknowledged.
    pub acked: bool,
    /// When it was triggered.
    pub started: Timestamp,
    /// When the copy no longer depended on the program's files.
    pub captured: Timestamp,
    /// When this record was written.
    pub committed: Timestamp,
    /// The job's paths, escaped as in the manifest.
    pub roots: Vec<String>,
    /// Entries of every type.
    pub files: u64,
    /// Logical bytes of regular files.
    pub bytes: u64,
    /// Bytes of this checkpoint's archive and manifest.
    pub stored_bytes: u64,
    /// Length of `data-0.tar.zst`; 0 where there is none.
    pub archive_bytes: u64,
    /// Other seqs whose archives the manifest points to, ascending.
    #[serde(default)]
    pub bases: Vec<u64>,
    /// Length of `files.jsonl.zst`.
    pub manifest_bytes: u64,
    /// BLAKE3 of `files.jsonl.zst`.
    pub manifest_blake3: Hash,
    /// Escaped paths that make it Torn, at most [`super::MAX_LISTED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<String>,
    /// How many paths make it Torn.
    #[serde(default)]
    pub torn_count: u64,
    /// What else a reader should know, at most [`super::MAX_LISTED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl CommitRecord {
    /// The record as listings show it.
    #[must_use]
    pub fn info(&self, outcomes: &Outcomes) -> CheckpointInfo {
        let state = if !outcomes.damaged.is_empty() {
            CheckpointState::Damaged
        } else if outcomes.suspect {
            CheckpointState::Suspect
        } else {
            CheckpointState::Committed
        };
        CheckpointInfo {
            seq: self.seq,
            attempt: self.attempt,
            epoch: self.epoch,
            cause: self.cause,
            state,
            consistency: Some(self.consistency),
            started: self.started,
            captured: Some(self.captured),
            committed: Some(self.committed),
            files: self.files,
            bytes: self.bytes,
            stored_bytes: self.stored_bytes,
            bases: self.bases.clone(),
            reason: None,
            message: outcomes.damaged.first().cloned(),
            torn: self.torn.clone(),
            notes: self.notes.clone(),
        }
    }
}

/// `outcomes.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// [`super::FORMAT`].
    pub format: u32,
    /// The attempts that started from the checkpoint and say something about it, oldest first.
    #[serde(default)]
    pub attempts: Vec<AttemptOutcome>,
    /// Two in a row failed without committing anything newer.
    #[serde(default)]
    pub suspect: bool,
    /// What is known to be wrong with its data.
    #[serde(default)]
    pub damaged: Vec<String>,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptOutcome {
    /// Which.
    pub attempt: u32,
    /// Whether it committed a newer checkpoint or the job succeeded, rather than failing first.
    pub progressed: bool,
}
