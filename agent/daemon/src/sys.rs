//! The system calls that no safe interface exists for.
//!
//! [`fork`] and [`reset_signals`] are for the shim alone, which has one thread from start to end.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::{fs, io};

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::ForkResult;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// On which side of a [`fork`] the caller finds itself.
pub(crate) enum Fork {
    /// The process that was there before; holds the new one's id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Duplicates this process; refused where it has more than one thread.
pub(crate) fn fork() -> io::Result<Fork> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("cannot fork with {threads} threads running")));
    }
    // SAFETY: what makes `fork` dangerous is another thread that holds a lock (the allocator's)
    // at that moment. There is none, as was just counted, and only this thread could start one.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Fork::Parent(child.as_raw())),
        ForkResult::Child => Ok(Fork::Child),
    }
}

/// Gives every signal its default meaning and blocks none, as a program expects to find it.
pub(crate) fn reset_signals() -> io::Result<()> {
    for number in Signal::iterator() {
        if matches!(number, Signal::SIGKILL | Signal::SIGSTOP) {
            continue;
        }
        // SAFETY: installing the default action installs no code that could run in a handler.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Has the runtime watch a descriptor for being readable.
pub(crate) fn watch_readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor has to stay open, and the same, for as long as it is watched. An
    // `OwnedFd` moved in here is closed by nobody else, and its number never changes.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    watched.map_err(io::Error::from)
}
