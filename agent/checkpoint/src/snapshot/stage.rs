//! Where a checkpoint is made before it has its name.

use std::path::{Path, PathBuf};

use crate::durable;
use crate::error::Result;
use crate::store::JobStore;

/// A directory that is removed again unless it became a checkpoint.
pub(crate) struct Staging {
    path: PathBuf,
    kept: bool,
}

impl Staging {
    pub(crate) fn create(store: &JobStore, seq: u64) -> Result<Self> {
        let dir = store.checkpoints_dir();
        let staged = tempfile::Builder::new().prefix(&format!(".{seq}-")).tempdir_in(&dir);
        let staged =
            staged.map_err(|error| durable::failed("create a directory in", &dir, error))?;
        Ok(Self { path: staged.keep(), kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the directory its name, as which it exists from then on.
    pub(crate) fn publish(mut self, path: &Path) -> Result<()> {
        durable::publish_dir(&self.path, path)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            // The next sweep tries again.
            tracing::warn!(path = %self.path.display(), %error, "cannot remove unfinished work");
        }
    }
}
