//! Who may bind a socket path: one process at a time, for as long as it lives.
//!
//! The claim is an exclusive `flock` on `<path>.lock`, which the kernel gives back however its
//! holder ends. A lock file that something removes no longer keeps anyone out, until its holder
//! notices; so the holder also owns an address in the abstract socket namespace, the **guard**,
//! which no cleaner can remove. The guard reaches no further than the network namespace, so it
//! only adds to the lock.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::BindError;
use super::place::{Directory, FileId};

/// Only we open it.
const LOCK_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// How often a lock file may vanish between opening and locking it; each time, somebody else
/// started or stopped in between.
const MAX_RETRIES: u32 = 1000;

/// Held for life.
#[derive(Debug)]
pub(super) struct Claim {
    lock: Lock,
    guard: Option<Guard>,
}

#[derive(Debug)]
struct Lock {
    id: FileId,
    /// Keeps the lock.
    _file: File,
}

#[derive(Debug)]
struct Guard {
    name: Vec<u8>,
    /// Keeps the address.
    _socket: OwnedFd,
}

impl Claim {
    /// Claims the path; `None` where the lock is free and only the guard is not.
    pub(super) fn take(dir: &Directory<'_>) -> Result<Option<Self>, BindError> {
        let lock = Lock::take(dir)?;
        match Guard::take(dir).map_err(|errno| dir.io("guard", errno))? {
            Guarding::Taken(guard) => Ok(Some(Self { lock, guard: Some(guard) })),
            Guarding::Impossible => Ok(Some(Self { lock, guard: None })),
            Guarding::Held => {
                lock.release(dir);
                Ok(None)
            }
        }
    }

    /// Makes the lock file again where it is gone, and says whether it was.
    pub(super) fn renew(&mut self, dir: &Directory<'_>) -> Result<bool, BindError> {
        if Lock::found(dir)? == Some(self.lock.id) {
            return Ok(false);
        }
        self.lock = Lock::take(dir)?;
        // A directory that was made again is another one to the guard.
        if self.guard.as_ref().is_some_and(|guard| guard.name != dir.identity()) {
            match Guard::take(dir).map_err(|errno| dir.io("guard", errno))? {
                Guarding::Taken(guard) => self.guard = Some(guard),
                Guarding::Impossible => self.guard = None,
                Guarding::Held => return Err(BindError::InUse { path: dir.path().to_owned() }),
            }
        }
        Ok(true)
    }

    /// Removes the lock file, if it is still this claim's.
    pub(super) fn release(&self, dir: &Directory<'_>) {
        self.lock.release(dir);
    }
}

impl Lock {
    fn take(dir: &Directory<'_>) -> Result<Self, BindError> {
        let failed = |errno: Errno| dir.io("lock", errno);
        for _ in 0..MAX_RETRIES {
            let file = open_lock(dir).map_err(failed)?;
            let stat = fs::fstat(&file).map_err(failed)?;
            dir.refuse_foreign(&dir.beside("", ".lock"), stat.st_uid)?;
            match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(BindError::InUse { path: dir.path().to_owned() });
                }
                Err(errno) => return Err(failed(errno)),
            }
            // Its last owner may have removed it after it was opened here.
            if Self::found(dir)? == Some(FileId::of(&stat)) {
                return Ok(Self { id: FileId::of(&stat), _file: file });
            }
        }
        Err(BindError::InUse { path: dir.path().to_owned() })
    }

    fn found(dir: &Directory<'_>) -> Result<Option<FileId>, BindError> {
        match fs::statat(dir.fd(), dir.beside("", ".lock"), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileId::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(dir.io("look at the lock of", errno)),
        }
    }

    fn release(&self, dir: &Directory<'_>) {
        if matches!(Self::found(dir), Ok(Some(found)) if found == self.id) {
            // At worst an unlocked file stays.
            let _ = fs::unlinkat(dir.fd(), dir.beside("", ".lock"), AtFlags::empty());
        }
    }
}

fn open_lock(dir: &Directory<'_>) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir.fd(), dir.beside("", ".lock"), flags, LOCK_MODE).map(File::from)
}

enum Guarding {
    Taken(Guard),
    /// By a process of ours or of root.
    Held,
    /// The name is too long, or a stranger sits on it to keep us from starting.
    Impossible,
}

impl Guard {
    fn take(dir: &Directory<'_>) -> rustix::io::Result<Guarding> {
        let name = dir.identity();
        let Ok(address) = SocketAddrUnix::new_abstract_name(&name) else {
            return Ok(Guarding::Impossible);
        };
        let socket = stream_socket()?;
        match net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(judge_holder(&address)),
            Err(errno) => return Err(errno),
        }
        net::listen(&socket, 1)?; // So that a second agent can ask whose it is.
        Ok(Guarding::Taken(Self { name, _socket: socket }))
    }
}

/// Anyone may bind an abstract address; only our own processes and root's count.
fn judge_holder(address: &SocketAddrUnix) -> Guarding {
    let holder = || -> rustix::io::Result<u32> {
        let socket = stream_socket()?;
        net::connect(&socket, address)?;
        Ok(net::sockopt::socket_peercred(&socket)?.uid.as_raw())
    };
    match holder() {
        Ok(uid) if uid != 0 && uid != rustix::process::geteuid().as_raw() => {
            tracing::warn!(uid, "another user holds the guard of this socket; going on without");
            Guarding::Impossible
        }
        // Refused: it is going away, or not listening yet. The caller tries again.
        Ok(_) | Err(_) => Guarding::Held,
    }
}

fn stream_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
