//! One trace, from the webhook's request to each effect: decoded by a receiver of our own, as the OTLP protocol says.

use std::collections::HashMap;

use counterfoil_tests::{CrmStub, Fleet, SmtpStub, Stage, stripe_event, until};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Text;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The spans that the receiver has got so far.
fn spans(receiver: &CrmStub) -> Vec<Span> {
    let requests = receiver
        .seen()
        .into_iter()
        .filter(|seen| seen.head.starts_with("POST /v1/traces") && seen.head.to_ascii_lowercase().contains("content-type: application/x-protobuf"));
    let decoded = requests.map(|seen| ExportTraceServiceRequest::decode(seen.bytes.as_slice()).expect("it is what the protocol says"));
    decoded.flat_map(|request| request.resource_spans).flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

fn attribute(span: &Span, name: &str) -> String {
    let value = span.attributes.iter().find(|attribute| attribute.key == name).and_then(|attribute| attribute.value.clone()?.value);
    match value {
        Some(Text::StringValue(text)) => text,
        Some(Text::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Spans of effects of one consumer, in the order in which they began.
fn effects(receiver: &CrmStub, consumer: &str) -> Vec<Span> {
    let mut found: Vec<Span> = spans(receiver)
        .into_iter()
        .filter(|span| span.name == "effect" && attribute(span, "consumer") == consumer && hex::encode(&span.trace_id) == TRACE)
        .collect();
    found.sort_by_key(|span| span.start_time_unix_nano);
    found
}

#[tokio::test]
async fn one_trace_leads_from_the_webhook_to_each_effect_and_retries_and_replays_are_linked_to_the_attempt_before() {
    let stage = Stage::new().await;
    let (receiver, smtp, crm) = (CrmStub::start().await, SmtpStub::start().await, CrmStub::start().await);
    let endpoint = receiver.url.trim_end_matches("/contacts").to_owned();
    let fleet = Fleet::on(&stage)
        .with("COUNTERFOIL_SMTP_URL", smtp.url.clone())
        .with("COUNTERFOIL_CRM_URL", crm.url.clone())
        .with("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .with("OTEL_BSP_SCHEDULE_DELAY", "200");
    crm.next(&["500 Broken", "404 Gone"]);
    let (ingest, shop) = fleet.ingest().await;
    let _others = [fleet.relay(), fleet.consumer("email"), fleet.consumer("crm"), fleet.consumer("ledger"), fleet.consumer("dead-letters"), fleet.housekeep()];
    let order = shop.order().await;
    let body = stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({})).to_string();
    let time = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let signature = counterfoil_tests::fleet::stripe_signature(body.as_bytes(), time);
    let request = shop.client.post(format!("{}/webhooks/stripe", shop.base)).header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    assert_eq!(request.header("Stripe-Signature", signature).body(body).send().await.unwrap().status(), 200);
    let carried: String = sqlx::query_scalar("SELECT headers->>'traceparent' FROM outbox").fetch_one(&stage.pool()).await.unwrap();
    assert!(carried.starts_with(&format!("00-{TRACE}-")) && ingest.logged().contains(TRACE), "{carried}");
    until("the CRM's is dead", 30, 1, async || stage.count("SELECT count(*) FROM dead_letters WHERE consumer = 'crm' AND state = 'open'").await).await;
    let (code, said) = fleet.counterfoil(&["dead", "replay", "d_1", "--reason", "the contact is there now"]).await;
    assert_eq!(code, Some(0), "{said}");
    until("all spans have come", 30, (1, 1, 3), async || {
        (effects(&receiver, "email").len(), effects(&receiver, "ledger").len(), effects(&receiver, "crm").len())
    })
    .await;
    let all: HashMap<String, Span> = spans(&receiver).into_iter().map(|span| (hex::encode(&span.span_id), span)).collect();
    let delivery = all.values().find(|span| span.name == "delivery").expect("the webhook's own span");
    assert_eq!(
        (hex::encode(&delivery.trace_id).as_str(), hex::encode(&delivery.parent_span_id).as_str()),
        (TRACE, "00f067aa0ba902b7"),
        "it continues the caller's trace"
    );
    for consumer in ["email", "ledger", "crm"] {
        for effect in effects(&receiver, consumer) {
            assert_eq!(effect.parent_span_id, delivery.span_id, "{consumer}'s effect is a child of the delivery");
            assert_eq!(attribute(&effect, "order_id"), order);
        }
    }
    let attempts = effects(&receiver, "crm");
    let linked: Vec<Vec<String>> = attempts.iter().map(|span| span.links.iter().map(|link| hex::encode(&link.span_id)).collect()).collect();
    let ids: Vec<String> = attempts.iter().map(|span| hex::encode(&span.span_id)).collect();
    assert_eq!(linked, [vec![], vec![ids[0].clone()], vec![ids[1].clone()]], "the retry is linked to the first attempt, the replay to the one that died");
    assert_eq!(attempts.iter().map(|span| attribute(span, "attempt")).collect::<Vec<_>>(), ["1", "2", "1"]);
}
