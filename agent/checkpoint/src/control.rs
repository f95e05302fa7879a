//! Stopping a long operation, and seeing how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A handle on one operation, shared with whoever waits for it.
#[derive(Clone, Debug, Default)]
pub struct Control(Arc<State>);

#[derive(Debug, Default)]
struct State {
    cancelled: AtomicBool,
    files: AtomicU64,
    done: AtomicU64,
    /// 0 where it is not known yet.
    total: AtomicU64,
}

impl Control {
    /// For an operation that has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the operation to stop; it ends with [`Error::Cancelled`] soon after.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// To be called by the operation between pieces of work.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once it is to stop.
    pub fn check(&self) -> Result<()> {
        if self.0.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Says that so many more bytes are done.
    pub fn progress(&self, bytes: u64) {
        self.0.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says how many bytes there are in all.
    pub fn expect(&self, bytes: u64) {
        self.0.total.store(bytes, Ordering::Relaxed);
    }

    /// Says that so many bytes more turned up that have to be done.
    pub fn expect_more(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says that one more entry is done.
    pub fn add_file(&self) {
        self.0.files.fetch_add(1, Ordering::Relaxed);
    }

    /// Entries done so far.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.0.files.load(Ordering::Relaxed)
    }

    /// Bytes done so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Bytes in all, where known.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        Some(self.0.total.load(Ordering::Relaxed)).filter(|&total| total > 0)
    }
}
