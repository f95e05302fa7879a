//! Whether what is in a target is what the checkpoint holds, without reading any content.
//!
//! A file is the same if its identity is: device, inode, size, times of content and of attributes
//! are those that the manifest recorded, and the clock could not have hidden a change. The kernel
//! moves the last of these at every change of content, owner, mode or attribute.

use std::io;
use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;
use rustix::fs::{Dir, FileType, Stat};
use rustix::io::Errno;

use super::attributes::{OPEN_DIR, Policy};
use super::beneath::Spot;
use super::standing::Standing;
use super::tree::{Cursor, Tree};
use crate::format::{Entry, FileData, Identity, Kind, Time, Xattrs};

/// Compares one root, entry by entry in the manifest's order.
pub(super) struct Comparison<'a> {
    cursor: Cursor<'a>,
    first_links: Cursor<'a>,
    policy: &'a Policy,
    standing: &'a Standing,
    /// Entries that the manifest has below directories that are there.
    expected: u64,
    /// Entries that are there.
    found: u64,
    differs: bool,
}

impl<'a> Comparison<'a> {
    /// Nothing is compared yet.
    pub(super) fn new(tree: &'a Tree, policy: &'a Policy, standing: &'a Standing) -> Self {
        let (cursor, first_links) = (Cursor::new(tree), Cursor::new(tree));
        Self { cursor, first_links, policy, standing, expected: 0, found: 0, differs: false }
    }

    /// Whether the target has this entry as it would be restored.
    pub(super) fn is_same(&mut self, entry: &Entry) -> bool {
        // What cannot be looked at is not the same; writing it anew says what is wrong, if anything.
        let same = self.compare(entry).unwrap_or(false);
        self.differs |= !same;
        same
    }

    /// Whether the whole target is as it would be restored, with nothing in it besides.
    pub(super) fn is_unchanged(&self) -> bool {
        !self.differs && self.expected == self.found
    }

    fn compare(&mut self, entry: &Entry) -> io::Result<bool> {
        let spot = self.cursor.spot(&entry.path)?;
        let stat = match spot.stat() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_special(&entry.kind) => {
                return Ok(true); // It is never made, so its absence is no difference.
            }
            stat => stat?,
        };
        self.expected += u64::from(!entry.path.is_empty());
        if FileType::from_raw_mode(stat.st_mode) != file_type(&entry.kind) {
            return Ok(false);
        }
        if is_special(&entry.kind) || self.standing.keeps(&entry.path) {
            return Ok(true);
        }
        if (stat.st_uid, stat.st_gid) != self.policy.owner(entry) {
            return Ok(false);
        }
        match &entry.kind {
            Kind::Symlink { target } => {
                let link = rustix::fs::readlinkat(&spot.dir, &*spot.name, Vec::new())?;
                Ok(link.as_bytes() == target && mtime(&stat) == entry.mtime)
            }
            _ if stat.st_mode & 0o7777 != self.policy.mode(entry) => Ok(false),
            Kind::File(file) => match &file.hardlink {
                None => Ok(is_identical(&stat, entry.mtime, file)),
                Some(first) if first.0 != entry.root => Ok(false),
                Some(first) => {
                    let first = self.first_links.spot(&first.1)?.stat()?;
                    Ok((first.st_dev, first.st_ino) == (stat.st_dev, stat.st_ino))
                }
            },
            _ => {
                let same = mtime(&stat) == entry.mtime && self.has_xattrs(entry)?;
                let found = count(self.cursor.tree(), &entry.path)?;
                self.found += found.saturating_sub(self.standing.own_in(&entry.path));
                Ok(same)
            }
        }
    }

    fn has_xattrs(&mut self, entry: &Entry) -> io::Result<bool> {
        let wanted = entry.xattrs.0.iter().filter(|(name, _)| self.policy.takes_xattr(name));
        let dir = self.cursor.spot(&entry.path)?.open(OPEN_DIR)?;
        let there = xattrs(&dir)?;
        Ok(wanted.eq(there.0.iter()))
    }
}

/// Whether a regular file is the very one that was captured, unchanged.
fn is_identical(stat: &Stat, recorded: Time, file: &FileData) -> bool {
    let is_proof = !file.racy && !file.modified_during_copy;
    let now = Identity(stat.st_dev, stat.st_ino, stat.st_ctime, nanos(stat.st_ctime_nsec));
    is_proof
        && file.id == Some(now)
        && u64::try_from(stat.st_size) == Ok(file.size)
        && mtime(stat) == recorded
}

/// Entries in a directory; a directory that another mount covers has none of ours.
fn count(tree: &Tree, path: &[u8]) -> io::Result<u64> {
    let listed = match tree.list(path) {
        Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => return Ok(0),
        listed => listed?,
    };
    let mut dir = Dir::read_from(&listed)?;
    let mut count = 0;
    while let Some(entry) = dir.read() {
        count += u64::from(!matches!(entry?.file_name().to_bytes(), b"." | b".."));
    }
    Ok(count)
}

fn xattrs(fd: impl AsFd) -> io::Result<Xattrs> {
    let mut list = Vec::with_capacity(4096);
    let mut found = Xattrs::default();
    match rustix::fs::flistxattr(&fd, spare_capacity(&mut list)) {
        Err(Errno::NOTSUP) => return Ok(found),
        listed => listed?,
    };
    for name in list.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(usize::from(u16::MAX) + 1);
        rustix::fs::fgetxattr(&fd, name, spare_capacity(&mut value))?;
        found.0.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// Whether it is only noted, never made.
pub(super) fn is_special(kind: &Kind) -> bool {
    matches!(kind, Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev)
}

/// Whether the place holds a regular file.
pub(super) fn is_regular(spot: &Spot) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(spot.stat()?.st_mode) == FileType::RegularFile)
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File(_) => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink { .. } => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDev => FileType::CharacterDevice,
        Kind::BlockDev => FileType::BlockDevice,
    }
}

fn mtime(stat: &Stat) -> Time {
    Time(stat.st_mtime, nanos(stat.st_mtime_nsec))
}

fn nanos(value: impl TryInto<u32>) -> u32 {
    value.try_into().unwrap_or(u32::MAX) // The kernel gives less than 1e9.
}
