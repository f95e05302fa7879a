//! A response whose body comes piece by piece.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

use crate::engine::Refusal;

/// Pieces that wait for the client; who makes them waits beyond that.
const WAITING: usize = 4;

/// Where the pieces of a body go; closed when the client has gone.
pub(super) type Sender = mpsc::Sender<Result<Bytes, Refusal>>;

/// Where they come from.
pub(super) type Receiver = mpsc::Receiver<Result<Bytes, Refusal>>;

pub(super) fn channel() -> (Sender, Receiver) {
    mpsc::channel(WAITING)
}

/// The body. It ends when every sender is gone; an error cuts the connection.
pub(super) struct Pieces {
    first: VecDeque<Bytes>,
    rest: Receiver,
}

impl Pieces {
    pub(super) fn new(pieces: Receiver) -> Self {
        Self { first: VecDeque::new(), rest: pieces }
    }

    /// With a piece that was looked at before the response was begun.
    pub(super) fn after(first: Bytes, rest: Receiver) -> Self {
        Self { first: VecDeque::from([first]), rest }
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        if let Some(first) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.rest.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl IntoResponse for Pieces {
    fn into_response(self) -> Response {
        Response::new(Body::new(self))
    }
}
