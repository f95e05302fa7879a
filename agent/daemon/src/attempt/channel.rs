//! What the starter and the shim say to each other while an attempt starts.
//!
//! ```text
//! shim                                   starter
//!  | shim.json written ------- Ready ----->|
//!  |<------------------------- GO ---------|   nobody left to say it: nothing is started
//!  | program executed -------- Started --->|   or Failed, and shim.json is taken back
//! ```
//!
//! So whoever adopts after a crash of the starter finds `shim.json`, or can be sure that nothing
//! of this attempt will ever run.

use std::io;

use serde::{Deserialize, Serialize};

/// The one word of the starter.
pub(super) const GO: u8 = b'g';

/// A line from the shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Ready,
    Started,
    Failed(Failure),
}

/// Why the program did not start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) detail: String,
    pub(super) errno: i32,
}

/// At what the start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    NotFound,
    Exec,
    Workdir,
    User,
    View,
    Other,
}

impl Failure {
    pub(super) fn new(stage: Stage, detail: impl Into<String>, cause: &io::Error) -> Self {
        let errno = cause.raw_os_error().unwrap_or(nix::errno::Errno::EINVAL as i32);
        Self { stage, detail: detail.into(), errno }
    }

    pub(super) fn cause(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}
