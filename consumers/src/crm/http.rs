//! HTTP to a CRM: deadlines, no redirects, and what each answer means.
//!
//! | answer | means |
//! |---|---|
//! | no connection, TLS, 401, 403, 3xx | an outage of ours: nothing is wrong with the contact |
//! | 429, 503 | an outage, as long as `Retry-After` asks (either form, clamped by the runner) |
//! | 408, 409, 425, other 5xx, a connection that breaks | transient |
//! | no answer in time | unknown |
//! | other 4xx | permanent |

use std::time::Duration;

use counterfoil_payments::Event;
use counterfoil_providers::api::retry_after;
use counterfoil_settlement::CustomerState;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode};
use ring::digest;

use super::CrmSettings;
use crate::runner::Failure;

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// From the first byte sent to the last byte of the answer.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// How much of an answer is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A client that follows no redirect: one would carry the token to another host.
pub(crate) fn client() -> reqwest::Result<Client> {
    Client::builder().connect_timeout(CONNECT_DEADLINE).timeout(CALL_DEADLINE).redirect(Policy::none()).user_agent("counterfoil").build()
}

/// Adds the token and the key by which a repeat is recognised: the event's id and what is sent. A contact that has changed
/// since must not be taken for the repeat of what it was.
pub(crate) fn authorised(request: RequestBuilder, settings: &CrmSettings, event: &Event, state: &CustomerState) -> RequestBuilder {
    let state = digest::digest(&digest::SHA256, serde_json::json!(state).to_string().as_bytes());
    let request = request.header("Idempotency-Key", format!("{}:{}", event.id, hex::encode(&state.as_ref()[..8])));
    match &settings.token {
        Some(token) => request.bearer_auth(token),
        None => request,
    }
}

/// Sends a request; the body of a 2xx answer, else what its failure means.
pub(crate) async fn send(request: RequestBuilder) -> Result<Vec<u8>, Failure> {
    let mut response = request.send().await.map_err(|error| broken(&error))?;
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(&error))? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_BYTES_MAX {
            break;
        }
    }
    if status.is_success() { Ok(body) } else { Err(refused(status, &headers)) }
}

fn broken(error: &reqwest::Error) -> Failure {
    // reqwest's text names the URL, which may hold a key.
    if error.is_connect() {
        Failure::outage("the CRM cannot be reached, or its TLS certificate is not trusted")
    } else if error.is_timeout() {
        Failure::unknown("the CRM did not answer in time")
    } else {
        Failure::unknown("the connection to the CRM broke")
    }
}

fn refused(status: StatusCode, headers: &HeaderMap) -> Failure {
    let reason = format!("HTTP {} from the CRM", status.as_u16());
    match status.as_u16() {
        429 | 503 => Failure::Outage { reason, pause: retry_after(headers) },
        401 | 403 | 300..=399 => Failure::outage(reason),
        408 | 409 | 425 | 500..=599 => Failure::transient(reason),
        _ => Failure::permanent(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_about_the_contact_itself_are_its_own_fault() {
        let kind = |code| match refused(StatusCode::from_u16(code).unwrap(), &HeaderMap::new()) {
            Failure::Outage { .. } => "outage",
            Failure::Transient { .. } => "transient",
            Failure::Permanent { .. } => "permanent",
            Failure::Busy { .. } => "busy",
        };
        for (codes, wanted) in [([401, 403, 301], "outage"), ([429, 503, 307], "outage"), ([500, 502, 504], "transient"), ([400, 404, 422], "permanent")] {
            for code in codes {
                assert_eq!(kind(code), wanted, "{code}");
            }
        }
    }
}
