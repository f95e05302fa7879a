//! Why something about an attempt failed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::channel::{Failure, Stage};
use super::plan::Plan;

/// Why a program could not be started; nothing of it runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No file of this name in any directory of `PATH`, or none at this path.
    #[error("command {command:?} not found")]
    NotFound {
        /// As it was given.
        command: String,
    },
    /// It is there, but the system does not run it: no permission, a missing interpreter.
    #[error("cannot execute {command:?}")]
    NotExecutable {
        /// As it was given.
        command: String,
        /// The cause.
        source: io::Error,
    },
    /// The working directory is missing or closed to the user.
    #[error("cannot start in the working directory {}", path.display())]
    Workdir {
        /// As it was given.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// We may not run anything as this user.
    #[error("cannot become user {uid}")]
    User {
        /// Whom the plan names.
        uid: u32,
        /// The cause.
        source: io::Error,
    },
    /// No private view here; the host's view may do.
    #[error("no private view of the file system: {what}")]
    View {
        /// Which step failed.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The record directory belongs to an attempt that was started before.
    #[error("{} holds the records of another attempt", dir.display())]
    Used {
        /// The directory.
        dir: PathBuf,
    },
    /// The shim did not come up, or broke off.
    #[error("the shim {} ended before it had started the program; see {}", shim.display(), log.display())]
    Shim {
        /// The executable.
        shim: PathBuf,
        /// Where it says why.
        log: PathBuf,
    },
    /// A step hung; it was given up and ended.
    #[error("the program was not started within {after:?}")]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The operating system refused something else.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl StartError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    /// What the shim reported about this plan.
    pub(super) fn reported(plan: &Plan, failure: Failure) -> Self {
        let source = failure.cause();
        match failure.stage {
            Stage::NotFound => Self::NotFound { command: failure.detail },
            Stage::Exec => Self::NotExecutable { command: failure.detail, source },
            Stage::Workdir => Self::Workdir { path: plan.workdir.clone(), source },
            Stage::User => {
                Self::User { uid: plan.user.as_ref().map_or(0, |user| user.uid), source }
            }
            Stage::View => Self::View { what: failure.detail, source },
            Stage::Other => {
                Self::Io { action: "set up for the program:", path: failure.detail.into(), source }
            }
        }
    }
}

/// Why an attempt that was started could not be handled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// The operating system refused, or a record is damaged.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Processes are there that did not end when they were killed.
    #[error("processes {left:?} of the attempt could not be ended")]
    Left {
        /// Their ids.
        left: Vec<super::Pid>,
    },
}

impl AttemptError {
    pub(super) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
