//! Holding an attempt still for a moment.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::process::Signal;

use super::cgroup::Cgroup;
use super::process::{Identity, Process};
use super::record::{FROZEN, RecordDir};
use super::running::Running;

/// Longer than any process takes that is not stuck in the kernel.
const BOUND: Duration = Duration::from_secs(1);
/// For how long a process must look as if it was inside `vfork` to count as still.
const VFORK_SETTLE: Duration = Duration::from_millis(20);
/// Between two looks whether the stopped have stopped.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };

/// Everything in an attempt stands still until this is dropped.
///
/// If this process dies instead, [`adopt`](super::adopt) lets the attempt go on.
#[derive(Debug)]
#[must_use = "the attempt goes on when this is dropped"]
pub struct Frozen(Means);

#[derive(Debug)]
enum Means {
    Cgroup(Cgroup),
    Signals { stopped: Vec<Identity>, records: RecordDir },
}

impl Frozen {
    pub(super) fn new(attempt: &Running, group: Option<&Cgroup>) -> io::Result<Self> {
        if let Some(group) = group
            && group.processes().contains(&attempt.program())
        {
            group.freeze(BOUND)?;
            return Ok(Self(Means::Cgroup(group.clone())));
        }
        let records = attempt.records().try_clone()?;
        records.append(FROZEN)?;
        // From here on, dropping it undoes what was done.
        let mut stopped = Vec::new();
        let outcome = stop_all(attempt, &mut stopped);
        let frozen = Self(Means::Signals { stopped, records });
        outcome.map(|()| frozen)
    }

    /// Undoes what a process that died had frozen.
    pub(super) fn recover(attempt: &Running, group: Option<&Cgroup>) -> io::Result<()> {
        if let Some(group) = group {
            // Fails where the group is gone with its attempt.
            let _ = group.thaw();
        }
        if attempt.records().has(FROZEN) {
            for process in attempt.family()? {
                process.identity.signal(Signal::CONT)?;
            }
            attempt.records().remove(FROZEN)?;
        }
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let undone = match &self.0 {
            Means::Cgroup(group) => group.thaw(),
            Means::Signals { stopped, records } => {
                let sent = stopped.iter().map(|process| process.signal(Signal::CONT));
                sent.fold(Ok(()), Result::and).and_then(|()| records.remove(FROZEN))
            }
        };
        if let Err(error) = undone {
            tracing::warn!(%error, "a frozen attempt may not have been let go on");
        }
    }
}

/// Whether a process is inside `vfork`, which returns only once the child, now stopped, executes.
fn waits_for_child(process: &Process, halted: &[Process]) -> bool {
    process.is_blocked() && halted.iter().any(|child| child.parent == process.identity.pid)
}

/// Stops process after process until a look finds no other; who was stopped before is left out.
fn stop_all(attempt: &Running, stopped: &mut Vec<Identity>) -> io::Result<()> {
    let deadline = Instant::now() + BOUND;
    let mut told = HashSet::new();
    let mut last_new = Instant::now();
    loop {
        let (halted, moving): (Vec<Process>, Vec<Process>) =
            attempt.family()?.into_iter().partition(Process::is_stopped);
        for process in &moving {
            if told.insert(process.identity) {
                last_new = Instant::now();
                stopped.push(process.identity);
                process.identity.signal(Signal::STOP)?;
            }
        }
        let settled = last_new.elapsed() >= VFORK_SETTLE;
        if moving.is_empty() || settled && moving.iter().all(|p| waits_for_child(p, &halted)) {
            tracing::trace!(processes = halted.len(), "attempt stopped");
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        poll(&mut [], Some(&PAUSE))?;
    }
}
