//! The newest good checkpoint, read beside the walk: what is as it was needs no reading.

use std::collections::HashSet;

use crate::archive::index::FrameIndex;
use crate::error::{Error, Result};
use crate::format::manifest::walk_order;
use crate::format::{CommitRecord, Entry};
use crate::store::{JobStore, ManifestReader, Stored};
use crate::stored::Standing;

/// The job's checkpoints, as far as a new one may build on them.
pub(crate) struct Bases {
    store: JobStore,
    /// Good ones, newest first.
    good: Vec<CommitRecord>,
    suspect: HashSet<u64>,
    /// Archives that are there, and that nothing is known to be wrong with.
    usable: HashSet<u64>,
}

impl Bases {
    pub(crate) fn list(store: &JobStore) -> Result<Self> {
        let (mut good, mut suspect, mut bad) =
            (Vec::<CommitRecord>::new(), HashSet::new(), HashSet::new());
        for stored in store.list()?.iter().rev() {
            match (stored, stored.standing()) {
                (Stored::Good { record, .. }, Standing::Trusted | Standing::Torn) => {
                    good.push(record.as_ref().clone());
                }
                (Stored::Good { record, .. }, Standing::Suspect) => {
                    suspect.insert(record.seq);
                    good.push(record.as_ref().clone());
                }
                (_, _) => {
                    bad.insert(stored.seq());
                    bad.extend(stored.bases());
                }
            }
        }
        // Looked for here, since the walk itself has only the rights of the job's user.
        let named = good.iter().flat_map(|record| record.bases.iter().chain([&record.seq]));
        let usable = named
            .copied()
            .filter(|seq| !bad.contains(seq) && store.archive_path(*seq).exists())
            .collect();
        Ok(Self { store: store.clone(), good, suspect, usable })
    }

    /// Opens the manifest of the newest checkpoint that can be compared with.
    ///
    /// One that proves damaged is passed over: an older one only costs reading more.
    pub(crate) fn newest(
        &self,
        roots: &[String],
    ) -> Result<Option<(CommitRecord, ManifestReader)>> {
        let candidates = self.good.iter().filter(|record| !self.suspect.contains(&record.seq));
        for record in candidates {
            if let Some(reader) = self.open(record)? {
                // With other paths, or the same in another order, the walks do not run in parallel.
                return Ok((reader.header().roots == roots).then(|| (record.clone(), reader)));
            }
        }
        Ok(None)
    }

    /// The large frames of all good checkpoints, newest first.
    pub(crate) fn index(&self) -> Result<FrameIndex> {
        let mut index = FrameIndex::default();
        for record in &self.good {
            let Some(reader) = self.open(record)? else { continue };
            for entry in reader.map_while(std::result::Result::ok) {
                if self.is_usable(&entry) && !index.add(&entry) {
                    return Ok(index);
                }
            }
        }
        Ok(index)
    }

    /// Whether all frames of the entry are in archives that are there and not known to be bad.
    pub(crate) fn is_usable(&self, entry: &Entry) -> bool {
        entry.chunks().iter().all(|chunk| self.usable.contains(&chunk.frame.seq))
    }

    fn open(&self, record: &CommitRecord) -> Result<Option<ManifestReader>> {
        let opened = self.store.verify_manifest(record.seq, record);
        match opened.and_then(|()| self.store.manifest(record.seq, record)) {
            Ok(reader) => Ok(Some(reader)),
            Err(error @ Error::Damaged { .. }) => {
                let (job, seq) = (self.store.job(), record.seq);
                tracing::warn!(%job, seq, error = error.chain(), "not building on a checkpoint");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The entries of the checkpoint before, taken in the order of the walk.
#[derive(Default)]
pub(crate) struct Previous {
    reader: Option<ManifestReader>,
    next: Option<Entry>,
    /// Entries that are no longer there.
    pub(crate) gone: u64,
}

impl Previous {
    pub(crate) fn new(reader: Option<ManifestReader>) -> Self {
        Self { reader, next: None, gone: 0 }
    }

    /// The entry of this place, if it was there.
    pub(crate) fn take(&mut self, root: u16, path: &[u8]) -> Result<Option<Entry>> {
        while let Some(entry) = self.peek()? {
            match walk_order((entry.root, &entry.path), (root, path)) {
                std::cmp::Ordering::Less => self.gone += 1,
                std::cmp::Ordering::Equal => return Ok(self.next.take()),
                std::cmp::Ordering::Greater => return Ok(None),
            }
            self.next = None;
        }
        Ok(None)
    }

    /// Whether everything that was there has been taken.
    pub(crate) fn is_used_up(&mut self) -> Result<bool> {
        Ok(self.gone == 0 && self.peek()?.is_none())
    }

    fn peek(&mut self) -> Result<Option<&Entry>> {
        if self.next.is_none() {
            self.next = match self.reader.as_mut().and_then(Iterator::next).transpose() {
                Err(error @ Error::Damaged { .. }) => {
                    // What is not understood cannot be compared with: all from here on is new.
                    tracing::warn!(error = error.chain(), "not building on a checkpoint");
                    self.gone += 1;
                    self.reader = None;
                    None
                }
                entry => entry?,
            };
        }
        Ok(self.next.as_ref())
    }
}
