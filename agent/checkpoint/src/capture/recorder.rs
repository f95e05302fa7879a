//! Where everything that a walk meets is recorded: entries, small content, pinned files, findings.

use std::collections::HashMap;
use std::sync::Arc;

use super::attr::Attr;
use super::copy::{Copier, Source, Stability};
use super::findings::{Findings, Note, shown};
use super::previous::{Bases, Previous};
use super::spool::{Spool, SpoolWriter, Stage, digest, unresolved};
use crate::archive::index::FrameIndex;
use crate::archive::tar::{Content, Member, member_name};
use crate::archive::{Packer, Pipeline};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::{Chunk, Entry, EntryRef, FileData, Hash, Kind};
use crate::snapshot::consistency::Evidence;

/// What a snapshot has come to so far.
pub(crate) struct Recorder {
    pub(crate) seq: u64,
    pub(crate) roots: Vec<Vec<u8>>,
    pub(crate) control: Control,
    pub(crate) max_size: u64,
    pub(crate) pipeline: Pipeline,
    pub(crate) packer: Packer,
    pub(crate) spool: SpoolWriter,
    pub(crate) bases: Bases,
    pub(crate) previous: Previous,
    pub(crate) findings: Findings,
    pub(crate) pins: Vec<Source>,
    pub(crate) bytes: u64,
    /// Whether any regular file has content.
    pub(crate) has_content: bool,
    /// Whether anything is known to differ from the checkpoint before.
    pub(crate) changed: bool,
    /// Files with several names, until all of them were met.
    links: HashMap<(u64, u64), Link>,
}

/// A recorder whose entries are complete.
pub(crate) struct Recorded {
    pub(crate) roots: Vec<Vec<u8>>,
    pub(crate) pipeline: Pipeline,
    pub(crate) packer: Packer,
    pub(crate) findings: Findings,
    pub(crate) changed: bool,
}

struct Link {
    first: EntryRef,
    to_come: u64,
}

/// Parts of a recorder that are given.
pub(crate) struct Parts {
    pub(crate) seq: u64,
    pub(crate) roots: Vec<Vec<u8>>,
    pub(crate) control: Control,
    pub(crate) max_size: u64,
    pub(crate) pipeline: Pipeline,
    pub(crate) spool: SpoolWriter,
    pub(crate) bases: Bases,
    pub(crate) previous: Previous,
}

impl Recorder {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { seq, roots, control, max_size, pipeline, spool, bases, previous } = parts;
        Self {
            seq,
            roots,
            control,
            max_size,
            pipeline,
            packer: Packer::default(),
            spool,
            bases,
            previous,
            findings: Findings::default(),
            pins: Vec::new(),
            bytes: 0,
            has_content: false,
            changed: false,
            links: HashMap::new(),
        }
    }

    /// Ends recording entries; what is left of it still takes members.
    pub(crate) fn end(self) -> Result<(Recorded, Spool)> {
        let Self { roots, pipeline, packer, findings, changed, spool, .. } = self;
        Ok((Recorded { roots, pipeline, packer, findings, changed }, spool.finish()?))
    }

    /// What was seen that decides how far the checkpoint can be trusted.
    pub(crate) fn evidence(&self) -> Evidence {
        let Findings { unstable, moved, writers, partly_gone, .. } = &self.findings;
        Evidence {
            unstable: unstable.count,
            moved: moved.count,
            writers: writers.count,
            partly_gone: partly_gone.count,
        }
    }

    /// A path as messages show it.
    pub(crate) fn shown(&self, root: u16, path: &[u8]) -> String {
        shown(&self.roots[usize::from(root)], path)
    }

    /// Counts the bytes of a file, up to the limit.
    pub(crate) fn count(&mut self, size: u64) -> Result<()> {
        self.bytes = self.bytes.saturating_add(size);
        self.has_content |= size > 0;
        self.control.expect_more(size);
        if self.bytes > self.max_size {
            return Err(Error::TooLarge { found: self.bytes, limit: self.max_size });
        }
        Ok(())
    }

    /// The earlier name of a file that has several, if one was met already.
    pub(crate) fn earlier_name(&mut self, attr: &Attr) -> Option<EntryRef> {
        let link = self.links.get_mut(&attr.object())?;
        link.to_come -= 1;
        let first = link.first.clone();
        if link.to_come == 0 {
            self.links.remove(&attr.object());
        }
        Some(first)
    }

    /// Remembers a file of which more names may come.
    pub(crate) fn remember_name(&mut self, attr: &Attr, entry: &Entry) {
        if attr.nlink > 1 {
            let first = EntryRef(entry.root, entry.path.clone());
            self.links.insert(attr.object(), Link { first, to_come: attr.nlink - 1 });
        }
    }

    /// Records what has no content: a directory, a link, another name, a special file.
    pub(crate) fn plain(&mut self, entry: &Entry, before: Option<&Entry>) -> Result<()> {
        let same = before.is_some_and(|before| is_same(before, entry));
        self.changed |= !same;
        let stage = match &entry.kind {
            _ if same => Stage::Done,
            Kind::Dir | Kind::File(_) => Stage::Tail,
            Kind::Symlink { target } => {
                let name = self.name(entry);
                let content = Content::Symlink(target);
                let member = Member { name: &name, entry, content };
                self.packer.add(&mut self.pipeline, &member, &[])?;
                Stage::Done
            }
            _ => Stage::Done,
        };
        self.push(stage, entry, None)
    }

    /// Records a file whose content the checkpoint before has.
    pub(crate) fn unchanged(&mut self, entry: &Entry, before: &Entry) -> Result<()> {
        self.changed |= !is_same(before, entry);
        self.push(Stage::Done, entry, None)
    }

    /// Records a small file with its content.
    pub(crate) fn small(
        &mut self,
        mut entry: Entry,
        content: &[u8],
        before: Option<&Entry>,
    ) -> Result<()> {
        let hash = Hash::of(content);
        self.control.progress(content.len() as u64);
        let known = before
            .and_then(Entry::file)
            .filter(|file| file.hash == Some(hash) && file.size == content.len() as u64);
        let known = known.filter(|_| before.is_some_and(|before| self.bases.is_usable(before)));
        let chunks = match known {
            Some(file) => file.chunks.clone(),
            None => self.pack(&entry, content)?,
        };
        if let Kind::File(file) = &mut entry.kind {
            file.hash = (!content.is_empty()).then_some(hash);
            file.chunks = chunks;
        }
        let same = before.is_some_and(|before| is_same(before, &entry));
        self.changed |= !same;
        self.push(Stage::Done, &entry, None)
    }

    fn pack(&mut self, entry: &Entry, content: &[u8]) -> Result<Vec<Chunk>> {
        let name = self.name(entry);
        let len = content.len() as u64;
        let member = Member { name: &name, entry, content: Content::File(len) };
        let (ticket, skip) = self.packer.add(&mut self.pipeline, &member, content)?;
        if content.is_empty() {
            return Ok(Vec::new());
        }
        let frame = unresolved(self.seq, ticket);
        Ok(vec![Chunk { offset: 0, len, skip, frame }])
    }

    /// Records a large file whose content is copied after the capture.
    pub(crate) fn pin(&mut self, source: Source) -> Result<()> {
        self.push(Stage::Pinned, &source.entry, None)?;
        self.pins.push(source);
        Ok(())
    }

    /// Copies a large file now.
    pub(crate) fn copy_now(&mut self, source: &Source) -> Result<()> {
        let (entry, was) = self.copy(source, None, false)?;
        self.push(Stage::Done, &entry, was)
    }

    /// Copies a large file; gives its entry and the digest of what it was before.
    pub(crate) fn copy(
        &mut self,
        source: &Source,
        index: Option<Arc<FrameIndex>>,
        patient: bool,
    ) -> Result<(Entry, Option<Hash>)> {
        let mut copier = Copier {
            pipeline: &mut self.pipeline,
            index,
            control: &self.control,
            seq: self.seq,
            bytes: &mut self.bytes,
            max_size: self.max_size,
            patient,
        };
        let (entry, stability) = copier.copy(source)?;
        self.changed |= stability != Stability::Still;
        match stability {
            Stability::Still => {}
            Stability::Moved => {
                self.findings.moved.add(source.shown.clone());
                self.findings.note(Note::CopiedAgain, source.shown.clone());
            }
            Stability::Unstable => self.findings.unstable.add(source.shown.clone()),
        }
        let size_before = source.size_before;
        let was = size_before.map(|size| digest(size, &source.before));
        Ok((entry, was))
    }

    fn push(&mut self, stage: Stage, entry: &Entry, was: Option<Hash>) -> Result<()> {
        if stage != Stage::Pinned {
            self.control.add_file();
        }
        self.spool.push(stage, entry, was)
    }

    fn name(&self, entry: &Entry) -> Vec<u8> {
        member_name(&self.roots[usize::from(entry.root)], entry)
    }
}

/// Whether two entries of the same place are the same but for what only identifies the file.
pub(crate) fn is_same(before: &Entry, now: &Entry) -> bool {
    let attributes = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.mtime);
    attributes(before) == attributes(now)
        && before.xattrs == now.xattrs
        && match (&before.kind, &now.kind) {
            (Kind::File(before), Kind::File(now)) => is_same_file(before, now),
            (before, now) => before == now,
        }
}

/// All but identity and chunks: a large file is compared by the digest of those.
fn is_same_file(before: &FileData, now: &FileData) -> bool {
    (before.size, before.nlink, &before.hardlink, before.hash)
        == (now.size, now.nlink, &now.hardlink, now.hash)
        && before.modified_during_copy == now.modified_during_copy
}
