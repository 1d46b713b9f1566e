//! Duplicates, locks and a database that is away.

use std::time::{Duration, Instant};

use counterfoil_tests::{Fleet, Proxy, Shop, Stage, stripe_event, until};
use futures_util::future::join_all;
use serde_json::json;

async fn counts(stage: &Stage) -> [i64; 3] {
    let paid = stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await;
    [stage.count("SELECT count(*) FROM webhook_events").await, paid, stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid'").await]
}

#[tokio::test]
async fn two_hundred_identical_webhooks_at_once_over_two_replicas_are_one_event_one_paid_order_and_one_outbox_row() {
    let stage = Stage::with_schema().await;
    let fleet = Fleet::on(&stage);
    let ((_one, first), (_two, second)) = (fleet.ingest().await, fleet.ingest().await);
    let order = first.order().await;
    let event = stripe_event("checkout.session.completed", &order, "pi_1", &json!({}));
    let answers = join_all((0..200).map(|n| {
        let (shop, event) = (if n % 2 == 0 { &first } else { &second }, &event);
        shop.stripe(event)
    }))
    .await;
    assert!(answers.iter().all(|(status, _)| [200, 503].contains(status)), "{answers:?}");
    assert!(answers.iter().filter(|(_, outcome)| outcome == "applied").count() == 1);
    assert_eq!(counts(&stage).await, [1, 1, 1]);
    let taken = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(stage.count("SELECT deliveries FROM webhook_events").await, i64::try_from(taken).unwrap());
}

#[tokio::test]
async fn three_event_types_of_one_payment_in_all_orders_and_all_at_once_pay_once() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let kinds = ["charge.succeeded", "payment_intent.succeeded", "checkout.session.completed"];
    for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let order = shop.order().await;
        for kind in [a, b, c] {
            assert_eq!(shop.stripe(&stripe_event(kinds[kind], &order, &format!("pi_{order}"), &json!({}))).await.0, 200);
        }
    }
    for _ in 0..20 {
        let order = shop.order().await;
        let events = kinds.map(|kind| stripe_event(kind, &order, &format!("pi_{order}"), &json!({})));
        assert!(join_all(events.iter().map(|event| shop.stripe(event))).await.iter().all(|(status, _)| *status == 200));
    }
    assert_eq!(counts(&stage).await, [78, 26, 26]);
}

#[tokio::test]
async fn completed_twice_within_50_ms_and_pending_after_paid_never_take_the_status_back() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let order = shop.order().await;
    let completed = stripe_event("checkout.session.completed", &order, "pi_1", &json!({}));
    let twice = [shop.stripe(&completed), shop.stripe(&completed)];
    assert!(join_all(twice).await.iter().all(|(status, _)| *status == 200));
    for event in [
        stripe_event("payment_intent.processing", &order, "pi_1", &json!({})),
        stripe_event("checkout.session.completed", &order, "pi_1", &json!({ "payment_status": "unpaid" })),
        stripe_event("payment_intent.payment_failed", &order, "pi_1", &json!({})),
        stripe_event("checkout.session.expired", &order, "pi_1", &json!({})),
    ] {
        assert_eq!(shop.stripe(&event).await, (200, "superseded".into()));
    }
    let read: serde_json::Value = shop.read(&order).await.json().await.unwrap();
    assert_eq!((read["status"].as_str(), read["version"].as_i64()), (Some("paid"), Some(2)));
}

async fn timed(shop: &Shop, event: &serde_json::Value) -> (u16, Duration) {
    let begun = Instant::now();
    (shop.stripe(event).await.0, begun.elapsed())
}

#[tokio::test]
async fn an_order_locked_for_3_s_delays_no_other_and_its_delivery_gets_503_and_is_right_when_sent_again() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let locked = shop.order().await;
    let mut others = Vec::new();
    for _ in 0..20 {
        others.push(shop.order().await);
    }
    let pool = stage.pool();
    let mut somebody = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM orders WHERE id = $1::uuid FOR UPDATE").bind(&locked).execute(&mut *somebody).await.unwrap();
    let stuck = stripe_event("payment_intent.succeeded", &locked, "pi_locked", &json!({}));
    let neighbours = async {
        let mut slowest = Duration::ZERO;
        for order in &others {
            let (status, took) = timed(&shop, &stripe_event("payment_intent.succeeded", order, &format!("pi_{order}"), &json!({}))).await;
            assert_eq!(status, 200);
            slowest = slowest.max(took);
        }
        slowest
    };
    let ((status, took), slowest) = tokio::join!(timed(&shop, &stuck), neighbours);
    assert_eq!(status, 503);
    assert!(took < Duration::from_millis(2500), "answered after {took:?}");
    assert!(slowest < Duration::from_millis(500), "a neighbour waited {slowest:?}");
    tokio::time::sleep(Duration::from_secs(3).saturating_sub(took)).await;
    somebody.rollback().await.unwrap();
    assert_eq!(shop.stripe(&stuck).await.0, 200);
    assert_eq!(counts(&stage).await, [21, 21, 21]);
}

#[tokio::test]
async fn while_the_database_is_away_everything_is_503_with_retry_after_and_then_goes_on_without_a_restart() {
    let stage = Stage::with_schema().await;
    let address = stage.database_url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let proxy = Proxy::start(&address).await;
    let through = stage.reached_at(stage.database_url.replace(&address, &proxy.address));
    let (ingest, shop) = Fleet::on(&through).ingest().await;
    let order = shop.order().await;
    proxy.silence(true);
    let event = stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}));
    let begun = Instant::now();
    let body = event.to_string().into_bytes();
    let time = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let signature = counterfoil_tests::fleet::stripe_signature(&body, time);
    let refused = shop.client.post(format!("{}/webhooks/stripe", shop.base)).header("Stripe-Signature", signature).body(body).send().await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (503, "2"));
    assert!(begun.elapsed() < Duration::from_secs(3));
    until("not ready", 10, 503, async || ingest.readyz().await.map_or(0, |(status, _)| status)).await;
    proxy.silence(false); // what was swallowed stays swallowed: its connections are dead, and nobody closes them
    until("the same delivery is taken", 30, 200, async || shop.stripe(&event).await.0).await;
    until("ready", 10, 200, async || ingest.readyz().await.map_or(0, |(status, _)| status)).await;
    assert_eq!(counts(&stage).await, [1, 1, 1]);
}

#[tokio::test]
async fn a_process_killed_before_or_after_its_commit_leaves_all_or_nothing_and_the_resend_completes_it() {
    for (point, stored) in [("settle.before_commit", 0), ("settle.after_commit", 1)] {
        let stage = Stage::with_schema().await;
        let (_healthy, shop) = Fleet::on(&stage).ingest().await;
        let order = shop.order().await;
        let (mut dying, doomed) = Fleet::on(&stage).with("COUNTERFOIL_FAULT", point).ingest().await;
        let event = stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}));
        assert_eq!(doomed.stripe(&event).await.0, 0, "the connection breaks");
        assert_eq!(dying.ended().await, None, "it was killed");
        assert_eq!(counts(&stage).await, [stored; 3], "{point}");
        assert_eq!(shop.stripe(&event).await.0, 200);
        assert_eq!(counts(&stage).await, [1, 1, 1], "{point}");
    }
}

#[tokio::test]
async fn a_delivery_that_cannot_be_settled_is_stored_as_failed_and_its_neighbours_are_settled() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    stage.execute("ALTER TABLE payments ADD CONSTRAINT no_poison CHECK (payment_id NOT LIKE 'pi_poison%')").await;
    let mut orders = Vec::new();
    for _ in 0..40 {
        orders.push(shop.order().await);
    }
    let events: Vec<_> = orders
        .iter()
        .enumerate()
        .map(|(n, order)| stripe_event("payment_intent.succeeded", order, &format!("{}_{n}", if n % 20 == 7 { "pi_poison" } else { "pi" }), &json!({})))
        .collect();
    let answers = join_all(events.iter().map(|event| shop.stripe(event))).await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, outcome)| outcome == "failed").count(), 2);
    assert_eq!(counts(&stage).await, [40, 38, 38]);
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events WHERE outcome = 'failed' AND last_error = 'SQLSTATE 23514'").await, 2);
    stage.execute("ALTER TABLE payments DROP CONSTRAINT no_poison").await;
    assert_eq!(shop.stripe(&events[7]).await, (200, "applied".into()), "a failed event is driven again by its next delivery");
}
