//! What the program of an attempt wrote.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use nodus_protocol::JobName;
use nodus_protocol::control::{JobDetail, ProblemCode};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::Api;
use super::problem::Failure;
use super::request::{Asked, At, Who};
use super::stream::{self, Pieces, Sender};
use crate::attempt::log::Follow;
use crate::engine::Refusal;
use crate::job::{JobHandle, log_path};

/// Between two looks for the log of an attempt that is just being started.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// The newest where absent.
    attempt: Option<u32>,
    /// Go on until the attempt is over.
    #[serde(default)]
    follow: bool,
}

pub(super) async fn logs(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
    Asked(which): Asked<Which>,
) -> Result<Response, Failure> {
    let job = api.engine.job(&caller, &name)?;
    let newest = job.detail().info.attempt;
    let attempt = which.attempt.unwrap_or(newest.max(1));
    if attempt == 0 || attempt > newest.max(1) {
        let detail = format!("job {name} has no attempt {attempt}; its newest is {newest}");
        return Err(Failure::new(ProblemCode::NotFound, detail));
    }
    let ended = CancellationToken::new();
    if !which.follow {
        ended.cancel();
    }
    let (sender, pieces) = stream::channel();
    api.tasks.spawn(async move {
        let path = log_path(&job.place, attempt);
        let read = tokio::select! {
            read = read(&path, ended.clone(), &sender) => read,
            () = until_over(&job, attempt, &ended, &api.stop) => Ok(()),
            () = sender.closed() => Ok(()),
        };
        if let Err(error) = read {
            let detail = format!("cannot read the log of attempt {attempt}: {error}");
            // Where the client is gone, nobody is there to be told.
            let _ = sender.send(Err(Refusal::new(ProblemCode::Internal, detail))).await;
        }
    });
    let mut response = Pieces::new(pieces).into_response();
    let content_type = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// Says when the attempt is over or the agent stops; never returns, since the reader has to reach
/// the end of what was written.
async fn until_over(
    job: &JobHandle,
    attempt: u32,
    ended: &CancellationToken,
    stop: &CancellationToken,
) {
    tokio::select! {
        // A job that is gone counts as over as well.
        _ = job.until(|detail| is_over(detail, attempt)) => {}
        () = stop.cancelled() => {}
    }
    ended.cancel();
    std::future::pending::<()>().await;
}

/// Whether nothing more will be written by the attempt.
fn is_over(detail: &JobDetail, attempt: u32) -> bool {
    detail.info.attempt > attempt
        || detail.info.phase.is_finished()
        || detail.attempts.iter().any(|info| info.number == attempt && info.ended.is_some())
}

async fn read(path: &Path, ended: CancellationToken, client: &Sender) -> io::Result<()> {
    let Some(mut log) = open(path, &ended).await? else { return Ok(()) };
    while let Some(bytes) = log.next().await? {
        if client.send(Ok(bytes)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// An attempt that was never started has no log.
async fn open(path: &Path, ended: &CancellationToken) -> io::Result<Option<Follow>> {
    loop {
        let last = ended.is_cancelled();
        match Follow::open(path, 0, ended.clone()).await {
            Ok(log) => return Ok(Some(log)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if last => return Ok(None),
            Err(_) => {
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tempfile::TempDir;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_log_is_followed_from_before_its_first_byte_to_after_its_last() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("output.log");
        let (ended, (sender, mut pieces)) = (CancellationToken::new(), stream::channel());
        let reading = {
            let (path, ended) = (path.clone(), ended.clone());
            tokio::spawn(async move { read(&path, ended, &sender).await })
        };
        let mut file = std::fs::File::create(&path).unwrap();
        for line in ["one\n", "two\n"] {
            file.write_all(line.as_bytes()).unwrap();
            let piece = timeout(SOON, pieces.recv()).await.unwrap().unwrap().unwrap();
            assert_eq!(piece, line);
        }
        file.write_all(b"last\n").unwrap();
        ended.cancel();
        let piece = timeout(SOON, pieces.recv()).await.unwrap().unwrap().unwrap();
        assert_eq!(piece, "last\n");
        assert!(timeout(SOON, pieces.recv()).await.unwrap().is_none());
        reading.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_attempt_without_a_log_has_nothing_to_show() {
        let dir = TempDir::new().unwrap();
        let (ended, (sender, _pieces)) = (CancellationToken::new(), stream::channel());
        ended.cancel();
        let path = dir.path().join("output.log");
        timeout(SOON, read(&path, ended, &sender)).await.unwrap().unwrap();
    }
}
