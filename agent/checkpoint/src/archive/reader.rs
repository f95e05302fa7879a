//! Frames, read back and checked.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Context as _, Error, Result};
use crate::format::{FrameRef, Hash, MAX_FRAME};
use crate::store::JobStore;

/// Archives that stay open; more than a restore of one checkpoint usually needs.
const OPEN_ARCHIVES: usize = 64;

/// Reads frames of a job's archives; any number of threads may share one.
pub struct FrameReader {
    store: JobStore,
    open: Mutex<HashMap<u64, Arc<File>>>,
}

impl FrameReader {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(store: &JobStore) -> Self {
        Self { store: store.clone(), open: Mutex::default() }
    }

    /// The frame's content, which has the length and the hash that the manifest gave it.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it has not, naming the archive that it is in.
    pub fn read(&self, frame: &FrameRef) -> Result<Vec<u8>> {
        decode(frame, &self.read_stored(frame)?)
    }

    /// The frame as it is stored, unchecked.
    ///
    /// # Errors
    /// [`Error::Damaged`] where the archive is missing or too short.
    pub fn read_stored(&self, frame: &FrameRef) -> Result<Vec<u8>> {
        if frame.stored > MAX_FRAME || frame.len > MAX_FRAME {
            return Err(damaged(frame, &format!("larger than the {MAX_FRAME} bytes allowed")));
        }
        let file = self.archive(frame)?;
        let mut stored = vec![0; usize::try_from(frame.stored).expect("limited above")];
        match file.read_exact_at(&mut stored, frame.at) {
            Ok(()) => Ok(stored),
            Err(error) if is_loss(&error) => Err(damaged(frame, &error.to_string())),
            Err(error) => Err(Error::io("read", self.path(frame), error)),
        }
    }

    fn archive(&self, frame: &FrameRef) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&frame.seq) {
            return Ok(Arc::clone(file));
        }
        let path = self.path(frame);
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(frame, "the archive is missing"));
            }
            file => Arc::new(file.context("open", &path)?),
        };
        if open.len() >= OPEN_ARCHIVES {
            open.clear();
        }
        open.insert(frame.seq, Arc::clone(&file));
        Ok(file)
    }

    fn path(&self, frame: &FrameRef) -> PathBuf {
        self.store.archive_path(frame.seq)
    }
}

/// What comes out of a frame as it is stored, with the length and the hash that it must have.
pub(crate) fn decode(frame: &FrameRef, stored: &[u8]) -> Result<Vec<u8>> {
    let wrong = |why: String| damaged(frame, &why);
    let length = usize::try_from(frame.len).map_err(|error| wrong(error.to_string()))?;
    let content =
        zstd::bulk::decompress(stored, length).map_err(|error| wrong(error.to_string()))?;
    if content.len() != length {
        return Err(wrong(format!("{} bytes instead of {length}", content.len())));
    }
    if Hash::of(&content) != frame.hash {
        return Err(wrong("its BLAKE3 is another".to_owned()));
    }
    Ok(content)
}

/// Errors that mean that the bytes are gone, not that the store is away for now.
fn is_loss(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::UnexpectedEof
        || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

fn damaged(frame: &FrameRef, why: &str) -> Error {
    let what = format!("frame at {} of its archive: {why}", frame.at);
    Error::Damaged { seq: frame.seq, what }
}
