//! Errors as problems (RFC 9457).

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use nodus_protocol::control::{Problem, ProblemCode};
use tokio::net::UnixStream;

use super::places::Full;
use crate::engine::Refusal;

/// What a handler answers where it cannot do what was asked.
#[derive(Debug)]
pub(super) struct Failure(pub(super) Problem);

impl Failure {
    pub(super) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail))
    }

    /// The same kind of problem under a status that says more.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self(Problem { status: status.as_u16(), ..self.0 })
    }
}

impl From<Refusal> for Failure {
    fn from(Refusal(problem): Refusal) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(
                problem = self.0.kind,
                detail = self.0.detail,
                "a control request failed"
            );
        }
        let mut response = Response::new(Body::from(text(&self.0)));
        *response.status_mut() = status;
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

fn text(problem: &Problem) -> String {
    serde_json::to_string(problem).expect("strings and a number only")
}

/// Nothing is at this path.
pub(super) async fn no_endpoint(uri: Uri) -> Failure {
    let detail = format!("the control API has no {}; it is versioned under /v1", uri.path());
    Failure::new(ProblemCode::NotFound, detail)
}

/// Something is at this path, but not for this method.
pub(super) async fn no_method(method: Method, uri: Uri) -> Failure {
    let detail = format!("{method} is not possible on {}", uri.path());
    Failure::new(ProblemCode::Invalid, detail).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Answers without a task or a buffer: there are too many already. The socket of a new client has
/// room for it.
pub(super) fn refuse_connection(stream: &UnixStream, full: Full) {
    tracing::warn!(reason = %full, "refused a connection to the control API");
    let problem = Problem { status: 503, ..Problem::new(ProblemCode::Conflict, full.to_string()) };
    let body = text(&problem);
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // A client that is gone already does not miss it.
    let _ = stream.try_write(answer.as_bytes());
}
