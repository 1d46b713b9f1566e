//! One payment announced by several event types, some of them before it is paid.

use counterfoil_tests::{Fleet, Stage, stripe_event};
use serde_json::{Value, json};

#[tokio::test]
async fn a_session_completed_unpaid_pays_nothing_until_its_async_success_which_may_come_first_and_its_failure_leaves_the_order_payable() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let unpaid = |order: &str| stripe_event("checkout.session.completed", order, &format!("pi_{order}"), &json!({ "payment_status": "unpaid" }));
    let later = |kind: &str, order: &str| stripe_event(&format!("checkout.session.{kind}"), order, &format!("pi_{order}"), &json!({}));
    let status = async |order: &str| shop.read(order).await.json::<Value>().await.unwrap()["status"].as_str().map(str::to_owned).unwrap();
    let order = shop.order().await;
    shop.stripe(&unpaid(&order)).await;
    assert_eq!((status(&order).await.as_str(), stage.count("SELECT count(*) FROM outbox").await), ("payment_pending", 0));
    shop.stripe(&later("async_payment_succeeded", &order)).await;
    assert_eq!(status(&order).await, "paid");
    let first = shop.order().await;
    assert_eq!(shop.stripe(&later("async_payment_succeeded", &first)).await.1, "applied");
    assert_eq!(shop.stripe(&unpaid(&first)).await.1, "superseded");
    assert_eq!(status(&first).await, "paid");
    let failed = shop.order().await;
    shop.stripe(&unpaid(&failed)).await;
    shop.stripe(&later("async_payment_failed", &failed)).await;
    assert_eq!(status(&failed).await, "payment_pending");
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &failed, "pi_second_try", &json!({}))).await.1, "applied");
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid'").await, 3);
    assert_eq!(stage.count("SELECT count(*) FROM outbox").await, 3);
}

#[tokio::test]
async fn the_event_type_that_wins_does_not_influence_what_is_stored() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let kinds = ["charge.succeeded", "payment_intent.succeeded", "checkout.session.completed"];
    for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let order = shop.order().await;
        for kind in [a, b, c] {
            shop.stripe(&stripe_event(kinds[kind], &order, &format!("pi_{order}"), &json!({}))).await;
        }
        let read: Value = shop.read(&order).await.json().await.unwrap();
        let wanted = json!([{ "provider": "stripe", "account": "", "payment_id": format!("pi_{order}"), "status": "captured", "disposition": "settled", "held_reason": null,
            "amount_minor": 1099, "currency": "EUR" }]);
        assert_eq!((&read["payments"], &read["version"], &read["status"]), (&wanted, &json!(2), &json!("paid")), "{a}{b}{c}");
    }
}

#[tokio::test]
async fn failed_final_by_standard_webhooks_fails_the_order_which_stays_payable_and_its_refunds_and_disputes_are_read_too() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let order = shop.order().await;
    let data = |payment: &str, status: &str| json!({ "order": order, "payment_id": payment, "amount_minor": 1099, "currency": "EUR", "status": status, "livemode": false, "refund_id": "r1", "dispute_id": "d1" });
    let status = async || shop.read(&order).await.json::<Value>().await.unwrap()["status"].as_str().map(str::to_owned).unwrap();
    assert_eq!(shop.standard("m1", data("p1", "failed_final")).await.1, "applied");
    assert_eq!(status().await, "failed_final");
    assert_eq!(shop.standard("m2", data("p1", "pending")).await.1, "superseded");
    assert_eq!(shop.standard("m3", data("p2", "captured")).await.1, "applied");
    assert_eq!(status().await, "paid");
    assert_eq!(shop.standard("m4", data("p2", "refunded")).await.1, "applied");
    assert_eq!(shop.standard("m5", data("p2", "disputed")).await.1, "applied");
    let read: Value = shop.read(&order).await.json().await.unwrap();
    assert_eq!(
        (read["status"].as_str(), read["refunds"][0]["status"].as_str(), read["disputes"][0]["status"].as_str()),
        (Some("refunded"), Some("succeeded"), Some("opened"))
    );
}
