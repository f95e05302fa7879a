//! The checkpoints of a job.

use std::io;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use nodus_checkpoint::Control;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::CheckpointInfo;
use nodus_protocol::control::{RestoreDone, RestoreTo, VerifyDone};

use super::Api;
use super::problem::Failure;
use super::request::{At, Body, Who};
use super::routes::{LISTING, within};
use super::stream::{self, Pieces};

/// Bytes of an export that are sent at once.
const PIECE: usize = 256 * 1024;

pub(super) async fn list(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<Json<Vec<CheckpointInfo>>, Failure> {
    Ok(Json(within(LISTING, "the store", api.engine.checkpoints(&caller, &name)).await?))
}

pub(super) async fn info(
    State(api): State<Api>,
    Who(caller): Who,
    At((name, seq)): At<(JobName, u64)>,
) -> Result<Json<CheckpointInfo>, Failure> {
    let found = api.engine.checkpoint_info(&caller, &name, seq);
    Ok(Json(within(LISTING, "the store", found).await?))
}

pub(super) async fn delete(
    State(api): State<Api>,
    Who(caller): Who,
    At((name, seq)): At<(JobName, u64)>,
) -> Result<StatusCode, Failure> {
    within(LISTING, "the store", api.engine.delete_checkpoint(&caller, &name, seq)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends early when the client goes away.
pub(super) async fn verify(
    State(api): State<Api>,
    Who(caller): Who,
    At((name, seq)): At<(JobName, u64)>,
) -> Result<Json<VerifyDone>, Failure> {
    let cancel = CancelOnDrop::default();
    Ok(Json(api.engine.verify(&caller, &name, seq, cancel.control()).await?))
}

/// Ends early when the client goes away; the directory is then as it was before.
pub(super) async fn restore(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
    Body(wanted): Body<RestoreTo>,
) -> Result<Json<RestoreDone>, Failure> {
    let cancel = CancelOnDrop::default();
    Ok(Json(api.engine.restore(&caller, &name, wanted, cancel.control()).await?))
}

/// The checkpoint as one `.tar.zst`. A failure in its middle ends the connection before the end of
/// the body, so that no client takes the part for the whole.
pub(super) async fn export(
    State(api): State<Api>,
    Who(caller): Who,
    At((name, seq)): At<(JobName, u64)>,
) -> Result<Response, Failure> {
    let (sender, mut pieces) = stream::channel();
    let (engine, exported) = (api.engine.clone(), name.clone());
    api.tasks.spawn(async move {
        let cancel = CancelOnDrop::default();
        let out = Out { sender: sender.clone(), buffer: BytesMut::new() };
        let export = engine.export(&caller, &exported, seq, out, cancel.control());
        let ended = tokio::select! {
            ended = export => ended,
            // Ends the writing thread as well: its control is cancelled on the way out.
            () = api.stop.cancelled() => Err(crate::engine::Refusal::stopping()),
        };
        if let Err(refusal) = ended {
            // Where the client is gone, nobody is there to be told.
            let _ = sender.send(Err(refusal)).await;
        }
    });
    let first = pieces.recv().await.unwrap_or(Ok(Bytes::new()))?;
    let disposition = format!("attachment; filename=\"{name}-{seq}.tar.zst\"");
    let mut response = Pieces::after(first, pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

/// Asks an operation to stop when the request that waits for it is over.
#[derive(Default)]
struct CancelOnDrop(Control);

impl CancelOnDrop {
    fn control(&self) -> Control {
        self.0.clone()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Writes into a response, from a thread that may wait.
struct Out {
    sender: stream::Sender,
    buffer: BytesMut,
}

impl Out {
    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = self.buffer.split().freeze();
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone");
        self.sender.blocking_send(Ok(piece)).map_err(gone)
    }
}

impl io::Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // The end of an export that succeeded; of one that failed, nobody wants it.
        let _ = self.send();
    }
}
