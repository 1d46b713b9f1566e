//! The golden files of docs/events.md: each is read, and says again exactly what it said.

use counterfoil_payments::event::{Body, event_id};
use counterfoil_payments::{Event, Topic};
use serde_json::{Value, json};

fn golden(topic: &str) -> Value {
    serde_json::from_slice(&std::fs::read(format!("{}/tests/golden/{topic}.json", env!("CARGO_MANIFEST_DIR"))).unwrap()).unwrap()
}

#[test]
fn every_topic_has_a_golden_file_that_is_read_without_losing_a_field() {
    for topic in Topic::ALL {
        let file = golden(topic.name());
        let event = Event::read(file.to_string().as_bytes()).unwrap();
        assert_eq!(event.topic(), topic);
        let data = match &event.body {
            Body::OrderPaid(data) | Body::OrderContactKnown(data) => json!(data),
            Body::PaymentExtra(data) | Body::PaymentHeld(data) => json!(data),
            Body::OrderRefunded(data) | Body::RefundRequested(data) | Body::RefundFailed(data) => json!(data),
            Body::OrderDisputed(data) => json!(data),
            Body::TicketsIssued(data) | Body::TicketsVoided(data) => json!(data),
            Body::TicketsUnavailable(data) => json!(data),
        };
        assert_eq!(data, file["data"], "{}", topic.name());
    }
}

#[test]
fn the_golden_ids_are_derived_from_their_facts() {
    let order = "01a2286f-e150-72d4-a5d0-abfb27dcda78";
    let facts = [
        format!("order.paid:{order}"),
        format!("order.contact_known:{order}"),
        "payment.extra:stripe::pi_1".into(),
        "payment.held:stripe::pi_1:amount_differs".into(),
        "order.refunded:stripe:re_1:succeeded".into(),
        "order.disputed:stripe:dp_1:lost".into(),
        format!("refund.requested:{}", event_id("refund:stripe::re_1")),
        format!("refund.failed:{}:re_1", event_id("refund:stripe::re_1")),
        format!("tickets.issued:{order}"),
        format!("tickets.voided:{order}:4"),
        format!("tickets.unavailable:{order}"),
    ];
    for (topic, fact) in Topic::ALL.into_iter().zip(facts) {
        assert_eq!(golden(topic.name())["id"], json!(event_id(&fact)), "{fact}");
    }
}

#[test]
fn events_of_earlier_releases_lack_the_order_and_are_read_all_the_same() {
    for topic in ["payment.extra", "payment.held", "order.refunded", "refund.failed", "refund.requested"] {
        let mut file = golden(topic);
        for field in ["reference", "customer"].into_iter().chain(topic.starts_with("payment").then_some("order_status")) {
            assert!(file["data"].as_object_mut().unwrap().remove(field).is_some(), "{topic} {field}");
        }
        let event = Event::read(file.to_string().as_bytes()).unwrap();
        assert!(matches!(event.body, Body::PaymentExtra(_) | Body::PaymentHeld(_) | Body::OrderRefunded(_) | Body::RefundFailed(_) | Body::RefundRequested(_)));
    }
}
