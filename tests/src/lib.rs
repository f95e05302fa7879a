//! Fixtures for black-box tests: the built binaries, driven from outside as their users do.
//!
//! [`Agent`] is a running `nodus-agent` with its own directories, [`Ctl`] runs `nodusctl`,
//! [`Puppets`] are programs whose every move a test decides, [`Running`] is any process whose output
//! is waited for, and [`tree`] compares directories. Nothing here sleeps for luck: waits are for an
//! event, with a bound ([`wait`]). A fixture that fails panics where its test stands, saying what it
//! was about to do, and whatever a test started is ended by process id when its fixture is dropped.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a fixture that fails ends its test where it stands"
)]

mod agent;
mod binaries;
mod ctl;
mod fds;
mod job;
mod loop_fs;
mod machine;
mod notify;
mod program;
mod puppet;
mod running;
pub mod training;
pub mod tree;
pub mod wait;

pub use agent::{Agent, AgentConfig};
pub use binaries::{binary, source};
pub use ctl::{Ctl, Done, stored_of};
pub use fds::{receive_fd, send_fd};
pub use job::{Job, stored};
pub use loop_fs::LoopFs;
pub use machine::Machine;
pub use notify::NotifySocket;
pub use program::{Events, Standalone};
pub use puppet::{PUPPET_SOCKET, Puppet, Puppets};
pub use running::Running;

/// Whether mounts, other users and private namespaces are to be had.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says loudly, on the terminal even where output is captured, that a test did not run.
pub fn skipped(test: &str, why: &str) {
    use std::io::Write;
    let line = format!("\n*** SKIPPED {test}: {why} ***\n");
    let to_terminal = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/tty")
        .and_then(|mut terminal| terminal.write_all(line.as_bytes()));
    if to_terminal.is_err() {
        // Standard error of the process, past the capture of the test runner.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
