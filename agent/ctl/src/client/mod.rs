//! The control API of an agent, over its Unix socket.
//!
//! One connection a request: the calls of one command are few, and a connection that is never
//! reused cannot be found half closed.

mod api;
mod sse;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use nodus_protocol::control::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

pub use sse::Events;

use crate::error::{Error, Result};

/// For what an agent answers from memory.
const QUICK: Duration = Duration::from_secs(30);

/// The most that one JSON answer may have: far above a listing of every checkpoint of a job.
const MAX_ANSWER: usize = 64 << 20;

/// The agent behind one control socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// A body that arrives piece by piece.
#[derive(Debug)]
pub struct Stream {
    body: Incoming,
    socket: PathBuf,
    what: String,
    /// Its length in bytes, where the agent knew it beforehand.
    pub length: Option<u64>,
}

impl Client {
    /// Connects to nothing yet.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// A request whose answer is one JSON value.
    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        within: Duration,
    ) -> Result<T> {
        let what = format!("{method} {path}");
        let bytes = self.answer(method, path, body, within).await?;
        serde_json::from_slice(&bytes).map_err(|source| Error::Answer { what, source })
    }

    /// A request whose whole answer arrives within a time; what it says may be of no interest.
    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        within: Duration,
    ) -> Result<Bytes> {
        let what = format!("{method} {path}");
        let whole = async {
            let response = self.send(method, path, body).await?;
            self.collect(&what, response.into_body()).await
        };
        let late = |_| Error::Timeout { what: what.clone(), after: within };
        timeout(within, whole).await.map_err(late)?
    }

    /// A request whose answer has no end that could be waited for; only its beginning has a bound.
    async fn stream(&self, path: &str) -> Result<Stream> {
        let what = format!("{} {path}", Method::GET);
        let late = |_| Error::Timeout { what: what.clone(), after: QUICK };
        let response = timeout(QUICK, self.send(Method::GET, path, None)).await.map_err(late)??;
        let length = response.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Stream { body: response.into_body(), socket: self.socket.clone(), what, length })
    }

    /// Sends a request and returns the head of a successful answer.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>> {
        let what = format!("{method} {path}");
        let no_agent = |source| Error::NoAgent { socket: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(no_agent)?;
        let lost = |error: hyper::Error| self.lost(&what, error);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // Ends by itself when the sender and the body are gone; its error reaches us by them.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "nodus")
            .header(ACCEPT, "*/*")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .expect("paths are made of job names and numbers");
        let response = sender.send_request(request).await.map_err(lost)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = self.collect(&what, response.into_body()).await?;
        Err(Error::Problem(problem(&what, status.as_u16(), &bytes)))
    }

    async fn collect(&self, what: &str, body: Incoming) -> Result<Bytes> {
        match Limited::new(body, MAX_ANSWER).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(source) => {
                Err(Error::Lost { socket: self.socket.clone(), what: what.to_owned(), source })
            }
        }
    }

    fn lost(&self, what: &str, error: hyper::Error) -> Error {
        Error::Lost { socket: self.socket.clone(), what: what.to_owned(), source: error.into() }
    }
}

impl Stream {
    /// The next piece; `None` at the end that the agent meant to be the end.
    ///
    /// # Errors
    /// Where the agent went away before.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Error::Lost {
                socket: self.socket.clone(),
                what: self.what.clone(),
                source: error.into(),
            })?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// The problem in the body, or one made of the status where something else answered.
fn problem(what: &str, status: u16, body: &[u8]) -> Problem {
    serde_json::from_slice(body).unwrap_or_else(|_| Problem {
        kind: "about:blank".to_owned(),
        title: "No description".to_owned(),
        status,
        detail: format!("the agent answered {what} with status {status} and no description"),
    })
}

fn to_body<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the types of the control API are JSON")
}
