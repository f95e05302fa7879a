//! The manifest as a stream: written entry by entry, read and checked entry by entry.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write};

use super::JobStore;
use crate::error::{Context as _, Error, Result};
use crate::format::line::{Line, More};
use crate::format::manifest::walk_order;
use crate::format::text::unescape;
use crate::format::{
    CHUNKS_PER_LINE, Chunk, CommitRecord, Entry, FORMAT, FileData, Hash, Header, Kind, MAX_FRAME,
    MAX_LINE,
};

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
        check_header(seq, &header)?;
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

fn check_header(seq: u64, header: &Header) -> Result<()> {
    if header.format != FORMAT || header.seq != seq {
        let what = format!("its manifest is format {} of seq {}", header.format, header.seq);
        return Err(damaged(seq, what));
    }
    for root in &header.roots {
        let plain =
            unescape(root).and_then(|path| path.strip_prefix(b"/").map(is_plain)).unwrap_or(false);
        if !plain {
            return Err(damaged(seq, format!("its manifest has the root {root:?}")));
        }
    }
    Ok(())
}

/// Components that can mean nothing but a name below the directory they are used in.
fn is_plain(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .all(|name| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0))
}

/// What can be checked of one entry by itself.
///
/// # Errors
/// What is wrong with it.
pub fn check_entry(entry: &Entry, roots: usize) -> std::result::Result<(), String> {
    if usize::from(entry.root) >= roots {
        return Err(format!("root {} of {roots}", entry.root));
    }
    if !entry.path.is_empty() && !is_plain(&entry.path) {
        return Err("a path that is not plain".to_owned());
    }
    if entry.mode > 0o7777 || entry.mtime.1 > 999_999_999 {
        return Err("a mode or a time out of range".to_owned());
    }
    if entry.xattrs.0.keys().any(|name| name.is_empty() || name.contains(&0)) {
        return Err("the name of an extended attribute is empty or has a NUL".to_owned());
    }
    match &entry.kind {
        Kind::Symlink { target } if target.is_empty() || target.contains(&0) => {
            Err("a link's target is empty or has a NUL".to_owned())
        }
        Kind::File(file) => check_file(entry, file),
        _ => Ok(()),
    }
}

fn check_file(entry: &Entry, file: &FileData) -> std::result::Result<(), String> {
    if let Some(first) = &file.hardlink {
        let plain = first.1.is_empty() || is_plain(&first.1);
        let earlier = walk_order((first.0, &first.1), (entry.root, &entry.path)).is_lt();
        if !plain || !earlier || !file.chunks.is_empty() {
            return Err("a hard link to what is no earlier entry, or with content".to_owned());
        }
    }
    let mut from = 0;
    for chunk in &file.chunks {
        let end = check_chunk(chunk).filter(|&end| chunk.offset >= from && end <= file.size);
        from = end.ok_or("chunks that overlap or exceed the file or their frame")?;
    }
    Ok(())
}

/// Where the chunk ends in the file, where it is possible at all.
fn check_chunk(chunk: &Chunk) -> Option<u64> {
    let frame = &chunk.frame;
    let inside = chunk.skip.checked_add(chunk.len)? <= frame.len;
    let bounded = frame.len <= MAX_FRAME && frame.stored <= MAX_FRAME && frame.stored > 0;
    let sound = inside && bounded && chunk.len > 0 && frame.at.checked_add(frame.stored).is_some();
    chunk.offset.checked_add(chunk.len).filter(|_| sound)
}

/// Where the walk is: the directories that contain the last entry.
#[derive(Default)]
struct Walk {
    root: Option<u16>,
    last: Vec<u8>,
    /// Lengths of the prefixes of `last` that are directories, the root's own (0) first.
    dirs: Vec<usize>,
}

impl Walk {
    /// Goes on to the next entry, which must follow the last one and lie in a directory.
    fn step(&mut self, entry: &Entry) -> std::result::Result<(), &'static str> {
        match self.root {
            Some(root) if root == entry.root => self.go_below(&entry.path)?,
            Some(root) if root > entry.root => return Err("an entry out of order"),
            _ if !entry.path.is_empty() => return Err("an entry whose root is missing"),
            _ => self.dirs.clear(),
        }
        self.root = Some(entry.root);
        self.last.clone_from(&entry.path);
        if matches!(entry.kind, Kind::Dir) {
            self.dirs.push(entry.path.len());
        }
        Ok(())
    }

    fn go_below(&mut self, path: &[u8]) -> std::result::Result<(), &'static str> {
        if walk_order((0, path), (0, &self.last)).is_le() {
            return Err("an entry out of order");
        }
        let parent = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        while self.dirs.last().is_some_and(|&length| length > parent) {
            self.dirs.pop();
        }
        let inside =
            self.dirs.last() == Some(&parent) && self.last.get(..parent) == path.get(..parent);
        if inside { Ok(()) } else { Err("an entry below what is not a directory") }
    }
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
