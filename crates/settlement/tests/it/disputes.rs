//! Chargebacks, and chargebacks that meet refunds.

use counterfoil_payments::{DisputeStatus, News, RefundStatus};
use counterfoil_settlement::{NewRefund, Outcome, RefundRefused, disputes_of, request_refund};
use counterfoil_tests::Stage;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{book, differing, dispute, news, order, outcomes, refund, status, topics};

async fn paid(pool: &PgPool, payment: &str) -> Uuid {
    let id = order(pool).await;
    outcomes(pool, &[news(News::Captured, id, payment)]).await;
    id
}

async fn ask(pool: &PgPool, order_id: Uuid, amount: i64) -> Result<(), RefundRefused> {
    let mut tx = pool.begin().await.unwrap();
    let id = Uuid::new_v4();
    let new = NewRefund { id, order_id, payment: None, amount_minor: Some(amount), origin: "api", reason: None, provider_key: id.to_string(), made_by: None };
    let made = request_refund(&mut tx, &new, None).await.map(|_| ());
    // Awaited either way: a transaction that is only dropped keeps its locks for a moment.
    if made.is_ok() {
        tx.commit().await.unwrap()
    } else {
        tx.rollback().await.unwrap()
    }
    made
}

async fn booked(pool: &PgPool, account: &str) -> i64 {
    book(pool).await;
    assert_eq!(differing(pool).await, 0);
    sqlx::query_scalar("SELECT COALESCE(sum(amount_minor), 0)::bigint FROM ledger_lines WHERE account = $1").bind(account).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn while_a_payment_is_disputed_no_refund_is_made_and_afterwards_only_of_what_the_bank_left() {
    let pool = Stage::with_schema().await.pool();
    let id = paid(&pool, "pi_1").await;
    assert_eq!(outcomes(&pool, &[dispute("pi_1", "dp_1", DisputeStatus::Opened, 600)]).await, [Outcome::Applied]);
    assert!(matches!(ask(&pool, id, 1).await, Err(RefundRefused::Disputed)));
    assert_eq!(outcomes(&pool, &[dispute("pi_1", "dp_1", DisputeStatus::Lost, 600)]).await, [Outcome::Applied]);
    assert!(matches!(ask(&pool, id, 500).await, Err(RefundRefused::TooMuch { left: 499, .. })));
    ask(&pool, id, 499).await.unwrap();
    assert_eq!(status(&pool, id).await, "paid", "a dispute is a record of its own");
    assert_eq!(booked(&pool, "expenses:chargebacks").await, 600);
}

#[tokio::test]
async fn a_dispute_lost_and_then_won_has_one_debit_and_one_reversal_and_closed_before_created_is_the_same() {
    let pool = Stage::with_schema().await.pool();
    use DisputeStatus::{Lost, Opened, Won};
    for (n, arrival) in [[Opened, Lost, Won], [Won, Lost, Opened], [Lost, Opened, Won], [Lost, Won, Opened]].into_iter().enumerate() {
        let (payment, dp) = (format!("pi_{n}"), format!("dp_{n}"));
        let id = paid(&pool, &payment).await;
        for what in arrival {
            outcomes(&pool, &[dispute(&payment, &dp, what, 1099), dispute(&payment, &dp, what, 1099)]).await;
        }
        let known = disputes_of(&mut pool.acquire().await.unwrap(), id).await.unwrap();
        assert_eq!((known.len(), known[0].status.as_str()), (1, "won"), "{arrival:?}");
        assert_eq!(booked(&pool, "expenses:chargebacks").await, 0, "{arrival:?}");
        assert_eq!(booked(&pool, "assets:disputed:stripe").await, 0, "{arrival:?}");
    }
    assert_eq!(booked(&pool, "assets:receivable:stripe").await, 4 * 1099);
}

#[tokio::test]
async fn several_disputes_and_partial_refunds_of_one_payment_keep_books_and_payments_alike_and_no_resend_pays_again() {
    let pool = Stage::with_schema().await.pool();
    let id = paid(&pool, "pi_1").await;
    let resend = news(News::Captured, id, "pi_1");
    use DisputeStatus::{Inquiry, Lost, Opened};
    let batch = [
        refund("pi_1", "re_1", RefundStatus::Succeeded, 200),
        dispute("pi_1", "dp_1", Opened, 300),
        dispute("pi_1", "dp_2", Inquiry, 400),
        dispute("pi_1", "dp_1", Lost, 300),
        resend,
        dispute("pi_1", "dp_3", Opened, 100),
    ];
    use Outcome::{Applied, Superseded};
    assert_eq!(outcomes(&pool, &batch).await, [Applied, Applied, Applied, Applied, Superseded, Applied]);
    assert_eq!(status(&pool, id).await, "partially_refunded");
    assert_eq!(booked(&pool, "assets:receivable:stripe").await, 1099 - 200 - 300 - 100);
    assert_eq!(topics(&pool, id).await.iter().filter(|topic| *topic == "order.disputed").count(), 4);
}

#[tokio::test]
async fn a_refund_and_a_dispute_of_the_whole_payment_are_both_booked_and_the_order_is_listed() {
    let pool = Stage::with_schema().await.pool();
    for (payment, refund_first) in [("pi_1", true), ("pi_2", false)] {
        let id = paid(&pool, payment).await;
        let (back, away) =
            (refund(payment, &format!("re_{payment}"), RefundStatus::Succeeded, 1099), dispute(payment, &format!("dp_{payment}"), DisputeStatus::Opened, 1099));
        outcomes(&pool, &if refund_first { [back, away] } else { [away, back] }).await;
        assert_eq!(status(&pool, id).await, "refunded");
        let seen = counterfoil_settlement::attention(&mut pool.acquire().await.unwrap(), 10).await.unwrap();
        assert!(seen.iter().any(|entry| entry.kind == "disputed" && entry.what.ends_with(payment)));
    }
    assert_eq!(booked(&pool, "assets:receivable:stripe").await, -2 * 1099, "paid back twice: the books say so");
}
