//! The control API: HTTP and JSON over the control socket, for `nodusctl` and whoever else.
//!
//! The socket's peer credentials say who asks; users see and control their own jobs, and the answer
//! about another's job is that there is none. Errors are problems as RFC 9457 describes them.
//! What is asked is done by the [`Engine`]; here are only the way in, its limits, and the way out.

mod caller;
mod checkpoints;
mod events;
mod jobs;
mod logs;
mod places;
mod problem;
mod request;
mod routes;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use places::{Places, Seat};

use crate::config::Settings;
use crate::engine::Engine;
use crate::socket::Bound;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// How long requests that can end may take to do so when the agent stops.
const GRACE: Duration = Duration::from_secs(3);

/// Out of descriptors or memory: trying again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What the operator decides about the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The group whose members see and control every job.
    pub operators: Option<String>,
    /// Bytes of one request's body.
    pub request_body: usize,
}

impl From<&Settings> for Options {
    fn from(settings: &Settings) -> Self {
        Self { operators: settings.operators.clone(), request_body: settings.limits.request_body }
    }
}

/// What every request can use.
#[derive(Clone)]
struct Api {
    engine: Engine,
    options: Arc<Options>,
    /// Ends the streams that have no end of their own.
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Serves the API until told to stop; returns once the requests under way are over, or soon after.
pub async fn serve(engine: Engine, mut socket: Bound, options: Options, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let api = Api { engine, options: Arc::new(options), stop: stop.clone(), tasks: tasks.clone() };
    let places = Places::default();
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                failing = false;
                match stream.peer_cred().map(|peer| places.take(peer.uid())) {
                    Ok(Ok(seat)) => drop(tasks.spawn(connection(api.clone(), stream, seat))),
                    Ok(Err(full)) => problem::refuse_connection(&stream, full),
                    Err(error) => tracing::warn!(%error, "cannot tell who a client is; refused"),
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept a client of the control API; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(socket);
    tasks.close();
    if tokio::time::timeout(GRACE, tasks.wait()).await.is_err() {
        tracing::warn!(
            unfinished = tasks.len(),
            "control requests still busy when the agent stopped"
        );
    }
}

/// Serves the requests of one client, one after another.
async fn connection(api: Api, stream: UnixStream, _seat: Seat) {
    let caller = caller::of(&stream, api.options.operators.clone()).await;
    let stop = api.stop.clone();
    let service = TowerToHyperService::new(routes::router(api, caller));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Mostly a client that went away.
        tracing::debug!(%error, "a connection to the control API ended early");
    }
}
