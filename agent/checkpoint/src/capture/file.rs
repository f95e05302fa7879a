//! Regular files: unchanged ones are not opened, small ones are read, large ones pinned or cloned.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FileType, Mode, OFlags, fstat, ioctl_ficlone, openat};
use rustix::io::Errno;

use super::attr::{Attr, file_clock};
use super::copy::Source;
use super::findings::Note;
use super::open::{is_gone, open_below};
use super::recorder::is_same;
use super::walk::{Place, Walker};
use super::xattr;
use crate::archive::tar::member_name;
use crate::error::{Error, Result};
use crate::format::{Entry, FileData, Kind, SMALL_FILE};

/// How often a small file that changes while it is read is read again.
const AGAIN: usize = 3;

/// Whether an entry is there, or was gone by the time it was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    Stored,
    Gone,
    LeftOut,
}

/// A regular file that has been opened.
struct Opened {
    file: File,
    attr: Attr,
    entry: Entry,
    /// A process holds it open for writing.
    writable: bool,
}

impl Walker<'_> {
    /// Records a regular file.
    pub(super) fn file(&mut self, place: &Place<'_>, attr: Attr) -> Result<Met> {
        let before = self.recorder.previous.take(place.root, place.path)?;
        let linked = if attr.nlink > 1 { self.recorder.earlier_name(&attr) } else { None };
        let is_writable = self.options.open_for_writing.contains(&attr.object());
        if let Some(before) = before
            .as_ref()
            .filter(|before| linked.is_none() && !is_writable && is_unread(before, &attr))
            && self.recorder.bases.is_usable(before)
        {
            return self.unchanged_file(place, &attr, before);
        }
        let listed = attr.object();
        let opened = match open_below(place.dir, place.name, false) {
            Ok(file) => self.stat_open(&file, place).map(|attr| (File::from(file), attr))?,
            Err(Errno::XDEV) => {
                self.recorder.changed |= before.is_some();
                return Ok(self.leave_out(Note::Mount, place));
            }
            Err(error) if is_gone(error) => return Ok(self.gone(before.as_ref())),
            Err(error) => return Err(self.failed("open", place, error)),
        };
        let (file, attr) = opened;
        if attr.kind != FileType::RegularFile {
            return Ok(self.gone(before.as_ref()));
        }
        // Replaced since it was listed: then it is not the file whose other name is known.
        let linked = linked.filter(|_| attr.object() == listed);
        if is_writable {
            let shown = self.recorder.shown(place.root, place.path);
            self.recorder.findings.writers.add(shown);
        }
        let mut entry = place.entry(&attr, file_kind(&attr));
        entry.xattrs = self.xattrs(&file, place);
        if let Some(first) = linked {
            entry.kind = link_kind(&attr, first);
            self.recorder.plain(&entry, before.as_ref())?;
            return Ok(Met::Stored);
        }
        self.recorder.remember_name(&attr, &entry);
        self.recorder.count(attr.size)?;
        let open = Opened { file, attr, entry, writable: is_writable };
        if attr.size < SMALL_FILE {
            self.small_file(place, open, before)?;
        } else {
            self.large_file(place, open, before)?;
        }
        Ok(Met::Stored)
    }

    /// A file that was listed and is not there any more, also where it was the last time.
    fn gone(&mut self, before: Option<&Entry>) -> Met {
        self.recorder.changed |= before.is_some();
        Met::Gone
    }

    fn unchanged_file(&mut self, place: &Place<'_>, attr: &Attr, before: &Entry) -> Result<Met> {
        let entry = Entry { root: place.root, path: place.path.to_vec(), ..before.clone() };
        self.recorder.remember_name(attr, &entry);
        self.recorder.count(attr.size)?;
        self.recorder.control.progress(attr.size);
        self.recorder.unchanged(&entry, before)?;
        Ok(Met::Stored)
    }

    /// Reads a small file, again where it changes meanwhile.
    fn small_file(
        &mut self,
        place: &Place<'_>,
        mut open: Opened,
        before: Option<Entry>,
    ) -> Result<()> {
        let counted = open.attr.size;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(usize::try_from(SMALL_FILE).expect("fits in memory"), 0);
        let mut tries_left = AGAIN;
        let (length, still) = loop {
            let read_at = file_clock();
            let length = read_small(&open.file, &mut buffer)
                .map_err(|error| self.failed("read", place, error))?;
            let after = self.stat_open(&open.file, place)?;
            let still = !after.is_moved_from(&open.attr) && length as u64 == open.attr.size;
            if still || tries_left == 0 {
                let racy = !still || open.writable || open.attr.is_racy(read_at, self.network);
                open.entry.mtime = open.attr.mtime;
                set_content(&mut open.entry, &open.attr, length as u64, racy, !still);
                break (length, still);
            }
            open.attr = after;
            tries_left -= 1;
            if after.size >= SMALL_FILE {
                // It has grown, so it is copied as large ones are, which looks at its changes.
                self.buffer = buffer;
                self.recorder.count(after.size - counted)?;
                return self.large_file(place, open, before);
            }
        };
        self.note_changes(place, still, tries_left < AGAIN);
        self.recorder.count((length as u64).saturating_sub(counted))?;
        let recorded = self.recorder.small(open.entry, &buffer[..length], before.as_ref());
        self.buffer = buffer;
        recorded
    }

    fn note_changes(&mut self, place: &Place<'_>, still: bool, moved: bool) {
        if still && !moved {
            return;
        }
        let shown = self.recorder.shown(place.root, place.path);
        let findings = &mut self.recorder.findings;
        if still { findings.moved.add(shown) } else { findings.unstable.add(shown) }
    }

    /// Holds on to a large file, in the way that suits how it is written.
    fn large_file(&mut self, place: &Place<'_>, open: Opened, before: Option<Entry>) -> Result<()> {
        let Opened { file, attr, mut entry, writable } = open;
        entry.mtime = attr.mtime;
        set_content(&mut entry, &attr, attr.size, false, false);
        let in_place = writable
            || before.as_ref().is_some_and(|before| is_rewritten(before, &attr))
            || is_database(&file, place.name);
        let root = &self.recorder.roots[usize::from(place.root)];
        let mut source = Source {
            name: member_name(root, &entry),
            shown: self.recorder.shown(place.root, place.path),
            attr,
            before: Vec::new(),
            size_before: None,
            cloned: false,
            writable,
            network: self.network,
            file,
            entry,
        };
        self.compare(&mut source, before);
        if in_place && self.clone_file(place.dir, &mut source) {
            return self.recorder.pin(source);
        }
        if in_place || self.recorder.pins.len() >= self.max_pins {
            return self.recorder.copy_now(&source);
        }
        self.recorder.pin(source)
    }

    /// Sets what the file was before; where more than the content differs, that is a change already.
    fn compare(&mut self, source: &mut Source, before: Option<Entry>) {
        let same = before.as_ref().is_some_and(|before| is_same(before, &source.entry));
        self.recorder.changed |= !same;
        let usable = before.filter(|before| self.recorder.bases.is_usable(before));
        let Some(Kind::File(before)) = usable.map(|before| before.kind) else {
            self.recorder.changed = true;
            return;
        };
        // Of a file with several names the first may have had its chunks under another.
        source.size_before = (same && before.hardlink.is_none()).then_some(before.size);
        source.before = before.chunks;
    }

    /// Makes the source a private clone, where the file system can do that.
    fn clone_file(&self, dir: BorrowedFd<'_>, source: &mut Source) -> bool {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let Ok(clone) = openat(dir, c".", flags, Mode::RUSR | Mode::WUSR) else { return false };
        let read_at = file_clock();
        let Ok(before) = fstat(&source.file) else { return false };
        if ioctl_ficlone(clone.as_fd(), &source.file).is_err() {
            return false;
        }
        let after = fstat(&source.file).map(|stat| Attr::of(&stat));
        let before = Attr::of(&before);
        let still = after.is_ok_and(|after| {
            !after.is_moved_from(&before) && !before.is_moved_from(&source.attr)
        });
        if still {
            let racy = source.writable || before.is_racy(read_at, self.network);
            set_content(&mut source.entry, &before, before.size, racy, false);
            source.file = File::from(clone);
            source.cloned = true;
        }
        still
    }

    fn stat_open(&self, file: impl std::os::fd::AsFd, place: &Place<'_>) -> Result<Attr> {
        let stat = fstat(file).map_err(|error| self.failed("look at", place, error))?;
        Ok(Attr::of(&stat))
    }

    pub(super) fn xattrs(
        &mut self,
        fd: impl std::os::fd::AsFd,
        place: &Place<'_>,
    ) -> crate::format::Xattrs {
        let (xattrs, complete) = xattr::read(fd);
        if !complete {
            let shown = self.recorder.shown(place.root, place.path);
            self.recorder.findings.note(Note::Xattrs, shown);
        }
        xattrs
    }

    pub(super) fn failed(&self, action: &'static str, place: &Place<'_>, error: Errno) -> Error {
        Error::io(action, self.recorder.shown(place.root, place.path), error)
    }

    pub(super) fn leave_out(&mut self, note: Note, place: &Place<'_>) -> Met {
        let shown = self.recorder.shown(place.root, place.path);
        self.recorder.findings.note(note, shown);
        Met::LeftOut
    }
}

/// Whether the identity says that the content is still that of the checkpoint before.
fn is_unread(before: &Entry, attr: &Attr) -> bool {
    before.file().is_some_and(|file| {
        file.id == Some(attr.identity())
            && file.size == attr.size
            && before.mtime == attr.mtime
            && !file.racy
            && !file.modified_during_copy
            && file.hardlink.is_none()
    })
}

/// Whether a program wrote into the file that was there, instead of putting another in its place.
fn is_rewritten(before: &Entry, attr: &Attr) -> bool {
    before.file().and_then(|file| file.id).is_some_and(|id| (id.0, id.1) == attr.object())
        && (before.file().map(|file| file.size), before.mtime) != (Some(attr.size), attr.mtime)
}

/// Databases write in place, whether or not somebody has them open now.
fn is_database(file: &File, name: &CStr) -> bool {
    const SQLITE: &[u8] = b"SQLite format 3\0";
    const LMDB: [u8; 4] = 0xBEEF_C0DE_u32.to_ne_bytes();
    const LMDB_AT: usize = 16;
    let name = name.to_bytes();
    if name.ends_with(b"-wal") || name.ends_with(b"-journal") {
        return true;
    }
    let mut head = [0; LMDB_AT + 4];
    file.read_exact_at(&mut head, 0).is_ok()
        && (head.starts_with(SQLITE) || head[LMDB_AT..] == LMDB)
}

fn file_kind(attr: &Attr) -> Kind {
    Kind::File(FileData {
        size: attr.size,
        nlink: (attr.nlink > 1).then_some(attr.nlink),
        id: Some(attr.identity()),
        ..FileData::default()
    })
}

fn link_kind(attr: &Attr, first: crate::format::EntryRef) -> Kind {
    match file_kind(attr) {
        Kind::File(file) => Kind::File(FileData { hardlink: Some(first), ..file }),
        other => other,
    }
}

fn set_content(entry: &mut Entry, attr: &Attr, size: u64, racy: bool, modified: bool) {
    if let Kind::File(file) = &mut entry.kind {
        file.size = size;
        file.id = Some(attr.identity());
        file.racy = racy;
        file.modified_during_copy = modified;
    }
}

/// Reads the file from its beginning; as much as the buffer has room for.
fn read_small(file: &File, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
