//! The jobs that no message starts, step by step.

use counterfoil_payments::{News, OrderKey, RefundStatus};
use counterfoil_settlement::{Begun, Delivery, NewRefund, Outcome, attention, housekeeping, request_refund};
use counterfoil_tests::Stage;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{ask, begin_key, create, delivery, new_order, news, order, outcome, outcomes, refund, settled, settled_or_waiting, status, topics};

async fn driven(pool: &PgPool) -> usize {
    let mut tx = pool.begin().await.unwrap();
    let driven = housekeeping::drive_waiting(&mut tx, 100).await.unwrap();
    tx.commit().await.unwrap();
    driven
}

#[tokio::test]
async fn an_event_whose_order_is_made_by_plain_sql_is_applied_by_housekeeping_by_reference_and_by_id() {
    let pool = Stage::with_schema().await.pool();
    let id = Uuid::new_v4();
    for key in ["plain".to_owned(), id.to_string()] {
        let event = delivery(News::Captured, OrderKey::read(&key), &format!("pi_{key}"), 1099, "EUR");
        assert_eq!(outcome(&settled_or_waiting(&pool, &event).await), Outcome::Waiting);
    }
    assert_eq!(driven(&pool).await, 0);
    sqlx::query("INSERT INTO orders (reference, amount_minor, currency) VALUES ('plain', 1099, 'EUR')").execute(&pool).await.unwrap();
    sqlx::query("INSERT INTO orders (id, reference, amount_minor, currency) VALUES ($1, 'by id', 1099, 'EUR')").bind(id).execute(&pool).await.unwrap();
    assert_eq!(driven(&pool).await, 2);
    assert_eq!(sqlx::query_scalar::<_, i64>("SELECT count(*) FROM orders WHERE status = 'paid'").fetch_one(&pool).await.unwrap(), 2);
    assert_eq!(driven(&pool).await, 0);
}

#[tokio::test]
async fn an_event_whose_order_never_appears_or_was_rolled_back_is_listed_with_its_age_and_amount() {
    let pool = Stage::with_schema().await.pool();
    let mut tx = pool.begin().await.unwrap();
    create(&mut tx, &new_order("gone")).await;
    let orphan = delivery(News::Captured, OrderKey::read("never"), "pi_1", 1099, "EUR");
    assert_eq!(outcome(&settled_or_waiting(&pool, &orphan).await), Outcome::Waiting);
    tx.rollback().await.unwrap();
    let rolled_back = delivery(News::Captured, OrderKey::read("gone"), "pi_2", 1099, "EUR");
    assert_eq!(outcome(&settled_or_waiting(&pool, &rolled_back).await), Outcome::Waiting);
    sqlx::query("UPDATE webhook_events SET received_at = now() - interval '2 hours'").execute(&pool).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let seen = attention(&mut connection, 10).await.unwrap();
    let amounts: Vec<_> = seen.iter().map(|entry| (entry.kind.as_str(), entry.order_name.as_deref(), entry.amount_minor, entry.currency.as_deref())).collect();
    assert!(amounts.contains(&("waiting", Some("order:gone"), Some(1099), Some("EUR"))), "{amounts:?}");
    let waiting = housekeeping::waiting(&mut connection, 3600).await.unwrap();
    assert_eq!((waiting.events, waiting.overdue), (2, 2));
    assert!(waiting.oldest_seconds > 7000.0);
}

#[tokio::test]
async fn a_key_left_in_progress_by_a_crash_is_completed_with_its_works_answer_or_cleared_and_a_running_one_is_left_alone() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    let mut tx = pool.begin().await.unwrap();
    let made_by = |key: &str| Some(("shop:POST /orders/{id}/refunds".to_owned(), key.to_owned()));
    let refund_id = Uuid::new_v4();
    let new = NewRefund {
        id: refund_id,
        order_id: id,
        payment: None,
        amount_minor: Some(5),
        origin: "api",
        reason: None,
        provider_key: "k".into(),
        made_by: made_by("done"),
    };
    request_refund(&mut tx, &new, None).await.unwrap();
    let mut made = new_order("by key");
    made.made_by = Some(("shop:POST /orders".into(), "order".into()));
    create(&mut tx, &made).await;
    tx.commit().await.unwrap();
    let stuck = "INSERT INTO idempotency_keys (scope, key, request_hash, status, created_at) VALUES
        ('shop:POST /orders/{id}/refunds', 'done', 'x', 'in_progress', now() - interval '1 hour'), ('shop:POST /orders', 'order', 'x', 'in_progress', now() - interval '1 hour'),
        ('shop:POST /orders/{id}/refunds', 'lost', 'x', 'in_progress', now() - interval '1 hour'), ('shop:POST /orders', 'running', 'x', 'in_progress', now() - interval '1 hour'),
        ('shop:POST /orders', 'young', 'x', 'in_progress', now())";
    sqlx::query(stuck).execute(&pool).await.unwrap();
    assert_eq!(attention(&mut pool.acquire().await.unwrap(), 50).await.unwrap().iter().filter(|entry| entry.kind == "key").count(), 4);
    let mut running = pool.begin().await.unwrap();
    assert_eq!(begin_key(&mut running, &ask("shop:POST /orders", "running", b"x")).await, Begun::Running, "it holds the lock now");
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(housekeeping::settle_keys(&mut tx, 60, 100).await.unwrap(), (2, 1));
    tx.commit().await.unwrap();
    running.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let Begun::Answered(stored) = begin_key(&mut tx, &ask("shop:POST /orders/{id}/refunds", "done", b"x")).await else { panic!("not completed") };
    assert_eq!(stored.status, 201);
    assert!(String::from_utf8(stored.body).unwrap().contains(&refund_id.to_string()));
    assert!(matches!(begin_key(&mut tx, &ask("shop:POST /orders", "order", b"x")).await, Begun::Answered(_)));
    assert_eq!(begin_key(&mut tx, &ask("shop:POST /orders/{id}/refunds", "lost", b"x")).await, Begun::First, "cleared: the caller may try again");
    assert_eq!(begin_key(&mut tx, &ask("shop:POST /orders", "young", b"x")).await, Begun::Running);
}

#[tokio::test]
async fn a_purge_never_reopens_the_door_order_state_and_unique_facts_still_guard() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    let id = order(&pool).await;
    let batch = [news(News::Captured, id, "pi_1"), news(News::Captured, id, "pi_2"), refund("pi_1", "re_1", RefundStatus::Succeeded, 99)];
    outcomes(&pool, &batch).await;
    let made_by = Some(("shop".to_owned(), "key".to_owned()));
    let new =
        NewRefund { id: Uuid::new_v4(), order_id: id, payment: None, amount_minor: Some(5), origin: "api", reason: None, provider_key: "k".into(), made_by };
    let mut tx = pool.begin().await.unwrap();
    request_refund(&mut tx, &new, None).await.unwrap();
    tx.commit().await.unwrap();
    stage.execute("UPDATE webhook_events SET received_at = now() - interval '1 year'; UPDATE outbox SET created_at = now() - interval '1 year', published_at = now() - interval '1 year';
        INSERT INTO idempotency_keys (scope, key, request_hash, status, created_at) VALUES ('shop', 'key', 'x', 'completed', now() - interval '1 year')").await;
    let mut connection = pool.acquire().await.unwrap();
    assert_eq!(housekeeping::purge_events(&mut connection, 86_400, 100).await.unwrap(), 3);
    assert_eq!(housekeeping::purge_keys(&mut connection, 86_400, 100).await.unwrap(), 1);
    assert_eq!(counterfoil_outbox::purge(&mut connection, 86_400, 100).await.unwrap(), 4);
    assert_eq!(outcomes(&pool, &batch).await, [Outcome::Superseded; 3], "every one is known by what it did");
    let mut tx = pool.begin().await.unwrap();
    let other = NewRefund { id: Uuid::new_v4(), amount_minor: Some(6), ..new.clone() };
    assert!(matches!(request_refund(&mut tx, &other, None).await, Err(counterfoil_settlement::RefundRefused::KeyUsed)));
    let again = NewRefund { id: Uuid::new_v4(), ..new.clone() };
    assert_eq!(request_refund(&mut tx, &again, None).await.unwrap().id, new.id, "the key's refund carries the key");
    tx.commit().await.unwrap();
    assert_eq!(topics(&pool, id).await, Vec::<String>::new(), "nothing is said twice");
    assert_eq!(status(&pool, id).await, "paid");
}

#[tokio::test]
async fn what_waits_failed_or_is_unpublished_is_never_purged() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    let waiting = delivery(News::Captured, OrderKey::read("later"), "pi_1", 1099, "EUR");
    settled_or_waiting(&pool, &waiting).await;
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_2")]).await;
    stage.execute("UPDATE webhook_events SET received_at = now() - interval '1 year'; UPDATE outbox SET created_at = now() - interval '1 year'").await;
    let mut connection = pool.acquire().await.unwrap();
    assert_eq!(housekeeping::purge_events(&mut connection, 86_400, 100).await.unwrap(), 1);
    assert_eq!(counterfoil_outbox::purge(&mut connection, 86_400, 100).await.unwrap(), 0);
}

#[tokio::test]
async fn an_event_that_an_earlier_release_deferred_is_acted_on_by_this_one_once() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    let event = refund("pi_1", "re_1", RefundStatus::Succeeded, 99);
    sqlx::query("INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome) VALUES ('stripe', $1, 'refund.created', $2, 0, 'deferred')")
        .bind(&event.event_id)
        .bind(&event.body)
        .execute(&pool)
        .await
        .unwrap();
    for _ in 0..2 {
        let mut tx = pool.begin().await.unwrap();
        for deferred in housekeeping::take_deferred(&mut tx, 10).await.unwrap() {
            assert_eq!(deferred.event_id, event.event_id);
            let again = Delivery { body: Vec::new(), ..event.clone() };
            housekeeping::drive_again(&mut tx, &again).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
    assert_eq!((status(&pool, id).await.as_str(), topics(&pool, id).await), ("partially_refunded", vec!["order.paid".to_owned(), "order.refunded".into()]));
    let verdict = settled(&pool, &[event]).await.remove(0);
    assert_eq!(outcome(&verdict), Outcome::Applied, "a redelivery is a copy of what was applied");
}

#[tokio::test]
async fn a_refund_whose_payment_never_came_is_given_up_after_its_time_and_money_that_waits_for_its_order_never() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    let money = delivery(News::Captured, OrderKey::read("later"), "pi_1", 1099, "EUR");
    settled_or_waiting(&pool, &money).await;
    assert_eq!(outcomes(&pool, &[refund("pi_foreign", "re_1", RefundStatus::Succeeded, 99)]).await, [Outcome::Waiting]);
    let mut connection = pool.acquire().await.unwrap();
    assert_eq!(housekeeping::give_up_foreign(&mut connection, 86_400).await.unwrap(), 0);
    stage.execute("UPDATE webhook_events SET received_at = now() - interval '1 year'").await;
    assert_eq!(housekeeping::give_up_foreign(&mut connection, 86_400).await.unwrap(), 1);
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events WHERE outcome = 'waiting' AND waits_for = 'order:later'").await, 1);
}
