//! The archive file: frames in order, headers of large files filled in when their end is known.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crossbeam_channel::Receiver;
use rustix::fs::Advice;

use super::frame::{self, Body};
use super::pipeline::{Done, Outcome, Role, Step, Ticket};
use super::pool::Pool;
use super::tar::{self, BLOCK, Content, Member};
use crate::durable;
use crate::error::{Error, Result};
use crate::format::{Entry, FrameRef};

/// Dirty data is on its way to the disk after this many bytes, and there after twice as many.
const WRITE_BACK: u64 = 8 << 20;

/// A large file as it is put into the tar.
pub(crate) struct FileSpec {
    /// Its name in the tar.
    pub(crate) name: Vec<u8>,
    /// Its attributes; chunks are of no interest.
    pub(crate) entry: Entry,
    /// Its logical length.
    pub(crate) size: u64,
    /// Where it has data, where it has holes; `None` for a file without.
    pub(crate) pieces: Option<Vec<(u64, u64)>>,
    /// Whether it is an ordinary member if all its frames are new. A sparse file must know before.
    pub(crate) whole: bool,
}

/// What became of the frames.
pub(crate) struct Written {
    /// Where each frame is, by ticket.
    frames: Vec<Option<FrameRef>>,
    /// Length of the archive.
    pub(crate) bytes: u64,
    /// How many frames are new.
    pub(crate) stored: u64,
}

impl Written {
    /// Where the frame of this ticket is; `None` where none was handed over.
    pub(crate) fn frame(&self, ticket: Ticket) -> Option<FrameRef> {
        self.frames.get(index(ticket)).copied().flatten()
    }
}

fn index(ticket: Ticket) -> usize {
    usize::try_from(ticket).expect("memory is addressed by at least 32 bits")
}

pub(crate) struct Archive {
    file: File,
    path: PathBuf,
    seq: u64,
    pool: Pool,
    at: u64,
    flushed: u64,
    frames: Vec<Option<FrameRef>>,
    stored: u64,
    open: Option<OpenFile>,
}

struct OpenFile {
    spec: FileSpec,
    start: u64,
    stored_before: u64,
    /// Whether nothing of it was reused so far and all is under the first header.
    whole: bool,
    run: Option<Run>,
}

/// A header with the content that has followed it so far.
struct Run {
    header_at: u64,
    room: usize,
    offset: u64,
    length: u64,
}

impl Archive {
    pub(crate) fn new(file: File, path: &Path, seq: u64, pool: Pool) -> Self {
        let path = path.to_owned();
        let frames = Vec::new();
        Self { file, path, seq, pool, at: 0, flushed: 0, frames, stored: 0, open: None }
    }

    /// Takes steps until there are no more, then makes all of it durable.
    pub(crate) fn run(mut self, steps: &Receiver<Step>) -> Result<Written> {
        for step in steps {
            match step {
                Step::Frame { ticket, role, done } => self.frame(ticket, role, &done)?,
                Step::Begin(spec) => self.begin(*spec),
                Step::End => self.end()?,
                Step::Abort => self.abort()?,
            }
        }
        if self.at > 0 {
            let end_of_tar = frame::raw(&[0; 2 * BLOCK]);
            self.append(&end_of_tar)?;
        }
        self.file.sync_all().map_err(|error| self.failed("sync", error))?;
        Ok(Written { frames: self.frames, bytes: self.at, stored: self.stored })
    }

    fn frame(
        &mut self,
        ticket: Ticket,
        role: Role,
        done: &Receiver<io::Result<Done>>,
    ) -> Result<()> {
        let gone = |_| io::Error::other("a thread that compresses ended without an answer");
        let done = done.recv().map_err(gone).and_then(std::convert::identity);
        let Done { hash, len, outcome } =
            done.map_err(|error| self.failed("compress for", error))?;
        let frame = match outcome {
            Outcome::Reused(frame) => {
                self.close_run()?;
                frame
            }
            Outcome::New(body) => {
                if let Role::Content(offset) = role {
                    self.continue_run(offset, len)?;
                }
                let at = self.at;
                self.write_body(body)?;
                self.stored += 1;
                FrameRef { seq: self.seq, at, stored: self.at - at, len, hash }
            }
        };
        let ticket = index(ticket);
        self.frames.resize(self.frames.len().max(ticket + 1), None);
        self.frames[ticket] = Some(frame);
        Ok(())
    }

    fn begin(&mut self, spec: FileSpec) {
        let (start, stored_before, whole) = (self.at, self.stored, spec.whole);
        self.open = Some(OpenFile { spec, start, stored_before, whole, run: None });
    }

    /// Ends the large file; one of which nothing at all was written still needs its member.
    fn end(&mut self) -> Result<()> {
        let untouched = |open: &OpenFile| open.whole && open.run.is_none();
        if self.open.as_ref().is_some_and(untouched) {
            self.begin_run(0)?;
        }
        self.close_run_as(true)?;
        self.open = None;
        Ok(())
    }

    fn abort(&mut self) -> Result<()> {
        if let Some(open) = self.open.take() {
            self.file.set_len(open.start).map_err(|error| self.failed("shorten", error))?;
            self.at = open.start;
            self.flushed = self.flushed.min(self.at);
            self.stored = open.stored_before;
        }
        Ok(())
    }

    /// Makes room for the next piece of content behind a header.
    fn continue_run(&mut self, offset: u64, length: u64) -> Result<()> {
        let continues = |open: &OpenFile| {
            let sparse_member = open.whole && open.spec.pieces.is_some();
            open.run.as_ref().is_some_and(|run| sparse_member || run.offset + run.length == offset)
        };
        if !self.open.as_ref().is_some_and(continues) {
            if self.open.as_ref().is_some_and(|open| open.run.is_some()) {
                self.close_run()?;
            }
            self.begin_run(offset)?;
        }
        if let Some(run) = self.open.as_mut().and_then(|open| open.run.as_mut()) {
            run.length += length;
        }
        Ok(())
    }

    fn begin_run(&mut self, offset: u64) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let room = open.room();
        open.run = Some(Run { header_at: self.at, room, offset, length: 0 });
        let blank = frame::raw(&vec![0; room]);
        self.append(&blank)
    }

    /// What follows is not behind the present header, which thus is that of a part.
    fn close_run(&mut self) -> Result<()> {
        self.close_run_as(false)?;
        if let Some(open) = &mut self.open {
            open.whole = false;
        }
        Ok(())
    }

    fn close_run_as(&mut self, complete: bool) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some(run) = open.run.take() else { return Ok(()) };
        let header = open.header(&run, complete && open.whole);
        let padding = tar::padding(run.length);
        let written = self.file.write_all_at(&frame::raw(&header), run.header_at);
        written.map_err(|error| self.failed("write", error))?;
        if padding > 0 {
            self.append(&frame::raw(&[0; BLOCK][..padding]))?;
        }
        Ok(())
    }

    fn write_body(&mut self, body: Body) -> Result<()> {
        let buffer = match body {
            Body::Compressed(bytes) => {
                self.append(&bytes)?;
                bytes
            }
            Body::Raw(content) => {
                let (file, at) = (&self.file, self.at);
                let written = frame::write_raw(&content, |slices| write_slices(file, slices, at));
                written.map_err(|error| self.failed("write", error))?;
                self.advance(frame::raw_len(content.len()) as u64);
                content
            }
        };
        self.pool.give(buffer);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, self.at).map_err(|error| self.failed("write", error))?;
        self.advance(bytes.len() as u64);
        Ok(())
    }

    /// Keeps little of the archive in memory, and none of it dirty for long.
    fn advance(&mut self, bytes: u64) {
        self.at += bytes;
        if self.at - self.flushed < WRITE_BACK {
            return;
        }
        let (from, length) = (self.flushed, self.at - self.flushed);
        let before = from.saturating_sub(WRITE_BACK);
        // These only spread the work of the sync at the end, which reports what fails.
        let hints = [
            crate::sys::write_back(&self.file, from, length, false),
            crate::sys::write_back(&self.file, before, from - before, true),
            rustix::fs::fadvise(
                &self.file,
                before,
                std::num::NonZero::new(from - before),
                Advice::DontNeed,
            )
            .map_err(io::Error::from),
        ];
        if let Some(error) = hints.into_iter().find_map(io::Result::err) {
            tracing::trace!(%error, "no early write-back");
        }
        self.flushed = self.at;
    }

    fn failed(&self, action: &'static str, error: io::Error) -> Error {
        durable::failed(action, &self.path, error)
    }
}

impl OpenFile {
    /// Bytes that the header takes, whether it becomes that of the whole file or of a part.
    fn room(&self) -> usize {
        let size = self.spec.size;
        if self.whole
            && let Some(map) = self.spec.map()
        {
            let content = Content::Sparse { stored: map.len() as u64 + size, real: size };
            return tar::header_room(&self.member(&self.spec.name, content)) + map.len();
        }
        let name = tar::part_name(&self.spec.name, size);
        tar::header_room(&self.member(&name, Content::File(size)))
    }

    fn header(&self, run: &Run, complete: bool) -> Vec<u8> {
        let fill =
            |name: &[u8], content, room| tar::header_of_length(&self.member(name, content), room);
        match self.spec.map().filter(|_| complete) {
            Some(map) => {
                let (stored, real) = (map.len() as u64 + run.length, self.spec.size);
                let content = Content::Sparse { stored, real };
                [fill(&self.spec.name, content, run.room - map.len()), map].concat()
            }
            None if complete => fill(&self.spec.name, Content::File(run.length), run.room),
            None => {
                let name = tar::part_name(&self.spec.name, run.offset);
                fill(&name, Content::File(run.length), run.room)
            }
        }
    }

    fn member<'a>(&'a self, name: &'a [u8], content: Content<'a>) -> Member<'a> {
        Member { name, entry: &self.spec.entry, content }
    }
}

impl FileSpec {
    /// The map of a sparse member; a hole at the end is a piece without bytes.
    fn map(&self) -> Option<Vec<u8>> {
        let mut pieces = self.pieces.clone()?;
        if pieces.last().map_or(0, |(offset, length)| offset + length) < self.size {
            pieces.push((self.size, 0));
        }
        Some(tar::sparse_map(&pieces))
    }
}

/// Writes all of the slices from `at` on.
fn write_slices(file: &File, mut slices: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
    while !slices.is_empty() {
        match rustix::io::pwritev(file, slices, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
