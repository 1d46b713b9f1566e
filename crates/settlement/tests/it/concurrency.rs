//! Many at once: no deadlock, no lost event, nothing twice.

use std::sync::Arc;

use counterfoil_payments::{Fact, News, OrderKey};
use counterfoil_settlement::{Delivery, Failure, Outcome, Verdict, lock_orders, settle, settle_or_wait};
use counterfoil_tests::Stage;
use rand::seq::SliceRandom;
use sqlx::PgPool;
use tokio::sync::Barrier;

use crate::support::{create, delivery, new_order, news, order, outcome, settled, settled_or_waiting, status, topics};

/// Settles a batch and waits for what is locked, as both lanes together do; deadlocks and lock timeouts are counted.
async fn settle_all(pool: &PgPool, mut batch: Vec<Delivery>) -> usize {
    let mut troubles = 0;
    while !batch.is_empty() {
        let mut tx = pool.begin().await.unwrap();
        let verdicts = match settle(&mut tx, &batch).await {
            Ok(verdicts) => verdicts,
            Err(error) => {
                assert_eq!(Failure::of(&error), Failure::Again, "{error}");
                troubles += 1;
                continue;
            }
        };
        tx.commit().await.unwrap();
        let locked = verdicts.iter().map(|verdict| matches!(verdict, Verdict::Locked(_))).collect::<Vec<_>>();
        let mut locked = locked.into_iter();
        batch.retain(|_| locked.next().unwrap());
    }
    troubles
}

/// An event that states this account.
fn told_by(account: &str, mut delivery: Delivery) -> Delivery {
    if let Fact::Payment { payment, .. } = &mut delivery.fact {
        payment.account = account.to_owned();
    }
    delivery.account = account.to_owned();
    delivery
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_committers_over_shuffled_triples_of_each_payments_event_types_never_deadlock() {
    let pool = Stage::with_schema().await.pool();
    let mut ids = Vec::new();
    let mut events = Vec::new();
    for n in 0..150 {
        let id = order(&pool).await;
        ids.push(id);
        events.extend((0..3).map(|nth| told_by(["", "acct_1"][nth % 2], news(News::Captured, id, &format!("pi_{n}")))));
    }
    events.shuffle(&mut rand::rng());
    let committers = (0..4).map(|nth| {
        let (pool, mine) = (pool.clone(), events.iter().skip(nth).step_by(4).cloned().collect::<Vec<_>>());
        tokio::spawn(async move {
            let mut troubles = 0;
            for batch in mine.chunks(32) {
                troubles += settle_all(&pool, batch.to_vec()).await;
            }
            troubles
        })
    });
    for committer in committers.collect::<Vec<_>>() {
        assert_eq!(committer.await.unwrap(), 0, "no deadlock in any batch");
    }
    for id in ids {
        assert_eq!((status(&pool, id).await, topics(&pool, id).await), ("paid".into(), vec!["order.paid".to_owned()]));
    }
    let payments: i64 = sqlx::query_scalar("SELECT count(*) FROM payments").fetch_one(&pool).await.unwrap();
    assert_eq!(payments, 150, "told of with the platform's own account and without, each is one payment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_and_its_event_made_at_the_same_instant_end_paid_500_times() {
    let pool = Stage::with_schema().await.pool();
    for round in 0..500 {
        let reference = format!("race-{round}");
        let gate = Arc::new(Barrier::new(2));
        let event = delivery(News::Captured, OrderKey::read(&reference), &format!("pi_{round}"), 1099, "EUR");
        let maker = tokio::spawn({
            let (pool, gate, reference) = (pool.clone(), Arc::clone(&gate), reference.clone());
            async move {
                gate.wait().await;
                let mut tx = pool.begin().await.unwrap();
                let made = create(&mut tx, &new_order(&reference)).await;
                tx.commit().await.unwrap();
                made.id
            }
        });
        gate.wait().await;
        if let Verdict::NoOrder(_) = settled(&pool, std::slice::from_ref(&event)).await[0] {
            settled_or_waiting(&pool, &event).await;
        }
        let id = maker.await.unwrap();
        assert_eq!((status(&pool, id).await, topics(&pool, id).await), ("paid".into(), vec!["order.paid".to_owned()]), "round {round}");
    }
}

#[tokio::test]
async fn an_event_that_came_before_its_order_waits_and_is_applied_when_the_order_is_made() {
    let pool = Stage::with_schema().await.pool();
    let early = delivery(News::Captured, OrderKey::read("early"), "pi_1", 1099, "EUR");
    assert_eq!(settled(&pool, std::slice::from_ref(&early)).await, [Verdict::NoOrder(OrderKey::read("early").unwrap())]);
    assert_eq!(outcome(&settled_or_waiting(&pool, &early).await), Outcome::Waiting);
    assert_eq!(outcome(&settled_or_waiting(&pool, &early).await), Outcome::Waiting);
    let waits: String = sqlx::query_scalar("SELECT waits_for FROM webhook_events").fetch_one(&pool).await.unwrap();
    assert_eq!(waits, "order:early");
    let mut tx = pool.begin().await.unwrap();
    let made = create(&mut tx, &new_order("early")).await;
    tx.commit().await.unwrap();
    assert_eq!(made.status, "paid");
    let (stored, deliveries, body): (String, i64, Vec<u8>) =
        sqlx::query_as("SELECT outcome, deliveries, body FROM webhook_events").fetch_one(&pool).await.unwrap();
    assert_eq!((stored.as_str(), deliveries, body), ("applied", 2, early.body.clone()));
    assert_eq!(topics(&pool, made.id).await, ["order.paid"]);
}

#[tokio::test]
async fn the_fast_lane_never_waits_for_a_locked_order_and_settles_its_neighbours() {
    let pool = Stage::with_schema().await.pool();
    let (stuck, free) = (order(&pool).await, order(&pool).await);
    let mut somebody = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM orders WHERE id = $1 FOR UPDATE").bind(stuck).execute(&mut *somebody).await.unwrap();
    let verdicts = settled(&pool, &[news(News::Captured, stuck, "pi_1"), news(News::Captured, free, "pi_2")]).await;
    assert_eq!(verdicts[0], Verdict::Locked(stuck));
    assert_eq!(outcome(&verdicts[1]), Outcome::Applied);
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM webhook_events").fetch_one(&pool).await.unwrap();
    assert_eq!(stored, 1, "nothing is stored of what was skipped");
    somebody.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    lock_orders(&mut tx, &[stuck]).await.unwrap();
    let verdicts = settle(&mut tx, &[news(News::Captured, stuck, "pi_1")]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outcome(&verdicts[0]), Outcome::Applied, "its own lock does not hide a row");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_copies_of_one_event_at_once_are_one_event_and_one_outbox_row() {
    let pool = Stage::with_schema().await.pool();
    for _ in 0..10 {
        let id = order(&pool).await;
        let event = news(News::Captured, id, &format!("pi_{id}"));
        let copies: Vec<_> = (0..50)
            .map(|_| {
                tokio::spawn({
                    let (pool, event) = (pool.clone(), event.clone());
                    async move { settle_all(&pool, vec![event]).await }
                })
            })
            .collect();
        for copy in copies {
            assert_eq!(copy.await.unwrap(), 0);
        }
        let deliveries: i64 =
            sqlx::query_scalar("SELECT deliveries FROM webhook_events WHERE event_id = $1").bind(&event.event_id).fetch_one(&pool).await.unwrap();
        assert_eq!((deliveries, topics(&pool, id).await.len()), (50, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_many_unknown_orders_wait_without_deadlock_whatever_their_order() {
    let pool = Stage::with_schema().await.pool();
    let events: Vec<Delivery> = (0..40).map(|n| delivery(News::Captured, OrderKey::read(&format!("later-{n}")), &format!("pi_{n}"), 1099, "EUR")).collect();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let (pool, mut mine) = (pool.clone(), events.clone());
            mine.shuffle(&mut rand::rng());
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                settle_or_wait(&mut tx, &mine).await.unwrap();
                tx.commit().await.unwrap();
            })
        })
        .collect();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let waiting: Vec<(String, i64)> = sqlx::query_as("SELECT outcome, deliveries FROM webhook_events").fetch_all(&pool).await.unwrap();
    assert_eq!(waiting, vec![("waiting".to_owned(), 4); 40]);
}
