//! Broker and database restarted under load, on services of their own.

use std::time::Duration;

use counterfoil_tests::{Services, stripe_event, until};
use futures_util::future::join_all;
use serde_json::json;

use crate::whole::Whole;

#[tokio::test]
async fn broker_and_postgresql_restarted_under_load_leave_the_counts_right_and_no_process_needs_a_restart() {
    let services = Services::faulty();
    let whole = Whole::on(services.stage().await).await;
    tokio::time::sleep(Duration::from_secs(5)).await; // queues declared just before a kill may be damaged
    let shop = &whole.shop;
    let pay = async |nth: usize| {
        let reference = format!("restart-{nth}");
        let event = stripe_event("payment_intent.succeeded", &reference, &format!("pi_{nth}"), &json!({}));
        // As a provider and a shop do: again until it is taken.
        while shop.stripe(&event).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let order = json!({ "reference": reference, "amount_minor": 1099, "currency": "EUR", "customer": { "email": format!("{reference}@example.com"), "name": "A" } });
        while ![201, 409].contains(
            &shop
                .client
                .post(format!("{}/orders", shop.base))
                .bearer_auth("0123456789abcdef0123")
                .json(&order)
                .send()
                .await
                .map_or(0, |answer| answer.status().as_u16()),
        ) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let load = async {
        for batch in 0..30 {
            join_all((0..10).map(|n| pay(batch * 10 + n))).await;
        }
    };
    let faults = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        services.kill_broker();
        services.up();
        tokio::time::sleep(Duration::from_millis(500)).await;
        services.kill_postgres();
        services.up();
    };
    tokio::join!(load, faults);
    until("one of each for 300 orders", 120, [300, 300, 300, 900], async || whole.counts().await).await;
    assert_eq!(whole.stage.count("SELECT sum(amount_minor)::bigint FROM ledger_lines").await, 0);
    for process in &whole.processes {
        until("every process is ready again", 30, 200, async || process.readyz().await.map_or(0, |(status, _)| status)).await;
    }
}
