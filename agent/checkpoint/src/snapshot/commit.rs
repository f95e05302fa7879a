//! From everything copied to a checkpoint that exists.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use nodus_protocol::checkpoint::{Consistency, Skipped};

use super::stage::Staging;
use super::{Asked, COPIES, Captured, CommitInput, ENTRIES, Finished};
use crate::archive::Written;
use crate::archive::tar::{Content, Member, member_name};
use crate::capture::findings::Findings;
use crate::capture::recorder::Recorded;
use crate::capture::spool::{Spool, Stage, digest, resolve};
use crate::durable;
use crate::error::{Context as _, Error, Result};
use crate::format::{CommitRecord, Entry, FORMAT, Hash, Header, Kind, MAX_LISTED};
use crate::store::{ARCHIVE, COMMIT, Epoch, JobStore, MANIFEST, ManifestWriter, to_json};

/// What the manifest came to.
struct Manifest {
    files: u64,
    bytes: u64,
    bases: BTreeSet<u64>,
    changed: bool,
    length: u64,
    hash: Hash,
}

impl Captured {
    /// Completes archive and manifest, and commits unless nothing changed.
    pub(super) fn seal(self, copies: &Spool, input: &CommitInput<'_>) -> Result<Finished> {
        let consistency = self.consistency(input);
        let Self { recorder, staging, store, epoch, roots, previous } = self;
        let seq = recorder.seq;
        let (mut recorded, entries) = recorder.end()?;
        write_tail(&mut recorded, &entries)?;
        let Recorded { findings, changed, pipeline, .. } = recorded;
        let written = pipeline.finish()?;
        let manifest = write_manifest(&staging, (seq, &roots), (&entries, copies), &written)?;
        let good_enough = previous.is_some_and(|previous| {
            previous.consistency != Consistency::Torn || consistency == Consistency::Torn
        });
        if good_enough && !changed && !manifest.changed {
            return Ok(Finished::Skipped(Skipped::Unchanged));
        }
        let about = About { store: &store, epoch: &epoch, seq, roots, consistency, input };
        let record = about.record(manifest, &written, &findings);
        commit(staging, &store, &epoch, &record)?;
        Ok(Finished::Committed(Box::new(record)))
    }
}

/// What a commit record says besides what was stored.
struct About<'a> {
    store: &'a JobStore,
    epoch: &'a Epoch,
    seq: u64,
    roots: Vec<String>,
    consistency: Consistency,
    input: &'a CommitInput<'a>,
}

impl About<'_> {
    fn record(self, manifest: Manifest, written: &Written, findings: &Findings) -> CommitRecord {
        let Self { store, epoch, seq, roots, consistency, input } = self;
        let acked = input.asked == Asked::Acked;
        let (torn, torn_count) = match consistency {
            Consistency::Torn => findings.torn(acked),
            Consistency::Acked | Consistency::Quiet => (Vec::new(), 0),
        };
        let mut notes = findings.notes();
        notes.truncate(MAX_LISTED);
        let archive_bytes = if written.stored > 0 { written.bytes } else { 0 };
        CommitRecord {
            format: FORMAT,
            job: store.job().clone(),
            seq,
            attempt: input.attempt,
            epoch: epoch.number(),
            cause: input.cause,
            consistency,
            acked,
            started: input.started,
            captured: input.captured,
            committed: (input.now)(),
            roots,
            files: manifest.files,
            bytes: manifest.bytes,
            stored_bytes: archive_bytes + manifest.length,
            archive_bytes,
            bases: manifest.bases.into_iter().collect(),
            manifest_bytes: manifest.length,
            manifest_blake3: manifest.hash,
            torn,
            torn_count,
            notes,
        }
    }
}

/// Writes the members that come after all content: other names of files, then directories.
fn write_tail(recorded: &mut Recorded, entries: &Spool) -> Result<()> {
    for dirs in [false, true] {
        let mut reader = entries.read()?;
        while let Some(spooled) = reader.next()? {
            let is_dir = matches!(spooled.entry.kind, Kind::Dir);
            if spooled.stage == Stage::Tail && is_dir == dirs {
                add_member(recorded, &spooled.entry)?;
            }
        }
    }
    recorded.packer.flush(&mut recorded.pipeline)
}

fn add_member(recorded: &mut Recorded, entry: &Entry) -> Result<()> {
    let Recorded { roots, packer, pipeline, .. } = recorded;
    let name = member_name(&roots[usize::from(entry.root)], entry);
    let first = entry.file().and_then(|file| file.hardlink.as_ref());
    let target = first.map(|first| {
        let of = Entry { root: first.0, path: first.1.clone(), ..entry.clone() };
        member_name(&roots[usize::from(first.0)], &of)
    });
    let content = target.as_deref().map_or(Content::Dir, Content::Link);
    packer.add(pipeline, &Member { name: &name, entry, content }, &[])?;
    Ok(())
}

/// Merges what was recorded during the walk with what was copied after it.
fn write_manifest(
    staging: &Staging,
    (seq, roots): (u64, &[String]),
    (entries, copies): (&Spool, &Spool),
    written: &Written,
) -> Result<Manifest> {
    let path = staging.path().join(MANIFEST);
    let failed = |error| durable::failed("write", &path, error);
    let file = File::options().write(true).create_new(true).open(&path).map_err(failed)?;
    let header = Header { format: FORMAT, seq, roots: roots.to_vec() };
    let mut writer = ManifestWriter::new(Hashing::new(file), &header).map_err(failed)?;
    let (mut files, mut bytes, mut bases, mut changed) = (0, 0, BTreeSet::new(), false);
    let (mut entries, mut copies) = (entries.read()?, copies.read()?);
    while let Some(mut spooled) = entries.next()? {
        if spooled.stage == Stage::Pinned {
            let missing = || io::Error::from(io::ErrorKind::UnexpectedEof);
            let copied = copies.next()?;
            spooled = copied.ok_or_else(|| Error::io("read", COPIES, missing()))?;
        }
        let mut entry = spooled.entry;
        resolve(&mut entry, seq, written);
        if let Some(file) = entry.file() {
            bytes += if file.hardlink.is_none() { file.size } else { 0 };
            changed |= spooled.was.is_some_and(|was| was != digest(file.size, &file.chunks));
            bases.extend(
                file.chunks.iter().map(|chunk| chunk.frame.seq).filter(|&base| base != seq),
            );
        }
        files += 1;
        writer.entry(&entry).map_err(failed)?;
    }
    let Hashing { inner, hasher, length } = writer.finish().map_err(failed)?;
    inner.sync_all().map_err(failed)?;
    Ok(Manifest { files, bytes, bases, changed, length, hash: hasher.finalize().into() })
}

/// Makes the checkpoint exist, unless a later epoch does.
fn commit(staging: Staging, store: &JobStore, epoch: &Epoch, record: &CommitRecord) -> Result<()> {
    for name in [ENTRIES, COPIES] {
        remove(&staging.path().join(name))?;
    }
    if record.archive_bytes == 0 {
        remove(&staging.path().join(ARCHIVE))?;
    }
    durable::publish(&staging.path().join(COMMIT), &to_json(record))?;
    store.check_fence(epoch)?;
    let place = store.checkpoint_dir(record.seq);
    if place.exists() {
        if store.get(record.seq)?.is_some() {
            return Err(Error::Refused(format!(
                "checkpoint {} of job {} exists already",
                record.seq,
                store.job()
            )));
        }
        // What a fence hides, or what never became a checkpoint.
        durable::remove_dir(&place)?;
    }
    staging.publish(&place)
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).context("remove", path)
}

/// Hashes and counts what it passes on.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    length: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, hasher: blake3::Hasher::new(), length: 0 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
