//! `counterfoil housekeep`.

use counterfoil_tests::{Fleet, Simulator, Stage, stripe_event, until};
use serde_json::json;

#[tokio::test]
async fn an_order_made_by_plain_sql_is_paid_within_seconds_and_old_waiting_events_are_cried_out_about() {
    let stage = Stage::with_schema().await;
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_WAITING_ALERT_S", "1");
    let (_ingest, shop) = fleet.ingest().await;
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", "plain", "pi_1", &json!({}))).await.1, "waiting");
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", "never", "pi_2", &json!({}))).await.1, "waiting");
    let housekeep = fleet.housekeep().ready().await;
    until("an alert", 20, true, async || housekeep.logged().contains("events wait for an order")).await;
    assert!(housekeep.metrics().await.contains("counterfoil_waiting_overdue 2"));
    stage.execute("INSERT INTO orders (reference, amount_minor, currency) VALUES ('plain', 1099, 'EUR')").await;
    until("paid", 20, 1, async || stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await).await;
    let (code, seen) = fleet.counterfoil(&["attention"]).await;
    assert_eq!(code, Some(0));
    assert!(seen.contains("order:never") && seen.contains("10.99 EUR") && !seen.contains("order:plain"), "{seen}");
}

#[tokio::test]
async fn deadlines_stuck_keys_and_pending_orders_are_looked_after_by_two_processes_at_once() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let fleet = Fleet::on(&stage).with_simulator(&simulator).with("COUNTERFOIL_PENDING_S", "1").with("COUNTERFOIL_KEY_STUCK_S", "1");
    let (_ingest, shop) = fleet.ingest().await;
    let body =
        json!({ "reference": "brief", "amount_minor": 5, "currency": "EUR", "customer": { "email": "ann@example.com", "name": "Ann" }, "expires_in_s": 1 });
    assert_eq!(shop.post_order(&body, None).await.status(), 201);
    let pending = shop.order().await;
    shop.stripe(&stripe_event("payment_intent.processing", &pending, "pi_1", &json!({}))).await;
    simulator.captured("stripe", "pi_1", &pending, 1099); // its webhook never comes
    stage.execute("INSERT INTO idempotency_keys (scope, key, request_hash, status, created_at) VALUES ('shop', 'lost', 'x', 'in_progress', now() - interval '1 hour')").await;
    let _both = [fleet.housekeep().ready().await, fleet.housekeep().ready().await];
    until("expired", 20, 1, async || stage.count("SELECT count(*) FROM orders WHERE status = 'expired' AND version = 2").await).await;
    until("paid, as its provider says", 20, 1, async || stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await).await;
    until("the key is cleared", 20, 0, async || stage.count("SELECT count(*) FROM idempotency_keys").await).await;
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid'").await, 1);
    assert_eq!(simulator.reads(), 2, "one worker at a time: one read of the payment, one of its refunds");
}

#[tokio::test]
async fn retention_shorter_than_the_longest_replay_path_is_refused_at_start_with_the_name_of_its_variable() {
    let stage = Stage::with_schema().await;
    let refused = async |variable, days: &str| {
        let (code, said) = Fleet::on(&stage).with(variable, days).counterfoil(&["housekeep"]).await;
        code == Some(64) && said.contains(variable)
    };
    assert!(refused("COUNTERFOIL_RETENTION_EVENTS_DAYS", "30").await);
    assert!(refused("COUNTERFOIL_RETENTION_OUTBOX_DAYS", "7").await);
    assert!(refused("COUNTERFOIL_RETENTION_PROCESSED_DAYS", "90").await, "a replay must find its dedupe row");
    let mut fleet = Fleet::on(&stage);
    fleet.without = vec!["COUNTERFOIL_MODE"];
    assert_eq!(fleet.counterfoil(&["housekeep"]).await.0, Some(64));
}
