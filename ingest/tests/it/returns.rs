//! `POST /orders/{id}/return`: the browser that is faster than the webhook.

use counterfoil_tests::fleet::RAZORPAY_KEY_SECRET;
use counterfoil_tests::simulator::Payment;
use counterfoil_tests::{Fleet, Simulator, Stage, stripe_event};
use futures_util::future::join_all;
use ring::hmac;
use serde_json::{Value, json};

fn payment(provider: &str, id: &str, order: &str, status: &str, session: &str) -> Payment {
    Payment {
        provider: provider.into(),
        id: id.into(),
        amount: 1099,
        currency: "EUR".into(),
        order: Some(order.into()),
        status: status.into(),
        session: Some(session.into()),
        ..Payment::default()
    }
}

fn razorpay_return(order: &str, payment: &str) -> Value {
    let key = hmac::Key::new(hmac::HMAC_SHA256, RAZORPAY_KEY_SECRET.as_bytes());
    let tag = hex::encode(hmac::sign(&key, format!("{order}|{payment}").as_bytes()));
    json!({ "razorpay_order_id": order, "razorpay_payment_id": payment, "razorpay_signature": tag })
}

#[tokio::test]
async fn a_return_reads_the_payment_settles_it_and_says_paid_without_waiting_for_the_webhook_which_then_changes_nothing() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let (_ingest, shop) = Fleet::on(&stage).with_simulator(&simulator).ingest().await;
    let order = shop.order().await;
    simulator.put(payment("stripe", "pi_1", &order, "captured", "cs_1"));
    assert_eq!(shop.post(&order, "session", &json!({ "provider": "stripe", "id": "cs_1" }), None, true).await.0, 200);
    let (status, seen) = shop.post(&order, "return", &json!({ "session": "cs_1" }), None, false).await;
    assert_eq!((status, seen["status"].as_str()), (200, Some("paid")));
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await.1, "superseded");
    assert_eq!(stage.count("SELECT count(*) FROM outbox").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events WHERE event_type = 'counterfoil.read'").await, 1);
    // The session is the order's: the payment need not name it.
    let nameless = shop.order().await;
    simulator.put(Payment { order: None, ..payment("stripe", "pi_2", "", "captured", "cs_2") });
    shop.post(&nameless, "session", &json!({ "provider": "stripe", "id": "cs_2" }), None, true).await;
    assert_eq!(shop.post(&nameless, "return", &json!({ "session": "cs_2" }), None, false).await.1["status"], "paid");
}

#[tokio::test]
async fn fifty_returns_and_their_webhooks_in_the_same_instant_leave_fifty_orders_paid_once() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let (_ingest, shop) = Fleet::on(&stage).with_simulator(&simulator).ingest().await;
    let orders = join_all((0..50).map(|n| {
        let (shop, simulator) = (shop.clone(), simulator.clone());
        async move {
            let order = shop.order().await;
            let (pay, rzp) = (format!("pay_{n}"), format!("order_{n}"));
            simulator.put(payment("razorpay", &pay, &order, "captured", &rzp));
            (order, pay, rzp)
        }
    }))
    .await;
    let answers = join_all(orders.iter().map(|(order, pay, rzp)| {
        let shop = shop.clone();
        async move {
            // Razorpay's payment here, as Standard Webhooks would not know it: by its own event.
            let event = json!({ "entity": "event", "event": "payment.captured", "created_at": 7, "payload": { "payment": { "entity": {
                "id": pay, "amount": 1099, "currency": "EUR", "status": "captured", "notes": { "order_id": order } } } } })
            .to_string();
            let tag = hex::encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"razorpay-secret"), event.as_bytes()));
            let webhook = shop.client.post(format!("{}/webhooks/razorpay", shop.base)).header("X-Razorpay-Signature", tag).body(event).send();
            let body = razorpay_return(rzp, pay);
            let returned = shop.post(order, "return", &body, None, false);
            let (webhook, returned) = tokio::join!(webhook, returned);
            (webhook.unwrap().status().as_u16(), returned)
        }
    }))
    .await;
    for (webhook, (status, seen)) in answers {
        assert_eq!((webhook, status), (200, 200));
        assert_eq!(seen["status"], "paid", "the answer knows what was read or what the webhook brought");
    }
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 50);
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid'").await, 50);
    assert_eq!(stage.count("SELECT count(*) FROM outbox").await, 50);
    assert_eq!(stage.count("SELECT count(*) FROM payments").await, 50);
}

#[tokio::test]
async fn a_return_without_proof_is_refused_and_one_that_nothing_came_of_yet_is_processing_or_failed() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let (_ingest, shop) = Fleet::on(&stage).with_simulator(&simulator).ingest().await;
    let order = shop.order().await;
    assert_eq!(shop.post(&order, "return", &json!({}), None, false).await.0, 403);
    assert_eq!(shop.post(&order, "return", &json!({ "session": "cs_1" }), None, false).await.0, 403, "the order knows no session");
    shop.post(&order, "session", &json!({ "provider": "stripe", "id": "cs_1" }), None, true).await;
    assert_eq!(shop.post(&order, "session", &json!({ "provider": "stripe", "id": "cs_2" }), None, false).await.0, 401);
    assert_eq!(shop.post(&order, "return", &json!({ "session": "cs_2" }), None, false).await.0, 403);
    let mut forged = razorpay_return("order_1", "pay_1");
    forged["razorpay_payment_id"] = json!("pay_2");
    assert_eq!(shop.post(&order, "return", &forged, None, false).await.0, 403);
    assert_eq!(simulator.reads(), 0, "nothing was read without proof");
    let said = async |order: &str, body: Value| shop.post(order, "return", &body, None, false).await.1["status"].as_str().map(str::to_owned).unwrap();
    assert_eq!(said(&order, json!({ "session": "cs_1" })).await, "processing", "the provider does not know the session");
    let failed = shop.order().await;
    simulator.put(payment("razorpay", "pay_1", &failed, "failed", "order_1"));
    assert_eq!(said(&failed, razorpay_return("order_1", "pay_1")).await, "failed");
}

#[tokio::test]
async fn at_most_one_provider_read_is_made_for_an_order_in_five_seconds_and_a_paid_order_is_not_read_at_all() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let (_ingest, shop) = Fleet::on(&stage).with_simulator(&simulator).ingest().await;
    let order = shop.order().await;
    simulator.put(payment("stripe", "pi_1", &order, "pending", "cs_1"));
    shop.post(&order, "session", &json!({ "provider": "stripe", "id": "cs_1" }), None, true).await;
    let body = json!({ "session": "cs_1" });
    let answers = join_all((0..20).map(|_| shop.post(&order, "return", &body, None, false))).await;
    assert!(answers.iter().all(|(status, seen)| *status == 200 && seen["status"] == "processing"));
    assert_eq!(simulator.reads(), 1);
    shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await;
    stage.execute("UPDATE provider_reads SET read_at = now() - interval '1 minute'").await;
    assert_eq!(shop.post(&order, "return", &json!({ "session": "cs_1" }), None, false).await.1["status"], "paid");
    assert_eq!(simulator.reads(), 1);
}
