//! Waiting for the program, and for all that it leaves behind.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions, WaitStatus, wait};

use super::cgroup::Cgroup;
use super::process::{self, Identity, Pid};
use super::record::ExitStatus;

/// What a process that outlives its program gets to end by itself.
pub(super) const LEFTOVER_GRACE: Duration = Duration::from_secs(2);
/// How long killed processes may take to go away; one in the kernel's hands can take for ever.
pub(super) const KILL_BOUND: Duration = Duration::from_secs(5);
/// Between two looks for new descendants to kill.
const KILL_PAUSE: Duration = Duration::from_millis(20);

/// Why [`Reaper::sleep`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// Some child may have ended.
    Child,
    /// The attempt is to end: the one it lives for has gone or said so.
    Stop,
    /// The time has come.
    Due,
}

/// Reaps the children of this process, which are all the descendants that lost their parent.
pub(super) struct Reaper {
    signals: SignalFd,
    program: Pid,
    status: Option<ExitStatus>,
    /// Hangs up when the process that this one lives for is gone.
    lifeline: Option<OwnedFd>,
    /// The grace of a stop, where a signal to this process means one.
    grace: Option<Duration>,
}

impl Reaper {
    /// From now on no signal that can be caught ends this process.
    pub(super) fn new() -> io::Result<Self> {
        let mut mask = SigSet::all();
        // A fault of our own has to end us.
        for fault in [Number::SIGSEGV, Number::SIGBUS, Number::SIGFPE, Number::SIGILL] {
            mask.remove(fault);
        }
        mask.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&mask, flags)?;
        Ok(Self { signals, program: 0, status: None, lifeline: None, grace: None })
    }

    /// Says which child is the program.
    pub(super) fn of(self, program: Pid) -> Self {
        Self { program, ..self }
    }

    /// Ends the program, in order, when `lifeline` hangs up or this process is told to terminate.
    pub(super) fn stop_when_gone(&mut self, lifeline: OwnedFd, grace: Duration) {
        self.lifeline = Some(lifeline);
        self.grace = Some(grace);
    }

    /// Waits for the program, stopping it where asked to, and says whether it was.
    pub(super) fn wait_for_program(&mut self) -> io::Result<(ExitStatus, bool)> {
        let mut kill_at = None;
        loop {
            self.reap()?;
            if let Some(status) = self.status {
                return Ok((status, kill_at.is_some()));
            }
            match self.sleep(kill_at)? {
                Woken::Stop if kill_at.is_none() => {
                    self.signal_program(Signal::TERM)?;
                    kill_at = Some(Instant::now() + self.grace.unwrap_or_default());
                }
                Woken::Due => {
                    self.signal_program(Signal::KILL)?;
                    kill_at = Some(Instant::now() + KILL_BOUND);
                }
                Woken::Child | Woken::Stop => {}
            }
        }
    }

    /// Ends every descendant; returns those that could not be ended.
    pub(super) fn end_descendants(&mut self, group: Option<&Cgroup>) -> io::Result<Vec<Pid>> {
        let me = HashSet::from([rustix::process::getpid().as_raw_pid()]);
        let mut told = HashSet::new();
        let deadline = Instant::now() + LEFTOVER_GRACE;
        while self.reap()? && Instant::now() < deadline {
            for process in process::descendants(&process::list()?, &me) {
                if told.insert(process.identity) {
                    end_kindly(process.identity);
                }
            }
            self.sleep(Some(deadline))?;
        }
        let deadline = Instant::now() + KILL_BOUND;
        while self.reap()? && Instant::now() < deadline {
            if let Some(group) = group {
                // What it cannot do is done one by one below.
                let _ = group.kill();
            }
            for process in process::descendants(&process::list()?, &me) {
                // Fails for another user's process, which is then among those left.
                let _ = process.identity.signal(Signal::KILL);
            }
            self.sleep(Some(deadline.min(Instant::now() + KILL_PAUSE)))?;
        }
        if !self.reap()? {
            return Ok(Vec::new());
        }
        let left = process::descendants(&process::list()?, &me);
        Ok(left.iter().map(|process| process.identity.pid).collect())
    }

    /// Waits for something to happen, or for `until`.
    pub(super) fn sleep(&mut self, until: Option<Instant>) -> io::Result<Woken> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Woken::Due);
            }
            let left = left.map(Timespec::try_from).transpose();
            let left = left.map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN)];
            watched.extend(self.lifeline.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut watched, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                ready => ready?,
            };
            let hung_up = watched.get(1).is_some_and(|fd| !fd.revents().is_empty());
            drop(watched);
            if hung_up {
                self.lifeline = None;
                return Ok(Woken::Stop);
            }
            if let Some(woken) = self.next_signal()? {
                return Ok(woken);
            }
        }
    }

    fn next_signal(&mut self) -> io::Result<Option<Woken>> {
        while let Some(signal) = self.signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
            match Number::try_from(number) {
                Ok(Number::SIGCHLD) => return Ok(Some(Woken::Child)),
                Ok(Number::SIGTERM | Number::SIGINT | Number::SIGHUP) if self.grace.is_some() => {
                    return Ok(Some(Woken::Stop));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Collects all children that ended; whether there are more.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_pid() == self.program => {
                    self.status = exit_status(status).or(self.status);
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return Ok(true),
                Err(rustix::io::Errno::CHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn signal_program(&self, signal: Signal) -> io::Result<()> {
        // Not reaped yet, so the id is still the program's.
        let program = Identity::of(self.program)?;
        program.signal(signal)?;
        program.signal(Signal::CONT)
    }
}

fn exit_status(status: WaitStatus) -> Option<ExitStatus> {
    let code = status.exit_status().map(ExitStatus::Code);
    code.or_else(|| status.terminating_signal().map(ExitStatus::Signal))
}

/// Asks one process to end; a stopped one could not hear it.
fn end_kindly(process: Identity) {
    for signal in [Signal::TERM, Signal::CONT] {
        // Not ours to signal, or gone: the killing that follows sorts that out.
        let _ = process.signal(signal);
    }
}
