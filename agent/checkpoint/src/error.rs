//! Why an operation on checkpoints failed.

use std::io;
use std::path::{Path, PathBuf};

use nodus_protocol::checkpoint::FailureReason;
use nodus_protocol::units::ByteSize;

/// The result of an operation on checkpoints.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on checkpoints failed; the variants are what a caller would do differently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More logical bytes than allowed.
    #[error(
        "the state is larger than maxSize: {} found so far, {} allowed",
        ByteSize(*found).approx(), ByteSize(*limit).approx()
    )]
    TooLarge {
        /// Bytes found before counting stopped.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// No room where something is written.
    #[error(
        "no space left on the file system of {}: {} needed, {} free",
        path.display(), ByteSize(*needed).approx(), ByteSize(*free).approx()
    )]
    NoSpace {
        /// A directory on the file system that is full.
        path: PathBuf,
        /// Bytes that were to be written, as far as known.
        needed: u64,
        /// Bytes that were free for this user.
        free: u64,
    },
    /// A later epoch exists: another attempt owns the job.
    #[error("epoch {ours} is over: epoch {current} has been started")]
    Fenced {
        /// The epoch that was to write.
        ours: u64,
        /// The newest epoch.
        current: u64,
    },
    /// What is stored does not match its hashes or its format.
    #[error("checkpoint {seq} is damaged: {what}")]
    Damaged {
        /// Which checkpoint.
        seq: u64,
        /// What does not match.
        what: String,
    },
    /// No checkpoint of this number, or none at all.
    #[error("job {job} has no checkpoint {}", seq.map_or_else(|| "to restore".to_owned(), |seq| seq.to_string()))]
    NotFound {
        /// Whose.
        job: String,
        /// Which; `None` where any would have done.
        seq: Option<u64>,
    },
    /// The request itself cannot be met.
    #[error("{0}")]
    Refused(String),
    /// Somebody asked it to stop.
    #[error("cancelled")]
    Cancelled,
    /// The operating system refused.
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

impl Error {
    /// Wraps an error of the operating system; out of space keeps its meaning.
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.as_ref().to_owned(), source: source.into() }
    }

    /// The reason under which a checkpoint that failed so is reported.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::TooLarge { .. } => FailureReason::CheckpointTooLarge,
            Self::NoSpace { .. } => FailureReason::NoSpace,
            Self::Fenced { .. } => FailureReason::Fenced,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailureReason::NoSpace,
                io::ErrorKind::PermissionDenied => FailureReason::PermissionDenied,
                io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::NotFound
                | io::ErrorKind::NotConnected
                | io::ErrorKind::TimedOut
                | io::ErrorKind::StaleNetworkFileHandle => FailureReason::StoreUnavailable,
                _ => FailureReason::Internal,
            },
            _ => FailureReason::Internal,
        }
    }

    /// The error and its causes in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error and its causes in one line, each said once.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Wraps the errors of system calls.
pub(crate) trait Context<T> {
    /// Says what was attempted, on what.
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, action: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|error| Error::io(action, path, error))
    }
}
