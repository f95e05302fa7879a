//! A socket's path, its directory, and what is there already.
//!
//! Everything below the directory is done through its descriptor, by file name, so that nothing
//! changes meaning between two steps.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::BindError;

/// The longest path of a Unix socket: `sun_path` has 108 bytes, one of them the terminator.
pub const MAX_PATH: usize = 107;

/// The directories above a socket's own are for everyone to pass through.
const ANCESTOR_MODE: u32 = 0o755;

/// The name of the socket inside its staging directory.
const STAGED: &str = "s";

/// Where a socket is to be, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its path, at most [`MAX_PATH`] bytes.
    pub path: PathBuf,
    /// Its permission bits, whatever the umask: who may connect needs write permission.
    pub mode: u32,
    /// Whose it is; the agent's own where `None`.
    pub owner: Option<Owner>,
    /// The permission bits of its directory, where that has to be made.
    pub dir_mode: u32,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// Which file a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    dev: u64,
    ino: u64,
}

impl FileId {
    pub(super) fn of(stat: &fs::Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// The open directory of a socket.
#[derive(Debug)]
pub(super) struct Directory<'a> {
    place: &'a Place,
    name: &'a OsStr,
    fd: OwnedFd,
    id: FileId,
    /// Everyone may make files here; only the sticky bit keeps them from removing ours.
    shared: bool,
}

impl<'a> Directory<'a> {
    /// Opens the directory, making it where there is none, and refuses one that anyone can change.
    pub(super) fn prepare(place: &'a Place) -> Result<Self, BindError> {
        let length = place.path.as_os_str().len();
        if length > MAX_PATH {
            return Err(BindError::TooLong { path: place.path.clone(), length });
        }
        let created = create(parent(place), place.dir_mode)
            .map_err(|source| io_error("make the directory", parent(place), source))?;
        let dir = Self::open(place)?;
        if created {
            // The umask may have taken bits away; it cannot have added any.
            fs::fchmod(&dir.fd, Mode::from_raw_mode(place.dir_mode))
                .map_err(|errno| dir.io("set the mode of the directory of", errno))?;
        }
        Ok(dir)
    }

    /// Opens the directory as it is.
    pub(super) fn open(place: &'a Place) -> Result<Self, BindError> {
        let no_name = || BindError::NoName { path: place.path.clone() };
        let name = place.path.file_name().ok_or_else(no_name)?;
        let dir = parent(place);
        let open = |errno: Errno| io_error("open the directory", dir, errno.into());
        let fd = fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(open)?;
        let stat = fs::fstat(&fd).map_err(open)?;
        let mode = stat.st_mode & 0o7777;
        let shared = mode & 0o002 != 0;
        if shared && mode & 0o1000 == 0 {
            return Err(BindError::OpenDirectory { dir: dir.to_owned(), mode });
        }
        Ok(Self { place, name, fd, id: FileId::of(&stat), shared })
    }

    pub(super) fn path(&self) -> &'a Path {
        &self.place.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The socket's file name with something around it: the name of a file that belongs to it.
    pub(super) fn beside(&self, before: &str, after: &str) -> OsString {
        let mut name = OsString::from(before);
        name.push(self.name);
        name.push(after);
        name
    }

    /// Names the socket for as long as the directory exists, in whatever mount namespace.
    pub(super) fn identity(&self) -> Vec<u8> {
        let mut name = format!("nodus/{:x}:{:x}/", self.id.dev, self.id.ino).into_bytes();
        name.extend_from_slice(self.name.as_bytes());
        name
    }

    pub(super) fn io(&self, action: &'static str, source: impl Into<io::Error>) -> BindError {
        io_error(action, self.path(), source.into())
    }

    /// Who made a file here, where that could have been anyone.
    pub(super) fn refuse_foreign(&self, name: &OsStr, uid: u32) -> Result<(), BindError> {
        let ours = [Some(rustix::process::geteuid().as_raw()), self.place.owner.map(|o| o.uid)];
        if self.shared && !ours.contains(&Some(uid)) {
            return Err(BindError::Foreign { path: parent(self.place).join(name), uid });
        }
        Ok(())
    }

    /// What the socket's name stands for now.
    pub(super) fn occupant_id(&self) -> Result<Option<FileId>, BindError> {
        Ok(self.occupant()?.map(|stat| FileId::of(&stat)))
    }

    fn occupant(&self) -> Result<Option<fs::Stat>, BindError> {
        match fs::statat(&self.fd, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.io("look at", errno)),
        }
    }

    /// Removes the socket of a dead process; refuses everything else that is in the way.
    ///
    /// To be called with the claim held, so that no other agent binds meanwhile.
    pub(super) fn vacate(&self) -> Result<(), BindError> {
        let Some(stat) = self.occupant()? else { return Ok(()) };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Socket {
            return Err(BindError::NotASocket {
                path: self.path().to_owned(),
                kind: name_of(kind),
            });
        }
        self.refuse_foreign(self.name, stat.st_uid)?;
        if self.answers()? {
            return Err(BindError::InUse { path: self.path().to_owned() });
        }
        fs::unlinkat(&self.fd, self.name, AtFlags::empty())
            .map_err(|errno| self.io("remove the stale socket", errno))
    }

    /// Whether a process listens on the socket that is there.
    fn answers(&self) -> Result<bool, BindError> {
        let connect = |errno: Errno| self.io("try the socket", errno);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(connect)?;
        let address = SocketAddrUnix::new(self.path()).map_err(connect)?;
        match net::connect(&socket, &address) {
            // A full queue of waiting clients has somebody who does not take them yet, and a
            // socket of another type has an owner that is not an agent.
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
            Err(errno) => Err(connect(errno)),
        }
    }

    /// Binds in a directory that only we may enter, settles mode and owner there, and only then
    /// gives the socket its name. So nobody can connect before they may, whatever the umask, and
    /// a client that finds the name finds somebody listening.
    pub(super) fn bind(&self) -> Result<(UnixListener, FileId), BindError> {
        let staging = Staging::new(self).map_err(|errno| self.io("make room to bind", errno))?;
        let listener = staging.listen().map_err(|source| self.io("bind", source))?;
        let settle = |errno: Errno| self.io("set mode and owner of", errno);
        let mode = Mode::from_raw_mode(self.place.mode);
        fs::chmodat(&staging.fd, STAGED, mode, AtFlags::empty()).map_err(settle)?;
        if let Some(Owner { uid, gid }) = self.place.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            fs::chownat(&staging.fd, STAGED, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(settle)?;
        }
        let stat = fs::statat(&staging.fd, STAGED, AtFlags::SYMLINK_NOFOLLOW).map_err(settle)?;
        fs::renameat_with(&staging.fd, STAGED, &self.fd, self.name, RenameFlags::NOREPLACE)
            .map_err(|errno| self.io("give its name to the socket", errno))?;
        Ok((listener, FileId::of(&stat)))
    }

    /// Removes the socket if it is still this one.
    pub(super) fn remove_if(&self, id: FileId) {
        if matches!(self.occupant_id(), Ok(Some(found)) if found == id) {
            // At worst a stale socket stays, which the next start replaces.
            let _ = fs::unlinkat(&self.fd, self.name, AtFlags::empty());
        }
    }
}

/// A directory that only we may enter, removed when this is dropped.
struct Staging<'a> {
    dir: &'a Directory<'a>,
    name: OsString,
    fd: OwnedFd,
}

impl<'a> Staging<'a> {
    fn new(dir: &'a Directory<'a>) -> rustix::io::Result<Self> {
        let name = dir.beside(".", ".bind");
        // A process that was killed while it held the claim may have left one.
        remove_staging(dir, &name);
        fs::mkdirat(&dir.fd, &name, Mode::RWXU)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&dir.fd, &name, flags, Mode::empty())?;
        Ok(Self { dir, name, fd })
    }

    /// Through the descriptor, since the staging directory's own path may be too long to bind.
    fn listen(&self) -> io::Result<UnixListener> {
        let path = format!("/proc/self/fd/{}/{STAGED}", self.fd.as_raw_fd());
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        remove_staging(self.dir, &self.name);
    }
}

/// What cannot be removed is reported by the `mkdirat` that meets it.
fn remove_staging(dir: &Directory<'_>, name: &OsStr) {
    let _ = fs::unlinkat(&dir.fd, Path::new(name).join(STAGED), AtFlags::empty());
    let _ = fs::unlinkat(&dir.fd, name, AtFlags::REMOVEDIR);
}

/// Whether the directory had to be made.
fn create(dir: &Path, mode: u32) -> io::Result<bool> {
    let make = |dir: &Path| DirBuilder::new().mode(mode).create(dir);
    let made = match (make(dir), dir.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(ANCESTOR_MODE).recursive(true).create(parent)?;
            make(dir)
        }
        (made, _) => made,
    };
    match made {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn parent(place: &Place) -> &Path {
    match place.path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> BindError {
    BindError::Io { action, path: path.to_owned(), source }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "named pipe",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Socket | FileType::Unknown => "file of another kind",
    }
}
