//! The jobs and their connected clients.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodus_protocol::JobName;
use nodus_protocol::event::AgentMessage;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{ClientEvent, ClientId, Peer, Via};
use super::member::Member;
use super::outbox::Outbox;
use super::seen::Seen;
use super::{Limits, connection};
use crate::socket::{BindError, Bound, Place};

/// Out of descriptors or memory: trying again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long a client may be unsettled, and how often it is looked at again.
const SETTLE_BOUND: Duration = Duration::from_secs(10);
const SETTLE_PAUSE: Duration = Duration::from_millis(20);

/// A socket is given up as soon as its task runs again.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Refused clients that are given time to read why, so that strangers cannot use up the
/// connections of the jobs.
const MAX_REFUSALS: usize = 64;

/// Whose a client is, from its process, its user and the socket it came through. Called on a task of
/// the client's own; it may read `/proc`, but must not wait.
pub type Resolver = Box<dyn Fn(Peer, &Via) -> Whose + Send + Sync>;

/// Whose a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Of this job.
    Job(JobName),
    /// Of none: a stranger.
    Nobody,
    /// It may be of a job whose attempt is being started, or being found again.
    Unsettled,
}

impl From<Option<JobName>> for Whose {
    fn from(job: Option<JobName>) -> Self {
        job.map_or(Self::Nobody, Self::Job)
    }
}

/// Sends to clients and hears from them; clones are the same hub.
#[derive(Clone)]
pub struct EventsHub {
    shared: Arc<Shared>,
}

struct Shared {
    resolver: Resolver,
    limits: Limits,
    state: Mutex<State>,
    /// One permit for each connection that was let in or is being judged.
    connections: Arc<Semaphore>,
    /// One permit for each refused client that is given time to read why.
    refusals: Semaphore,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    jobs: HashMap<JobName, Job>,
    clients: HashMap<ClientId, Outbox>,
    next_client: u64,
    /// For each job's socket, what is cancelled once it is given up.
    sockets: HashMap<JobName, Arc<CancellationToken>>,
}

/// A job's own socket; dropped once it is given up, or could not be had.
struct Served {
    hub: EventsHub,
    job: JobName,
    given_up: Arc<CancellationToken>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.given_up.cancel();
        let mut state = self.hub.state();
        // A later job of the same name may have its own by now.
        if state.sockets.get(&self.job).is_some_and(|newest| Arc::ptr_eq(newest, &self.given_up)) {
            state.sockets.remove(&self.job);
        }
    }
}

struct Job {
    events: mpsc::Sender<ClientEvent>,
    seen: Arc<Mutex<Seen>>,
    /// Each client holds one of its clones.
    connections: Arc<()>,
    stop: CancellationToken,
}

/// Why a client is sent away.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("cannot tell which process this is: {0}")]
    Nameless(String),
    #[error("process {pid} of user {uid} belongs to no job of this agent")]
    Stranger { pid: u32, uid: u32 },
    #[error("job {job} has {limit} connections to the events socket, the most that are allowed")]
    TooMany { job: JobName, limit: usize },
}

/// Why a job got no socket of its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobSocketError {
    /// The job was not added, or was removed.
    #[error("the events server has no job {0}")]
    NoSuchJob(JobName),
    /// The socket could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl EventsHub {
    /// A hub without jobs.
    #[must_use]
    pub fn new(resolver: Resolver, limits: Limits) -> Self {
        let shared = Shared {
            resolver,
            limits,
            state: Mutex::default(),
            connections: Arc::new(Semaphore::new(limits.connections)),
            refusals: Semaphore::new(MAX_REFUSALS),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lets clients of this job in and gives what they say. A job of the same name that was there
    /// is removed first.
    ///
    /// Dropping the receiver makes the job deaf; [`Self::remove_job`] also lets its clients go.
    pub fn add_job(&self, name: JobName) -> mpsc::Receiver<ClientEvent> {
        let (events, receiver) = mpsc::channel(self.shared.limits.job_queue);
        let job = Job {
            events,
            seen: Arc::new(Mutex::new(Seen::new(self.shared.limits.seen_ids))),
            connections: Arc::new(()),
            stop: self.shared.stop.child_token(),
        };
        let replaced = self.state().jobs.insert(name, job);
        if let Some(replaced) = replaced {
            replaced.stop.cancel();
        }
        receiver
    }

    /// Ends the job's connections, after what waits for them is written, and its own socket.
    pub fn remove_job(&self, name: &JobName) {
        if let Some(job) = self.state().jobs.remove(name) {
            job.stop.cancel();
        }
    }

    /// Queues a message for a client and returns at once; `false` where it has left, or is dropped
    /// now because it does not read. The job hears `Left` of it in either case.
    pub fn send(&self, client: ClientId, message: &AgentMessage) -> bool {
        self.state().clients.get(&client).is_some_and(|outbox| outbox.send(message))
    }

    /// Serves a socket for one job until the job is removed. A socket of an earlier job of this name
    /// that is still being given up is waited for.
    ///
    /// # Errors
    /// Where the job is not known, or the socket cannot be bound.
    pub async fn bind_job_socket(
        &self,
        name: &JobName,
        place: Place,
    ) -> Result<(), JobSocketError> {
        let unknown = || JobSocketError::NoSuchJob(name.clone());
        let stop = self.state().jobs.get(name).map(|job| job.stop.clone()).ok_or_else(unknown)?;
        let served = Served { hub: self.clone(), job: name.clone(), given_up: Arc::default() };
        let earlier = self.state().sockets.insert(name.clone(), Arc::clone(&served.given_up));
        if let Some(earlier) = earlier {
            // If it is not given up in time, binding says that it is in use.
            let _ = tokio::time::timeout(GIVE_UP, earlier.cancelled()).await;
        }
        let bound = Bound::bind(place).await?;
        self.shared.tasks.spawn(async move {
            served.hub.serve(bound, Via::Job(served.job.clone()), stop).await;
            drop(served);
        });
        Ok(())
    }

    /// Takes clients from a socket until told to stop; the socket is removed then. Clients that
    /// are connected stay.
    pub async fn serve(&self, mut bound: Bound, via: Via, stop: CancellationToken) {
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                () = self.shared.stop.cancelled() => return,
                accepted = bound.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
                    failing = false;
                    self.take(stream, via.clone());
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "cannot accept a client; trying again");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Ends every connection and socket, and waits for that, at most for `grace`. Returns how many
    /// were still busy then.
    pub async fn close(&self, grace: Duration) -> usize {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        // What is left is counted either way.
        let _ = tokio::time::timeout(grace, self.shared.tasks.wait()).await;
        self.shared.tasks.len()
    }

    fn take(&self, stream: UnixStream, via: Via) {
        let Ok(permit) = Arc::clone(&self.shared.connections).try_acquire_owned() else {
            let limit = self.shared.limits.connections;
            tracing::warn!(limit, "too many connections to the events socket; one was refused");
            let reason = format!("the agent has {limit} connections, the most that are allowed");
            connection::try_refuse(&stream, &reason);
            return;
        };
        let hub = self.clone();
        self.shared.tasks.spawn(async move { hub.handle(stream, &via, permit).await });
    }

    async fn handle(&self, stream: UnixStream, via: &Via, permit: OwnedSemaphorePermit) {
        let admitted = match connection::peer_of(&stream) {
            Ok(peer) => self.admit(peer, via).await,
            Err(error) => Err(Refusal::Nameless(error.to_string())),
        };
        match admitted {
            Ok(member) => connection::run(member, stream).await,
            Err(refusal) => {
                drop(permit);
                tracing::info!(reason = %refusal, "refused a client of the events socket");
                self.refuse(stream, &refusal.to_string()).await;
            }
        }
    }

    async fn refuse(&self, stream: UnixStream, reason: &str) {
        connection::try_refuse(&stream, reason);
        if let Ok(_permit) = self.shared.refusals.try_acquire() {
            connection::dismiss(stream).await;
        }
    }

    /// Whose the client is, once that can be said: a quick program connects before the start of its
    /// attempt is known here.
    async fn whose(&self, peer: Peer, via: &Via) -> Option<JobName> {
        let until = Instant::now() + SETTLE_BOUND;
        loop {
            match (self.shared.resolver)(peer, via) {
                Whose::Job(name) => return Some(name),
                Whose::Unsettled if Instant::now() < until => sleep(SETTLE_PAUSE).await,
                Whose::Unsettled | Whose::Nobody => return None,
            }
        }
    }

    async fn admit(&self, peer: Peer, via: &Via) -> Result<Member, Refusal> {
        let stranger = || Refusal::Stranger { pid: peer.pid, uid: peer.uid };
        let name = self.whose(peer, via).await.ok_or_else(stranger)?;
        let limits = &self.shared.limits;
        let mut state = self.state();
        let job = state.jobs.get(&name).ok_or_else(stranger)?;
        // The job's own handle is not a client's.
        if Arc::strong_count(&job.connections) > limits.connections_per_job {
            return Err(Refusal::TooMany { job: name, limit: limits.connections_per_job });
        }
        let closing = job.stop.child_token();
        let (outbox, pending) = Outbox::new(limits, closing.clone());
        let member = Member {
            hub: self.clone(),
            job: name,
            client: ClientId(state.next_client),
            peer,
            events: job.events.clone(),
            seen: Arc::clone(&job.seen),
            _connection: Arc::clone(&job.connections),
            closing,
            outbox: outbox.clone(),
            pending: Some(pending),
            known: false,
        };
        state.next_client += 1;
        state.clients.insert(member.client, outbox);
        Ok(member)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Nothing more can be sent to the client.
    pub(super) fn forget(&self, client: ClientId) {
        self.state().clients.remove(&client);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds it can leave it half changed.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EventsHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("EventsHub")
            .field("jobs", &state.jobs.len())
            .field("clients", &state.clients.len())
            .finish_non_exhaustive()
    }
}
