//! The manifest as a stream: written entry by entry, read and checked entry by entry.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write};

use super::JobStore;
use super::check::{Walk, check_entry, check_header};
use crate::error::{Context as _, Error, Result};
use crate::format::line::{Line, More};
use crate::format::{CHUNKS_PER_LINE, CommitRecord, Entry, Hash, Header, Kind, MAX_LINE};

/// Writes the header and the entries, compressed, with a checksum.
pub(crate) struct ManifestWriter<W: Write> {
    out: zstd::Encoder<'static, W>,
    line: Vec<u8>,
}

impl<W: Write> ManifestWriter<W> {
    /// Begins a manifest.
    pub(crate) fn new(out: W, header: &Header) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(out, 1)?;
        out.include_checksum(true)?;
        let mut writer = Self { out, line: Vec::new() };
        writer.write_line(header)?;
        Ok(writer)
    }

    /// Adds an entry; the caller keeps the order.
    pub(crate) fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        let chunks = entry.chunks();
        let (first, rest) = chunks.split_at(chunks.len().min(CHUNKS_PER_LINE));
        self.write_line(&Line::with_chunks(entry, first))?;
        for part in rest.chunks(CHUNKS_PER_LINE) {
            self.write_line(&More { chunks: Cow::Borrowed(part) })?;
        }
        Ok(())
    }

    /// Ends the manifest and gives the destination back.
    pub(crate) fn finish(self) -> io::Result<W> {
        self.out.finish()
    }

    fn write_line(&mut self, line: &impl serde::Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }
}

/// Reads a manifest one entry at a time, and holds it to what `docs/format.md` says of it.
///
/// The hash of the whole is known only at the end: what is read before is well-formed, and the
/// iterator ends with an error where it was not what the commit record names.
pub struct ManifestReader {
    seq: u64,
    header: Header,
    lines: Lines,
    expected: Hash,
    walk: Walk,
    done: bool,
}

impl JobStore {
    /// Opens the manifest of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it is missing, has another length, or no proper header.
    pub fn manifest(&self, seq: u64, record: &CommitRecord) -> Result<ManifestReader> {
        let path = self.manifest_path(seq);
        let file = self.open_manifest(seq, record)?;
        let mut lines = Lines::new(file).context("decompress", &path)?;
        let header = lines.next(seq)?.ok_or_else(|| damaged(seq, "its manifest is empty"))?;
        let header: Header = serde_json::from_slice(&header)
            .map_err(|error| damaged(seq, format!("the header of its manifest: {error}")))?;
        check_header(seq, &header).map_err(|why| damaged(seq, why))?;
        let expected = record.manifest_blake3;
        let walk = Walk::default();
        Ok(ManifestReader { seq, header, lines, expected, walk, done: false })
    }

    /// Compares the manifest with the hash in its record, before anything in it is used.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it is another.
    pub fn verify_manifest(&self, seq: u64, record: &CommitRecord) -> Result<()> {
        let path = self.manifest_path(seq);
        let mut hasher = blake3::Hasher::new();
        let file = self.open_manifest(seq, record)?;
        hasher.update_reader(file).context("read", &path)?;
        let (expected, found) = (record.manifest_blake3, Hash::from(hasher.finalize()));
        if expected == found {
            return Ok(());
        }
        Err(damaged(seq, format!("its manifest has BLAKE3 {found}, not {expected}")))
    }

    fn open_manifest(&self, seq: u64, record: &CommitRecord) -> Result<File> {
        let path = self.manifest_path(seq);
        let file = match File::open(&path) {
            Err(error) if super::is_absent(&error) => {
                return Err(damaged(seq, "its manifest is missing"));
            }
            file => file.context("open", &path)?,
        };
        let length = file.metadata().context("look at", &path)?.len();
        if length == record.manifest_bytes {
            return Ok(file);
        }
        let what = format!("its manifest has {length} bytes, not {}", record.manifest_bytes);
        Err(damaged(seq, what))
    }
}

impl ManifestReader {
    /// The first line.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self) -> Result<Option<Entry>> {
        let Some(line) = self.lines.next(self.seq)? else {
            self.check_hash()?;
            return Ok(None);
        };
        let mut entry: Entry = serde_json::from_slice::<Line<'_>>(&line)
            .map_err(|error| error.to_string())
            .and_then(Entry::try_from)
            .map_err(|why| self.wrong(&why))?;
        self.lines.recycle(line);
        self.read_more_chunks(&mut entry)?;
        let roots = self.header.roots.len();
        check_entry(&entry, roots).map_err(|why| self.wrong(&why))?;
        self.walk.step(&entry).map_err(|why| self.wrong(why))?;
        Ok(Some(entry))
    }

    fn read_more_chunks(&mut self, entry: &mut Entry) -> Result<()> {
        while self.lines.next_begins_with(br#"{"chunks""#, self.seq)? {
            let Some(line) = self.lines.next(self.seq)? else { break };
            let more: More<'_> =
                serde_json::from_slice(&line).map_err(|error| self.wrong(&error.to_string()))?;
            match &mut entry.kind {
                Kind::File(file) => file.chunks.extend_from_slice(&more.chunks),
                _ => return Err(self.wrong("chunks of what is not a file")),
            }
            self.lines.recycle(line);
        }
        Ok(())
    }

    fn check_hash(&mut self) -> Result<()> {
        let found = self.lines.hash().map_err(|error| self.wrong(&error.to_string()))?;
        if found == self.expected {
            return Ok(());
        }
        Err(self.wrong(&format!("BLAKE3 {} expected, {found} found", self.expected)))
    }

    fn wrong(&self, why: &str) -> Error {
        damaged(self.seq, format!("line {} of its manifest: {why}", self.lines.count))
    }
}

impl Iterator for ManifestReader {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let entry = self.read().transpose();
        self.done = !matches!(entry, Some(Ok(_)));
        entry
    }
}

fn damaged(seq: u64, what: impl Into<String>) -> Error {
    Error::Damaged { seq, what: what.into() }
}

/// Lines of the decompressed manifest, each of bounded length, with the hash of what was read.
struct Lines {
    input: BufReader<zstd::Decoder<'static, BufReader<Hashing<File>>>>,
    /// The next line, where it has been looked at.
    ahead: Option<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    count: u64,
}

impl Lines {
    fn new(file: File) -> io::Result<Self> {
        let hashing = Hashing { inner: file, hasher: blake3::Hasher::new() };
        let mut input = zstd::Decoder::new(hashing)?;
        input.window_log_max(27)?;
        Ok(Self {
            input: BufReader::with_capacity(64 << 10, input),
            ahead: None,
            spare: Vec::new(),
            count: 0,
        })
    }

    fn next(&mut self, seq: u64) -> Result<Option<Vec<u8>>> {
        let line = match self.ahead.take() {
            Some(line) => Some(line),
            None => self.read(seq)?,
        };
        self.count += 1;
        Ok(line)
    }

    /// Whether there is a next line and it begins so; an error shows here already.
    fn next_begins_with(&mut self, text: &[u8], seq: u64) -> Result<bool> {
        if self.ahead.is_none() {
            self.ahead = self.read(seq)?;
        }
        Ok(self.ahead.as_ref().is_some_and(|line| line.starts_with(text)))
    }

    fn read(&mut self, seq: u64) -> Result<Option<Vec<u8>>> {
        let mut line = self.spare.pop().unwrap_or_default();
        line.clear();
        let read = (&mut self.input).take(MAX_LINE as u64).read_until(b'\n', &mut line);
        let read = read.map_err(|error| damaged(seq, format!("its manifest: {error}")))?;
        if read == 0 {
            return Ok(None);
        }
        if line.pop() != Some(b'\n') {
            let what = format!("a line after line {} of its manifest does not end", self.count);
            return Err(damaged(seq, what));
        }
        Ok(Some(line))
    }

    /// Takes a line back that has been used; there are never more than two.
    fn recycle(&mut self, line: Vec<u8>) {
        self.spare.push(line);
    }

    /// The hash of the whole file, once everything was read.
    fn hash(&mut self) -> io::Result<Hash> {
        let raw = self.input.get_mut().get_mut();
        io::copy(raw, &mut io::sink())?;
        Ok(raw.get_ref().hasher.finalize().into())
    }
}

struct Hashing<R> {
    inner: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
