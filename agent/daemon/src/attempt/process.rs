//! Processes as `/proc` shows them.
//!
//! A process is named by its id and its start time together, since ids are used again.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::{fs, io};

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process id.
pub type Pid = i32;

/// One process, for as long as the system runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) pid: Pid,
    /// In clock ticks since boot.
    pub(super) start: u64,
}

impl Identity {
    /// The process that has this id now.
    pub(super) fn of(pid: Pid) -> io::Result<Self> {
        Ok(Process::read(pid)?.identity)
    }

    /// A handle that stays with this very process; `None` when it is gone.
    pub(super) fn open(self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            handle => handle?,
        };
        // Whoever has the id now is the one the handle is of, or that one is gone already.
        Ok((Self::of(self.pid).ok() == Some(self)).then_some(handle))
    }

    /// Whether it is still there and has not ended.
    pub(super) fn is_alive(self) -> bool {
        Process::read(self.pid).is_ok_and(|now| now.identity == self && now.is_alive())
    }

    /// Sends a signal; one that is gone is none to complain about.
    pub(super) fn signal(self, signal: Signal) -> io::Result<()> {
        let Some(handle) = self.open()? else { return Ok(()) };
        match pidfd_send_signal(handle.as_fd(), signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }
}

/// What `/proc/PID/stat` says, as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) identity: Identity,
    pub(super) parent: Pid,
    pub(super) session: Pid,
    state: u8,
}

impl Process {
    /// Reads one; an error where there is none of this id.
    pub(super) fn read(pid: Pid) -> io::Result<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(pid, &stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(pid: Pid, stat: &[u8]) -> Option<Self> {
        // The name before it is the program's own choice, parentheses and blanks included.
        let rest = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
        let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split_ascii_whitespace().collect();
        Some(Self {
            identity: Identity { pid, start: fields.get(19)?.parse().ok()? },
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
        })
    }

    #[cfg(test)]
    pub(super) fn fake(pid: Pid, parent: Pid, session: Pid) -> Self {
        Self { identity: Identity { pid, start: 1 }, parent, session, state: b'S' }
    }

    /// Whether it has not ended; a zombie has.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether it waits in the kernel, out of reach of signals.
    pub(super) fn is_blocked(&self) -> bool {
        self.state == b'D'
    }

    /// Whether a stop signal holds it.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

/// All processes there are; one that ends meanwhile is left out.
pub(super) fn list() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            found.extend(Process::read(pid));
        }
    }
    Ok(found)
}

/// Those of `all` that are alive and descend from one of `roots`, without the roots.
pub(super) fn descendants(all: &[Process], roots: &HashSet<Pid>) -> Vec<Process> {
    let mut family = roots.clone();
    loop {
        let before = family.len();
        family.extend(
            all.iter()
                .filter(|p| family.contains(&p.parent))
                .map(|p| p.identity.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    let of_family =
        |p: &&Process| family.contains(&p.identity.pid) && !roots.contains(&p.identity.pid);
    all.iter().filter(of_family).filter(|p| p.is_alive()).copied().collect()
}

/// Whether `pid` descends from `ancestor`, as things are now.
pub(super) fn descends(pid: Pid, ancestor: Pid) -> bool {
    // A parent that ends in mid-walk breaks the chain, and its children have a new one by then.
    const TRIES: usize = 3;
    // No real chain is as long; parents cannot form a ring, but they can change while we look.
    const DEPTH: usize = 4096;
    for _ in 0..TRIES {
        let mut current = pid;
        for _ in 0..DEPTH {
            match Process::read(current) {
                Ok(process) if process.parent == ancestor => return true,
                Ok(process) if process.parent <= 1 => return false,
                Ok(process) => current = process.parent,
                Err(_) if current == pid => return false,
                Err(_) => break,
            }
        }
    }
    false
}

/// Whether the environment a process was started with holds `entry` (`NAME=value`).
///
/// One whose environment we may not read counts as not having it.
pub(super) fn has_environment(pid: Pid, entry: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|&byte| byte == 0).any(|have| have == entry.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: Pid, parent: Pid) -> Process {
        Process::fake(pid, parent, 1)
    }

    #[test]
    fn a_name_with_parentheses_and_blanks() {
        let stat = b"42 (a) b (c) R 7 42 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2\n";
        let parsed = Process::parse(42, stat).unwrap();
        assert_eq!(parsed.identity, Identity { pid: 42, start: 98765 });
        assert_eq!((parsed.parent, parsed.session, parsed.state), (7, 40, b'R'));
        assert_eq!(Process::parse(42, b"42 (cut short) R 7"), None);
    }

    #[test]
    fn descendants_of_all_depths_in_any_order() {
        let mut zombie = process(13, 10);
        zombie.state = b'Z';
        let all = [process(12, 11), process(11, 10), process(10, 1), process(20, 1), zombie];
        let found: Vec<Pid> =
            descendants(&all, &HashSet::from([10])).iter().map(|p| p.identity.pid).collect();
        assert_eq!(found, [12, 11]);
    }

    #[test]
    fn an_id_that_was_used_again_is_another_process() {
        let me = Identity::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.is_alive() && me.open().unwrap().is_some());
        let former = Identity { start: me.start - 1, ..me };
        assert!(!former.is_alive() && former.open().unwrap().is_none());
        assert!(descends(me.pid, Process::read(me.pid).unwrap().parent));
        assert!(!descends(me.pid, me.pid));
    }
}
