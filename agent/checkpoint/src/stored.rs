//! What a reader finds in a job's store.

use jiff::Timestamp;
use nodus_protocol::checkpoint::{Cause, CheckpointInfo, CheckpointState, Consistency};

use crate::format::{CommitRecord, Outcomes};

/// A checkpoint as a listing of the store finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Its commit record can be read.
    Good {
        /// The commit record.
        record: Box<CommitRecord>,
        /// What became of it since; empty where nothing is recorded.
        outcomes: Outcomes,
    },
    /// Its commit record cannot be read or is not for this checkpoint.
    Damaged {
        /// The number its directory has.
        seq: u64,
        /// What does not match.
        why: String,
    },
}

impl Stored {
    /// Its number.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            Self::Good { record, .. } => record.seq,
            Self::Damaged { seq, .. } => *seq,
        }
    }

    /// How far it can be relied on for a restore.
    #[must_use]
    pub fn standing(&self) -> Standing<'_> {
        let (record, outcomes) = match self {
            Self::Damaged { why, .. } => return Standing::Damaged(why),
            Self::Good { record, outcomes } => (record, outcomes),
        };
        if let Some(why) = outcomes.damaged.first() {
            return Standing::Damaged(why);
        }
        match (outcomes.suspect, record.consistency) {
            (true, _) => Standing::Suspect,
            (false, Consistency::Torn) => Standing::Torn,
            (false, Consistency::Acked | Consistency::Quiet) => Standing::Trusted,
        }
    }

    /// The seqs whose archives it points to, its own excepted; none are known of a damaged record.
    #[must_use]
    pub fn bases(&self) -> &[u64] {
        match self {
            Self::Good { record, .. } => &record.bases,
            Self::Damaged { .. } => &[],
        }
    }

    /// It as listings show it. Of a checkpoint whose record cannot be read only its number and the
    /// damage are known; the cause is then `Unknown`.
    #[must_use]
    pub fn info(&self) -> CheckpointInfo {
        match self {
            Self::Good { record, outcomes } => record.info(outcomes),
            Self::Damaged { seq, why } => CheckpointInfo {
                seq: *seq,
                attempt: 0,
                epoch: 0,
                cause: Cause::Unknown,
                state: CheckpointState::Damaged,
                consistency: None,
                started: Timestamp::UNIX_EPOCH,
                captured: None,
                committed: None,
                files: 0,
                bytes: 0,
                stored_bytes: 0,
                bases: Vec::new(),
                reason: None,
                message: Some(why.clone()),
                torn: Vec::new(),
                notes: Vec::new(),
            },
        }
    }

    /// Whether every subscriber acknowledged it.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        matches!(self, Self::Good { record, .. } if record.consistency == Consistency::Acked)
    }
}

/// How far a checkpoint can be relied on, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing<'a> {
    /// Whole as far as is known, and nothing was being written when it was captured.
    Trusted,
    /// Some of its files may be half-written.
    Torn,
    /// Two attempts in a row that started from it failed.
    Suspect,
    /// Its data does not match its hashes, with one example.
    Damaged(&'a str),
}

/// Listings for the tests of what decides over them.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::format::FORMAT;
    use crate::format::manifest::Hash;

    pub(crate) fn stored(seq: u64, consistency: Consistency, bases: &[u64]) -> Stored {
        let record = CommitRecord {
            format: FORMAT,
            job: "train".parse().unwrap(),
            seq,
            attempt: 1,
            epoch: 1,
            cause: Cause::Interval,
            consistency,
            acked: consistency == Consistency::Acked,
            started: Timestamp::UNIX_EPOCH,
            captured: Timestamp::UNIX_EPOCH,
            committed: Timestamp::UNIX_EPOCH,
            roots: vec!["/nodus/state".to_owned()],
            files: 1,
            bytes: 1,
            stored_bytes: 1,
            archive_bytes: 1,
            bases: bases.to_vec(),
            manifest_bytes: 1,
            manifest_blake3: Hash([0; 32]),
            torn: Vec::new(),
            torn_count: 0,
            notes: Vec::new(),
        };
        Stored::Good { record: Box::new(record), outcomes: Outcomes::default() }
    }

    fn with(mut stored: Stored, change: impl FnOnce(&mut Outcomes)) -> Stored {
        if let Stored::Good { outcomes, .. } = &mut stored {
            change(outcomes);
        }
        stored
    }

    pub(crate) fn acked(seq: u64) -> Stored {
        stored(seq, Consistency::Acked, &[])
    }

    pub(crate) fn quiet(seq: u64) -> Stored {
        stored(seq, Consistency::Quiet, &[])
    }

    pub(crate) fn torn(seq: u64) -> Stored {
        stored(seq, Consistency::Torn, &[])
    }

    pub(crate) fn suspect(seq: u64) -> Stored {
        with(acked(seq), |outcomes| outcomes.suspect = true)
    }

    pub(crate) fn damaged(seq: u64, what: &str) -> Stored {
        with(acked(seq), |outcomes| outcomes.damaged.push(what.to_owned()))
    }

    pub(crate) fn marked_damaged(seq: u64) -> Stored {
        damaged(seq, "frame at 0")
    }

    pub(crate) fn unreadable(seq: u64) -> Stored {
        Stored::Damaged { seq, why: "checkpoint.json: not JSON".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_record_is_listed_with_what_is_known() {
        let info = samples::unreadable(7).info();
        assert_eq!(
            (info.seq, info.state, info.cause),
            (7, CheckpointState::Damaged, Cause::Unknown)
        );
        assert_eq!(info.message.as_deref(), Some("checkpoint.json: not JSON"));
        assert_eq!(samples::acked(8).info().state, CheckpointState::Committed);
    }
}
