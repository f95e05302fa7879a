//! A snapshot: the capture of the job's files, and the checkpoint that is made of it.
//!
//! ```text
//! capture() -> Captured -- finish() --> Committed | Skipped
//!                  \------ dropped ---> nothing is left
//! ```
//!
//! Between the two the copy no longer depends on the names of the program's files, nor on the
//! content of those that it writes in place.

mod commit;
pub mod consistency;
mod stage;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use nodus_protocol::checkpoint::{Cause, Consistency, Skipped};

use crate::archive::Pipeline;
use crate::capture::previous::{Bases, Previous};
use crate::capture::recorder::{Parts, Recorder};
use crate::capture::spool::{Spool, SpoolWriter, Stage};
use crate::capture::walk::{WalkOptions, Walker};
use crate::control::Control;
use crate::error::{Context as _, Error, Result};
use crate::format::CommitRecord;
use crate::format::text::escape;
use crate::identity::{self, Credentials};
use crate::root::Root;
use crate::store::{ARCHIVE, Epoch, JobStore};

pub use consistency::Asked;
use stage::Staging;

/// Descriptors that are left to the rest of the process.
const SPARE_DESCRIPTORS: u64 = 512;
/// The most files that are pinned, whatever the limit: each also takes some memory.
const MAX_PINS: u64 = 16 << 10;

/// What is captured, and as whom.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The job's paths, in the order of the manifest.
    pub roots: Vec<Root>,
    /// The job's user; `None` for the one that this process is.
    pub credentials: Option<Credentials>,
    /// The most logical bytes.
    pub max_size: u64,
    /// Threads that compress.
    pub threads: NonZeroUsize,
    /// Device and inode of files that processes of the attempt hold open for writing.
    pub open_for_writing: HashSet<(u64, u64)>,
    /// Device and inode of directories that are the agent's own; the store is one by itself.
    pub exclude: HashSet<(u64, u64)>,
}

/// What is known about a snapshot besides its files.
#[derive(Clone, Copy)]
pub struct CommitInput<'a> {
    /// The attempt that it is taken from.
    pub attempt: u32,
    /// What made the agent take it.
    pub cause: Cause,
    /// When it was triggered.
    pub started: Timestamp,
    /// When the capture was complete.
    pub captured: Timestamp,
    /// What the program said.
    pub asked: Asked,
    /// The time, asked once right before the commit.
    pub now: &'a dyn Fn() -> Timestamp,
}

/// How a snapshot ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The checkpoint exists.
    Committed(Box<CommitRecord>),
    /// There was nothing to store, and nothing was stored.
    Skipped(Skipped),
}

/// Files that were captured and not committed yet. Dropping it removes everything that was staged.
pub struct Captured {
    // The order matters: the threads that write end before the directory is removed.
    recorder: Recorder,
    staging: Staging,
    store: JobStore,
    epoch: Epoch,
    roots: Vec<String>,
    /// The checkpoint that is compared with.
    previous: Option<CommitRecord>,
}

/// Captures the job's files.
///
/// # Errors
/// [`Error::Fenced`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::Cancelled`], or what the
/// operating system refused, with the path.
pub fn capture(
    store: &JobStore,
    epoch: &Epoch,
    seq: u64,
    options: &CaptureOptions,
    control: &Control,
) -> Result<Captured> {
    store.check_fence(epoch)?;
    let roots: Vec<String> =
        options.roots.iter().map(|root| escape(root.path.as_os_str().as_encoded_bytes())).collect();
    let bases = Bases::list(store)?;
    let (previous, reader) = bases.newest(&roots)?.unzip();
    let staging = Staging::create(store, seq)?;
    let pipeline = Pipeline::new(&staging.path().join(ARCHIVE), seq, options.threads.get())?;
    let recorder = Recorder::new(Parts {
        seq,
        roots: options
            .roots
            .iter()
            .map(|root| root.path.as_os_str().as_encoded_bytes().to_vec())
            .collect(),
        control: control.clone(),
        max_size: options.max_size,
        pipeline,
        spool: SpoolWriter::create(&staging.path().join(ENTRIES))?,
        bases,
        previous: Previous::new(reader),
    });
    let (store, epoch) = (store.clone(), epoch.clone());
    let mut captured = Captured { recorder, staging, store, epoch, roots, previous };
    captured.walk(options).map_err(|error| captured.explain(error))?;
    Ok(captured)
}

/// Names in the staging directory that the checkpoint does not get.
const ENTRIES: &str = "entries";
const COPIES: &str = "copies";

impl Captured {
    /// Whether no regular file has content: such a snapshot will be skipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.recorder.has_content
    }

    /// Copies what was only pinned, and commits.
    ///
    /// # Errors
    /// As for [`capture`]. Nothing is left of a snapshot that fails.
    pub fn finish(mut self, input: &CommitInput<'_>) -> Result<Finished> {
        if self.is_empty() {
            return Ok(Finished::Skipped(Skipped::Empty));
        }
        if self.recorder.pins.is_empty() && self.is_unchanged(input) {
            return Ok(Finished::Skipped(Skipped::Unchanged));
        }
        self.recorder.pipeline.to_background();
        let copies = self.copy_pins().map_err(|error| self.explain(error))?;
        let needed = self.recorder.bytes;
        self.seal(&copies, input).map_err(|error| explain(error, needed))
    }

    fn walk(&mut self, options: &CaptureOptions) -> Result<()> {
        let mut exclude = options.exclude.clone();
        for own in [self.store.root(), self.store.dir()] {
            let stat = rustix::fs::stat(own).context("look at", own)?;
            exclude.insert((stat.st_dev, stat.st_ino));
        }
        let open_for_writing = &options.open_for_writing;
        let walk_options = WalkOptions { open_for_writing, exclude };
        let _identity = identity::enter(options.credentials.as_ref())?;
        let mut walker = Walker::new(&mut self.recorder, walk_options, max_pins());
        for (index, root) in (0..).zip(&options.roots) {
            walker.root(index, root)?;
        }
        let recorder = &mut self.recorder;
        recorder.changed |= !recorder.previous.is_used_up()?;
        recorder.packer.flush(&mut recorder.pipeline)
    }

    /// Copies the pinned files, each of which is closed as soon as that is done.
    fn copy_pins(&mut self) -> Result<Spool> {
        let mut copies = SpoolWriter::create(&self.staging.path().join(COPIES))?;
        let recorder = &mut self.recorder;
        let pins = std::mem::take(&mut recorder.pins);
        let index = match pins.is_empty() {
            true => None,
            false => Some(Arc::new(recorder.bases.index()?)),
        };
        for source in pins {
            let (entry, was) = recorder.copy(&source, index.clone(), true)?;
            recorder.control.add_file();
            copies.push(Stage::Done, &entry, was)?;
        }
        copies.finish()
    }

    /// Whether nothing differs from the checkpoint before, as far as the walk has shown.
    ///
    /// A torn one is not good enough to stand for one that is not.
    fn is_unchanged(&self, input: &CommitInput<'_>) -> bool {
        let torn = |consistency| consistency == Consistency::Torn;
        !self.recorder.changed
            && self.previous.as_ref().is_some_and(|previous| {
                !torn(previous.consistency) || torn(self.consistency(input))
            })
    }

    fn consistency(&self, input: &CommitInput<'_>) -> Consistency {
        consistency::decide(input.asked, &self.recorder.evidence())
    }

    fn explain(&self, error: Error) -> Error {
        explain(error, self.recorder.bytes)
    }
}

/// Adds to an error of a full disk how much there was to write at most.
fn explain(error: Error, needed: u64) -> Error {
    match error {
        Error::NoSpace { path, free, .. } => Error::NoSpace { path, needed, free },
        error => error,
    }
}

/// How many files may be pinned at the same time.
fn max_pins() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let pins = limit.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS).clamp(16, MAX_PINS);
    usize::try_from(pins).expect("limited")
}

/// Device and inode of a directory, for [`CaptureOptions::exclude`]; `None` where it is not there.
#[must_use]
pub fn object_of(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}
