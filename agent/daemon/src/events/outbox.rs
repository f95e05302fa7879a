//! What waits to be written to one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nodus_protocol::event::AgentMessage;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Limits;

/// The sending end; writing never waits.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    lines: mpsc::Sender<String>,
    shared: Arc<Shared>,
}

/// The receiving end, which one task empties into the socket.
#[derive(Debug)]
pub(super) struct Pending {
    lines: mpsc::Receiver<String>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: AtomicUsize,
    max_bytes: usize,
    /// The client did not read, or is not there: nothing more is written.
    lost: AtomicBool,
    /// Ends the connection.
    closing: CancellationToken,
}

impl Shared {
    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.closing.cancel();
    }
}

impl Outbox {
    /// An empty one; `closing` is cancelled when the client is lost.
    pub(super) fn new(limits: &Limits, closing: CancellationToken) -> (Self, Pending) {
        let (sender, lines) = mpsc::channel(limits.outbox_messages);
        let shared = Arc::new(Shared {
            bytes: AtomicUsize::new(0),
            max_bytes: limits.outbox_bytes,
            lost: AtomicBool::new(false),
            closing,
        });
        (Self { lines: sender, shared: Arc::clone(&shared) }, Pending { lines, shared })
    }

    /// Queues a message; `false` where the client is gone, or is dropped now since it has let too
    /// much pile up.
    pub(super) fn send(&self, message: &AgentMessage) -> bool {
        if self.is_lost() {
            return false;
        }
        let line = message.to_line();
        let waiting = self.shared.bytes.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        let queued = waiting <= self.shared.max_bytes && self.lines.try_send(line).is_ok();
        if !queued {
            self.shared.lose();
        }
        queued
    }

    pub(super) fn is_lost(&self) -> bool {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Pending {
    /// Writes until every [`Outbox`] is gone and the queue is empty, or the client is lost.
    ///
    /// Each message has its own time limit. A peer that is gone is an ordinary end.
    pub(super) async fn write_to(mut self, mut socket: OwnedWriteHalf, limit: Duration) {
        while let Some(line) = self.lines.recv().await {
            let written = timeout(limit, socket.write_all(line.as_bytes())).await;
            self.shared.bytes.fetch_sub(line.len(), Ordering::Relaxed);
            if self.shared.lost.load(Ordering::Relaxed) || !matches!(written, Ok(Ok(()))) {
                self.shared.lose();
                return;
            }
        }
        // Fails only where the peer is gone already.
        let _ = socket.shutdown().await;
    }
}
