//! Buffers that are used again, so that a frame costs no new memory.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

/// A bounded stock of buffers.
#[derive(Clone)]
pub(crate) struct Pool {
    give: Sender<Vec<u8>>,
    take: Receiver<Vec<u8>>,
}

impl Pool {
    /// Keeps at most this many.
    pub(crate) fn new(kept: usize) -> Self {
        let (give, take) = bounded(kept);
        Self { give, take }
    }

    /// An empty buffer.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut buffer = self.take.try_recv().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Gives one back; what is too many is freed.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        match self.give.try_send(buffer) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}
