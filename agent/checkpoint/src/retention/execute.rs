//! Carrying a plan out, under the current epoch only.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Contents, Step};
use crate::durable;
use crate::error::{Context as _, Result};
use crate::store::{ARCHIVE, COMMIT, Epoch, JobStore, MANIFEST, OUTCOMES, fence};

impl Contents {
    /// Looks into the store.
    ///
    /// # Errors
    /// Where it cannot be listed.
    pub fn read(store: &JobStore) -> Result<Self> {
        // In this order: a checkpoint that is committed in between is not taken for a retired one.
        let mut retired = directories(&store.checkpoints_dir())?;
        let listing = store.list()?;
        for stored in &listing {
            retired.remove(&stored.seq());
        }
        Ok(Self { listing, retired: retired.into_iter().collect() })
    }
}

/// Does one step. The fence is looked at right before each deletion, since deleting is writing.
///
/// # Errors
/// [`crate::Error::Fenced`] where a later epoch exists, or why something could not be removed.
pub fn execute(store: &JobStore, epoch: &Epoch, step: Step) -> Result<()> {
    match step {
        Step::Remove(seq) => store.delete_checkpoint(epoch, seq),
        Step::Retire(seq) => strip(store, epoch, seq, &[COMMIT, MANIFEST, OUTCOMES]),
        Step::Empty(seq) => strip(store, epoch, seq, &[COMMIT, MANIFEST, OUTCOMES, ARCHIVE]),
    }
}

/// Removes files of a checkpoint, the first of them durably before the others.
fn strip(store: &JobStore, epoch: &Epoch, seq: u64, names: &[&str]) -> Result<()> {
    let dir = store.checkpoint_dir(seq);
    for name in names {
        store.check_fence(epoch)?;
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.context("remove", &path)?,
        }
        durable::sync_dir(&dir)?;
    }
    Ok(())
}

fn directories(dir: &Path) -> Result<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(dir).context("list", dir)? {
        let name = entry.context("list", dir)?.file_name();
        numbers.extend(name.to_str().and_then(fence::parse_number));
    }
    Ok(numbers)
}
