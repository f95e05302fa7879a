//! Which path is answered by what, and how long that may take.

use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use nodus_protocol::control::ProblemCode;
use serde_json::{Value, json};

use super::problem::{Failure, no_endpoint, no_method};
use super::request::Identity;
use super::{Api, checkpoints, events, jobs, logs};
use crate::engine::{Caller, Refusal};

/// For what is answered from memory or with one small write.
pub(super) const QUICK: Duration = Duration::from_secs(20);

/// For what may read all commit records of a job.
pub(super) const LISTING: Duration = Duration::from_secs(110);

/// A healthy engine answers at once; the watchdog acts a little later.
const HEALTHY: Duration = Duration::from_secs(5);

/// Everything that one client can ask.
pub(super) fn router(api: Api, caller: Result<Caller, Refusal>) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/v1/jobs", get(jobs::list).post(jobs::submit))
        .route("/v1/jobs/{name}", get(jobs::detail).delete(jobs::delete))
        .route("/v1/jobs/{name}/suspend", post(jobs::suspend))
        .route("/v1/jobs/{name}/resume", post(jobs::resume))
        .route("/v1/jobs/{name}/stop", post(jobs::stop))
        .route("/v1/jobs/{name}/checkpoint", post(jobs::checkpoint))
        .route("/v1/jobs/{name}/logs", get(logs::logs))
        .route("/v1/jobs/{name}/events", get(events::events))
        .route("/v1/jobs/{name}/restore", post(checkpoints::restore))
        .route("/v1/jobs/{name}/checkpoints", get(checkpoints::list))
        .route("/v1/jobs/{name}/checkpoints/{seq}", get(checkpoints::info))
        .route("/v1/jobs/{name}/checkpoints/{seq}", delete(checkpoints::delete))
        .route("/v1/jobs/{name}/checkpoints/{seq}/verify", post(checkpoints::verify))
        .route("/v1/jobs/{name}/checkpoints/{seq}/export", get(checkpoints::export))
        .route("/v1/notices", post(jobs::notice))
        .fallback(no_endpoint)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(api.options.request_body))
        .layer(Extension(Identity(caller)))
        .with_state(api)
}

async fn health(State(api): State<Api>) -> Result<Json<Value>, Failure> {
    let touched = async {
        api.engine.touch().await;
        Ok(())
    };
    within(HEALTHY, "the engine", touched).await?;
    Ok(Json(json!({"status": "ok"})))
}

/// Bounds what is answered with a value. What goes on without the client is the engine's affair.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    answer: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => {
            let detail = format!("{what} did not answer within {} s", limit.as_secs());
            Err(Failure::new(ProblemCode::StoreUnavailable, detail))
        }
    }
}
