//! One run of a job's program: started, supervised, found again, signalled, frozen and ended.
//!
//! ```text
//! agent ── starts ──> shim (own session, subreaper) ── starts ──> program ──> whatever it starts
//!   └── may end and come back: adopt(dir) finds the shim by the records it left
//! ```
//!
//! The agent is not needed while an attempt runs: the program writes to its log file directly, and
//! the shim outlives the agent and leaves the exit status in a file. A shim that is killed takes the
//! program with it; what else it leaves is found by a mark in the environment and ended.
//!
//! Nothing here knows of jobs, checkpoints or sockets.

mod adopt;
mod cgroup;
mod channel;
mod error;
mod freeze;
pub mod log;
mod memory;
mod plan;
mod process;
mod program;
mod reaper;
mod record;
mod running;
pub mod shim;
mod start;
mod view;

pub use adopt::{Found, adopt};
pub use error::{AttemptError, StartError};
pub use freeze::Frozen;
pub use plan::{Output, Plan, UserIds, View};
pub use process::Pid;
pub use record::{ExitRecord, ExitStatus, LOG_FILE};
pub use running::{Ended, Running};
pub use rustix::process::Signal;
pub use start::{start, view_supported};

/// The hidden first argument with which an executable is asked to become a shim.
pub const SHIM_ARGUMENT: &str = "__shim";

/// The variable in the environment of every process of an attempt that marks it as its own.
pub const ATTEMPT_ID: &str = "NODUS_ATTEMPT_ID";

/// The variable that tells the program how many CPUs it was given.
pub const CPU: &str = "NODUS_CPU";
