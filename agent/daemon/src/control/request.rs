//! Reading a request; what is wrong with it becomes a problem.

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use bytes::Bytes;
use nodus_protocol::control::ProblemCode;
use serde::de::DeserializeOwned;

use super::Api;
use super::problem::Failure;
use crate::engine::{Caller, Refusal};

/// Who asks. It is known for the whole connection, and a failure to find out is told to each
/// request.
#[derive(Clone)]
pub(super) struct Identity(pub(super) Result<Caller, Refusal>);

/// The caller of this request.
pub(super) struct Who(pub(super) Caller);

impl FromRequestParts<Api> for Who {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Failure> {
        match parts.extensions.get::<Identity>() {
            Some(Identity(Ok(caller))) => Ok(Self(caller.clone())),
            Some(Identity(Err(refusal))) => Err(refusal.clone().into()),
            None => Err(Failure::new(ProblemCode::Internal, "cannot tell who you are")),
        }
    }
}

/// What stands in the path: the job's name, and the number of a checkpoint.
pub(super) struct At<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for At<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Failure> {
        match Path::<T>::from_request_parts(parts, api).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(Failure::new(ProblemCode::Invalid, rejection.body_text())),
        }
    }
}

/// What stands behind the `?`.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Failure> {
        match Query::<T>::from_request_parts(parts, api).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(Failure::new(ProblemCode::Invalid, rejection.body_text())),
        }
    }
}

/// A JSON body, whatever its declared type. Nothing at all is an empty object.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Failure> {
        let limit = api.options.request_body;
        let bytes =
            Bytes::from_request(request, api).await.map_err(|error| unread(&error, limit))?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        let value = serde_json::from_slice(&bytes);
        value.map(Self).map_err(|error| Failure::new(ProblemCode::Invalid, error.to_string()))
    }
}

fn unread(error: &BytesRejection, limit: usize) -> Failure {
    let failure = |detail| Failure::new(ProblemCode::Invalid, detail);
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = format!("the request is larger than {limit} bytes (limits.request_body)");
        return failure(detail).with_status(StatusCode::PAYLOAD_TOO_LARGE);
    }
    failure(error.body_text()).with_status(StatusCode::BAD_REQUEST)
}
