//! The walk over the job's paths, in the order of the manifest, by descriptors only.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, readlinkat, statat};
use rustix::io::Errno;

use super::attr::{Attr, is_network};
use super::file::Met;
use super::findings::Note;
use super::names::Names;
use super::open::{is_gone, open_below};
use super::recorder::Recorder;
use crate::error::{Error, Result};
use crate::format::{Entry, Kind, RESTORE_PREFIX, Xattrs};
use crate::root::Root;

/// Directories inside one another; each costs a descriptor while the walk is below it.
const MAX_DEPTH: usize = 512;

/// What the walk must know.
pub(crate) struct WalkOptions<'a> {
    /// Device and inode of files that processes of the attempt hold open for writing.
    pub(crate) open_for_writing: &'a HashSet<(u64, u64)>,
    /// Device and inode of directories that are not the job's.
    pub(crate) exclude: HashSet<(u64, u64)>,
}

/// The walk, with what it fills.
pub(crate) struct Walker<'a> {
    pub(super) recorder: &'a mut Recorder,
    pub(super) options: WalkOptions<'a>,
    /// Descriptors that large files may hold.
    pub(super) max_pins: usize,
    /// Whether the present root is on another machine.
    pub(super) network: bool,
    /// Content of small files.
    pub(super) buffer: Vec<u8>,
}

/// Where an entry is.
pub(crate) struct Place<'a> {
    pub(super) root: u16,
    pub(super) path: &'a [u8],
    pub(super) dir: BorrowedFd<'a>,
    pub(super) name: &'a CStr,
}

/// A directory that the walk is in.
struct Level {
    dir: OwnedFd,
    names: Names,
    next: usize,
    path_length: usize,
    attr: Attr,
    stored: u64,
    gone: u64,
}

impl Place<'_> {
    pub(super) fn entry(&self, attr: &Attr, kind: Kind) -> Entry {
        Entry {
            root: self.root,
            path: self.path.to_vec(),
            kind,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            mtime: attr.mtime,
            xattrs: Xattrs::default(),
        }
    }
}

impl<'a> Walker<'a> {
    pub(crate) fn new(
        recorder: &'a mut Recorder,
        options: WalkOptions<'a>,
        max_pins: usize,
    ) -> Self {
        Self { recorder, options, max_pins, network: false, buffer: Vec::new() }
    }

    /// Walks one of the job's paths.
    pub(crate) fn root(&mut self, index: u16, root: &Root) -> Result<()> {
        // The path itself may be a link; what it leads to is what the job means.
        let Some(path) = resolve(&root.dir)? else {
            let shown = self.recorder.shown(index, b"");
            self.recorder.findings.note(Note::NoRoot, shown);
            return Ok(());
        };
        let (parent, name) = split(&path);
        let opened =
            open(&parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let parent_fd = opened.map_err(|error| Error::io("open", &parent, error))?;
        self.network = is_network(&parent_fd);
        let place = Place { root: index, path: b"", dir: parent_fd.as_fd(), name: &name };
        let Some(attr) = self.stat(&place)? else { return Ok(()) };
        if attr.kind != FileType::Directory {
            self.entry(&place, attr)?;
            return Ok(());
        }
        if self.options.exclude.contains(&attr.object()) {
            return Err(Error::Refused(format!(
                "{} is where checkpoints or the agent's own files are kept",
                self.recorder.shown(index, b"")
            )));
        }
        // The root may be a mount point itself, so it is opened by its path.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(&path, flags, Mode::empty());
        let dir = dir.map_err(|error| self.failed("open", &place, error))?;
        self.network = is_network(&dir);
        self.tree(index, dir)
    }

    fn tree(&mut self, root: u16, dir: OwnedFd) -> Result<()> {
        let mut path = Vec::new();
        let mut levels = vec![self.enter(root, &path, dir)?];
        while let Some(level) = levels.last_mut() {
            self.recorder.control.check()?;
            path.truncate(level.path_length);
            let Some(name) = level.names.get(level.next) else {
                self.leave(root, &path, level);
                levels.pop();
                continue;
            };
            level.next += 1;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            let place = Place { root, path: &path, dir: level.dir.as_fd(), name };
            let (met, below) = self.meet(&place)?;
            match met {
                Met::Stored => level.stored += 1,
                Met::Gone => {
                    level.gone += 1;
                    self.leave_out(Note::Vanished, &place);
                }
                Met::LeftOut => {}
            }
            if let Some(dir) = below {
                if levels.len() >= MAX_DEPTH {
                    return Err(Error::Refused(format!(
                        "{} is inside {MAX_DEPTH} directories, which is the most that is stored",
                        self.recorder.shown(root, &path)
                    )));
                }
                let level = self.enter(root, &path, dir)?;
                levels.push(level);
            }
        }
        Ok(())
    }

    /// Records an entry; for a directory that is to be walked, gives it opened instead.
    fn meet(&mut self, place: &Place<'_>) -> Result<(Met, Option<OwnedFd>)> {
        let Some(attr) = self.stat(place)? else { return Ok((Met::Gone, None)) };
        if attr.kind != FileType::Directory {
            return Ok((self.entry(place, attr)?, None));
        }
        // What a restore that was cut off has left at the top of the target.
        let is_restore = place.path.starts_with(RESTORE_PREFIX.as_bytes());
        if is_restore || self.options.exclude.contains(&attr.object()) {
            return Ok((self.leave_out(Note::Own, place), None));
        }
        match open_below(place.dir, place.name, true) {
            Ok(dir) => Ok((Met::Stored, Some(dir))),
            Err(Errno::XDEV) => {
                // An empty directory in its place, so that it can be mounted again.
                let entry = place.entry(&attr, Kind::Dir);
                self.plain(place, &entry)?;
                self.leave_out(Note::Mount, place);
                Ok((Met::Stored, None))
            }
            Err(error) if is_gone(error) => Ok((Met::Gone, None)),
            Err(error) => Err(self.failed("open", place, error)),
        }
    }

    /// Records an entry that is not a directory.
    fn entry(&mut self, place: &Place<'_>, attr: Attr) -> Result<Met> {
        let kind = match attr.kind {
            FileType::RegularFile if is_silly_rename(place.name) => {
                return Ok(self.leave_out(Note::SillyRename, place));
            }
            FileType::RegularFile => return self.file(place, attr),
            FileType::Symlink => match readlinkat(place.dir, place.name, Vec::new()) {
                Ok(target) => Kind::Symlink { target: target.into_bytes() },
                Err(error) if is_gone(error) || error == Errno::INVAL => return Ok(Met::Gone),
                Err(error) => return Err(self.failed("read the link", place, error)),
            },
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDev,
            FileType::BlockDevice => Kind::BlockDev,
            FileType::Directory | FileType::Unknown => return Ok(Met::Gone),
        };
        if !matches!(kind, Kind::Symlink { .. }) {
            self.leave_out(Note::Special, place);
        }
        self.plain(place, &place.entry(&attr, kind))?;
        Ok(Met::Stored)
    }

    fn plain(&mut self, place: &Place<'_>, entry: &Entry) -> Result<()> {
        let before = self.recorder.previous.take(place.root, place.path)?;
        self.recorder.plain(entry, before.as_ref())
    }

    /// Records a directory and reads its names.
    fn enter(&mut self, root: u16, path: &[u8], dir: OwnedFd) -> Result<Level> {
        let attr = {
            let place = Place { root, path, dir: dir.as_fd(), name: c"." };
            let stat = fstat(&dir).map_err(|error| self.failed("look at", &place, error))?;
            let attr = Attr::of(&stat);
            let mut entry = place.entry(&attr, Kind::Dir);
            entry.xattrs = self.xattrs(&dir, &place);
            self.plain(&place, &entry)?;
            attr
        };
        let names = match Names::read(&dir) {
            // Removed while it was open: then nothing is in it.
            Err(Errno::NOENT) => Names::none(),
            names => {
                names.map_err(|error| Error::io("list", self.recorder.shown(root, path), error))?
            }
        };
        Ok(Level { names, next: 0, path_length: path.len(), attr, stored: 0, gone: 0, dir })
    }

    /// Looks whether the directory stayed as it was listed.
    fn leave(&mut self, root: u16, path: &[u8], level: &Level) {
        let after = fstat(&level.dir).map(|stat| Attr::of(&stat));
        if after.is_ok_and(|after| after.mtime != level.attr.mtime) {
            let shown = self.recorder.shown(root, path);
            self.recorder.findings.moved.add(shown);
        }
        if level.gone > 0 && level.stored > 0 {
            let shown = self.recorder.shown(root, path);
            self.recorder.findings.partly_gone.add(shown);
        }
    }

    fn stat(&self, place: &Place<'_>) -> Result<Option<Attr>> {
        match statat(place.dir, place.name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) => Ok(Some(Attr::of(&stat))),
            Err(error) if is_gone(error) => Ok(None),
            Err(error) => Err(self.failed("look at", place, error)),
        }
    }
}

/// Where a path really is; `None` where there is nothing.
fn resolve(path: &Path) -> Result<Option<PathBuf>> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(Some(path)),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

/// The directory that a path is in, and its name there; the root directory is `.` in itself.
fn split(path: &Path) -> (PathBuf, CString) {
    let name = path.file_name().and_then(|name| CString::new(name.as_bytes()).ok());
    match (path.parent(), name) {
        (Some(parent), Some(name)) => (parent.to_owned(), name),
        _ => (path.to_owned(), c".".to_owned()),
    }
}

/// The name that NFS gives a file that was removed while it was open.
fn is_silly_rename(name: &CStr) -> bool {
    name.to_bytes()
        .strip_prefix(b".nfs")
        .is_some_and(|hex| hex.len() >= 8 && hex.iter().all(u8::is_ascii_hexdigit))
}
