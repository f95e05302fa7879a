//! What an engine is told when it starts; everything that differs between the daemon and
//! standalone mode.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use nodus_protocol::JobName;

use crate::attempt::Output;
use crate::cadence::Prior;
use crate::job::place::{Place, shared_place};

/// What an engine is told when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the parts of jobs are.
    pub layout: Layout,
    /// Where the interruptions of this node are kept; nowhere where nobody comes back to it.
    pub history: Option<PathBuf>,
    /// Directories of this process that no checkpoint may hold, wherever a job's paths are.
    pub own_dirs: Vec<PathBuf>,
    /// The directory of the store.
    pub store: PathBuf,
    /// The name of this node, for epochs.
    pub node: String,
    /// The executable that becomes an attempt's shim when its first argument is `__shim`.
    pub shim: PathBuf,
    /// Where the program's output goes.
    pub output: Output,
    /// Whether attempts end with this process.
    pub die_with_us: bool,
    /// Threads that compress and hash one copy.
    pub threads: NonZeroUsize,
    /// How long a program has between SIGTERM and SIGKILL.
    pub stop_grace: Duration,
    /// How long a suspend waits for the program's ack.
    pub suspend_timeout: Duration,
    /// How often this kind of capacity is interrupted, before anything is known of this node.
    pub prior: Prior,
    /// Jobs of all users, finished ones included.
    pub max_jobs: usize,
    /// Jobs of one user.
    pub max_jobs_per_user: usize,
}

/// Where the parts of jobs are.
#[derive(Clone, Debug)]
pub enum Layout {
    /// The daemon's: its records are apart from what the jobs' users own.
    Node {
        /// Holds a directory a job, which its user owns.
        state_root: PathBuf,
        /// Holds the agent's records.
        records: PathBuf,
        /// Holds a directory a job with its events socket.
        runtime: PathBuf,
    },
    /// Standalone mode's: everything of a job is in one directory.
    Alone {
        /// Holds a directory a job.
        state_root: PathBuf,
        /// Holds the events socket of the one job.
        runtime: PathBuf,
    },
}

/// Where the records of a standalone job are in its directory.
pub const ALONE_RECORDS: &str = ".nodus";

impl Layout {
    /// The place of a job.
    #[must_use]
    pub fn place(&self, job: &JobName) -> Place {
        match self {
            Self::Node { state_root, records, runtime } => {
                shared_place(state_root, records, runtime, job)
            }
            Self::Alone { state_root, runtime } => {
                let home = state_root.join(job.as_str());
                Place { records: home.join(ALONE_RECORDS), home, runtime: runtime.clone() }
            }
        }
    }

    /// The directory that holds the records of all jobs, where there is one.
    #[must_use]
    pub fn records(&self) -> Option<&PathBuf> {
        match self {
            Self::Node { records, .. } => Some(records),
            Self::Alone { .. } => None,
        }
    }
}
