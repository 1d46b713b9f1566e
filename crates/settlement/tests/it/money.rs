//! Whose money it is, and whether it fits.

use counterfoil_payments::{Contact, Fact, News, OrderId, OrderKey, RefundStatus};
use counterfoil_settlement::{Delivery, Outcome, Settled, Verdict, housekeeping};
use counterfoil_tests::Stage;
use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{create, delivery, disposition, new_order, news, order, outcome, outcomes, refund, settled, settled_or_waiting, status, topics};

fn for_order(order: Uuid, payment: &str, amount_minor: i64, currency: &str) -> Delivery {
    delivery(News::Captured, Some(OrderKey::Id(OrderId(order))), payment, amount_minor, currency)
}

async fn payload(pool: &PgPool, topic: &str) -> Value {
    sqlx::query_scalar("SELECT payload FROM outbox WHERE topic = $1").bind(topic).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn duplicates_by_event_id_by_payment_id_and_across_event_types_make_one_paid_order_and_one_outbox_row() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let first = news(News::Captured, id, "pi_1");
    let batch = [first.clone(), first.clone(), news(News::Captured, id, "pi_1"), first.clone(), news(News::Captured, id, "pi_1")];
    let verdicts = settled(&pool, &batch).await;
    let told = verdicts.iter().map(|verdict| match verdict {
        Verdict::Settled(Settled { outcome, duplicate, .. }) => (*outcome, *duplicate),
        Verdict::Locked(_) | Verdict::NoOrder(_) => panic!("{verdict:?}"),
    });
    use Outcome::{Applied, Superseded};
    assert_eq!(told.collect::<Vec<_>>(), [(Applied, false), (Applied, true), (Superseded, false), (Applied, true), (Superseded, false)]);
    assert_eq!(settled(&pool, &[first]).await, [Verdict::Settled(Settled { outcome: Applied, duplicate: true, differs: false, paid: None })]);
    assert_eq!(status(&pool, id).await, "paid");
    assert_eq!(topics(&pool, id).await, ["order.paid"]);
    let deliveries: Vec<i64> = sqlx::query_scalar("SELECT deliveries FROM webhook_events ORDER BY deliveries DESC").fetch_all(&pool).await.unwrap();
    assert_eq!(deliveries, [4, 1, 1]);
}

#[tokio::test]
async fn one_payment_for_two_orders_pays_the_first_and_is_held_for_the_second() {
    let pool = Stage::with_schema().await.pool();
    let (one, two) = (order(&pool).await, order(&pool).await);
    let verdicts = outcomes(&pool, &[news(News::Captured, one, "pi_1"), news(News::Captured, two, "pi_1")]).await;
    assert_eq!(verdicts, [Outcome::Applied, Outcome::Held]);
    assert_eq!((status(&pool, one).await, status(&pool, two).await), ("paid".into(), "pending_payment".into()));
    assert_eq!(topics(&pool, two).await, ["payment.held"]);
    let held = payload(&pool, "payment.held").await;
    assert_eq!((held["reason"].as_str(), held.get("books")), (Some("claimed_by_other_order"), None), "no money moves by a claim");
    assert_eq!(disposition(&pool, "pi_1").await, ("captured".into(), "settled".into()));
}

#[tokio::test]
async fn an_attempt_without_money_binds_nobody_it_pays_the_order_that_its_capture_names() {
    let pool = Stage::with_schema().await.pool();
    for (attempt, waits) in [(News::Pending, "payment_pending"), (News::Failed, "pending_payment"), (News::Authorised, "payment_pending")] {
        for capture_first in [false, true] {
            let (one, two, payment) = (order(&pool).await, order(&pool).await, format!("pi_{attempt:?}_{capture_first}"));
            let mut told = vec![news(attempt, one, &payment), news(News::Captured, two, &payment)];
            if capture_first {
                told.reverse();
            }
            for event in told {
                outcomes(&pool, &[event]).await;
            }
            assert_eq!(disposition(&pool, &payment).await, ("captured".into(), "settled".into()));
            assert_eq!((status(&pool, one).await, status(&pool, two).await), (waits.into(), "paid".into()));
        }
    }
}

/// A fails under one intent and is paid by another; the first intent is then captured for B. When A's own payment goes back,
/// nothing stands in for it.
#[tokio::test]
async fn money_that_another_order_claims_stands_in_for_nothing() {
    let pool = Stage::with_schema().await.pool();
    let (a, b) = (order(&pool).await, order(&pool).await);
    outcomes(&pool, &[news(News::Failed, a, "pi_1")]).await;
    outcomes(&pool, &[news(News::Captured, a, "pi_2")]).await;
    outcomes(&pool, &[news(News::Captured, b, "pi_1")]).await;
    outcomes(&pool, &[refund("pi_2", "re_2", RefundStatus::Succeeded, 1099)]).await;
    assert_eq!((status(&pool, a).await, status(&pool, b).await), ("refunded".into(), "paid".into()));
    // A second payment of a third order stands in for the first one, until another order claims it.
    let c = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, c, "pi_3")]).await;
    outcomes(&pool, &[news(News::Captured, c, "pi_4")]).await;
    outcomes(&pool, &[refund("pi_3", "re_3", RefundStatus::Succeeded, 1099)]).await;
    assert_eq!(status(&pool, c).await, "paid");
    assert_eq!(outcomes(&pool, &[news(News::Captured, order(&pool).await, "pi_4")]).await, [Outcome::Held]);
    let mut tx = pool.begin().await.unwrap();
    housekeeping::drive_waiting(&mut tx, 100).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(status(&pool, c).await, "refunded");
}

#[tokio::test]
async fn an_amount_or_currency_that_differs_pays_nothing_and_says_payment_held_once() {
    let pool = Stage::with_schema().await.pool();
    for (amount, currency, reason) in
        [(1098, "EUR", "amount_differs"), (1100, "EUR", "amount_differs"), (0, "EUR", "amount_differs"), (1099, "USD", "currency_differs")]
    {
        let (id, payment) = (order(&pool).await, format!("pi_{amount}_{currency}"));
        let batch = [for_order(id, &payment, amount, currency), for_order(id, &payment, amount, currency)];
        assert_eq!(outcomes(&pool, &batch).await, [Outcome::Held, Outcome::Superseded]);
        assert_eq!(status(&pool, id).await, "pending_payment");
        assert_eq!(topics(&pool, id).await, ["payment.held"]);
        let said: Option<String> = sqlx::query_scalar("SELECT held_reason FROM payments WHERE payment_id = $1").bind(&payment).fetch_one(&pool).await.unwrap();
        assert_eq!(said.as_deref(), Some(reason));
        // The right money may still come.
        assert_eq!(outcomes(&pool, &[news(News::Captured, id, &format!("{payment}_again"))]).await, [Outcome::Applied]);
        assert_eq!(status(&pool, id).await, "paid");
    }
}

#[tokio::test]
async fn a_second_captured_payment_is_extra_and_says_payment_extra_once() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let batch = [news(News::Captured, id, "pi_1"), news(News::Captured, id, "pi_2"), news(News::Captured, id, "pi_2"), for_order(id, "pi_3", 5, "USD")];
    assert_eq!(outcomes(&pool, &batch).await, [Outcome::Applied, Outcome::Extra, Outcome::Superseded, Outcome::Extra]);
    assert_eq!(topics(&pool, id).await, ["order.paid", "payment.extra", "payment.extra"]);
    assert_eq!(disposition(&pool, "pi_2").await, ("captured".into(), "extra".into()));
    let versions: Vec<i64> = sqlx::query_scalar("SELECT version FROM outbox ORDER BY id").fetch_all(&pool).await.unwrap();
    assert_eq!(versions, [2, 3, 4], "every event takes an increment of its own");
}

#[tokio::test]
async fn money_for_an_order_that_we_ended_is_held() {
    let pool = Stage::with_schema().await.pool();
    for ended in ["cancelled", "expired"] {
        let id = order(&pool).await;
        sqlx::query("UPDATE orders SET status = $2, version = version + 1 WHERE id = $1").bind(id).bind(ended).execute(&pool).await.unwrap();
        assert_eq!(outcomes(&pool, &[news(News::Captured, id, &format!("pi_{ended}"))]).await, [Outcome::Held]);
        assert_eq!(status(&pool, id).await, ended);
    }
}

#[tokio::test]
async fn a_copy_with_another_body_is_counted_and_the_first_stays_in_force() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let first = news(News::Pending, id, "pi_1");
    let other = Delivery { body: b"other".to_vec(), ..Delivery { event_id: first.event_id.clone(), ..news(News::Captured, id, "pi_1") } };
    assert_eq!(outcomes(&pool, std::slice::from_ref(&first)).await, [Outcome::Applied]);
    let verdict = settled(&pool, &[other]).await.remove(0);
    assert_eq!(verdict, Verdict::Settled(Settled { outcome: Outcome::Applied, duplicate: true, differs: true, paid: None }));
    assert_eq!(status(&pool, id).await, "payment_pending");
    let (body, differing, kept): (Vec<u8>, i64, Vec<u8>) =
        sqlx::query_as("SELECT body, differing, differing_body FROM webhook_events").fetch_one(&pool).await.unwrap();
    assert_eq!((body, differing, kept), (first.body, 1, b"other".to_vec()));
}

#[tokio::test]
async fn a_contact_that_comes_after_the_payment_is_stored_and_said_once() {
    let pool = Stage::with_schema().await.pool();
    let id: Uuid =
        sqlx::query_scalar("INSERT INTO orders (reference, amount_minor, currency) VALUES ('bare', 1099, 'EUR') RETURNING id").fetch_one(&pool).await.unwrap();
    let with_contact = |event: Delivery| match event.fact {
        Fact::Payment { news, payment, order, money, details, .. } => {
            let contact = Contact { email: Some("late@example.com".into()), name: Some("Late".into()), phone: None };
            Delivery { fact: Fact::Payment { news, payment, order, money, details, contact, remark: None }, ..event }
        }
        _ => unreachable!(),
    };
    let batch = [news(News::Captured, id, "pi_1"), with_contact(news(News::Captured, id, "pi_1")), with_contact(news(News::Captured, id, "pi_1"))];
    assert_eq!(outcomes(&pool, &batch).await, [Outcome::Applied, Outcome::Superseded, Outcome::Superseded]);
    assert_eq!(topics(&pool, id).await, ["order.paid", "order.contact_known"]);
    assert_eq!(payload(&pool, "order.paid").await["customer"]["email"], Value::Null);
    let known = payload(&pool, "order.contact_known").await;
    assert_eq!((known["customer"]["email"].as_str(), known.get("books")), (Some("late@example.com"), None));
}

#[tokio::test]
async fn events_that_touch_no_order_are_stored_with_their_outcome() {
    let pool = Stage::with_schema().await.pool();
    let aside = |fact| Delivery { fact, ..news(News::Pending, Uuid::nil(), "pi") };
    let orphan = delivery(News::Captured, None, "pi_unknown", 1, "EUR");
    let batch = [aside(Fact::Ignored { reason: "x".into() }), aside(Fact::Unreadable { reason: "x".into() }), orphan.clone()];
    assert_eq!(outcomes(&pool, &batch).await, [Outcome::Ignored, Outcome::Unreadable, Outcome::Ignored]);
    let again = settled(&pool, &batch).await;
    assert!(again.iter().all(|verdict| matches!(verdict, Verdict::Settled(Settled { duplicate: true, .. }))));
    // An event that names no order is about the order of its payment, once that is known.
    let id = order(&pool).await;
    assert_eq!(outcome(&settled(&pool, &[news(News::Pending, id, "pi_known")]).await[0]), Outcome::Applied);
    assert_eq!(outcomes(&pool, &[delivery(News::Captured, None, "pi_known", 1099, "EUR")]).await, [Outcome::Applied]);
    assert_eq!(status(&pool, id).await, "paid");
}

#[tokio::test]
async fn a_differing_copy_is_counted_once_wherever_it_stands_and_later_equal_copies_do_not_differ() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let first = news(News::Pending, id, "pi_1");
    let other = Delivery { body: b"other".to_vec(), ..first.clone() };
    settled(&pool, std::slice::from_ref(&first)).await;
    let differs = |verdict: &Verdict| matches!(verdict, Verdict::Settled(Settled { differs: true, .. }));
    assert!(settled(&pool, &[first.clone(), other.clone()]).await.iter().any(differs), "behind an equal copy in its batch");
    let (differing, kept): (i64, Vec<u8>) = sqlx::query_as("SELECT differing, differing_body FROM webhook_events").fetch_one(&pool).await.unwrap();
    assert_eq!((differing, kept), (1, other.body));
    assert!(!settled(&pool, &[first]).await.iter().any(differs));
}

#[tokio::test]
async fn a_failed_event_delivered_again_before_its_order_exists_waits_for_it() {
    let pool = Stage::with_schema().await.pool();
    let event = delivery(News::Captured, OrderKey::read("later"), "pi_1", 1099, "EUR");
    let mut tx = pool.begin().await.unwrap();
    counterfoil_settlement::store_failed(&mut tx, &event, "SQLSTATE XX000").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outcome(&settled_or_waiting(&pool, &event).await), Outcome::Waiting);
    let mut tx = pool.begin().await.unwrap();
    let made = create(&mut tx, &new_order("later")).await;
    tx.commit().await.unwrap();
    assert_eq!(made.status, "paid");
}
