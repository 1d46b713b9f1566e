//! Money that goes back: one row for each refund, never more than was captured, in any order of arrival.

use counterfoil_payments::{Fact, Money, News, OrderId, OrderKey, RefundStatus};
use counterfoil_settlement::{NewRefund, Outcome, RefundRefused, cancel, find_refund, refund_answered, request_refund};
use counterfoil_tests::Stage;
use futures_util::future::join_all;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{book, delivery, differing, disposition, key, named, news, order, outcome, outcomes, refund, says, settled, status, topics};

fn asked(order_id: Uuid, amount_minor: i64) -> NewRefund {
    let id = Uuid::new_v4();
    NewRefund {
        id,
        order_id,
        payment: None,
        amount_minor: Some(amount_minor),
        origin: "api",
        reason: None,
        provider_key: format!("refund:{id}"),
        made_by: None,
    }
}

async fn ask(pool: &PgPool, new: &NewRefund) -> Result<Uuid, RefundRefused> {
    let mut tx = pool.begin().await.unwrap();
    let made = request_refund(&mut tx, new, None).await.map(|made| made.id);
    // Awaited either way: a transaction that is only dropped keeps its locks for a moment.
    if made.is_ok() {
        tx.commit().await.unwrap()
    } else {
        tx.rollback().await.unwrap()
    }
    made
}

async fn paid(pool: &PgPool, payment: &str) -> Uuid {
    let id = order(pool).await;
    outcomes(pool, &[news(News::Captured, id, payment)]).await;
    id
}

async fn rows(pool: &PgPool, order: Uuid) -> Vec<(String, i64, String)> {
    sqlx::query_as("SELECT origin, amount_minor, status FROM refunds WHERE order_id = $1 ORDER BY origin, amount_minor")
        .bind(order)
        .fetch_all(pool)
        .await
        .unwrap()
}

/// What the provider's own event says of a refund that we asked for.
fn of_ours(payment: &str, theirs: &str, ours: Option<Uuid>, amount_minor: i64) -> counterfoil_settlement::Delivery {
    let money = Money::new(amount_minor, "EUR".parse().unwrap());
    says(Fact::Refund { payment: key(payment), refund_id: theirs.into(), status: RefundStatus::Succeeded, money, ours, may_be_release: false })
}

async fn answered(pool: &PgPool, id: Uuid, theirs: &str) {
    let mut tx = pool.begin().await.unwrap();
    let refund = find_refund(&mut tx, id).await.unwrap().unwrap();
    refund_answered(&mut tx, &refund, theirs, RefundStatus::Succeeded, None).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_refund_seen_before_its_capture_waits_for_it_and_is_never_negative() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let early = [refund("pi_1", "re_1", RefundStatus::Succeeded, 99), refund("pi_1", "re_1", RefundStatus::Pending, 99)];
    assert_eq!(outcomes(&pool, &early).await, [Outcome::Waiting, Outcome::Waiting]);
    assert_eq!(outcomes(&pool, &[news(News::Authorised, id, "pi_1")]).await, [Outcome::Applied]);
    assert_eq!(rows(&pool, id).await, [], "an authorisation is no capture");
    assert_eq!(outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await, [Outcome::Applied]);
    assert_eq!((status(&pool, id).await.as_str(), rows(&pool, id).await), ("partially_refunded", vec![("provider".into(), 99, "succeeded".into())]));
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn stripes_cumulative_figure_alone_changes_nothing_and_meets_the_refunds_own_event_in_both_orders() {
    let pool = Stage::with_schema().await.pool();
    for own_first in [true, false] {
        let payment = format!("pi_{own_first}");
        let id = paid(&pool, &payment).await;
        let total = Money::new(99, "EUR".parse().unwrap());
        let reported = says(Fact::RefundsReported { payment: key(&payment), total });
        let own = refund(&payment, &format!("re_{own_first}"), RefundStatus::Succeeded, 99);
        if own_first {
            assert_eq!(outcomes(&pool, &[own, reported]).await, [Outcome::Applied, Outcome::Applied]);
        } else {
            assert_eq!(outcomes(&pool, &[reported]).await, [Outcome::Applied]);
            assert_eq!((status(&pool, id).await.as_str(), topics(&pool, id).await), ("paid", vec!["order.paid".to_owned()]), "it names no refund");
            assert_eq!(outcomes(&pool, &[own]).await, [Outcome::Applied]);
        }
        assert_eq!(status(&pool, id).await, "partially_refunded");
        assert_eq!(topics(&pool, id).await, ["order.paid", "order.refunded"]);
    }
}

#[tokio::test]
async fn the_providers_event_and_the_answer_to_our_call_meet_in_one_row_in_any_order_with_our_mark_or_without() {
    let pool = Stage::with_schema().await.pool();
    for (n, (marked, event_first)) in [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate() {
        let (payment, theirs) = (format!("pi_{n}"), format!("re_{n}"));
        let id = paid(&pool, &payment).await;
        let ours = ask(&pool, &asked(id, 99)).await.unwrap();
        let event = of_ours(&payment, &theirs, marked.then_some(ours), 99);
        if event_first {
            settled(&pool, std::slice::from_ref(&event)).await;
        }
        answered(&pool, ours, &theirs).await;
        settled(&pool, &[event]).await;
        assert_eq!(rows(&pool, id).await, [("api".into(), 99, "succeeded".into())], "marked {marked}, event first {event_first}");
        assert_eq!(topics(&pool, id).await.iter().filter(|topic| *topic == "order.refunded").count(), 1);
        assert_eq!(status(&pool, id).await, "partially_refunded");
    }
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn refunds_never_exceed_what_was_captured_whoever_asks_at_once() {
    let pool = Stage::with_schema().await.pool();
    let id = paid(&pool, "pi_1").await;
    outcomes(&pool, &[news(News::Captured, id, "pi_2")]).await;
    // The API twenty times, the extra payment's job three times, and the provider's dashboard, all at once.
    let api = (0..20).map(|_| {
        let pool = pool.clone();
        async move { ask(&pool, &asked(id, 300)).await.is_ok() }
    });
    let automatic = (0..3).map(|_| {
        let pool = pool.clone();
        async move {
            let new = NewRefund {
                id: Uuid::from_u128(7),
                payment: named("pi_2"),
                amount_minor: None,
                origin: "extra",
                provider_key: "refund:extra_capture:pi_2".into(),
                ..asked(id, 0)
            };
            ask(&pool, &new).await.unwrap()
        }
    });
    let dashboard = async { settled(&pool, &[refund("pi_1", "re_by_hand", RefundStatus::Succeeded, 300)]).await };
    let (made, automatic, _) = tokio::join!(join_all(api), join_all(automatic), dashboard);
    let made = made.into_iter().filter(|made| *made).count();
    assert!((2..=3).contains(&made), "{made} of 300 beside what the dashboard took of 1099");
    assert!(automatic.iter().all(|id| *id == Uuid::from_u128(7)));
    let extra: Vec<i64> = sqlx::query_scalar("SELECT amount_minor FROM refunds WHERE payment_id = 'pi_2'").fetch_all(&pool).await.unwrap();
    assert_eq!(extra, [1099]);
    let left = ask(&pool, &asked(id, 1099)).await.unwrap_err();
    assert!(matches!(left, RefundRefused::TooMuch { left, .. } if left <= 199), "{left}");
}

#[tokio::test]
async fn refunding_the_first_payment_does_not_unpay_an_order_while_the_second_stands_and_a_resend_never_does() {
    let pool = Stage::with_schema().await.pool();
    let id = paid(&pool, "pi_1").await;
    let resend = news(News::Captured, id, "pi_1");
    assert_eq!(
        outcomes(&pool, &[news(News::Captured, id, "pi_2"), refund("pi_1", "re_1", RefundStatus::Succeeded, 1099)]).await,
        [Outcome::Extra, Outcome::Applied]
    );
    assert_eq!(status(&pool, id).await, "paid");
    assert_eq!(outcomes(&pool, &[refund("pi_2", "re_2", RefundStatus::Succeeded, 1099), resend]).await, [Outcome::Applied, Outcome::Superseded]);
    assert_eq!(status(&pool, id).await, "refunded");
    assert_eq!(outcomes(&pool, &[refund("pi_2", "re_2", RefundStatus::Failed, 1099)]).await, [Outcome::Applied]);
    assert_eq!(status(&pool, id).await, "paid", "the bank sent it back: the money is here again");
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn only_an_exact_amount_in_the_orders_currency_pays_whatever_its_exponent() {
    let pool = Stage::with_schema().await.pool();
    for (amount, currency, wrong) in [
        (1000, "EUR", vec![(999, "EUR"), (1001, "EUR"), (0, "EUR"), (1000, "USD")]),
        (1000, "JPY", vec![(100_000, "JPY")]),
        (1234, "KWD", vec![(123, "KWD")]),
        (5, "ISK", vec![(500, "ISK")]),
        (10_000, "HUF", vec![(100, "HUF")]),
    ] {
        let id = order(&pool).await;
        sqlx::query("UPDATE orders SET amount_minor = $2, currency = $3 WHERE id = $1").bind(id).bind(amount).bind(currency).execute(&pool).await.unwrap();
        let of = |n: usize, amount, currency: &str| delivery(News::Captured, Some(OrderKey::Id(OrderId(id))), &format!("pi_{id}_{n}"), amount, currency);
        for (n, (amount, currency)) in wrong.iter().enumerate() {
            assert_eq!(outcomes(&pool, &[of(n, *amount, currency)]).await, [Outcome::Held], "{amount} {currency}");
            assert_ne!(status(&pool, id).await, "paid");
        }
        assert_eq!(outcomes(&pool, &[of(9, amount, currency)]).await, [Outcome::Applied]);
        assert_eq!(status(&pool, id).await, "paid");
        for n in 0..wrong.len() {
            assert_eq!(disposition(&pool, &format!("pi_{id}_{n}")).await.1, "extra", "what did not fit is surplus, now that the order is paid");
        }
    }
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn two_part_payments_do_not_pay_together_and_one_payment_captured_in_parts_pays_when_it_is_complete() {
    let pool = Stage::with_schema().await.pool();
    let parts = order(&pool).await;
    let part = |id, payment: &str, amount| delivery(News::Captured, Some(OrderKey::Id(OrderId(id))), payment, amount, "EUR");
    assert_eq!(outcomes(&pool, &[part(parts, "pi_1", 400), part(parts, "pi_2", 699)]).await, [Outcome::Held, Outcome::Held]);
    assert_eq!(status(&pool, parts).await, "pending_payment");
    let grown = order(&pool).await;
    assert_eq!(
        outcomes(&pool, &[part(grown, "pi_3", 400), part(grown, "pi_3", 1099), part(grown, "pi_3", 400)]).await,
        [Outcome::Held, Outcome::Applied, Outcome::Superseded]
    );
    assert_eq!((status(&pool, grown).await.as_str(), disposition(&pool, "pi_3").await.1.as_str()), ("paid", "settled"));
    assert_eq!(outcomes(&pool, &[part(grown, "pi_3", 1200)]).await, [Outcome::Held], "more than the order costs");
    assert_eq!(topics(&pool, grown).await, ["payment.held", "order.paid", "payment.held"]);
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn captured_for_an_order_that_we_cancelled_or_let_expire_is_held_with_its_reason_and_its_event() {
    let pool = Stage::with_schema().await.pool();
    let cancelled = order(&pool).await;
    let mut tx = pool.begin().await.unwrap();
    cancel(&mut tx, &OrderKey::Id(OrderId(cancelled))).await.unwrap();
    tx.commit().await.unwrap();
    let expired = order(&pool).await;
    sqlx::query("UPDATE orders SET expires_at = now() - interval '1 second' WHERE id = $1").bind(expired).execute(&pool).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(counterfoil_settlement::expire(&mut tx, 10).await.unwrap().len(), 1);
    tx.commit().await.unwrap();
    for (id, payment, reason) in [(cancelled, "pi_1", "order_cancelled"), (expired, "pi_2", "order_expired")] {
        assert_eq!(outcome(&settled(&pool, &[news(News::Captured, id, payment)]).await[0]), Outcome::Held);
        let why: String = sqlx::query_scalar("SELECT held_reason FROM payments WHERE payment_id = $1").bind(payment).fetch_one(&pool).await.unwrap();
        assert_eq!((why.as_str(), topics(&pool, id).await), (reason, vec!["payment.held".to_owned()]));
    }
    let seen = counterfoil_settlement::attention(&mut pool.acquire().await.unwrap(), 10).await.unwrap();
    assert_eq!(seen.iter().filter(|entry| entry.kind == "held" && entry.amount_minor == Some(1099)).count(), 2);
}

#[tokio::test]
async fn captured_and_cancelled_news_of_one_payment_in_the_same_millisecond_end_captured() {
    let pool = Stage::with_schema().await.pool();
    for n in 0..20 {
        let (id, payment) = (order(&pool).await, format!("pi_{n}"));
        let both = [News::Captured, News::Cancelled].map(|what| {
            let (pool, delivery) = (pool.clone(), news(what, id, &payment));
            async move {
                while settled(&pool, std::slice::from_ref(&delivery)).await.iter().any(|verdict| matches!(verdict, counterfoil_settlement::Verdict::Locked(_)))
                {
                }
            }
        });
        join_all(both).await;
        assert_eq!((status(&pool, id).await.as_str(), disposition(&pool, &payment).await.0.as_str()), ("paid", "captured"));
    }
}

#[tokio::test]
async fn a_surplus_and_a_refund_of_the_whole_together_never_exceed_what_was_captured() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let captured = |amount| delivery(News::Captured, Some(OrderKey::Id(OrderId(id))), "pi_1", amount, "EUR");
    outcomes(&pool, &[captured(1099), captured(1500)]).await;
    ask(&pool, &asked(id, 1500)).await.unwrap();
    let surplus = NewRefund { payment: named("pi_1"), amount_minor: None, origin: "mismatch", ..asked(id, 0) };
    assert!(matches!(ask(&pool, &surplus).await, Err(RefundRefused::TooMuch { left: 0, .. })));
}

#[tokio::test]
async fn a_surplus_is_said_once_whichever_of_its_captures_came_first() {
    let pool = Stage::with_schema().await.pool();
    for (n, amounts) in [[1099, 1500], [1500, 1099]].into_iter().enumerate() {
        let id = order(&pool).await;
        for amount in amounts {
            outcomes(&pool, &[delivery(News::Captured, Some(OrderKey::Id(OrderId(id))), &format!("pi_{n}"), amount, "EUR")]).await;
        }
        let said: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE order_id = $1 AND payload ->> 'reason' = 'captured_more'")
            .bind(id)
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!((said, status(&pool, id).await.as_str()), (1, "paid"), "{amounts:?}");
    }
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
    let unallocated: i64 =
        sqlx::query_scalar("SELECT sum(amount_minor)::bigint FROM ledger_lines WHERE account = 'liabilities:unallocated'").fetch_one(&pool).await.unwrap();
    assert_eq!(unallocated, -2 * 401);
}

#[tokio::test]
async fn a_refund_that_we_gave_up_and_its_provider_made_after_all_is_what_its_provider_says() {
    let pool = Stage::with_schema().await.pool();
    let id = paid(&pool, "pi_1").await;
    let ours = ask(&pool, &asked(id, 99)).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let row = find_refund(&mut tx, ours).await.unwrap().unwrap();
    counterfoil_settlement::refund_refused(&mut tx, &row, "refused", None).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows(&pool, id).await, [("api".into(), 99, "failed".into())]);
    let listed = async || {
        let seen = counterfoil_settlement::attention(&mut pool.acquire().await.unwrap(), 10).await.unwrap();
        seen.into_iter().filter(|entry| entry.kind == "refund").map(|entry| entry.why).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, ["failed: refused"]);
    settled(&pool, &[of_ours("pi_1", "re_1", Some(ours), 99)]).await;
    assert_eq!(listed().await, Vec::<String>::new());
    assert_eq!((rows(&pool, id).await, status(&pool, id).await.as_str()), (vec![("api".into(), 99, "succeeded".into())], "partially_refunded"));
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn a_refund_that_failed_waits_for_a_person_until_another_is_asked_for() {
    let pool = Stage::with_schema().await.pool();
    let id = paid(&pool, "pi_1").await;
    let listed = async || {
        let seen = counterfoil_settlement::attention(&mut pool.acquire().await.unwrap(), 10).await.unwrap();
        seen.iter().filter(|entry| entry.kind == "refund").count()
    };
    let refuse = async |ours| {
        let mut tx = pool.begin().await.unwrap();
        let row = find_refund(&mut tx, ours).await.unwrap().unwrap();
        counterfoil_settlement::refund_refused(&mut tx, &row, "refused", None).await.unwrap();
        tx.commit().await.unwrap();
    };
    refuse(ask(&pool, &asked(id, 99)).await.unwrap()).await;
    assert_eq!(listed().await, 1);
    ask(&pool, &asked(id, 98)).await.unwrap();
    assert_eq!(listed().await, 1, "less than what failed does not stand in for it");
    sqlx::query("INSERT INTO payments (provider, payment_id, order_id, status) VALUES ('stripe', 'pi_other', $1, 'pending')")
        .bind(id)
        .execute(&pool)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO refunds (id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, provider_key)
        VALUES (gen_random_uuid(), $1, 'stripe', '', 'pi_other', 're_other', 'provider', 'pending', 500, 'EUR', 'k')",
    )
    .bind(id)
    .execute(&pool)
    .await
    .unwrap();
    assert_eq!(listed().await, 1, "nor does a refund of another payment");
    let again = ask(&pool, &asked(id, 99)).await.unwrap();
    assert_eq!(listed().await, 0, "the one that was asked for since is under way");
    refuse(again).await;
    assert_eq!(listed().await, 1, "that one failed, too, and stands for both");
}

#[tokio::test]
async fn each_order_that_claims_a_payment_of_another_is_said() {
    let pool = Stage::with_schema().await.pool();
    paid(&pool, "pi_1").await;
    let (second, third) = (order(&pool).await, order(&pool).await);
    assert_eq!(outcomes(&pool, &[news(News::Captured, second, "pi_1"), news(News::Captured, third, "pi_1")]).await, [Outcome::Held, Outcome::Held]);
    for id in [second, third] {
        assert_eq!((status(&pool, id).await.as_str(), topics(&pool, id).await), ("pending_payment", vec!["payment.held".to_owned()]));
    }
    let seen = counterfoil_settlement::attention(&mut pool.acquire().await.unwrap(), 10).await.unwrap();
    assert_eq!(seen.iter().filter(|entry| entry.kind == "claimed").count(), 2, "{seen:?}");
    book(&pool).await;
    assert_eq!(differing(&pool).await, 0);
}

#[tokio::test]
async fn more_gone_than_was_captured_is_listed_with_the_difference_whoever_sent_it_back() {
    let pool = Stage::with_schema().await.pool();
    paid(&pool, "pi_1").await;
    outcomes(&pool, &[refund("pi_1", "re_1", RefundStatus::Succeeded, 1000)]).await;
    let overpaid = async || {
        let seen = counterfoil_settlement::attention(&mut pool.acquire().await.unwrap(), 10).await.unwrap();
        seen.iter().filter(|entry| entry.kind == "overpaid").map(|entry| entry.amount_minor).collect::<Vec<_>>()
    };
    assert_eq!(overpaid().await, []);
    outcomes(&pool, &[crate::support::dispute("pi_1", "dp_1", counterfoil_payments::DisputeStatus::Lost, 500)]).await;
    assert_eq!(overpaid().await, [Some(401)]);
}
