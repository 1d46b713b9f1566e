//! The order API.

use counterfoil_tests::{Fleet, Stage, stripe_event, until};
use futures_util::future::join_all;
use serde_json::{Value, json};

fn order(reference: &str) -> Value {
    json!({ "reference": reference, "amount_minor": 1099, "currency": "EUR", "customer": { "email": "ann@example.com", "name": "Ann" } })
}

#[tokio::test]
async fn orders_are_made_and_read_by_id_and_reference_and_problems_name_their_field() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let made = shop.post_order(&order("A-1"), None).await;
    assert_eq!(made.status(), 201);
    let made: Value = made.json().await.unwrap();
    for key in [made["id"].as_str().unwrap(), "A-1"] {
        let read: Value = shop.read(key).await.json().await.unwrap();
        assert_eq!((&read["id"], &read["status"], &read["version"], &read["payments"]), (&made["id"], &json!("pending_payment"), &json!(1), &json!([])));
    }
    assert_eq!(shop.post_order(&order("A-1"), None).await.status(), 409);
    assert_eq!(shop.read("A-2").await.status(), 404);
    let refused = shop.post_order(&json!({ "reference": "67e55044-10b1-426f-9247-bb680e5fe0c8", "amount_minor": "12", "customer": {} }), None).await;
    assert_eq!(refused.status(), 422);
    let refused: Value = refused.json().await.unwrap();
    let fields: Vec<&str> = refused["errors"].as_array().unwrap().iter().map(|error| error["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["reference", "amount_minor", "currency", "customer.email", "customer.name"]);
    let bare = shop.client.post(format!("{}/orders", shop.base)).json(&order("A-3"));
    assert_eq!(bare.try_clone().unwrap().send().await.unwrap().status(), 401);
    assert_eq!(bare.bearer_auth("0123456789abcdef0124").send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_answer_and_another_body_is_refused() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let body = order("K-1");
    let answers = join_all((0..20).map(|_| shop.post_order(&body, Some("key")))).await;
    let mut bodies = Vec::new();
    for answer in answers {
        match answer.status().as_u16() {
            201 => bodies.push(answer.text().await.unwrap()),
            409 => assert!(answer.headers().contains_key("retry-after"), "still running"),
            status => panic!("{status}"),
        }
    }
    let again = shop.client.post(format!("{}/orders", shop.base)).bearer_auth("0123456789abcdef0123").header("Idempotency-Key", "key");
    let spelled = r#"{ "customer": {"name":"Ann", "email":"ann@example.com"}, "currency": "eur", "amount_minor": 1099, "reference": "K-1" }"#;
    let again = again.body(spelled).send().await.unwrap();
    assert_eq!((again.status().as_u16(), again.headers()["idempotency-replayed"].to_str().unwrap()), (201, "true"));
    bodies.push(again.text().await.unwrap());
    assert!(bodies.len() >= 2 && bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(stage.count("SELECT count(*) FROM orders").await, 1);
    let mut other = body.clone();
    other["amount_minor"] = json!(1);
    let refused = shop.post_order(&other, Some("key")).await;
    assert_eq!(refused.status(), 422);
    assert!(!refused.text().await.unwrap().contains("1099"), "the first request is not repeated in the refusal");
}

#[tokio::test]
async fn an_event_that_came_before_its_order_is_applied_in_the_transaction_that_makes_the_order() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let event = stripe_event("payment_intent.succeeded", "early", "pi_1", &json!({}));
    assert_eq!(shop.stripe(&event).await, (200, "waiting".into()));
    let made: Value = shop.post_order(&order("early"), None).await.json().await.unwrap();
    assert_eq!((made["status"].as_str(), made["payments"][0]["payment_id"].as_str()), (Some("paid"), Some("pi_1")));
    assert_eq!(shop.stripe(&event).await, (200, "duplicate".into()));
    assert_eq!(stage.count("SELECT count(*) FROM outbox").await, 1);
}

#[tokio::test]
async fn orders_and_their_events_made_at_the_same_instant_over_http_all_end_paid() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    for round in 0..10 {
        let pairs = (0..20).map(|n| {
            let reference = format!("same-{round}-{n}");
            let (event, body, shop) = (stripe_event("payment_intent.succeeded", &reference, &format!("pi_{reference}"), &json!({})), order(&reference), &shop);
            async move { tokio::join!(shop.stripe(&event), shop.post_order(&body, None)) }
        });
        for ((status, _), made) in join_all(pairs).await {
            assert_eq!((status, made.status().as_u16()), (200, 201));
        }
    }
    until("all paid", 5, 200, async || stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await).await;
    assert_eq!(stage.count("SELECT count(*) FROM outbox").await, 200);
}

#[tokio::test]
async fn a_waiting_event_that_cannot_be_settled_does_not_keep_its_order_from_being_made() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    for intent in ["pi_poison", "pi_good"] {
        assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", "early", intent, &json!({}))).await, (200, "waiting".into()));
    }
    stage.execute("ALTER TABLE payments ADD CONSTRAINT no_poison CHECK (payment_id <> 'pi_poison')").await;
    let made = shop.post_order(&order("early"), None).await;
    assert_eq!(made.status(), 201);
    assert_eq!(made.json::<Value>().await.unwrap()["status"], "paid", "the other event pays it");
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events WHERE outcome = 'failed' AND last_error = 'SQLSTATE 23514'").await, 1);
}
