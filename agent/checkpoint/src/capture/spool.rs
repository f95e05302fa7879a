//! Entries on their way into the manifest, on the disk until it is known where their frames are.
//!
//! Until then a chunk has the ticket of its frame in place of the frame's position.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use crate::archive::{Ticket, Written};
use crate::durable;
use crate::error::{Context as _, Error, Result};
use crate::format::line::Line;
use crate::format::{Chunk, Entry, FrameRef, Hash, Kind};

/// An entry with what is still to be done about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spooled {
    pub(crate) stage: Stage,
    pub(crate) entry: Entry,
    /// The digest of its content in the checkpoint before; where it has another now, it changed.
    pub(crate) was: Option<Hash>,
}

/// Where an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing more is to be done.
    Done,
    /// Its member is still to be written, after all content.
    Tail,
    /// Its content is copied after the capture; the second spool has what came of it.
    Pinned,
}

/// Writes a spool.
pub(crate) struct SpoolWriter {
    out: zstd::Encoder<'static, File>,
    path: PathBuf,
    line: Vec<u8>,
}

impl SpoolWriter {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path);
        let out = file.and_then(|file| zstd::Encoder::new(file, 1));
        let out = out.map_err(|error| durable::failed("create", path, error))?;
        Ok(Self { out, path: path.to_owned(), line: Vec::new() })
    }

    pub(crate) fn push(&mut self, stage: Stage, entry: &Entry, was: Option<Hash>) -> Result<()> {
        self.line.clear();
        self.line.push(match stage {
            Stage::Done => b'=',
            Stage::Tail => b'+',
            Stage::Pinned => b'@',
        });
        if let Some(was) = was {
            self.line.extend_from_slice(was.to_string().as_bytes());
        }
        self.line.push(b' ');
        let written = serde_json::to_writer(&mut self.line, &Line::from(entry))
            .map_err(std::io::Error::from)
            .and_then(|()| {
                self.line.push(b'\n');
                self.out.write_all(&self.line)
            });
        written.map_err(|error| durable::failed("write", &self.path, error))
    }

    /// Ends it; it can be read any number of times then.
    pub(crate) fn finish(self) -> Result<Spool> {
        self.out.finish().map_err(|error| durable::failed("write", &self.path, error))?;
        Ok(Spool { path: self.path })
    }
}

/// A spool that is complete.
pub(crate) struct Spool {
    path: PathBuf,
}

impl Spool {
    pub(crate) fn read(&self) -> Result<SpoolReader> {
        let file = File::open(&self.path).context("open", &self.path)?;
        let input = zstd::Decoder::new(file).context("read", &self.path)?;
        Ok(SpoolReader { input: BufReader::new(input), path: self.path.clone(), line: Vec::new() })
    }
}

/// Reads a spool from its beginning.
pub(crate) struct SpoolReader {
    input: BufReader<zstd::Decoder<'static, BufReader<File>>>,
    path: PathBuf,
    line: Vec<u8>,
}

impl SpoolReader {
    pub(crate) fn next(&mut self) -> Result<Option<Spooled>> {
        self.line.clear();
        if self.input.read_until(b'\n', &mut self.line).context("read", &self.path)? == 0 {
            return Ok(None);
        }
        let spooled = parse(&self.line).map_err(|why| {
            Error::io("read", &self.path, std::io::Error::new(std::io::ErrorKind::InvalidData, why))
        })?;
        Ok(Some(spooled))
    }
}

fn parse(line: &[u8]) -> std::result::Result<Spooled, String> {
    let space = line.iter().position(|&byte| byte == b' ').ok_or("no space in a line")?;
    let stage = match line[0] {
        b'=' => Stage::Done,
        b'+' => Stage::Tail,
        b'@' => Stage::Pinned,
        other => return Err(format!("the stage {other}")),
    };
    let was = match &line[1..space] {
        [] => None,
        hex => Some(blake3::Hash::from_hex(hex).map_err(|error| error.to_string())?.into()),
    };
    let line: Line<'_> =
        serde_json::from_slice(&line[space + 1..]).map_err(|error| error.to_string())?;
    Ok(Spooled { stage, entry: Entry::try_from(line)?, was })
}

/// A frame of which only the ticket is known.
pub(crate) fn unresolved(seq: u64, ticket: Ticket) -> FrameRef {
    FrameRef { seq, at: ticket.into(), stored: 0, len: 0, hash: Hash([0; 32]) }
}

/// Puts the frames in place of their tickets.
pub(crate) fn resolve(entry: &mut Entry, seq: u64, written: &Written) {
    let Kind::File(file) = &mut entry.kind else { return };
    for chunk in file.chunks.iter_mut().filter(|chunk| chunk.frame.seq == seq) {
        let frame = Ticket::try_from(chunk.frame.at).ok().and_then(|ticket| written.frame(ticket));
        chunk.frame = frame.expect("every frame of an entry was handed over");
    }
}

/// What tells the content of a large file from any other, wherever its frames are.
pub(crate) fn digest(size: u64, chunks: &[Chunk]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&size.to_le_bytes());
    for chunk in chunks {
        for number in [chunk.offset, chunk.len, chunk.skip] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&chunk.frame.hash.0);
    }
    hasher.finalize().into()
}
