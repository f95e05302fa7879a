//! Words about jobs and attempts that every surface shares.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checkpoint::display_as_name;

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Accepted; its first attempt has not started.
    Pending,
    /// An attempt is running.
    Running,
    /// An urgent checkpoint is being taken before the attempt is stopped.
    Suspending,
    /// Stopped until `resume`.
    Suspended,
    /// Between two attempts: waiting for the backoff, or restoring.
    Recovering,
    /// The program ended with 0.
    Succeeded,
    /// It will not be tried again by itself.
    Failed,
}

impl Phase {
    /// Whether nothing more will happen by itself: `Succeeded` and `Failed`.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// What took an attempt away without being its program's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Interruption {
    /// The provider took the capacity back.
    Reclaim,
    /// The allocation's time limit.
    TimeLimit,
    /// A job of higher priority.
    Preemption,
    /// The node, or what supervised the attempt on it, was lost.
    NodeFailure,
    /// The node was started anew.
    Reboot,
}

/// How an attempt ended; the only input, with the counters, of what is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum AttemptEnd {
    /// The program returned a status by itself.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended the program, and it was not ours.
    Signaled {
        /// Its number.
        signal: i32,
        /// Whether the kernel ended it for memory.
        #[serde(default)]
        oom: bool,
    },
    /// The program could not be started at all.
    NotStarted,
    /// `suspend` ended it.
    Suspended,
    /// `stop`, `delete` or a cancel ended it.
    Stopped,
    /// It was interrupted.
    Interrupted {
        /// By what.
        by: Interruption,
    },
}

impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exit {code}"),
            Self::Signaled { oom: true, .. } => f.write_str("out of memory"),
            Self::Signaled { signal, .. } => write!(f, "signal {signal}"),
            Self::NotStarted => f.write_str("could not start"),
            Self::Suspended => f.write_str("suspended"),
            Self::Stopped => f.write_str("stopped"),
            Self::Interrupted { by } => write!(f, "{by}"),
        }
    }
}

/// Why a job is `Failed`, beside the end of its last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StopReason {
    /// More failures than `maxRetries`.
    RetriesExceeded,
    /// `maxAttemptsWithoutProgress` attempts in a row committed nothing new.
    NoProgress,
    /// `maxWallTime` is used up.
    WallTimeExceeded,
    /// Somebody stopped it.
    Stopped,
    /// A later attempt elsewhere owns the job.
    Fenced,
    /// Its checkpoint could not be restored, so starting it would lose its progress.
    RestoreFailed,
    /// The files that its last attempt left could not be stored, so starting it from an older
    /// checkpoint would lose them.
    NotSaved,
}

display_as_name!(Phase, Interruption, StopReason);
