//! A client that was let in, as its connection sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodus_protocol::JobName;
use nodus_protocol::event::{AgentMessage, InvalidMessage};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client::{ClientEvent, ClientId, Peer};
use super::hub::EventsHub;
use super::outbox::{Outbox, Pending};
use super::seen::Seen;

/// A client that was let in; the hub forgets it when this is dropped.
pub(super) struct Member {
    pub(super) hub: EventsHub,
    pub(super) job: JobName,
    pub(super) client: ClientId,
    pub(super) peer: Peer,
    pub(super) events: mpsc::Sender<ClientEvent>,
    pub(super) seen: Arc<Mutex<Seen>>,
    /// Its place among the job's connections.
    pub(super) _connection: Arc<()>,
    pub(super) closing: CancellationToken,
    pub(super) outbox: Outbox,
    pub(super) pending: Option<Pending>,
    /// The job has heard of it.
    pub(super) known: bool,
}

impl Member {
    pub(super) fn job(&self) -> &JobName {
        &self.job
    }

    pub(super) fn client(&self) -> ClientId {
        self.client
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    pub(super) fn write_timeout(&self) -> Duration {
        self.hub.limits().write_timeout
    }

    /// Cancelled when the connection is to end.
    pub(super) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    pub(super) fn is_lost(&self) -> bool {
        self.outbox.is_lost()
    }

    /// What is to be written; there is one writer.
    pub(super) fn take_pending(&mut self) -> Option<Pending> {
        self.pending.take()
    }

    /// Whether the process has not sent this id before.
    pub(super) fn is_new(&self, id: &str) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_new(self.peer.pid, id)
    }

    pub(super) fn answer(&self, error: &InvalidMessage) {
        self.outbox.send(&AgentMessage::Error { message: error.to_string() });
    }

    /// Waits while the job has more to do than it keeps in its queue.
    pub(super) async fn tell_job(&mut self, event: ClientEvent) {
        self.known = true;
        // A job that no longer listens is about to be removed.
        let _ = self.events.send(event).await;
    }

    /// Nothing more can be sent to the client from here on, and its job hears that.
    pub(super) async fn leave(mut self) {
        self.hub.forget(self.client);
        if self.known {
            let client = self.client;
            self.tell_job(ClientEvent::Left { client }).await;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.hub.forget(self.client);
    }
}
