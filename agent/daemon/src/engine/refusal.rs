//! Why a request of a user was not met.

use nodus_protocol::JobName;
use nodus_protocol::control::{Problem, ProblemCode};

use crate::job::lifecycle::Refused;

/// Why a request of a user was not met; becomes the problem that they are shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.detail)]
pub struct Refusal(pub Problem);

impl Refusal {
    /// A refusal of this kind.
    #[must_use]
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail))
    }

    /// There is no such job, or none that the caller may see: the answer is the same.
    #[must_use]
    pub fn no_job(name: &JobName) -> Self {
        Self::new(
            ProblemCode::NotFound,
            format!("there is no job {name}; `nodusctl list` shows yours"),
        )
    }

    /// There is no such checkpoint.
    #[must_use]
    pub fn no_checkpoint(name: &JobName, seq: u64) -> Self {
        let hint = format!("`nodusctl checkpoint list job/{name}` shows what there is");
        Self::new(ProblemCode::NotFound, format!("job {name} has no checkpoint {seq}; {hint}"))
    }

    /// The job cannot do this now.
    #[must_use]
    pub fn not_now(name: &JobName, what: &str, why: Refused) -> Self {
        Self::new(ProblemCode::Conflict, format!("cannot {what} job {name}: {why}"))
    }

    /// The job's task is gone: the agent is stopping.
    #[must_use]
    pub fn stopping() -> Self {
        Self::new(ProblemCode::Internal, "the agent is stopping; try again when it is back")
    }
}

impl From<nodus_checkpoint::Error> for Refusal {
    fn from(error: nodus_checkpoint::Error) -> Self {
        use nodus_checkpoint::Error;
        let code = match &error {
            Error::NotFound { .. } => ProblemCode::NotFound,
            Error::Refused(_) | Error::Fenced { .. } | Error::Damaged { .. } => {
                ProblemCode::Conflict
            }
            Error::NoSpace { .. } | Error::Io { .. } => ProblemCode::StoreUnavailable,
            _ => ProblemCode::Internal,
        };
        Self::new(code, error.chain())
    }
}
