//! What is answered: JSON when it went well, problem documents (RFC 9457) when not.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Seconds after which a client may try again: long enough for a locked row or a failover to end.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("2");

/// A problem: what is wrong, and the way out.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    more: Vec<(&'static str, Value)>,
    running: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), more: Vec::new(), running: false }
    }

    /// The same call is under way: worth trying again.
    pub(crate) fn running(detail: impl Into<String>) -> Self {
        Self { running: true, ..Self::new(StatusCode::CONFLICT, detail) }
    }

    /// The database cannot take it now, or the queue is full.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    pub(crate) fn with(mut self, name: &'static str, value: Value) -> Self {
        self.more.push((name, value));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({ "type": "about:blank", "title": self.status.canonical_reason(), "status": self.status.as_u16(), "detail": self.detail });
        for (name, value) in self.more {
            body[name] = value;
        }
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(header::RETRY_AFTER, RETRY_AFTER_S)),
            StatusCode::CONFLICT if self.running => drop(headers.insert(header::RETRY_AFTER, RETRY_AFTER_S)),
            StatusCode::UNAUTHORIZED => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            // What was not read of the request is not read any more.
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => drop(headers.insert(header::CONNECTION, HeaderValue::from_static("close"))),
            _ => {}
        }
        response
    }
}

/// JSON bytes as they are.
pub(crate) fn json_bytes(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
