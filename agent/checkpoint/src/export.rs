//! Any checkpoint as one plain `.tar.zst` that needs nothing else.
//!
//! The order of members is that of every archive: files and symbolic links, then other names of
//! files, then directories, so that unpacking gives each directory its own mode and time last.
//! Whole frames of large files are copied as they are stored, once their hash has been compared;
//! everything small is packed anew.

use std::io::Write;

use zstd::bulk::Compressor;

use crate::archive::frame::{self, Body};
use crate::archive::tar::{self, BLOCK, Content, Member, member_name};
use crate::archive::{FrameReader, decode};
use crate::choose;
use crate::control::Control;
use crate::error::{Context as _, Error, Result};
use crate::format::text::unescape;
use crate::format::{Chunk, CommitRecord, Entry, FRAME_SIZE, FileData, FrameRef, Kind, SMALL_FILE};
use crate::store::JobStore;
use crate::stored::Stored;

/// Frames of small files that stay decompressed: neighbours in the tree are in a few of them.
const CACHED_FRAMES: usize = 4;

/// Writes the checkpoint as one archive; says how many bytes that took.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::Damaged`], after which what was written is worthless; or what
/// failed.
pub fn export(store: &JobStore, seq: u64, out: impl Write, control: &Control) -> Result<u64> {
    let listing = store.list()?;
    choose::requested(store.job().as_str(), &listing, seq)?;
    let record = listing.iter().find_map(|stored| match stored {
        Stored::Good { record, .. } if record.seq == seq => Some(record),
        _ => None,
    });
    let record = record.expect("only checkpoints with a record are chosen");
    let roots = roots(store, record)?;
    let compressor = frame::compressor().context("start", "a compressor")?;
    let mut export = Export {
        store,
        record,
        roots,
        control,
        reader: FrameReader::new(store),
        cached: Vec::new(),
        compressor,
        pack: Vec::new(),
        out,
        written: 0,
    };
    control.expect(record.bytes);
    for part in [Part::Content, Part::Links, Part::Dirs] {
        export.members(part)?;
    }
    export.flush_pack()?;
    export.write(&frame::raw(&[0; 2 * BLOCK]))?;
    export.out.flush().context("write", OUT)?;
    Ok(export.written)
}

/// The export, in messages.
const OUT: &str = "the exported archive";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Content,
    Links,
    Dirs,
}

struct Export<'a, W> {
    store: &'a JobStore,
    record: &'a CommitRecord,
    roots: Vec<Vec<u8>>,
    control: &'a Control,
    reader: FrameReader,
    /// The frames used last, the newest at the end.
    cached: Vec<(FrameRef, Vec<u8>)>,
    compressor: Compressor<'static>,
    /// Whole members that will share a frame.
    pack: Vec<u8>,
    out: W,
    written: u64,
}

impl<W: Write> Export<'_, W> {
    fn members(&mut self, part: Part) -> Result<()> {
        for entry in self.store.manifest(self.record.seq, self.record)? {
            let entry = entry?;
            self.control.check()?;
            let of = match &entry.kind {
                Kind::Dir => Part::Dirs,
                Kind::File(file) if file.hardlink.is_some() => Part::Links,
                Kind::File(_) | Kind::Symlink { .. } => Part::Content,
                Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => continue,
            };
            if of == part {
                self.member(&entry)?;
            }
        }
        Ok(())
    }

    fn member(&mut self, entry: &Entry) -> Result<()> {
        let name = member_name(&self.roots[usize::from(entry.root)], entry);
        match &entry.kind {
            Kind::Symlink { target } => self.pack(&name, entry, Content::Symlink(target), &[]),
            Kind::File(FileData { hardlink: Some(first), .. }) => {
                let of = Entry { root: first.0, path: first.1.clone(), ..entry.clone() };
                let target = member_name(&self.roots[usize::from(first.0)], &of);
                self.pack(&name, entry, Content::Link(&target), &[])
            }
            Kind::File(file) if file.size < SMALL_FILE => {
                let content = self.small_content(file)?;
                self.pack(&name, entry, Content::File(file.size), &content)
            }
            Kind::File(file) => self.large(&name, entry, file),
            _ => self.pack(&name, entry, Content::Dir, &[]),
        }
    }

    /// Adds a whole member to the shared frame.
    fn pack(
        &mut self,
        name: &[u8],
        entry: &Entry,
        content: Content<'_>,
        bytes: &[u8],
    ) -> Result<()> {
        let header = tar::header(&Member { name, entry, content });
        let padding = tar::padding(bytes.len() as u64);
        if self.pack.len() + header.len() + bytes.len() + padding > FRAME_SIZE {
            self.flush_pack()?;
        }
        self.pack.extend_from_slice(&header);
        self.pack.extend_from_slice(bytes);
        self.pack.resize(self.pack.len() + padding, 0);
        Ok(())
    }

    fn flush_pack(&mut self) -> Result<()> {
        if self.pack.is_empty() {
            return Ok(());
        }
        let pack = std::mem::take(&mut self.pack);
        self.write_new(pack)
    }

    fn small_content(&mut self, file: &FileData) -> Result<Vec<u8>> {
        let size = usize::try_from(file.size).expect("small");
        let mut content = vec![0; size];
        for chunk in &file.chunks {
            let from = usize::try_from(chunk.offset).expect("checked against the size");
            let piece = self.piece(chunk)?;
            content[from..from + piece.len()].copy_from_slice(piece);
        }
        self.control.progress(file.size);
        Ok(content)
    }

    /// The chunk's bytes, from a frame that is kept for its neighbours.
    fn piece(&mut self, chunk: &Chunk) -> Result<&[u8]> {
        let known = self.cached.iter().position(|(frame, _)| *frame == chunk.frame);
        let cached = match known {
            Some(at) => self.cached.remove(at),
            None => (chunk.frame, self.reader.read(&chunk.frame)?),
        };
        if self.cached.len() >= CACHED_FRAMES {
            self.cached.remove(0);
        }
        self.cached.push(cached);
        let (_, content) = self.cached.last().expect("pushed above");
        Ok(slice(content, chunk))
    }

    fn large(&mut self, name: &[u8], entry: &Entry, file: &FileData) -> Result<()> {
        self.flush_pack()?;
        let pieces = pieces(&file.chunks);
        let data: u64 = file.chunks.iter().map(|chunk| chunk.len).sum();
        let (content, map) = if data == file.size {
            (Content::File(data), Vec::new())
        } else {
            let end = (pieces.last().map_or(0, |(offset, length)| offset + length) < file.size)
                .then_some((file.size, 0));
            let map = tar::sparse_map(&pieces.into_iter().chain(end).collect::<Vec<_>>());
            (Content::Sparse { stored: map.len() as u64 + data, real: file.size }, map)
        };
        let header = tar::header(&Member { name, entry, content });
        self.write_new([header, map].concat())?;
        for chunk in &file.chunks {
            self.control.check()?;
            self.copy(chunk)?;
        }
        match tar::padding(data) {
            0 => Ok(()),
            padding => self.write(&frame::raw(&[0; BLOCK][..padding])),
        }
    }

    /// Copies the frame as it is stored where the chunk is all of it.
    fn copy(&mut self, chunk: &Chunk) -> Result<()> {
        let stored = self.reader.read_stored(&chunk.frame)?;
        let content = decode(&chunk.frame, &stored)?;
        self.control.progress(chunk.len);
        if chunk.skip == 0 && chunk.len == chunk.frame.len {
            return self.write(&stored);
        }
        let piece = slice(&content, chunk).to_vec();
        self.write_new(piece)
    }

    fn write_new(&mut self, content: Vec<u8>) -> Result<()> {
        let encoded = frame::encode(&mut self.compressor, content, Vec::new());
        match encoded.context("compress for", OUT)?.0 {
            Body::Compressed(bytes) => self.write(&bytes),
            Body::Raw(content) => self.write(&frame::raw(&content)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).context("write", OUT)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn roots(store: &JobStore, record: &CommitRecord) -> Result<Vec<Vec<u8>>> {
    let damaged = |root: &String| Error::Damaged {
        seq: record.seq,
        what: format!("its root {root:?} is not escaped text"),
    };
    let manifest = store.manifest(record.seq, record)?;
    manifest.header().roots.iter().map(|root| unescape(root).ok_or_else(|| damaged(root))).collect()
}

/// Where a file has data: chunks that touch are one piece.
fn pieces(chunks: &[Chunk]) -> Vec<(u64, u64)> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for chunk in chunks {
        match pieces.last_mut() {
            Some((offset, length)) if *offset + *length == chunk.offset => *length += chunk.len,
            _ => pieces.push((chunk.offset, chunk.len)),
        }
    }
    pieces
}

/// The chunk's bytes in its frame, which the manifest's reader has compared with its length.
fn slice<'a>(content: &'a [u8], chunk: &Chunk) -> &'a [u8] {
    let index = |value: u64| usize::try_from(value).expect("frames are at most a few MiB");
    &content[index(chunk.skip)..index(chunk.skip + chunk.len)]
}
