//! Why a command failed, and with which status the process ends.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nodus_protocol::control::Problem;
use nodus_protocol::spec::{InvalidField, SpecError};
use nodus_protocol::units::format_duration;

use crate::exit::Exit;

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command failed; each is printed once, as one sentence, by `run`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing listens on the control socket, or we may not connect.
    #[error("no agent answers at {}", socket.display())]
    NoAgent {
        /// The control socket.
        socket: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The agent went away, or is not an agent.
    #[error("lost the agent at {} while waiting for {what}", socket.display())]
    Lost {
        /// The control socket.
        socket: PathBuf,
        /// The request.
        what: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The agent took too long.
    #[error(
        "the agent did not answer {what} within {}; it may still do what was asked",
        format_duration(*after)
    )]
    Timeout {
        /// The request.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// The agent answered something that this program does not understand.
    #[error("the agent's answer to {what} is not understood; is it of another version?")]
    Answer {
        /// The request.
        what: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The agent refused.
    #[error("{}", .0.detail)]
    Problem(Problem),
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The job description is not valid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// A store was used directly, and refused.
    #[error(transparent)]
    Checkpoint(#[from] nodus_checkpoint::Error),
    /// The operating system refused.
    #[error("cannot {action} {what}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

impl From<nodus_agent::engine::Refusal> for Error {
    fn from(refusal: nodus_agent::engine::Refusal) -> Self {
        Self::Problem(refusal.0)
    }
}

impl From<InvalidField> for Error {
    fn from(error: InvalidField) -> Self {
        Self::Spec(error.into())
    }
}

impl Error {
    /// Wraps an error of the operating system.
    #[expect(clippy::needless_pass_by_value, reason = "whatever can be shown may be given")]
    pub(crate) fn io(action: &'static str, what: impl ToString, source: io::Error) -> Self {
        Self::Io { action, what: what.to_string(), source }
    }

    /// Whoever reads our output has gone, which is their decision and no failure of ours.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        use nodus_checkpoint::Error as Store;
        let (Self::Io { source, .. } | Self::Checkpoint(Store::Io { source, .. })) = self else {
            return false;
        };
        source.kind() == io::ErrorKind::BrokenPipe
    }

    /// Whether the agent may be back in a moment, as after its restart.
    #[must_use]
    pub fn is_agent_away(&self) -> bool {
        matches!(self, Self::NoAgent { .. } | Self::Lost { .. })
    }

    /// The status that tells a script what went wrong.
    #[must_use]
    pub fn exit(&self) -> Exit {
        use nodus_checkpoint::Error as Store;
        match self {
            Self::NoAgent { .. } | Self::Lost { .. } | Self::Timeout { .. } => Exit::NO_AGENT,
            Self::Checkpoint(Store::Cancelled) => Exit::INTERRUPTED,
            Self::Usage(_) | Self::Spec(_) => Exit::USAGE,
            Self::NotFound(_) | Self::Checkpoint(Store::NotFound { .. }) => Exit::NOT_FOUND,
            Self::Checkpoint(Store::Refused(_) | Store::Fenced { .. }) => Exit::REFUSED,
            Self::Problem(problem) => match problem.status {
                404 => Exit::NOT_FOUND,
                401 | 403 | 409 => Exit::REFUSED,
                400 | 422 => Exit::USAGE,
                _ => Exit::FAILED,
            },
            Self::Answer { .. } | Self::Checkpoint(_) | Self::Io { .. } => Exit::FAILED,
        }
    }

    /// The error, its causes and what to do about it, in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut text = nodus_checkpoint::error::chain(self);
        if let Some(hint) = self.hint() {
            text.push_str("; ");
            text.push_str(hint);
        }
        text
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoAgent { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("you may not use this agent; `nodusctl run --standalone` needs none")
            }
            Self::NoAgent { .. } => Some(
                "start nodus-agent or name its socket with --socket; `nodusctl run --standalone` \
                 runs a job without an agent, and --store DIR reads its checkpoints",
            ),
            Self::Spec(SpecError::Field(field)) if field.value.is_empty() => {
                match field.field.as_str() {
                    "name" => Some("give --name NAME"),
                    "command" => Some("give it after --"),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodus_protocol::control::ProblemCode;
    use nodus_protocol::spec::SpecFile;

    #[test]
    fn an_error_is_one_sentence_that_says_what_to_do() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        let error = Error::NoAgent { socket: "/run/nodus/control.sock".into(), source };
        assert_eq!(
            error.sentence(),
            "no agent answers at /run/nodus/control.sock: entity not found; start nodus-agent or \
             name its socket with --socket; `nodusctl run --standalone` runs a job without an \
             agent, and --store DIR reads its checkpoints"
        );
        let unnamed = SpecFile { command: vec!["a".into()], ..SpecFile::default() };
        let sentence = Error::from(unnamed.validate().unwrap_err()).sentence();
        assert!(sentence.ends_with("; give --name NAME"), "{sentence}");
    }

    #[test]
    fn a_problem_has_the_status_of_its_kind() {
        for (code, exit) in [
            (ProblemCode::Invalid, Exit::USAGE),
            (ProblemCode::NotFound, Exit::NOT_FOUND),
            (ProblemCode::Conflict, Exit::REFUSED),
            (ProblemCode::Forbidden, Exit::REFUSED),
            (ProblemCode::StoreUnavailable, Exit::FAILED),
            (ProblemCode::Internal, Exit::FAILED),
        ] {
            assert_eq!(Error::Problem(Problem::new(code, "x")).exit(), exit, "{code:?}");
        }
    }
}
