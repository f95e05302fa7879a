//! An HTTP client on the control socket.

use std::future::Future;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::{Child, Command};

/// Far more than anything here takes, so that passing it means that something hangs.
const BOUND: Duration = Duration::from_secs(60);

/// Where the relay connects to.
pub(crate) const RELAY_SOCKET: &str = "NODUS_CONTROL_RELAY_SOCKET";

const NOBODY: u32 = 65534;

pub(crate) async fn bounded<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, what).await.expect("it hangs")
}

/// One connection.
pub(crate) struct Client {
    sender: Option<SendRequest<Full<Bytes>>>,
    /// The process at this end, where it is another one. Ends when the client is dropped.
    process: Option<Child>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: hyper::HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer that comes piece by piece.
pub(crate) struct Stream {
    body: Incoming,
    seen: String,
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Self {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        Self { sender: Some(shake_hands(stream).await), process: None }
    }

    /// This test program again, as another user, which connects and passes everything on.
    pub(crate) fn of_another_user(socket: &Path) -> Self {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["relay_of_another_process", "--exact", "--ignored", "--nocapture"])
            .env(RELAY_SOCKET, socket)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { sender: None, process: Some(process) }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.request(Method::GET, path, None).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: Value) -> Answer {
        self.request(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn request(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        bounded(async {
            let response = self.send(method, path, body).await;
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answer { status: head.status.as_u16(), headers: head.headers, body }
        })
        .await
    }

    /// The beginning of an answer that may have no end.
    pub(crate) async fn open(&mut self, path: &str) -> Stream {
        let response = bounded(self.send(Method::GET, path, None)).await;
        assert_eq!(response.status(), 200);
        Stream { body: response.into_body(), seen: String::new() }
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Response<Incoming> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("host", "nodus");
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let sender = self.sender().await;
        sender.ready().await.unwrap();
        sender.send_request(request).await.unwrap()
    }

    async fn sender(&mut self) -> &mut SendRequest<Full<Bytes>> {
        if self.sender.is_none() {
            let process = self.process.as_mut().expect("a client without a connection is a relay");
            let (input, output) = (process.stdin.take().unwrap(), process.stderr.take().unwrap());
            self.sender = Some(shake_hands(tokio::io::join(output, input)).await);
        }
        self.sender.as_mut().expect("was just made")
    }
}

async fn shake_hands<T>(stream: T) -> SendRequest<Full<Bytes>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

impl Answer {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Stream {
    /// What comes until this text is there, with it; what follows it stays.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(self.more().await, "the stream ended after {:?}", self.seen);
        }
    }

    /// What comes until the end.
    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await {}
        std::mem::take(&mut self.seen)
    }

    async fn more(&mut self) -> bool {
        let Some(frame) = self.body.frame().await else { return false };
        let data = frame.unwrap().into_data().unwrap();
        self.seen.push_str(std::str::from_utf8(&data).unwrap());
        true
    }
}
