//! Making the new trees: names in one thread, content in several.
//!
//! The manifest is read as a stream. Directories and links are made as they come. A large file is
//! made as it comes, and its pieces are written by whichever thread is free; the one that writes the
//! last piece gives the file its attributes. Small files share frames, so they are gathered until a
//! batch is full and then handed out frame by frame: each frame is decompressed once a batch, and
//! memory stays bounded however many files there are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::attributes::{Attributes, OPEN_DIR};
use super::compare::is_special;
use super::findings::About;
use super::tree::{Cursor, Tree};
use super::{Failed, Job};
use crate::error::{Error, Result};
use crate::format::{Chunk, Entry, FrameRef, Hash, Kind, SMALL_FILE};

/// The most that one write takes. The kernel finds room for a write as a whole, and where one is as
/// large as a frame that costs several times the copy (ext4, Linux 6.18).
const WRITE_SIZE: usize = 256 << 10;

/// Small files of a batch.
const BATCH_FILES: usize = 8192;

/// About how much memory the entries of a batch may take.
const BATCH_BYTES: usize = 8 << 20;

/// Files without content that one thread makes at a time.
const EMPTY_FILES: usize = 256;

/// What a root is restored from and into.
#[derive(Clone)]
pub(super) struct Trees {
    /// The new tree.
    pub(super) new: Tree,
    /// What is in the target, whose identical files are taken over.
    pub(super) old: Tree,
}

/// A piece of work for any thread.
enum Work {
    /// Small files whose content is in one frame, or that have none.
    Small { frame: Option<FrameRef>, files: Vec<Entry> },
    /// A piece of a large file.
    Piece { file: Arc<Large>, chunk: Chunk },
}

/// A file that is being written by several threads.
struct Large {
    entry: Entry,
    file: File,
    left: AtomicUsize,
}

/// Hands work out and remembers what failed first.
pub(super) struct Build<'a> {
    pub(super) job: &'a Job<'a>,
    /// By the index of the root; `None` for roots that are left as they are.
    pub(super) trees: &'a [Option<Trees>],
    failed: Mutex<Option<Failed>>,
    stop: AtomicBool,
}

/// Small files that wait for their batch.
#[derive(Default)]
struct Batch {
    by_frame: BTreeMap<(u64, u64, Hash), (FrameRef, Vec<Entry>)>,
    empty: Vec<Entry>,
    files: usize,
    bytes: usize,
}

/// Entries as the manifest gives them, with whether the target has them as they are.
pub(super) trait Entries: Iterator<Item = Result<(Entry, bool)>> {}

impl<I: Iterator<Item = Result<(Entry, bool)>>> Entries for I {}

impl<'a> Build<'a> {
    /// Nothing is made yet.
    pub(super) fn new(job: &'a Job<'a>, trees: &'a [Option<Trees>]) -> Self {
        Self { job, trees, failed: Mutex::default(), stop: AtomicBool::new(false) }
    }

    /// Makes everything but hard links to other entries, and the attributes of directories; says
    /// how many files were taken over from the target.
    pub(super) fn run(&self, entries: impl Entries) -> std::result::Result<u64, Failed> {
        let threads = self.job.options.threads.get();
        let (send, receive) = bounded(threads * 2);
        let made = std::thread::scope(|scope| {
            for _ in 0..threads {
                let receive = receive.clone();
                scope.spawn(move || self.work(&receive));
            }
            drop(receive);
            // Only now: a thread inherits the identity of the one that starts it, and the others
            // have to read the store.
            let _user = self.job.user()?;
            let made = self.make(entries, &send);
            drop(send);
            made
        });
        match self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failed) => Err(failed),
            None => Ok(made?),
        }
    }

    fn make(&self, entries: impl Entries, work: &Sender<Work>) -> Result<u64> {
        let mut cursors: Vec<Option<(Cursor<'_>, Cursor<'_>)>> = self
            .trees
            .iter()
            .map(|trees| trees.as_ref().map(|t| (Cursor::new(&t.new), Cursor::new(&t.old))))
            .collect();
        let mut batch = Batch::default();
        let mut kept = 0;
        for next in entries {
            let (entry, same) = next?;
            self.job.control.check()?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(kept);
            }
            let Some((new, old)) =
                cursors.get_mut(usize::from(entry.root)).and_then(Option::as_mut)
            else {
                continue;
            };
            if self.make_entry(new, old, entry, same, &mut batch, work)? {
                kept += 1;
            }
            if batch.is_full() {
                std::mem::take(&mut batch).hand_out(work);
            }
        }
        batch.hand_out(work);
        Ok(kept)
    }

    /// Makes one entry, or sees to it that it is made; says whether it was taken over.
    fn make_entry(
        &self,
        new: &mut Cursor<'_>,
        old: &mut Cursor<'_>,
        entry: Entry,
        same: bool,
        batch: &mut Batch,
        work: &Sender<Work>,
    ) -> Result<bool> {
        let shown = new.tree().show(&entry.path);
        let failed = |action| {
            let shown = shown.clone();
            move |error: io::Error| Error::io(action, shown, error)
        };
        match &entry.kind {
            // The stage has made the root's own directory.
            Kind::Dir if entry.path.is_empty() => {}
            Kind::Dir => {
                let spot = new.spot(&entry.path).map_err(failed("open"))?;
                spot.create_dir().map_err(failed("create the directory"))?;
            }
            Kind::Symlink { target } => {
                let spot = new.spot(&entry.path).map_err(failed("open"))?;
                rustix::fs::symlinkat(&**target, &spot.dir, &*spot.name)
                    .map_err(|error| failed("create the link")(error.into()))?;
                let set = self.attributes().apply_to_link(spot, &entry, &shown);
                set.map_err(failed("set the attributes of"))?;
            }
            kind if is_special(kind) => self.job.findings.add(About::Special, &shown),
            Kind::File(file) if file.hardlink.is_some() => {}
            Kind::File(_) if same && take_over(new, old, &entry).map_err(failed("link"))? => {
                return Ok(true);
            }
            Kind::File(file) if file.size < SMALL_FILE && file.chunks.len() < 2 => batch.add(entry),
            Kind::File(_) => {
                let spot = new.spot(&entry.path).map_err(failed("open"))?;
                let file = spot.create_file().map_err(failed("create"))?;
                self.hand_out_large(File::from(file), entry, work)?;
            }
            Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => {}
        }
        Ok(false)
    }

    fn hand_out_large(&self, file: File, mut entry: Entry, work: &Sender<Work>) -> Result<()> {
        let size = entry.file().map_or(0, |data| data.size);
        let sized = file.set_len(size);
        sized.map_err(|error| self.io("set the size of", &entry, error))?;
        let chunks = match &mut entry.kind {
            Kind::File(data) => std::mem::take(&mut data.chunks),
            _ => Vec::new(),
        };
        if chunks.is_empty() {
            return self.finish_file(&file, &entry);
        }
        let left = AtomicUsize::new(chunks.len());
        let large = Arc::new(Large { entry, file, left });
        for chunk in chunks {
            let piece = Work::Piece { file: Arc::clone(&large), chunk };
            if self.stop.load(Ordering::Relaxed) || work.send(piece).is_err() {
                break; // What failed is reported once everybody has stopped.
            }
            self.job.control.check()?;
        }
        Ok(())
    }

    fn work(&self, receive: &Receiver<Work>) {
        for work in receive {
            if self.stop.load(Ordering::Relaxed) {
                continue; // Whoever sends must not wait for a reader that is gone.
            }
            let done = match work {
                Work::Small { frame, files } => self.write_small(frame, &files),
                Work::Piece { file, chunk } => self.write_piece(&file, &chunk),
            };
            if let Err(failed) = done {
                let mut first = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(failed);
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    fn write_small(
        &self,
        frame: Option<FrameRef>,
        files: &[Entry],
    ) -> std::result::Result<(), Failed> {
        let content = match &frame {
            Some(frame) => self.job.read(frame)?,
            None => Vec::new(),
        };
        let _user = self.job.user()?;
        let mut at: Option<(u16, Cursor<'_>)> = None;
        for entry in files {
            self.job.control.check()?;
            let cursor = match &mut at {
                Some((root, cursor)) if *root == entry.root => cursor,
                _ => {
                    let Some(trees) = &self.trees[usize::from(entry.root)] else { continue };
                    &mut at.insert((entry.root, Cursor::new(&trees.new))).1
                }
            };
            let spot = cursor.spot(&entry.path).map_err(|error| self.io("open", entry, error))?;
            let file = spot.create_file().map_err(|error| self.io("create", entry, error))?;
            let file = File::from(file);
            self.write_content(&file, entry, &content)?;
            self.finish_file(&file, entry)?;
        }
        Ok(())
    }

    fn write_content(&self, file: &File, entry: &Entry, frame: &[u8]) -> Result<()> {
        let Kind::File(data) = &entry.kind else { return Ok(()) };
        let filled = data.chunks.last().map_or(0, |chunk| chunk.offset + chunk.len);
        if filled < data.size {
            let sized = file.set_len(data.size);
            sized.map_err(|error| self.io("set the size of", entry, error))?;
        }
        for chunk in &data.chunks {
            self.write_at(file, entry, chunk, frame)?;
        }
        Ok(())
    }

    fn write_piece(&self, large: &Large, chunk: &Chunk) -> std::result::Result<(), Failed> {
        let frame = self.job.read(&chunk.frame)?;
        let _user = self.job.user()?;
        self.write_at(&large.file, &large.entry, chunk, &frame)?;
        if large.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish_file(&large.file, &large.entry)?;
        }
        Ok(())
    }

    fn write_at(&self, file: &File, entry: &Entry, chunk: &Chunk, frame: &[u8]) -> Result<()> {
        let piece = slice(frame, chunk).ok_or_else(|| Error::Damaged {
            seq: chunk.frame.seq,
            what: format!("the frame at {} is shorter than its manifest says", chunk.frame.at),
        })?;
        let mut offset = chunk.offset;
        for part in piece.chunks(WRITE_SIZE) {
            let written = file.write_all_at(part, offset);
            written.map_err(|error| self.io("write", entry, error))?;
            offset += part.len() as u64;
        }
        self.job.control.progress(chunk.len);
        Ok(())
    }

    fn finish_file(&self, file: &File, entry: &Entry) -> Result<()> {
        let shown = self.show(entry);
        let applied = self.attributes().apply(file, entry, &shown);
        applied.map_err(|error| self.io("set the attributes of", entry, error))
    }

    /// Gives a directory its attributes, once nothing will be made in it any more.
    pub(super) fn finish_dir(&self, tree: &Tree, entry: &Entry) -> Result<()> {
        let shown = tree.show(&entry.path);
        let apply = || {
            let dir = tree.spot(&entry.path)?.open(OPEN_DIR)?;
            self.attributes().apply(&dir, entry, &shown)
        };
        apply().map_err(|error| self.io("set the attributes of", entry, error))
    }

    /// Writes a whole file in this thread: one whose other names are not restored.
    pub(super) fn write_alone(
        &self,
        entry: &Entry,
        chunks: &[Chunk],
    ) -> std::result::Result<(), Failed> {
        let Some(trees) = &self.trees[usize::from(entry.root)] else { return Ok(()) };
        let create = || trees.new.spot(&entry.path)?.create_file();
        let size = entry.file().map_or(0, |data| data.size);
        let file = {
            let _user = self.job.user()?;
            let file = File::from(create().map_err(|error| self.io("create", entry, error))?);
            file.set_len(size).map_err(|error| self.io("set the size of", entry, error))?;
            file
        };
        for chunk in chunks {
            let frame = self.job.read(&chunk.frame)?;
            let _user = self.job.user()?;
            self.write_at(&file, entry, chunk, &frame)?;
        }
        let _user = self.job.user()?;
        Ok(self.finish_file(&file, entry)?)
    }

    fn attributes(&self) -> Attributes<'_> {
        Attributes { policy: &self.job.policy, findings: &self.job.findings }
    }

    fn show(&self, entry: &Entry) -> std::path::PathBuf {
        let trees = self.trees.get(usize::from(entry.root)).and_then(Option::as_ref);
        trees.map_or_else(std::path::PathBuf::new, |trees| trees.new.show(&entry.path))
    }

    pub(super) fn io(&self, action: &'static str, entry: &Entry, error: io::Error) -> Error {
        Error::io(action, self.show(entry), error)
    }
}

impl Batch {
    fn add(&mut self, entry: Entry) {
        self.files += 1;
        let xattrs: usize =
            entry.xattrs.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.bytes += size_of::<Entry>() + entry.path.len() + xattrs;
        match entry.chunks().first().map(|chunk| chunk.frame) {
            None => self.empty.push(entry),
            Some(frame) => {
                let key = (frame.seq, frame.at, frame.hash);
                let place = self.by_frame.entry(key).or_insert_with(|| (frame, Vec::new()));
                place.1.push(entry);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.files >= BATCH_FILES || self.bytes >= BATCH_BYTES
    }

    fn hand_out(mut self, work: &Sender<Work>) {
        // The channel is closed only once all threads are gone, which then have failed.
        while !self.empty.is_empty() {
            let rest = self.empty.split_off(self.empty.len().min(EMPTY_FILES));
            let files = std::mem::replace(&mut self.empty, rest);
            let _ = work.send(Work::Small { frame: None, files });
        }
        for (frame, files) in self.by_frame.into_values() {
            let _ = work.send(Work::Small { frame: Some(frame), files });
        }
    }
}

/// Makes the target's file a file of the new tree too; says whether that was possible.
fn take_over(new: &mut Cursor<'_>, old: &mut Cursor<'_>, entry: &Entry) -> io::Result<bool> {
    // Refused for files of others, at the limit of links, across file systems: then it is copied.
    Ok(old.spot(&entry.path)?.link_to(new.spot(&entry.path)?).is_ok())
}

fn slice<'a>(frame: &'a [u8], chunk: &Chunk) -> Option<&'a [u8]> {
    let from = usize::try_from(chunk.skip).ok()?;
    frame.get(from..from.checked_add(usize::try_from(chunk.len).ok()?)?)
}
