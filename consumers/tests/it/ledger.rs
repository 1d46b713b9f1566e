//! The ledger under load: batches, and an event that cannot be booked.

use counterfoil_tests::until;
use serde_json::Value;

use crate::support::Bench;

#[tokio::test]
async fn two_replicas_book_two_thousand_events_once_each_while_one_that_cannot_be_booked_dies_alone() {
    let bench = Bench::of("ledger").await;
    bench.stage.execute("ALTER TABLE ledger_lines ADD CONSTRAINT no_poison CHECK (abs(amount_minor) <> 666)").await;
    let mut events: Vec<Value> = (0..2000).map(|_| uuid::Uuid::new_v4()).map(|order| counterfoil_tests::paid_event(order, "a@example.com")).collect();
    events[700]["data"]["books"]["after"]["captured_minor"] = serde_json::json!(666);
    bench.stage.put_events("ledger", &events).await;
    bench.stage.put_events("ledger", &events[..500]).await;
    let mut replicas = [bench.start(), bench.start()];
    until("all are booked", 60, 1999, async || bench.stage.count("SELECT count(*) FROM ledger_entries").await).await;
    until("one is dead", 30, 1, async || bench.stage.waiting(&bench.dead_queue()).await).await;
    bench.drained().await;
    assert_eq!(bench.stage.count("SELECT sum(amount_minor)::bigint FROM ledger_lines").await, 0);
    assert_eq!(bench.stage.count("SELECT count(*) FROM processed_events WHERE state = 'done'").await, 1999);
    // One ack stands for a batch: what a replica had not acked would come back when it ends.
    for replica in &mut replicas {
        replica.signal("TERM");
        assert_eq!(replica.ended().await, Some(0));
    }
    assert_eq!(bench.stage.waiting("counterfoil.ledger").await, 0);
}
