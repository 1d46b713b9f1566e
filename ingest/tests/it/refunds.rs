//! `POST /orders/{id}/refunds`: keys, limits, refusals.

use counterfoil_tests::{Child, Fleet, Shop, Stage, stripe_event};
use futures_util::future::join_all;
use serde_json::{Value, json};

struct Paid {
    stage: Stage,
    shop: Shop,
    _ingest: Child,
    order: String,
}

async fn paid() -> Paid {
    let stage = Stage::with_schema().await;
    let (ingest, shop) = Fleet::on(&stage).ingest().await;
    let order = shop.order().await;
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await.1, "applied");
    Paid { stage, shop, _ingest: ingest, order }
}

#[tokio::test]
async fn fifty_calls_at_once_with_one_key_make_one_refund_and_are_answered_alike_or_told_that_it_is_running() {
    let Paid { stage, shop, order, .. } = &paid().await;
    let answers = join_all((0..50).map(|_| shop.refund(order, 500, "K"))).await;
    let made: Vec<&Value> = answers.iter().filter(|(status, _)| *status == 201).map(|(_, body)| body).collect();
    assert!(!made.is_empty() && made.iter().all(|body| *body == made[0]), "identical calls get the stored answer");
    assert!(answers.iter().all(|(status, _)| matches!(status, 201 | 409)), "{answers:?}");
    assert_eq!(stage.count("SELECT count(*) FROM refunds").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'refund.requested'").await, 1);
    assert_eq!((made[0]["status"].as_str(), made[0]["amount_minor"].as_i64()), (Some("requested"), Some(500)));
    let read: Value = shop.read(order).await.json().await.unwrap();
    assert_eq!(read["refunds"][0]["id"], made[0]["id"]);
}

#[tokio::test]
async fn a_key_used_with_another_amount_or_order_is_refused_without_repeating_the_first_call_and_spelling_does_not_matter() {
    let Paid { stage, shop, order, .. } = &paid().await;
    let other = shop.order().await;
    shop.stripe(&stripe_event("payment_intent.succeeded", &other, "pi_2", &json!({}))).await;
    let (status, first) = shop.refund(order, 501, "K").await;
    assert_eq!(status, 201);
    for (order, amount) in [(order, 502), (&other, 501)] {
        let (status, body) = shop.refund(order, amount, "K").await;
        assert_eq!(status, 422);
        assert!(!body.to_string().contains("501"), "{body}");
    }
    let spelled = shop.client.post(format!("{}/orders/{order}/refunds", shop.base)).bearer_auth("0123456789abcdef0123").header("Idempotency-Key", "K");
    let spelled = spelled.body("{ \"reason\" : \"customer asked\",\n \"amount_minor\": 501 }").send().await.unwrap();
    assert_eq!((spelled.status().as_u16(), spelled.headers()["idempotency-replayed"].to_str().unwrap()), (201, "true"));
    assert_eq!(spelled.json::<Value>().await.unwrap(), first);
    // Keys differ by case, and belong to their operation.
    assert_eq!(shop.refund(order, 1, "k").await.0, 201);
    let order_with_k = json!({ "reference": "A-9", "amount_minor": 1, "currency": "EUR", "customer": { "email": "ann@example.com", "name": "Ann" } });
    assert_eq!(shop.post_order(&order_with_k, Some("K")).await.status(), 201);
    assert_eq!(stage.count("SELECT count(*) FROM refunds").await, 2);
}

#[tokio::test]
async fn keys_that_are_absent_empty_too_long_or_not_ascii_are_refused_and_say_what_is_wrong() {
    let Paid { shop, order, .. } = &paid().await;
    let body = json!({ "amount_minor": 1 });
    let (status, absent) = shop.post(order, "refunds", &body, None, true).await;
    assert_eq!(status, 400);
    assert!(absent["detail"].as_str().unwrap().contains("Idempotency-Key is required"));
    for key in ["", " ", &"x".repeat(10_000), "ключ"] {
        let request = shop.client.post(format!("{}/orders/{order}/refunds", shop.base)).bearer_auth("0123456789abcdef0123").json(&body);
        let value = reqwest::header::HeaderValue::from_bytes(key.as_bytes()).unwrap();
        assert_eq!(request.header("Idempotency-Key", value).send().await.unwrap().status(), 400, "{:.20}", key);
    }
    assert_eq!(shop.post(order, "refunds", &body, Some("K"), false).await.0, 401);
}

#[tokio::test]
async fn a_double_click_with_a_fresh_key_each_time_is_limited_by_what_can_still_go_back() {
    let Paid { stage, shop, order, .. } = &paid().await;
    let clicks: Vec<String> = (0..20).map(|n| format!("click-{n}")).collect();
    let answers = join_all(clicks.iter().map(|key| shop.refund(order, 600, key))).await;
    assert_eq!(answers.iter().filter(|(status, _)| *status == 201).count(), 1, "{answers:?}");
    let refused = answers.iter().find(|(status, _)| *status == 422).unwrap();
    assert_eq!(refused.1["refundable_minor"], 499);
    assert!(answers.iter().all(|(status, _)| *status < 500));
    assert_eq!(stage.count("SELECT sum(amount_minor)::bigint FROM refunds").await, 600);
}

#[tokio::test]
async fn what_cannot_go_back_is_refused_with_its_reason() {
    let Paid { shop, order, .. } = &paid().await;
    let unpaid = shop.order().await;
    assert_eq!(shop.refund(&unpaid, 1, "a").await.0, 409);
    assert_eq!(shop.refund("0190a3c4-0000-7000-8000-000000000001", 1, "b").await.0, 404);
    for wrong in [
        json!({}),
        json!({ "amount_minor": 0 }),
        json!({ "amount_minor": -5 }),
        json!({ "amount_minor": "5" }),
        json!({ "amount_minor": 1.5 }),
        json!({ "amount_minor": 5, "reason": 7 }),
    ] {
        let (status, body) = shop.post(order, "refunds", &wrong, Some("c"), true).await;
        assert_eq!(status, 422, "{wrong}");
        assert!(!body["errors"].as_array().unwrap().is_empty());
    }
    let standard = shop.order().await;
    let captured = json!({ "order": standard, "payment_id": "p", "amount_minor": 1099, "currency": "EUR", "status": "captured", "livemode": false });
    shop.standard("m1", captured).await;
    let (status, body) = shop.refund(&standard, 1, "e").await;
    assert!(status == 409 && body["detail"].as_str().unwrap().contains("no API"), "{body}");
    let dispute = json!({ "id": "dp_1", "payment_intent": "pi_1", "amount": 1099, "status": "needs_response", "metadata": {} });
    assert_eq!(shop.stripe(&stripe_event("charge.dispute.created", order, "pi_1", &dispute)).await.1, "applied");
    let (status, body) = shop.refund(order, 1, "d").await;
    assert_eq!(status, 409);
    assert!(body["detail"].as_str().unwrap().contains("disputed"));
}

#[tokio::test]
async fn a_process_killed_before_or_after_its_commit_leaves_key_and_refund_together_and_the_same_call_completes_it() {
    for point in ["keyed.before_commit", "keyed.after_commit"] {
        let stage = Stage::with_schema().await;
        let (ingest, shop) = Fleet::on(&stage).ingest().await;
        let order = shop.order().await;
        shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await;
        drop(ingest);
        let (mut dying, shop) = Fleet::on(&stage).with("COUNTERFOIL_FAULT", point).ingest().await;
        let lost = shop.client.post(format!("{}/orders/{order}/refunds", shop.base)).bearer_auth("0123456789abcdef0123").header("Idempotency-Key", "K");
        assert!(lost.json(&json!({ "amount_minor": 5, "reason": "customer asked" })).send().await.is_err());
        dying.ended().await;
        let (_ingest, shop) = Fleet::on(&stage).ingest().await;
        assert_eq!(shop.refund(&order, 5, "K").await.0, 201, "{point}");
        assert_eq!(stage.count("SELECT count(*) FROM refunds").await, 1, "{point}");
        assert_eq!(stage.count("SELECT count(*) FROM idempotency_keys WHERE status = 'in_progress'").await, 0);
    }
}

#[tokio::test]
async fn an_unpaid_order_is_cancelled_once_a_paid_one_not_and_money_that_comes_later_is_held() {
    let Paid { shop, order, .. } = &paid().await;
    let unpaid = shop.order().await;
    for _ in 0..2 {
        let (status, body) = shop.post(&unpaid, "cancel", &json!({}), None, true).await;
        assert_eq!((status, body["status"].as_str(), body["version"].as_i64()), (200, Some("cancelled"), Some(2)));
    }
    assert_eq!(shop.post(&unpaid, "cancel", &json!({}), None, false).await.0, 401);
    let (status, body) = shop.post(order, "cancel", &json!({}), None, true).await;
    assert_eq!((status, body["order_status"].as_str()), (409, Some("paid")));
    assert_eq!(shop.post("nothing", "cancel", &json!({}), None, true).await.0, 404);
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &unpaid, "pi_late", &json!({}))).await.1, "held");
}

#[tokio::test]
async fn a_delivery_more_than_24_hours_after_its_event_was_made_is_applied_flagged_and_counted() {
    let Paid { stage, shop, _ingest: ingest, .. } = &paid().await;
    let order = shop.order().await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut event = stripe_event("payment_intent.succeeded", &order, "pi_late", &json!({}));
    event["created"] = json!(now - 25 * 3600);
    assert_eq!(shop.stripe(&event).await.1, "applied");
    assert_eq!(shop.stripe(&event).await.1, "duplicate");
    let mut fresh = stripe_event("charge.succeeded", &order, "pi_late", &json!({}));
    fresh["created"] = json!(now - 23 * 3600);
    shop.stripe(&fresh).await;
    assert_eq!(stage.count("SELECT sum(late_deliveries)::bigint FROM webhook_events").await, 2);
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events WHERE late_deliveries > 0 AND made_at < now() - interval '24 hours'").await, 1);
    assert!(ingest.metrics().await.contains("counterfoil_ingest_late_deliveries_total{provider=\"stripe\"} 2"));
}
