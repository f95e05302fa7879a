//! Reading a checkpoint from end to end, to know before it is needed whether it can be restored.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::bounded;

use crate::archive::FrameReader;
use crate::control::Control;
use crate::error::{Context as _, Error, Result};
use crate::format::text::escape;
use crate::format::{CommitRecord, Entry, FrameRef, Hash, MAX_LISTED};
use crate::outcomes;
use crate::store::{Epoch, JobStore};
use crate::stored::Stored;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// The checkpoint.
    pub seq: u64,
    /// Frames that were read, each once.
    pub frames: u64,
    /// Logical bytes of files that were compared with their hashes.
    pub bytes: u64,
    /// All that is wrong; nothing where it is as it was written.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What, in words for people.
    pub what: String,
    /// The frame, where it is one.
    pub frame: Option<FrameRef>,
    /// Files that need it, escaped, at most [`MAX_LISTED`].
    pub paths: Vec<String>,
    /// How many files that are.
    pub path_count: u64,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.paths.as_slice() {
            [] => Ok(()),
            [one] => write!(f, ", needed by {one}"),
            [first, ..] => write!(f, ", needed by {first} and {} more", self.path_count - 1),
        }
    }
}

impl From<String> for Problem {
    fn from(what: String) -> Self {
        Self { what, frame: None, paths: Vec::new(), path_count: 0 }
    }
}

/// Reads a checkpoint's record, manifest and every frame it needs, and compares all hashes.
///
/// Under `mark`, what is found is recorded on the checkpoint and on all others that need a bad
/// frame; a checkpoint that is intact after all loses an earlier mark.
///
/// # Errors
/// [`Error::NotFound`], or why the store cannot be read. What is wrong with the checkpoint is no
/// error but in the report.
pub fn verify(
    store: &JobStore,
    seq: u64,
    mark: Option<&Epoch>,
    threads: NonZeroUsize,
    control: &Control,
) -> Result<VerifyReport> {
    let mut listing = store.list()?;
    let stored = listing.iter().find(|stored| stored.seq() == seq);
    let report = match stored {
        None => return Err(Error::NotFound { job: store.job().to_string(), seq: Some(seq) }),
        Some(Stored::Damaged { why, .. }) => {
            let problems = vec![Problem::from(why.clone())];
            return Ok(VerifyReport { seq, frames: 0, bytes: 0, problems });
        }
        Some(Stored::Good { record, .. }) => read_all(store, record, threads, control)?,
    };
    if report.problems.is_empty() {
        if let Some(epoch) = mark {
            outcomes::mark_intact(store, epoch, seq)?;
        }
        return Ok(report);
    }
    let found: Vec<String> = report.problems.iter().map(|problem| problem.what.clone()).collect();
    let bad: Vec<(FrameRef, String)> = report
        .problems
        .iter()
        .filter_map(|problem| Some((problem.frame?, problem.what.clone())))
        .collect();
    outcomes::note_damage(store, mark, &mut listing, seq, &found, &bad);
    Ok(report)
}

/// Verifies every checkpoint of the job, oldest first.
///
/// # Errors
/// As for [`verify`].
pub fn verify_all(
    store: &JobStore,
    mark: Option<&Epoch>,
    threads: NonZeroUsize,
    control: &Control,
) -> Result<Vec<VerifyReport>> {
    let seqs: Vec<u64> = store.list()?.iter().map(Stored::seq).collect();
    seqs.into_iter().map(|seq| verify(store, seq, mark, threads, control)).collect()
}

/// What has to be read, gathered from the manifest. Frames are ordered by where they are.
#[derive(Default)]
struct Needed {
    frames: BTreeSet<(u64, u64, u64, u64, Hash)>,
    files: u64,
    bytes: u64,
    /// Bytes of files that chunks cover.
    covered: u64,
}

fn read_all(
    store: &JobStore,
    record: &CommitRecord,
    threads: NonZeroUsize,
    control: &Control,
) -> Result<VerifyReport> {
    let mut report = VerifyReport { seq: record.seq, frames: 0, bytes: 0, problems: Vec::new() };
    let needed = match needed(store, record, control) {
        Ok(needed) => needed,
        Err(Error::Damaged { what, .. }) => {
            report.problems.push(what.into());
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    report.problems.extend(mismatches(store, record, &needed)?.into_iter().map(Problem::from));
    let frames: Vec<FrameRef> = needed
        .frames
        .iter()
        .map(|&(seq, at, stored, len, hash)| FrameRef { seq, at, stored, len, hash })
        .collect();
    control.expect(frames.iter().map(|frame| frame.len).sum());
    let bad = read_frames(store, &frames, threads, control)?;
    report.frames = frames.len() as u64;
    report.bytes = needed.covered;
    if !bad.is_empty() {
        report.problems.extend(with_paths(store, record, bad, control)?);
    }
    Ok(report)
}

fn needed(store: &JobStore, record: &CommitRecord, control: &Control) -> Result<Needed> {
    let mut needed = Needed::default();
    for entry in store.manifest(record.seq, record)? {
        let entry = entry?;
        control.check()?;
        needed.files += 1;
        if let Some(file) = entry.file().filter(|file| file.hardlink.is_none()) {
            needed.bytes += file.size;
        }
        for chunk in entry.chunks() {
            let FrameRef { seq, at, stored, len, hash } = chunk.frame;
            needed.frames.insert((seq, at, stored, len, hash));
            needed.covered += chunk.len;
        }
    }
    Ok(needed)
}

/// What the commit record says otherwise than the rest does.
fn mismatches(store: &JobStore, record: &CommitRecord, needed: &Needed) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let counts = [("entries", record.files, needed.files), ("bytes", record.bytes, needed.bytes)];
    for (what, recorded, counted) in counts {
        if recorded != counted {
            found.push(format!("its record says {recorded} {what}, its manifest has {counted}"));
        }
    }
    let bases: BTreeSet<u64> = needed.frames.iter().map(|frame| frame.0).collect();
    for base in bases {
        if base != record.seq && !record.bases.contains(&base) {
            found.push(format!("it needs checkpoint {base}, which is not among its bases"));
        }
    }
    if record.archive_bytes > 0 {
        let path = store.archive_path(record.seq);
        let length = match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            meta => meta.context("look at", &path)?.len(),
        };
        if length != record.archive_bytes {
            let expected = record.archive_bytes;
            found.push(format!("its archive has {length} bytes, not {expected}"));
        }
    }
    Ok(found)
}

/// Reads frames in several threads; gives those that are bad, and why.
fn read_frames(
    store: &JobStore,
    frames: &[FrameRef],
    threads: NonZeroUsize,
    control: &Control,
) -> Result<Vec<(FrameRef, String)>> {
    let reader = FrameReader::new(store);
    let bad = Mutex::new(Vec::new());
    let failed = Mutex::new(None);
    let (send, receive) = bounded::<&FrameRef>(threads.get() * 2);
    std::thread::scope(|scope| {
        for _ in 0..threads.get() {
            let receive = receive.clone();
            let (reader, bad, failed) = (&reader, &bad, &failed);
            scope.spawn(move || {
                for frame in receive {
                    match control.check().and_then(|()| reader.read(frame)) {
                        Ok(content) => control.progress(content.len() as u64),
                        Err(Error::Damaged { seq, what }) => {
                            lock(bad).push((*frame, format!("checkpoint {seq}: {what}")));
                        }
                        Err(error) => {
                            lock(failed).get_or_insert(error);
                            return; // The others go on until nobody is left to send to.
                        }
                    }
                }
            });
        }
        drop(receive);
        for frame in frames {
            if lock(&failed).is_some() || send.send(frame).is_err() {
                break;
            }
        }
        drop(send);
    });
    if let Some(error) = lock(&failed).take() {
        return Err(error);
    }
    let mut bad = std::mem::take(&mut *lock(&bad));
    bad.sort_by_key(|(frame, _)| (frame.seq, frame.at));
    Ok(bad)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names the files that need each bad frame.
fn with_paths(
    store: &JobStore,
    record: &CommitRecord,
    bad: Vec<(FrameRef, String)>,
    control: &Control,
) -> Result<Vec<Problem>> {
    let problem = |(frame, what)| Problem { frame: Some(frame), ..Problem::from(what) };
    let mut problems: Vec<Problem> = bad.into_iter().map(problem).collect();
    let manifest = store.manifest(record.seq, record)?;
    let roots = manifest.header().roots.clone();
    for entry in manifest {
        let entry = entry?;
        control.check()?;
        for problem in &mut problems {
            if entry.chunks().iter().any(|chunk| Some(chunk.frame) == problem.frame) {
                problem.path_count += 1;
                if problem.paths.len() < MAX_LISTED {
                    problem.paths.push(shown(&roots, &entry));
                }
            }
        }
    }
    Ok(problems)
}

fn shown(roots: &[String], entry: &Entry) -> String {
    let root = &roots[usize::from(entry.root)];
    let slash = if entry.path.is_empty() { "" } else { "/" };
    format!("{root}{slash}{}", escape(&entry.path))
}
