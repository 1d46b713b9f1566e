//! `drain_once`, step by step.

use counterfoil_broker::lapin::options::{QueueBindOptions, QueueDeclareOptions};
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_broker::topology::EVENTS;
use counterfoil_relay::Drained;
use counterfoil_tests::Stage;
use serde_json::Value;

use crate::support::{drainer, link, rows, states, step};

#[tokio::test]
async fn a_step_publishes_what_waits_marks_what_was_confirmed_and_leaves_nothing_for_the_next() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    rows(&pool, "order.paid", 10).await;
    let drainer = drainer(&pool, 256);
    assert_eq!(step(&drainer, &link).await, Drained { claimed: 10, confirmed: 10, ..Drained::default() });
    assert_eq!(step(&drainer, &link).await, Drained::default());
    assert_eq!(states(&pool).await, (0, 0, 10));
    let taken = stage.take_all("counterfoil.email").await;
    assert_eq!(taken.len(), 10);
    let event: Value = serde_json::from_slice(&taken[0].body).unwrap();
    assert_eq!((event["specversion"].as_str(), event["type"].as_str(), event["id"].as_str()), (Some("1.0"), Some("order.paid"), Some(taken[0].id.as_str())));
}

#[tokio::test]
async fn two_steps_at_once_share_the_rows_without_waiting_for_each_other() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    rows(&pool, "order.paid", 100).await;
    let mut other = pool.begin().await.unwrap();
    let held = counterfoil_outbox::claim(&mut other, 0, 60).await.unwrap();
    assert_eq!((held.len(), held[0].id), (60, 1));
    assert_eq!(step(&drainer(&pool, 256), &link).await.confirmed, 40);
    other.rollback().await.unwrap(); // a relay that died: its rows are free at once
    assert_eq!(step(&drainer(&pool, 256), &link).await.confirmed, 60);
}

#[tokio::test]
async fn an_unroutable_row_stays_uses_no_attempt_and_goes_out_by_itself_once_the_binding_is_back() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    let channel = link.channel().await.unwrap();
    channel.queue_unbind("counterfoil.ledger".into(), EVENTS.into(), "order.disputed".into(), FieldTable::default()).await.unwrap();
    rows(&pool, "order.disputed", 3).await;
    rows(&pool, "order.paid", 3).await;
    let drainer = drainer(&pool, 256);
    assert_eq!(step(&drainer, &link).await, Drained { claimed: 6, confirmed: 3, returned: 3, ..Drained::default() });
    let (attempts, deferrals, why): (i64, i64, String) =
        sqlx::query_as("SELECT sum(attempts), sum(deferrals), min(last_error) FROM outbox WHERE topic = 'order.disputed'").fetch_one(&pool).await.unwrap();
    assert_eq!((attempts, deferrals), (0, 3));
    assert!(why.contains("no queue is bound"), "{why}");
    channel.queue_bind("counterfoil.ledger".into(), EVENTS.into(), "order.disputed".into(), QueueBindOptions::default(), FieldTable::default()).await.unwrap();
    counterfoil_tests::until("they go out", 10, 3, async || step(&drainer, &link).await.confirmed).await;
    assert_eq!(states(&pool).await, (0, 0, 6));
}

#[tokio::test]
async fn a_thousand_unroutable_rows_at_the_head_do_not_slow_the_rest() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    rows(&pool, "nobody.listens", 1000).await;
    let drainer = drainer(&pool, 100);
    let mut channel = None;
    for _ in 0..10 {
        assert_eq!(drainer.drain_once(&link, &mut channel).await.unwrap().returned, 100);
    }
    sqlx::query("UPDATE outbox SET next_attempt_at = now()").execute(&pool).await.unwrap(); // all are due again
    rows(&pool, "order.paid", 300).await;
    let mut steps = 0;
    while states(&pool).await.2 < 300 {
        let drained = drainer.drain_once(&link, &mut channel).await.unwrap();
        assert!(drained.returned <= 25, "deferred rows fill at most a quarter: {drained:?}");
        steps += 1;
    }
    assert_eq!(steps, 4, "300 rows at 75 a step");
    assert_eq!(states(&pool).await, (1000, 0, 300), "none is parked");
}

#[tokio::test]
async fn a_row_that_no_broker_would_take_is_parked_with_its_reason_after_three_attempts_and_its_neighbours_are_unharmed() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    rows(&pool, "order.paid", 20).await;
    sqlx::query("UPDATE outbox SET headers = '{\"x\": [1]}' WHERE id = 7").execute(&pool).await.unwrap();
    sqlx::query("UPDATE outbox SET routing_key = repeat('k', 300) WHERE id = 8").execute(&pool).await.unwrap();
    let drainer = drainer(&pool, 256);
    assert_eq!(step(&drainer, &link).await, Drained { claimed: 20, confirmed: 18, faulty: 2, ..Drained::default() });
    for _ in 0..2 {
        sqlx::query("UPDATE outbox SET next_attempt_at = now()").execute(&pool).await.unwrap();
        assert_eq!(step(&drainer, &link).await.faulty, 2);
    }
    assert_eq!(states(&pool).await, (0, 2, 18));
    let (attempts, why): (i32, String) = sqlx::query_as("SELECT attempts, last_error FROM outbox WHERE id = 7").fetch_one(&pool).await.unwrap();
    assert_eq!(attempts, 3);
    assert!(why.contains("header"), "{why}");
}

#[tokio::test]
async fn rows_that_commit_late_below_the_mark_are_found_by_the_next_sweep() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    let drainer = drainer(&pool, 256);
    let mut late = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO outbox (event_id, topic, routing_key, payload) VALUES (gen_random_uuid(), 'order.paid', 'order.paid', '{}')")
        .execute(&mut *late)
        .await
        .unwrap();
    rows(&pool, "order.paid", 5).await;
    let mut channel = None;
    assert_eq!(drainer.drain_once(&link, &mut channel).await.unwrap().confirmed, 5);
    late.commit().await.unwrap();
    counterfoil_tests::until("the late row goes out", 5, (0, 0, 6), async || {
        drainer.drain_once(&link, &mut channel).await.unwrap();
        states(&pool).await
    })
    .await;
}

#[tokio::test]
async fn a_row_that_a_full_queue_refuses_is_put_off_and_uses_no_attempt() {
    let stage = Stage::new().await;
    let (pool, link) = (stage.pool(), link(&stage).await);
    let channel = link.channel().await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    channel.queue_declare("full".into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    channel.queue_bind("full".into(), EVENTS.into(), "refused.topic".into(), QueueBindOptions::default(), FieldTable::default()).await.unwrap();
    rows(&pool, "refused.topic", 1).await;
    let drainer = drainer(&pool, 256);
    assert_eq!(step(&drainer, &link).await.confirmed, 1, "the first fills it");
    rows(&pool, "refused.topic", 2).await;
    assert_eq!(step(&drainer, &link).await, Drained { claimed: 2, refused: 2, ..Drained::default() });
    let (attempts, deferrals): (i64, i64) =
        sqlx::query_as("SELECT sum(attempts), sum(deferrals) FROM outbox WHERE published_at IS NULL").fetch_one(&pool).await.unwrap();
    assert_eq!((attempts, deferrals), (0, 2));
}
