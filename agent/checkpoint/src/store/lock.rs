//! The lock of the one live writer, and what is cleaned under it.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

use super::{JobStore, names_in};
use crate::durable::{self, GRAVE};
use crate::error::{Context as _, Result};

const LOCK: &str = ".lock";

/// Held by the process that may write the job's checkpoints; the kernel frees it with the process.
#[derive(Debug)]
pub struct WriterLock(#[expect(dead_code, reason = "closing it is what unlocks")] File);

impl JobStore {
    /// Takes the lock of the job's writer; `None` where a live process has it.
    ///
    /// # Errors
    /// Where the lock file cannot be opened.
    pub fn lock(&self) -> Result<Option<WriterLock>> {
        let path = self.dir().join(LOCK);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|error| durable::failed("open", &path, error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(WriterLock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).context("lock", &path),
        }
    }

    /// Removes what is left of jobs whose deletion was cut off. No lock is needed: nothing has
    /// those names any more.
    ///
    /// # Errors
    /// Where something could not be removed.
    pub fn sweep_deleted(store_root: &Path) -> Result<()> {
        let jobs = store_root.join("jobs");
        for name in names_in(&jobs)?.iter().filter(|name| name.starts_with(GRAVE)) {
            let path = jobs.join(name);
            match std::fs::remove_dir_all(&path) {
                // Another process finishes its own deletion at the same time.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => removed.context("remove", &path)?,
            }
        }
        Ok(())
    }

    /// Removes what a writer that is gone left unfinished; says how many things that were.
    ///
    /// The lock shows that no other writer of this node is at work; one of another node that is
    /// only cut off loses its staging, which could never have become visible.
    ///
    /// # Errors
    /// Where something could not be removed.
    pub fn sweep(&self, _lock: &WriterLock) -> Result<usize> {
        let mut removed = 0;
        for dir in [self.dir().to_owned(), self.dir().join("epochs"), self.checkpoints_dir()] {
            for entry in std::fs::read_dir(&dir).context("list", &dir)? {
                let entry = entry.context("list", &dir)?;
                let name = entry.file_name();
                if !name.as_encoded_bytes().starts_with(b".") || name == LOCK {
                    continue;
                }
                let path = entry.path();
                let is_dir = entry.file_type().context("look at", &path)?.is_dir();
                let gone = if is_dir {
                    std::fs::remove_dir_all(&path)
                } else {
                    std::fs::remove_file(&path)
                };
                gone.context("remove", &path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}
