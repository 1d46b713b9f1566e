//! HTTP to a provider: credentials, deadlines, and what each answer means.

use std::time::Duration;

use counterfoil_payments::Provider;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use url::Url;
use uuid::Uuid;

use super::{CALL_DEADLINE, CallError};
use crate::json::{self, Raw, Unreadable};
use crate::secret::Secret;

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How much of an answer is read.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// How much of a refusal's text is kept, in characters.
const REASON_CHARS_MAX: usize = 200;

#[derive(Debug, Clone)]
pub(super) struct Wire {
    provider: Provider,
    base: Url,
    key: Secret,
    client: Client,
}

impl Wire {
    pub(super) fn new(provider: Provider, base: Url, key: Secret) -> Result<Self, reqwest::Error> {
        // No redirect is followed: one would carry the key to another host.
        let client = Client::builder().connect_timeout(CONNECT_DEADLINE).timeout(CALL_DEADLINE).redirect(Policy::none()).user_agent("counterfoil").build()?;
        Ok(Self { provider, base, key, client })
    }

    /// A request to a path below the base; each segment is escaped, so that no id can lead elsewhere.
    pub(super) fn request(&self, method: Method, segments: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.client.request(method, url);
        match (self.provider, self.key.expose().split_once(':')) {
            (Provider::Razorpay, Some((id, secret))) => request.basic_auth(id, Some(secret)),
            (Provider::Stripe | Provider::Razorpay | Provider::Square | Provider::Standard, _) => request.bearer_auth(self.key.expose()),
        }
    }

    /// Sends a request; the body of a 2xx answer, else what its failure means.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Vec<u8>, CallError> {
        let mut response = request.send().await.map_err(|error| self.broken(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.broken(&error))? {
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(CallError::Unknown(format!("{} answers with more than {ANSWER_BYTES_MAX} bytes", self.provider)));
            }
        }
        if status.is_success() { Ok(body) } else { Err(self.refused(status, &headers, &body)) }
    }

    /// Reads a 2xx answer; one that cannot be read leaves open what was done.
    pub(super) fn unread(&self, error: &Unreadable) -> CallError {
        CallError::Unknown(format!("{}'s answer cannot be read: {}", self.provider, error.0))
    }

    fn broken(&self, error: &reqwest::Error) -> CallError {
        // reqwest's text names the URL.
        if error.is_connect() {
            CallError::Outage { reason: format!("{} cannot be reached, or its TLS certificate is not trusted", self.provider), pause: None }
        } else if error.is_timeout() {
            CallError::Unknown(format!("{} did not answer in time", self.provider))
        } else {
            CallError::Unknown(format!("the connection to {} broke", self.provider))
        }
    }

    fn refused(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> CallError {
        let reason = format!("HTTP {} from {}{}", status.as_u16(), self.provider, reason_of(body));
        match status.as_u16() {
            429 | 503 => CallError::Outage { reason, pause: retry_after(headers) },
            401 | 403 => CallError::Denied(reason),
            300..=399 => CallError::Outage { reason, pause: None },
            408 | 409 | 425 => CallError::Later(reason),
            404 => CallError::NotFound(reason),
            500..=599 => CallError::Unknown(reason),
            _ => CallError::Refused(reason),
        }
    }
}

/// A key as a provider takes it: as it is where it fits, else hashed, the same on every attempt.
pub(super) fn fitting(key: String, characters_max: usize, takes: fn(char) -> bool) -> String {
    if key.len() <= characters_max && key.chars().all(takes) { key } else { Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes()).to_string() }
}

/// The code that an error document of any of the three states: `error.code`, or the first of `errors`.
fn reason_of(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        error: Raw<'a>,
        #[serde(borrow)]
        errors: Raw<'a>,
    }
    #[derive(Deserialize)]
    struct Error<'a> {
        #[serde(borrow)]
        code: Raw<'a>,
        #[serde(borrow, rename = "type")]
        kind: Raw<'a>,
        #[serde(borrow)]
        description: Raw<'a>,
    }
    let text = json::body_text(body);
    let Ok(document) = serde_json::from_str::<Document<'_>>(&text) else { return String::new() };
    let first =
        document.errors.and_then(|errors| serde_json::from_str::<Vec<Raw<'_>>>(errors.get()).ok()).and_then(|errors| errors.into_iter().next().flatten());
    let Ok(Some(error)) = json::object::<Error<'_>>(document.error.or(first)) else { return String::new() };
    let parts: Vec<String> = [json::text(error.code).or_else(|| json::text(error.kind)), json::text(error.description)].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ").chars().take(REASON_CHARS_MAX).collect::<String>()) }
}

/// `Retry-After` in either form (RFC 9110, 10.2.3); a time that has passed is no time.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(text).ok()?.duration_since(std::time::SystemTime::now()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<u64> {
        let headers: HeaderMap = [(RETRY_AFTER, text.parse().unwrap())].into_iter().collect();
        retry_after(&headers).map(|pause| pause.as_secs())
    }

    #[test]
    fn retry_after_is_read_in_both_forms_and_nonsense_is_ignored() {
        assert_eq!(asked("120"), Some(120));
        assert_eq!(asked("0"), Some(0));
        assert_eq!(asked("999999999"), Some(999_999_999));
        assert_eq!(asked("-1"), None);
        assert_eq!(asked("soon"), None);
        assert_eq!(asked("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        let later = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(100));
        assert!(asked(&later).is_some_and(|seconds| (95..=100).contains(&seconds)));
    }

    #[test]
    fn a_refusal_names_the_providers_code_and_nothing_of_the_request() {
        assert_eq!(
            reason_of(br#"{"error":{"code":"charge_already_refunded","type":"invalid_request_error","message":"Charge ch_1 ..."}}"#),
            ": charge_already_refunded"
        );
        assert_eq!(reason_of(br#"{"errors":[{"code":"REFUND_AMOUNT_INVALID","category":"REFUND_ERROR"}]}"#), ": REFUND_AMOUNT_INVALID");
        assert_eq!(reason_of(b"<html>"), "");
    }
}
