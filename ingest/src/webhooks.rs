//! `POST /webhooks/{provider}`: read once, verify, translate, settle, answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use counterfoil_chassis::TraceParent;
use counterfoil_payments::{Fact, Provider};
use counterfoil_providers::{Adapter, Rejected};
use counterfoil_settlement::{Delivery, LATE_AFTER_SECONDS, Settled};
use http_body_util::BodyExt;
use serde_json::json;
use time::OffsetDateTime;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument;

use crate::Ingest;
use crate::answers::{Problem, json_bytes};

/// Largest body: bodies above 100 kB are seen in the field, 1 MiB is not.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// How much of a body that is too large is read and thrown away, so that its sender hears the answer.
const DRAIN_BYTES_MAX: usize = 16 << 20;

/// Longest time a client may take for its body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// Longest time until an answer once the body is there: providers give up after 5 to 30 seconds.
const ANSWER_DEADLINE: Duration = Duration::from_millis(2200);

/// Longest event type that is stored, in characters.
const TYPE_CHARS_MAX: usize = 255;

pub(crate) async fn receive(State(ingest): State<Arc<Ingest>>, provider: Result<Path<String>, PathRejection>, request: Request<Body>) -> Response {
    let begun = Instant::now();
    let Some(provider) = provider.ok().and_then(|Path(name)| name.parse::<Provider>().ok()) else {
        return answered(
            "other",
            begun,
            Err(Problem::new(StatusCode::NOT_FOUND, "no provider of this name: see POST /webhooks/{stripe,razorpay,square,standard}")),
        );
    };
    answered(provider.name(), begun, take(&ingest, provider, request).await)
}

fn answered(provider: &'static str, begun: Instant, answer: Result<Response, Problem>) -> Response {
    let response = answer.unwrap_or_else(IntoResponse::into_response);
    let code = response.status().as_u16().to_string();
    metrics::counter!("counterfoil_ingest_answers_total", "provider" => provider, "code" => code).increment(1);
    metrics::histogram!("counterfoil_ingest_answer_seconds", "provider" => provider).record(begun.elapsed());
    response
}

async fn take(ingest: &Ingest, provider: Provider, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        let mut refused = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "webhooks are posted").into_response();
        refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Ok(refused);
    }
    let Some(adapter) = ingest.providers.iter().find(|adapter| adapter.provider() == provider) else {
        let variable = format!("COUNTERFOIL_{}_SECRETS", provider.name().to_ascii_uppercase());
        return Err(Problem::new(StatusCode::NOT_FOUND, format!("{provider} is off: {variable} holds no secret")));
    };
    if parts.headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "only an identity Content-Encoding is taken: signatures are over the plain bytes"));
    }
    let body = read_body(&parts.headers, body).await?;
    let mut delivery = authentic(ingest, adapter.as_ref(), &parts.headers, &body)?;
    let event = delivery.event_id.clone();
    let span =
        tracing::info_span!("delivery", provider = provider.name(), event_id = event, event_type = delivery.event_type, trace_id = tracing::field::Empty);
    // Before the span is entered: afterwards its parent cannot be set.
    let caller = parts.headers.get("traceparent").and_then(|value| TraceParent::read(value.to_str().ok()?)).unwrap_or_else(TraceParent::random);
    let context = caller.enter(&span);
    span.record("trace_id", context.trace_id());
    delivery.traceparent = Some(context.to_string());
    let unsupported = if let Fact::Unsupported { reason, .. } = &delivery.fact { Some(reason.clone()) } else { None };
    async { settle(ingest, delivery).await.map(|settled| answer(&event, settled, unsupported.as_deref())) }.instrument(span).await
}

/// Reads a body once, up to the limit; what is beyond it is thrown away unbuffered.
pub(crate) async fn read_body(headers: &HeaderMap, mut body: Body) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    let until = Instant::now() + BODY_DEADLINE;
    let too_large = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {BODY_BYTES_MAX} bytes"));
    if declared > DRAIN_BYTES_MAX {
        return Err(too_large());
    }
    let (mut read, mut kept) = (0, Vec::with_capacity(if declared > BODY_BYTES_MAX { 0 } else { declared }));
    loop {
        let frame = timeout_at(until, body.frame()).await.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        read += data.len();
        if read > DRAIN_BYTES_MAX {
            return Err(too_large());
        }
        if read <= BODY_BYTES_MAX {
            kept.extend_from_slice(&data);
        } else {
            kept = Vec::new();
        }
    }
    if read > BODY_BYTES_MAX { Err(too_large()) } else { Ok(kept.into()) }
}

/// Verifies and translates.
fn authentic(ingest: &Ingest, adapter: &dyn Adapter, headers: &HeaderMap, body: &[u8]) -> Result<Delivery, Problem> {
    let provider = adapter.provider();
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let position = adapter.verify(headers, body, now).map_err(|rejected| {
        ingest.refused.count(provider);
        refuse(provider, rejected)
    })?;
    metrics::gauge!("counterfoil_last_delivery_timestamp_seconds", "provider" => provider.name()).set(f64::from(u32::try_from(now).unwrap_or(u32::MAX)));
    let reading = adapter.read(headers, body, ingest.mode);
    let late = reading.made_at.is_some_and(|made_at| now.saturating_sub(made_at) > LATE_AFTER_SECONDS);
    if late {
        metrics::counter!("counterfoil_ingest_late_deliveries_total", "provider" => provider.name()).increment(1);
        tracing::warn!(
            provider = provider.name(),
            event_id = reading.event_id,
            made_at = reading.made_at,
            "a delivery came more than 24 hours after its event was made"
        );
    }
    Ok(Delivery {
        provider,
        account: reading.account,
        event_id: reading.event_id,
        provider_event_id: reading.provider_event_id,
        event_type: reading.event_type.chars().take(TYPE_CHARS_MAX).collect(),
        body: body.to_vec(),
        secret_position: i32::try_from(position).unwrap_or(i32::MAX),
        made_at: reading.made_at,
        late,
        ids: reading.ids,
        fact: reading.fact,
        traceparent: None,
    })
}

fn refuse(provider: Provider, rejected: Rejected) -> Problem {
    metrics::counter!("counterfoil_ingest_rejected_total", "provider" => provider.name(), "reason" => rejected.name()).increment(1);
    tracing::warn!(provider = provider.name(), reason = rejected.name(), "delivery refused");
    Problem::new(StatusCode::UNAUTHORIZED, format!("{rejected}: check that the secret is this endpoint's own, and the clock"))
}

pub(crate) async fn settle(ingest: &Ingest, delivery: Delivery) -> Result<Settled, Problem> {
    let settling = ingest.lanes.submit(delivery).ok_or_else(|| Problem::unavailable("the queue is full"))?;
    match timeout(ANSWER_DEADLINE, settling).await {
        Ok(Ok(Ok(settled))) => Ok(settled),
        Ok(Ok(Err(unavailable))) => Err(Problem::unavailable(unavailable.0)),
        Ok(Err(_)) => Err(Problem::unavailable("the process is stopping")),
        Err(_) => Err(Problem::unavailable("settling takes too long; it may still succeed, and sending it again does no harm")),
    }
}

fn answer(event: &str, settled: Settled, unsupported: Option<&str>) -> Response {
    let stored = settled.outcome.name();
    tracing::info!(outcome = stored, duplicate = settled.duplicate, order_id = settled.paid.map(tracing::field::display), "delivery settled");
    let outcome = if settled.duplicate { "duplicate" } else { stored };
    metrics::counter!("counterfoil_ingest_outcomes_total", "outcome" => outcome).increment(1);
    if settled.differs && settled.duplicate {
        metrics::counter!("counterfoil_ingest_differing_bodies_total").increment(1);
        tracing::warn!("a copy differs from the body in force; the first stays in force");
    }
    let mut body = json!({ "outcome": outcome, "event": event, "stored": stored });
    if let Some(reason) = unsupported {
        tracing::warn!(reason, "captured money is not settled: see counterfoil attention");
        body["reason"] = json!(reason);
    }
    json_bytes(StatusCode::OK, body.to_string().into_bytes())
}
