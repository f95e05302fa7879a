//! Copying a large file into the archive, again where it changes under the copy.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Advice, fadvise, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::attr::{Attr, file_clock};
use super::pieces;
use super::spool::unresolved;
use crate::archive::index::FrameIndex;
use crate::archive::{FileSpec, Pipeline, Reuse, Role};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::{Chunk, Entry, FrameRef, Kind, Time};

/// How often a file that changed is copied again.
const AGAIN: usize = 3;
/// The longest name of a file whose parts still have a name that file systems take.
const MAX_PART_NAME: usize = 255 - ".nodus-part.".len() - 20;
/// Longest wait for the clock to step on past the file's last change.
const CLOCK_STEP: Duration = Duration::from_millis(25);

/// A large file whose content is to be copied.
pub(crate) struct Source {
    /// Open for reading, so it outlives its name.
    pub(crate) file: File,
    /// Its entry without chunks.
    pub(crate) entry: Entry,
    /// Its name in the tar.
    pub(crate) name: Vec<u8>,
    /// Its path for messages.
    pub(crate) shown: String,
    /// Its attributes when it was captured.
    pub(crate) attr: Attr,
    /// The content it had in the checkpoint before, where that can be built upon.
    pub(crate) before: Vec<Chunk>,
    /// The size it had there, where all its attributes are the same now.
    pub(crate) size_before: Option<u64>,
    /// It is a private clone, which nobody changes.
    pub(crate) cloned: bool,
    /// Somebody could change it without a new time stamp.
    pub(crate) writable: bool,
    /// Time stamps there are another machine's.
    pub(crate) network: bool,
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stability {
    /// It is as it was captured.
    Still,
    /// It had changed, and is of one later moment.
    Moved,
    /// It changed in every try.
    Unstable,
}

/// What all copies need.
pub(crate) struct Copier<'a> {
    pub(crate) pipeline: &'a mut Pipeline,
    pub(crate) index: Option<Arc<FrameIndex>>,
    pub(crate) control: &'a Control,
    pub(crate) seq: u64,
    /// Bytes of regular files so far, which a growing file adds to.
    pub(crate) bytes: &'a mut u64,
    pub(crate) max_size: u64,
    /// Nobody is held up by it, so it may wait for a clock.
    pub(crate) patient: bool,
}

impl Copier<'_> {
    /// Copies it; gives its entry, with chunks that are not resolved yet.
    pub(crate) fn copy(&mut self, source: &Source) -> Result<(Entry, Stability)> {
        let mut tries_left = AGAIN;
        loop {
            let before = self.stat(source)?;
            if self.patient || tries_left < AGAIN {
                self.wait_for_clock(source, &before);
            }
            let read = file_clock();
            self.check_size(source, &before)?;
            let chunks = self.pass(source, &before, tries_left == 0)?;
            let still = !self.stat(source)?.is_moved_from(&before);
            if let Some(chunks) = chunks.filter(|_| still || tries_left == 0) {
                self.pipeline.end()?;
                let entry = finished(source, &before, chunks, read, still);
                let late = !source.cloned && before.is_moved_from(&source.attr);
                let stability = match (still, late) {
                    (true, false) => Stability::Still,
                    (true, true) => Stability::Moved,
                    (false, _) => Stability::Unstable,
                };
                return Ok((entry, stability));
            }
            self.pipeline.abort()?;
            tries_left = tries_left.saturating_sub(1);
        }
    }

    /// One pass over the file; `None` where it became shorter, unless this pass is the last.
    fn pass(&mut self, source: &Source, attr: &Attr, last: bool) -> Result<Option<Vec<Chunk>>> {
        let failed = |error: Errno| Error::io("read", &source.shown, error);
        let pieces = pieces::data(&source.file, attr.size).map_err(failed)?;
        self.pipeline.begin(spec(source, attr, pieces.clone()))?;
        let in_parts = may_be_in_parts(source, pieces.is_some());
        let pieces = pieces.unwrap_or_else(|| vec![(0, attr.size)]);
        let mut before = source.before.iter().peekable();
        let mut chunks = Vec::new();
        for (offset, length) in pieces::windows(&pieces) {
            self.control.check()?;
            let mut content = self.pipeline.buffer();
            content.resize(usize::try_from(length).expect("at most a frame"), 0);
            let read = read_at(&source.file, &mut content, offset).map_err(failed)?;
            if read < content.len() && !last {
                self.pipeline.recycle(content);
                return Ok(None);
            }
            content[read..].fill(0);
            self.control.progress(length);
            while before.next_if(|chunk| chunk.offset < offset).is_some() {}
            let same_place = before.peek().and_then(|chunk| whole_frame(chunk, offset, length));
            let reuse = match in_parts {
                true => Reuse { same_place, index: self.index.clone() },
                false => Reuse::default(),
            };
            let ticket = self.pipeline.ticket();
            self.pipeline.frame(ticket, Role::Content(offset), content, reuse)?;
            let frame = unresolved(self.seq, ticket);
            chunks.push(Chunk { offset, len: length, skip: 0, frame });
        }
        Ok(Some(chunks))
    }

    /// Counts what the file has become longer by.
    fn check_size(&mut self, source: &Source, now: &Attr) -> Result<()> {
        let found = self.bytes.saturating_add(now.size.saturating_sub(source.attr.size));
        if found > self.max_size {
            return Err(Error::TooLarge { found, limit: self.max_size });
        }
        Ok(())
    }

    /// Waits until a change from now on would show in the time stamps: one step of their clock.
    fn wait_for_clock(&self, source: &Source, attr: &Attr) {
        if !source.cloned && !source.network && attr.is_racy(file_clock(), false) {
            // Nothing else is ever sent: the receiver only counts the time.
            let _ = crossbeam_channel::after(CLOCK_STEP).recv();
        }
    }

    fn stat(&self, source: &Source) -> Result<Attr> {
        let stat =
            fstat(&source.file).map_err(|error| Error::io("look at", &source.shown, error))?;
        Ok(Attr::of(&stat))
    }
}

fn spec(source: &Source, attr: &Attr, pieces: Option<Vec<(u64, u64)>>) -> FileSpec {
    let whole = pieces.is_none() || !may_be_in_parts(source, true);
    FileSpec {
        name: source.name.clone(),
        entry: source.entry.clone(),
        size: attr.size,
        pieces,
        whole,
    }
}

/// Whether frames of it may be left out of the archive, which makes parts of the others.
///
/// The header of a sparse member cannot become that of a part, so that is settled before; and a name
/// that is too long for the suffix of a part could not be unpacked.
fn may_be_in_parts(source: &Source, sparse: bool) -> bool {
    let file_name = source.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    file_name.len() <= MAX_PART_NAME && (!sparse || !source.before.is_empty())
}

/// The frame of a chunk that is this window and nothing else.
fn whole_frame(chunk: &Chunk, offset: u64, length: u64) -> Option<FrameRef> {
    let same =
        (chunk.offset, chunk.len, chunk.skip, chunk.frame.len) == (offset, length, 0, length);
    same.then_some(chunk.frame)
}

fn finished(source: &Source, attr: &Attr, chunks: Vec<Chunk>, read: Time, still: bool) -> Entry {
    let mut entry = source.entry.clone();
    let Kind::File(file) = &mut entry.kind else { return entry };
    file.chunks = chunks;
    file.modified_during_copy = !still;
    if !source.cloned {
        entry.mtime = attr.mtime;
        file.size = attr.size;
        file.id = Some(attr.identity());
        file.racy = !still || source.writable || attr.is_racy(read, source.network);
    }
    entry
}

/// Reads as much as there is, without filling the page cache where the kernel can do that.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> std::result::Result<usize, Errno> {
    const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
    let mut flags = DONT_CACHE;
    let mut filled = 0;
    while filled < buffer.len() {
        let mut slices = [io::IoSliceMut::new(&mut buffer[filled..])];
        match preadv2(file, &mut slices, offset + filled as u64, flags) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(Errno::NOTSUP | Errno::INVAL | Errno::NOSYS) if !flags.is_empty() => {
                flags = ReadWriteFlags::empty();
                // Only advice: where it is not taken, the copy is as right as before.
                let _ = fadvise(file, 0, None, Advice::NoReuse);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
