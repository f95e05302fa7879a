//! Frames on their way into the archive: one producer, several workers, one writer in order.
//!
//! ```text
//! producer --work--> workers (hash, look up, compress)
//!     \----order---------------------------------------> writer
//! ```
//!
//! Both queues are bounded, and so is the memory: each frame in flight has at most its content and
//! its compressed form. A frame gets a ticket when it is handed over; where it ended up is known
//! by ticket once the pipeline is finished.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::frame::{self, Body};
use super::index::FrameIndex;
use super::pool::Pool;
use super::writer::{Archive, FileSpec, Written};
use crate::durable;
use crate::error::{Error, Result};
use crate::format::{FrameRef, Hash};

/// Where a frame ended up is asked with this.
pub(crate) type Ticket = u32;

/// The producer's end.
pub(crate) struct Pipeline {
    work: Option<Sender<Job>>,
    order: Option<Sender<Step>>,
    threads: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<Result<Written>>>,
    pool: Pool,
    path: PathBuf,
    next: Ticket,
    /// The program is not held up any more, so everything else comes first.
    background: Arc<AtomicBool>,
}

/// What may stand for a frame instead of storing it.
#[derive(Clone, Default)]
pub(crate) struct Reuse {
    /// The frame that was at the same place.
    pub(crate) same_place: Option<FrameRef>,
    /// All frames of the job's good checkpoints.
    pub(crate) index: Option<Arc<FrameIndex>>,
}

/// What a frame is in the tar.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    /// Whole members.
    Members,
    /// The piece of the file that has been begun, from this offset.
    Content(u64),
}

/// What the writer does, in order.
pub(crate) enum Step {
    /// Writes a frame once a worker has finished it.
    Frame { ticket: Ticket, role: Role, done: Receiver<std::io::Result<Done>> },
    /// A large file begins.
    Begin(Box<FileSpec>),
    /// It is complete.
    End,
    /// It is to be forgotten: everything since it began is taken back.
    Abort,
}

/// A frame as a worker leaves it.
pub(crate) struct Done {
    pub(crate) hash: Hash,
    pub(crate) len: u64,
    pub(crate) outcome: Outcome,
}

/// Whether a frame has to be written.
pub(crate) enum Outcome {
    Reused(FrameRef),
    New(Body),
}

struct Job {
    content: Vec<u8>,
    reuse: Reuse,
    reply: Sender<std::io::Result<Done>>,
}

impl Pipeline {
    /// Begins an archive in `path` for checkpoint `seq`.
    pub(crate) fn new(path: &Path, seq: u64, threads: usize) -> Result<Self> {
        let file = File::options().write(true).create_new(true).open(path);
        let file = file.map_err(|error| durable::failed("create", path, error))?;
        let threads = threads.max(1);
        let (work, jobs) = bounded::<Job>(threads);
        let (order, steps) = bounded::<Step>(2 * threads);
        let pool = Pool::new(2 * threads);
        let archive = Archive::new(file, path, seq, pool.clone());
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let writer = spawn("archive")
            .spawn(move || archive.run(&steps))
            .map_err(|error| Error::io("start a thread to write", path, error))?;
        let mut pipeline = Self {
            work: Some(work),
            order: Some(order),
            threads: Vec::new(),
            writer: Some(writer),
            pool,
            path: path.to_owned(),
            next: 0,
            background: Arc::default(),
        };
        for _ in 0..threads {
            let (jobs, pool) = (jobs.clone(), pipeline.pool.clone());
            let background = Arc::clone(&pipeline.background);
            let worker = spawn("frame").spawn(move || work_on(&jobs, &pool, &background));
            let worker =
                worker.map_err(|error| Error::io("start a thread to write", path, error))?;
            pipeline.threads.push(worker);
        }
        Ok(pipeline)
    }

    /// From now on nobody waits for the pipeline: the job comes first, for processor and disk.
    pub(crate) fn to_background(&self) {
        self.background.store(true, Ordering::Relaxed);
    }

    /// An empty buffer for content.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.pool.take()
    }

    /// Gives back a buffer that was not handed over after all.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.pool.give(buffer);
    }

    /// A ticket for a frame that will be handed over.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next - 1
    }

    /// Hands a frame over; waits while too many are in flight.
    pub(crate) fn frame(
        &mut self,
        ticket: Ticket,
        role: Role,
        content: Vec<u8>,
        reuse: Reuse,
    ) -> Result<()> {
        let (reply, done) = bounded(1);
        // The order first: then a writer that failed is noticed before work is piled up.
        self.step(Step::Frame { ticket, role, done })?;
        let sent = self.work.as_ref().map(|work| work.send(Job { content, reuse, reply }));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.failure()) }
    }

    /// A large file begins.
    pub(crate) fn begin(&mut self, spec: FileSpec) -> Result<()> {
        self.step(Step::Begin(Box::new(spec)))
    }

    /// The large file is complete.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.step(Step::End)
    }

    /// The large file is to be forgotten.
    pub(crate) fn abort(&mut self) -> Result<()> {
        self.step(Step::Abort)
    }

    /// Waits until everything is on the disk; says where each frame is.
    pub(crate) fn finish(mut self) -> Result<Written> {
        self.close()
    }

    fn step(&mut self, step: Step) -> Result<()> {
        let sent = self.order.as_ref().map(|order| order.send(step));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.failure()) }
    }

    /// Why the other end is gone.
    fn failure(&mut self) -> Error {
        match self.close() {
            Err(error) => error,
            Ok(_) => Error::Refused(format!("the archive {} is closed", self.path.display())),
        }
    }

    fn close(&mut self) -> Result<Written> {
        self.work = None;
        self.order = None;
        let writer = self.writer.take();
        let written = writer.map(JoinHandle::join);
        for thread in self.threads.drain(..) {
            // A worker that panicked has shown itself to the writer as a frame without an answer.
            drop(thread.join());
        }
        match written {
            Some(Ok(written)) => written,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(Error::Refused(format!("the archive {} is closed", self.path.display()))),
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // Whoever drops it has an error to report already, or cancelled.
            drop(self.close());
        }
    }
}

fn work_on(jobs: &Receiver<Job>, pool: &Pool, background: &AtomicBool) {
    let mut lowered = false;
    let mut compressor = frame::compressor();
    for Job { content, reuse, reply } in jobs {
        if !lowered && background.load(Ordering::Relaxed) {
            lower_priority();
            lowered = true;
        }
        let done = match &mut compressor {
            Ok(compressor) => work(compressor, content, &reuse, pool),
            Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
        };
        // A writer that stopped listening has failed, and says so itself.
        drop(reply.send(done));
    }
}

fn work(
    compressor: &mut zstd::bulk::Compressor<'_>,
    content: Vec<u8>,
    reuse: &Reuse,
    pool: &Pool,
) -> std::io::Result<Done> {
    let (hash, len) = (Hash::of(&content), content.len() as u64);
    let same_place = reuse.same_place.filter(|frame| frame.hash == hash && frame.len == len);
    let known = || reuse.index.as_ref()?.get(&hash).filter(|frame| frame.len == len);
    if let Some(frame) = same_place.or_else(known) {
        pool.give(content);
        return Ok(Done { hash, len, outcome: Outcome::Reused(frame) });
    }
    let (body, free) = frame::encode(compressor, content, pool.take())?;
    pool.give(free);
    Ok(Done { hash, len, outcome: Outcome::New(body) })
}

/// Puts the calling thread behind everything else; where that cannot be set, it stays as it is.
fn lower_priority() {
    let lowest = 19;
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), lowest)
    {
        tracing::debug!(%error, "cannot lower the priority of a worker");
    }
    if let Err(error) = crate::sys::lower_io_priority() {
        tracing::debug!(%error, "cannot lower the disk priority of a worker");
    }
}
