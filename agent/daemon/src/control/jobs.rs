//! Jobs, and what can be done with one.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use nodus_protocol::JobName;
use nodus_protocol::control::{CheckpointDone, CheckpointNow, JobDetail, JobInfo, Notice, Submit};

use super::Api;
use super::problem::Failure;
use super::request::{At, Body, Who};
use super::routes::{LISTING, QUICK, within};
use crate::engine::Refusal;

/// A notice is refused at once or taken; what it leads to is not waited for.
const NOTICE_TAKEN: Duration = Duration::from_millis(200);

pub(super) async fn list(State(api): State<Api>, Who(caller): Who) -> Json<Vec<JobInfo>> {
    Json(api.engine.list(&caller))
}

pub(super) async fn submit(
    State(api): State<Api>,
    Who(caller): Who,
    Body(submit): Body<Submit>,
) -> Result<(StatusCode, Json<JobInfo>), Failure> {
    // It writes the job's record.
    let submitted = tokio::task::spawn_blocking(move || api.engine.submit(&caller, submit));
    let info = within(QUICK, "the agent's state directory", joined(submitted)).await?;
    Ok((StatusCode::CREATED, Json(info)))
}

pub(super) async fn detail(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<Json<JobDetail>, Failure> {
    Ok(Json(api.engine.detail(&caller, &name)?))
}

pub(super) async fn delete(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<StatusCode, Failure> {
    within(LISTING, "the job", api.engine.delete(&caller, &name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// As long as the program and the copy take: both have their own bounds.
pub(super) async fn suspend(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<Json<CheckpointDone>, Failure> {
    Ok(Json(api.engine.suspend(&caller, &name).await?))
}

pub(super) async fn resume(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<Json<JobInfo>, Failure> {
    Ok(Json(within(QUICK, "the job", api.engine.resume(&caller, &name)).await?))
}

/// As long as the program may take to end, and its last copy.
pub(super) async fn stop(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<Json<CheckpointDone>, Failure> {
    Ok(Json(api.engine.stop(&caller, &name).await?))
}

/// As long as the program and the copy take: both have their own bounds.
pub(super) async fn checkpoint(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
    Body(CheckpointNow { urgent }): Body<CheckpointNow>,
) -> Result<Json<CheckpointDone>, Failure> {
    Ok(Json(api.engine.checkpoint(&caller, &name, urgent).await?))
}

pub(super) async fn notice(
    State(api): State<Api>,
    Who(caller): Who,
    Body(notice): Body<Notice>,
) -> Result<StatusCode, Failure> {
    let engine = api.engine.clone();
    // Goes on when the client has gone.
    let mut given = api.tasks.spawn(async move { engine.notice(&caller, &notice).await });
    tokio::select! {
        ended = joined(&mut given) => ended?,
        () = tokio::time::sleep(NOTICE_TAKEN) => {}
    }
    Ok(StatusCode::ACCEPTED)
}

/// The answer of a task of its own.
pub(super) async fn joined<T>(
    task: impl Future<Output = Result<Result<T, Refusal>, tokio::task::JoinError>>,
) -> Result<T, Refusal> {
    use nodus_protocol::control::ProblemCode::Internal;
    task.await.unwrap_or_else(|panic| Err(Refusal::new(Internal, panic.to_string())))
}
