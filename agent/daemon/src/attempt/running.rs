//! An attempt that was started, whoever started it.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::adopt::{Session, sweep};
use super::cgroup::Cgroup;
use super::error::AttemptError;
use super::freeze::Frozen;
use super::process::{self, Identity, Pid, Process};
use super::reaper::{KILL_BOUND, LEFTOVER_GRACE};
use super::record::{EXIT, ExitRecord, LOG_FILE, RecordDir, ShimRecord};
use crate::sys;

/// What the shim may take to write the exit record, on a slow disk.
const RECORD_BOUND: Duration = Duration::from_secs(10);

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The program ended, and this is how.
    Exited(ExitRecord),
    /// The shim was killed, so nobody knows; what it had left has been ended.
    Lost {
        /// But for these.
        left: Vec<Pid>,
    },
}

/// A handle on an attempt; dropping it changes nothing.
#[derive(Debug)]
pub struct Running {
    dir: PathBuf,
    records: RecordDir,
    record: ShimRecord,
    program: Identity,
    /// Readable once the shim has ended; `None`: it had before we looked.
    /// (A process handle is readable when the process has ended.)
    shim: Option<AsyncFd<OwnedFd>>,
    cgroup: Option<Cgroup>,
}

impl Running {
    pub(super) fn attach(dir: &Path, record: ShimRecord) -> io::Result<Self> {
        let program = record.program.ok_or(io::ErrorKind::InvalidData)?;
        let shim = record.shim.open()?.map(sys::watch_readable).transpose()?;
        Ok(Self {
            dir: dir.to_owned(),
            records: RecordDir::open(dir)?,
            cgroup: record.cgroup.clone().map(Cgroup::at),
            record,
            program,
            shim,
        })
    }

    /// Waits until the attempt has ended and nothing of it runs any more.
    ///
    /// Can be called, and given up, any number of times.
    pub async fn wait(&self) -> Result<Ended, AttemptError> {
        if let Some(shim) = &self.shim {
            shim.readable()
                .await
                .map_err(|error| AttemptError::io("wait for the shim of", &self.dir, error))?
                .retain_ready();
        }
        let record = self.records.read(EXIT);
        match record
            .map_err(|error| AttemptError::io("read the exit status in", &self.dir, error))?
        {
            Some(record) => Ok(Ended::Exited(record)),
            None => {
                let session =
                    if self.shim.is_some() { Session::Known } else { Session::MaybeReused };
                Ok(Ended::Lost { left: sweep(&self.record, session).await })
            }
        }
    }

    /// Sends a signal to the program, and then to everything that descends from it.
    ///
    /// One process that may not be signalled does not spare the others; the first error is returned.
    pub fn signal(&self, signal: Signal) -> Result<(), AttemptError> {
        let failed = |error| AttemptError::io("signal the processes of", &self.dir, error);
        let mut outcome = self.program.signal(signal);
        for process in self.family().map_err(failed)? {
            if process.identity != self.program {
                outcome = outcome.and(process.identity.signal(signal));
            }
        }
        outcome.map_err(failed)
    }

    /// Ends the attempt: SIGTERM, and after `grace` SIGKILL, to everything in it.
    ///
    /// Takes a few seconds more than `grace` at the most.
    pub async fn stop(&self, grace: Duration) -> Result<Ended, AttemptError> {
        // What cannot be asked is killed later, or reported as left.
        let _ = self.signal(Signal::TERM);
        let _ = self.signal(Signal::CONT); // A stopped one would not hear it.
        let _ = self.record.shim.signal(Signal::CONT);
        if timeout(grace, self.program_ended()).await.is_err() {
            self.kill_all();
        }
        let settle = LEFTOVER_GRACE + KILL_BOUND + RECORD_BOUND;
        if let Ok(ended) = timeout(settle, self.wait()).await {
            return ended;
        }
        // Something is stuck, the shim maybe (when its disk hangs).
        self.kill_all();
        let stuck = |_| AttemptError::Left { left: vec![self.record.shim.pid] };
        self.record
            .shim
            .signal(Signal::KILL)
            .map_err(|error| AttemptError::io("kill the shim of", &self.dir, error))?;
        timeout(2 * KILL_BOUND, self.wait()).await.map_err(stuck)?
    }

    /// Whether a process belongs to the attempt.
    #[must_use]
    pub fn contains(&self, pid: Pid) -> bool {
        let by_descent =
            || self.record.shim.is_alive() && process::descends(pid, self.record.shim.pid);
        by_descent() || self.cgroup.as_ref().is_some_and(|group| group.processes().contains(&pid))
    }

    /// Everything that runs in the attempt now, without the shim.
    #[must_use]
    pub fn processes(&self) -> Vec<Pid> {
        let family = self.family().unwrap_or_default();
        family.iter().map(|process| process.identity.pid).collect()
    }

    /// Stops every process until the guard is dropped.
    ///
    /// Blocks for some milliseconds, and for a second at the most; on an error all go on.
    pub fn freeze(&self) -> Result<Frozen, AttemptError> {
        Frozen::new(self, self.cgroup.as_ref())
            .map_err(|error| AttemptError::io("freeze the processes of", &self.dir, error))
    }

    /// Lets go on what somebody who died had frozen.
    pub(super) fn thaw(&self) -> io::Result<()> {
        Frozen::recover(self, self.cgroup.as_ref())
    }

    /// The record directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the program's output is, if its plan said [`Output::Log`](super::Output::Log).
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG_FILE)
    }

    /// The program's process id, which is also that of its process group.
    #[must_use]
    pub fn program(&self) -> Pid {
        self.program.pid
    }

    /// The shim's process id.
    #[must_use]
    pub fn shim(&self) -> Pid {
        self.record.shim.pid
    }

    pub(super) fn records(&self) -> &RecordDir {
        &self.records
    }

    /// All live processes of the attempt.
    pub(super) fn family(&self) -> io::Result<Vec<Process>> {
        let all = process::list()?;
        let mut family = Vec::new();
        if self.record.shim.is_alive() {
            family = process::descendants(&all, &HashSet::from([self.record.shim.pid]));
        }
        if let Some(group) = &self.cgroup {
            let inside: HashSet<Pid> = group.processes().into_iter().collect();
            let known: HashSet<Identity> = family.iter().map(|process| process.identity).collect();
            let more = all.iter().filter(|process| {
                inside.contains(&process.identity.pid) && !known.contains(&process.identity)
            });
            family.extend(more.filter(|process| process.is_alive()));
        }
        Ok(family)
    }

    async fn program_ended(&self) {
        let handle = self.program.open().ok().flatten();
        if let Some(Ok(handle)) = handle.map(sys::watch_readable) {
            // An error here only means that the grace is not waited out.
            let _ = handle.readable().await;
        }
    }

    fn kill_all(&self) {
        if let Some(group) = &self.cgroup {
            // What it cannot do is done one by one.
            let _ = group.kill();
        }
        // The shim kills what appears after this look.
        for process in self.family().unwrap_or_default() {
            let _ = process.identity.signal(Signal::KILL);
        }
    }
}
