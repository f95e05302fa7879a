//! An agent that answers what a test tells it to.

#![allow(clippy::unwrap_used, reason = "a fixture that fails ends its test where it stands")]

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{Method, Uri};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::net::UnixListener;

/// What the agent was asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Method and path.
    pub line: String,
    /// How often this line was asked before.
    pub nth: usize,
    /// The body.
    pub body: Vec<u8>,
}

/// What it answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// A status and a body.
    Whole(u16, Vec<u8>),
    /// The beginning of a body, after which the connection breaks.
    Broken(Vec<u8>),
    /// The beginning of a body that does not end.
    Open(Vec<u8>),
}

impl Answer {
    pub(crate) fn json(value: &Value) -> Self {
        Self::text(&value.to_string())
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::Whole(200, text.as_bytes().to_vec())
    }

    pub(crate) fn problem(status: u16, detail: &str) -> Self {
        let problem = json!({"type": "urn:nodus:problem:x", "title": "X", "status": status,
                             "detail": detail});
        Self::Whole(status, problem.to_string().into_bytes())
    }

    fn response(self) -> Response {
        let (status, body) = match self {
            Self::Whole(status, body) => (status, Body::from(body)),
            Self::Broken(bytes) => {
                (200, Body::new(Beginning { bytes: bytes.into(), then: Then::SendAndBreak }))
            }
            Self::Open(bytes) => {
                (200, Body::new(Beginning { bytes: bytes.into(), then: Then::Stay }))
            }
        };
        Response::builder().status(status).body(body).unwrap()
    }
}

/// A body that has a beginning only.
struct Beginning {
    bytes: Bytes,
    then: Then,
}

impl hyper::body::Body for Beginning {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if !self.bytes.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))));
        }
        match self.then {
            Then::Break => Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into()))),
            Then::SendAndBreak => {
                // What was given is written out while there is nothing more.
                self.then = Then::Break;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Then::Stay => Poll::Pending,
        }
    }
}

/// What follows the beginning.
#[derive(Clone, Copy)]
enum Then {
    SendAndBreak,
    Break,
    Stay,
}

type Decide = dyn Fn(&Request) -> Answer + Send + Sync;

/// A running agent; it ends with the process of the test.
pub(crate) struct Fake {
    socket: PathBuf,
    requests: Arc<Mutex<Vec<Request>>>,
    _dir: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Fake {
    pub(crate) fn new(decide: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let seen = requests.clone();
        let decide: Arc<Decide> = Arc::new(decide);
        let handler = move |method: Method, uri: Uri, body: Bytes| {
            let (seen, decide) = (seen.clone(), decide.clone());
            async move { answer(&seen, &*decide, format!("{method} {uri}"), &body) }
        };
        let router = axum::Router::new().fallback(handler);
        let listener = runtime.block_on(async { UnixListener::bind(&socket).unwrap() });
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { socket, requests, _dir: dir, _runtime: runtime }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn answer(seen: &Mutex<Vec<Request>>, decide: &Decide, line: String, body: &[u8]) -> Response {
    let request = {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = seen.iter().filter(|request| request.line == line).count();
        seen.push(Request { line, nth, body: body.to_vec() });
        seen.last().unwrap().clone()
    };
    decide(&request).response()
}
