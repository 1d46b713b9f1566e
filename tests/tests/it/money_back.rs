//! Money that goes back, through every process and a simulated provider.

use counterfoil_tests::{Child, Fleet, Shop, Simulator, Stage, stripe_event, until};
use futures_util::future::join_all;
use serde_json::{Value, json};

struct Whole {
    stage: Stage,
    simulator: Simulator,
    shop: Shop,
    fleet: Fleet,
    _processes: Vec<Child>,
}

async fn whole() -> Whole {
    let (stage, simulator) = (Stage::new().await, Simulator::start().await);
    let fleet = Fleet::on(&stage).with_simulator(&simulator);
    let (ingest, shop) = fleet.ingest().await;
    simulator.send_webhooks(shop.webhooks());
    let mut processes = vec![ingest];
    for process in [fleet.relay(), fleet.consumer("ledger"), fleet.consumer("refunds"), fleet.consumer("refunds"), fleet.housekeep()] {
        processes.push(process.ready().await);
    }
    Whole { stage, simulator, shop, fleet, _processes: processes }
}

impl Whole {
    async fn pay(&self, order: &str, payment: &str) -> String {
        self.simulator.captured("stripe", payment, order, 1099);
        self.shop.stripe(&stripe_event("payment_intent.succeeded", order, payment, &json!({}))).await.1
    }

    async fn statuses(&self) -> Vec<(String, i64, String)> {
        sqlx::query_as("SELECT payment_id, amount_minor, status FROM refunds ORDER BY payment_id, amount_minor").fetch_all(&self.stage.pool()).await.unwrap()
    }

    /// The books agree with the payments once every event has arrived there.
    async fn books_agree(&self) {
        until("books and payments agree", 30, Some(0), async || self.fleet.counterfoil(&["ledger", "check", "--settled-s", "0"]).await.0).await;
    }
}

#[tokio::test]
async fn a_double_capture_leads_to_one_automatic_refund_at_the_provider_and_the_order_stays_paid() {
    let whole = whole().await;
    let order = whole.shop.order().await;
    assert_eq!(whole.pay(&order, "pi_1").await, "applied");
    assert_eq!(whole.pay(&order, "pi_2").await, "extra");
    for kind in ["charge.succeeded", "checkout.session.completed"] {
        whole.shop.stripe(&stripe_event(kind, &order, "pi_2", &json!({}))).await;
    }
    until("one refund", 40, vec![("pi_2".to_owned(), 1099, "succeeded".to_owned())], async || whole.statuses().await).await;
    whole.books_agree().await;
    assert_eq!(whole.simulator.refunds().len(), 1);
    assert_eq!(whole.simulator.refunds()[0].key, "refund:extra_capture:pi_2");
    let read: Value = whole.shop.read(&order).await.json().await.unwrap();
    assert_eq!((read["status"].as_str(), read["refunds"][0]["origin"].as_str()), (Some("paid"), Some("extra")));
    let unallocated = whole.stage.count("SELECT COALESCE(sum(amount_minor), 0)::bigint FROM ledger_lines WHERE account = 'liabilities:unallocated'").await;
    assert_eq!(unallocated, 0, "a liability while it was here, nothing now");
}

#[tokio::test]
async fn the_refund_api_called_ten_times_at_once_with_one_key_refunds_once_and_the_webhook_meets_it_in_one_row() {
    let whole = whole().await;
    let order = whole.shop.order().await;
    whole.pay(&order, "pi_1").await;
    let answers = join_all((0..10).map(|_| whole.shop.refund(&order, 500, "K"))).await;
    assert!(answers.iter().any(|(status, _)| *status == 201));
    until("one refund", 40, vec![("pi_1".to_owned(), 500, "succeeded".to_owned())], async || whole.statuses().await).await;
    until("its webhooks came", 20, true, async || {
        whole.stage.count("SELECT count(*) FROM webhook_events WHERE event_type IN ('charge.refunded', 'refund.created')").await == 2
    })
    .await;
    assert_eq!(whole.simulator.refunds().len(), 1);
    assert_eq!(whole.statuses().await.len(), 1);
    assert_eq!(whole.stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.refunded'").await, 1);
    whole.books_agree().await;
    let read: Value = whole.shop.read(&order).await.json().await.unwrap();
    assert_eq!(read["status"], "partially_refunded");
}

#[tokio::test]
async fn the_api_and_the_providers_dashboard_at_once_never_send_back_more_than_was_captured() {
    let whole = whole().await;
    let order = whole.shop.order().await;
    whole.pay(&order, "pi_1").await;
    let api = async { whole.shop.refund(&order, 700, "K").await.0 };
    let dashboard = async { whole.simulator.refund_by_hand("stripe", "pi_1", 700) };
    let (status, _) = tokio::join!(api, dashboard);
    // Either the dashboard's webhook came first and the call is refused here, or the provider refuses what we send.
    assert!(matches!(status, 201 | 422), "{status}");
    until("all is decided", 40, 0, async || whole.stage.count("SELECT count(*) FROM refunds WHERE status IN ('requested', 'pending')").await).await;
    until("the dashboard's refund is here", 40, 1, async || {
        whole.stage.count("SELECT count(*) FROM refunds WHERE origin = 'provider' AND status = 'succeeded'").await
    })
    .await;
    assert_eq!(whole.stage.count("SELECT sum(amount_minor)::bigint FROM refunds WHERE status = 'succeeded'").await, 700);
    assert_eq!(whole.simulator.refunds().len(), 1);
    whole.books_agree().await;
}

#[tokio::test]
async fn refund_consumers_killed_again_and_again_refund_each_of_thirty_orders_once() {
    let whole = whole().await;
    let mut orders = Vec::new();
    for n in 0..30 {
        let order = whole.shop.order().await;
        whole.pay(&order, &format!("pi_{n}")).await;
        orders.push(order);
    }
    for order in &orders {
        assert_eq!(whole.shop.refund(order, 1099, "K").await.0, if order == &orders[0] { 201 } else { 422 }, "one key, other orders");
        assert!(matches!(whole.shop.refund(order, 1099, order).await.0, 201 | 422));
    }
    for _ in 0..6 {
        let calls = whole.simulator.refund_calls();
        let mut dying = whole.fleet.consumer("refunds").ready().await;
        until("more calls, or all done", 20, true, async || whole.simulator.refund_calls() > calls || whole.simulator.refunds().len() == 30).await;
        dying.kill();
        whole.stage.execute("UPDATE processed_events SET lease_until = now() WHERE state = 'claimed'").await;
    }
    until("thirty refunds", 60, 30, async || whole.stage.count("SELECT count(*) FROM refunds WHERE status = 'succeeded'").await).await;
    assert_eq!(whole.simulator.refunds().len(), 30);
    assert_eq!(whole.stage.count("SELECT count(*) FROM orders WHERE status = 'refunded'").await, 30);
    whole.books_agree().await;
}
