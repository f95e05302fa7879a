//! Words about checkpoints that every surface shares.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What made the agent take a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Cause {
    /// The interval of the job was over.
    Interval,
    /// Somebody asked: `nodusctl checkpoint now`, or the program itself.
    Request,
    /// `nodusctl suspend`, or Ctrl-C in standalone mode.
    Suspend,
    /// The capacity is about to go away.
    Reclaim,
    /// The agent is told to shut down with its node.
    Shutdown,
    /// The attempt is over.
    Exit,
    /// Not known: the record that says so cannot be read.
    Unknown,
}

/// How far a checkpoint can be trusted (docs/format.md, "consistency").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// Every subscriber said its files are complete, or the program had ended with 0.
    Acked,
    /// Nobody was asked or answered, and nothing was being written.
    Quiet,
    /// Anything else; the paths concerned are listed.
    Torn,
}

/// Why a snapshot was not taken although nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Skipped {
    /// No file with content in any path.
    Empty,
    /// Nothing differs from the checkpoint before it.
    Unchanged,
}

/// Why a checkpoint failed. The earlier ones stay, and the next interval tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureReason {
    /// More bytes than `maxSize`.
    CheckpointTooLarge,
    /// The program answered that it could not save.
    SaveFailed,
    /// The store has no room.
    NoSpace,
    /// A file or the store refused access.
    PermissionDenied,
    /// The store does not answer, or is read-only.
    StoreUnavailable,
    /// A later attempt owns the job (DESIGN "Fencing").
    Fenced,
    /// The program went away before it acknowledged, and its files were being written.
    GoneBeforeAck,
    /// The node's deadline came first.
    DeadlineExceeded,
    /// Anything else, in the message.
    Internal,
}

/// The state of a checkpoint in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CheckpointState {
    /// Complete and restorable.
    Committed,
    /// Two attempts in a row that started from it failed; restores start from the one before.
    Suspect,
    /// Its data does not match its hashes.
    Damaged,
    /// Was not stored: nothing to store.
    Skipped,
    /// Was not stored: it failed.
    Failed,
}

/// How one checkpoint ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome")]
pub enum Outcome {
    /// It exists.
    Committed(Committed),
    /// There was nothing to store.
    Skipped {
        /// Why.
        reason: Skipped,
    },
    /// It does not exist, and why.
    Failed {
        /// For programs.
        reason: FailureReason,
        /// For people: what was attempted, on what.
        message: String,
    },
}

/// What is known of a checkpoint that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Committed {
    /// How far it can be trusted.
    pub consistency: Consistency,
    /// Entries of every type in it.
    pub files: u64,
    /// Logical bytes of its regular files.
    pub bytes: u64,
    /// Bytes that it added to the store.
    pub stored_bytes: u64,
}

/// One checkpoint as listings, `show` and the control API give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointInfo {
    /// Its number; only grows, over all attempts of the job.
    pub seq: u64,
    /// The attempt that it was taken from.
    pub attempt: u32,
    /// The epoch that it was written under.
    pub epoch: u64,
    /// What made the agent take it.
    pub cause: Cause,
    /// What became of it.
    pub state: CheckpointState,
    /// How far it can be trusted; absent where it was not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// When it was triggered.
    pub started: Timestamp,
    /// When its copy no longer depended on the program's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured: Option<Timestamp>,
    /// When it was durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Timestamp>,
    /// Entries of every type.
    pub files: u64,
    /// Logical bytes of its regular files.
    pub bytes: u64,
    /// Bytes that it added to the store.
    pub stored_bytes: u64,
    /// Earlier checkpoints whose archives it still needs, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<u64>,
    /// `Empty`, `Unchanged`, `NoSpace` and so on, where it was not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Paths that make it Torn, at most a few dozen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<String>,
    /// What else a reader should know: files that vanished, sockets left out, mounts not crossed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

macro_rules! display_as_name {
    ($($type:ty),*) => {$(
        /// The name as it is on every surface.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!("{self:?}"))
            }
        }
    )*};
}
pub(crate) use display_as_name;

display_as_name!(Cause, Consistency, Skipped, FailureReason, CheckpointState);
