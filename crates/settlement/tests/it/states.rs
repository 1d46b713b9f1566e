//! The transition table of `payments` and its repetition in SQL, pair by pair.

use counterfoil_payments::{DisputeStatus, Move, News, OrderId, OrderKey, OrderStatus, PaymentStatus, RefundStatus, Standing};
use counterfoil_settlement::{Outcome, cancel, expire};
use counterfoil_tests::Stage;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{disposition, dispute, news, order, outcomes, refund, status, topics};

/// Makes an order that stands at `status`.
async fn order_at(pool: &PgPool, status: OrderStatus) -> Uuid {
    let paid = status.was_paid();
    sqlx::query_scalar(
        "INSERT INTO orders (reference, status, amount_minor, currency, customer_email, paid_provider, paid_account, paid_payment_id, paid_at, expires_at)
         VALUES ($1, $2, 1099, 'EUR', 'ann@example.com', $3, $4, $5, CASE WHEN $3 IS NOT NULL THEN now() END, now() - interval '1 second') RETURNING id",
    )
    .bind(format!("ref-{}", Uuid::new_v4()))
    .bind(status.name())
    .bind(paid.then_some("stripe"))
    .bind(paid.then_some(""))
    .bind(paid.then_some("pi_old"))
    .fetch_one(pool)
    .await
    .unwrap()
}

/// Gives an order's paying payment and its refunds so that this much stands.
async fn stand(pool: &PgPool, order: Uuid, standing: Standing) {
    let back = match standing {
        Standing::All => 0,
        Standing::Part => 99,
        Standing::Nothing => 1099,
    };
    let payment = format!("pi_{order}");
    sqlx::query("INSERT INTO payments (provider, payment_id, order_id, status, disposition, settled_minor, amount_minor, currency) VALUES ('stripe', $1, $2, 'captured', 'settled', 1099, 1099, 'EUR')")
        .bind(&payment).bind(order).execute(pool).await.unwrap();
    // A pending refund that becomes what stands: the event is what makes settlement look again.
    if back > 0 {
        outcomes(pool, &[refund(&payment, &format!("re_{order}"), RefundStatus::Succeeded, back)]).await;
    } else {
        outcomes(pool, &[refund(&payment, &format!("re_{order}"), RefundStatus::Failed, 5)]).await;
    }
}

#[tokio::test]
async fn sql_moves_an_order_exactly_as_the_transition_table_says_pair_by_pair() {
    let pool = Stage::with_schema().await.pool();
    for before in OrderStatus::ALL {
        for what in Move::all() {
            let id = order_at(&pool, *before).await;
            match what {
                Move::News(what) => drop(outcomes(&pool, &[news(what, id, &format!("pi_{id}"))]).await),
                Move::Cancel => {
                    let mut tx = pool.begin().await.unwrap();
                    let _ = cancel(&mut tx, &OrderKey::Id(OrderId(id))).await;
                    tx.commit().await.unwrap();
                }
                Move::Deadline => {
                    let mut tx = pool.begin().await.unwrap();
                    expire(&mut tx, 1000).await.unwrap();
                    tx.commit().await.unwrap();
                }
                Move::Money(standing) => stand(&pool, id, standing).await,
            }
            // A capture that a paid order refuses is extra money of it, and money moves it on its own.
            let extra = before.was_paid() && what == Move::News(News::Captured);
            let wanted = before.after(if extra { Move::Money(Standing::All) } else { what }).unwrap_or(*before);
            assert_eq!(status(&pool, id).await, wanted.name(), "{before:?} after {what:?}");
            sqlx::query("UPDATE orders SET expires_at = NULL WHERE id = $1").bind(id).execute(&pool).await.unwrap();
        }
    }
}

#[tokio::test]
async fn the_database_refuses_every_change_of_an_orders_status_that_the_table_does_not_have_and_one_without_a_new_version() {
    let pool = Stage::with_schema().await.pool();
    for before in OrderStatus::ALL {
        for after in OrderStatus::ALL.iter().filter(|after| *after != before) {
            let id = order_at(&pool, *before).await;
            let paid = if after.was_paid() { "'stripe', '', 'pi', now()" } else { "NULL, NULL, NULL, NULL" };
            let change = |version: &str| {
                format!(
                    "UPDATE orders SET status = '{}', (paid_provider, paid_account, paid_payment_id, paid_at) = ROW({paid}){version} WHERE id = '{id}'",
                    after.name()
                )
            };
            let run = async |text: String| sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&pool).await;
            assert!(run(change("")).await.is_err(), "{before:?} to {after:?} without a new version: somebody saves a stale copy");
            let moves = Move::all().any(|what| before.after(what) == Ok(*after));
            assert_eq!(run(change(", version = version + 1")).await.is_ok(), moves, "{before:?} to {after:?}");
        }
    }
}

#[tokio::test]
async fn payments_refunds_and_disputes_move_in_sql_exactly_as_their_ranks_say_pair_by_pair() {
    let pool = Stage::with_schema().await.pool();
    for before in PaymentStatus::ALL {
        for what in News::ALL {
            let id = order(&pool).await;
            let payment = format!("pi_{id}");
            sqlx::query("INSERT INTO payments (provider, payment_id, order_id, status, disposition, held_reason, amount_minor, currency) VALUES ('stripe', $1, $2, $3, $4, 'x', 5, 'EUR')")
                .bind(&payment).bind(id).bind(before.name()).bind(if *before == PaymentStatus::Captured { "held" } else { "none" }).execute(&pool).await.unwrap();
            outcomes(&pool, &[news(what, id, &payment)]).await;
            assert_eq!(disposition(&pool, &payment).await.0, before.after(what.payment_status()).name(), "{before:?} after {what:?}");
        }
    }
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    let now = async |table: &str, column: &str, id: &str| -> String {
        let text = format!("SELECT status FROM {table} WHERE {column} = '{id}'");
        sqlx::query_scalar(sqlx::AssertSqlSafe(text)).fetch_one(&pool).await.unwrap()
    };
    for (n, before) in RefundStatus::ALL.iter().filter(|status| **status != RefundStatus::Requested).enumerate() {
        for (m, after) in RefundStatus::ALL.iter().filter(|status| **status != RefundStatus::Requested).enumerate() {
            let re = format!("re_{n}_{m}");
            outcomes(&pool, &[refund("pi_1", &re, *before, 1), refund("pi_1", &re, *after, 1)]).await;
            assert_eq!(now("refunds", "provider_refund_id", &re).await, before.after(*after).name(), "{before:?} after {after:?}");
        }
    }
    for (n, before) in DisputeStatus::ALL.iter().enumerate() {
        for (m, after) in DisputeStatus::ALL.iter().enumerate() {
            let dp = format!("dp_{n}_{m}");
            outcomes(&pool, &[dispute("pi_1", &dp, *before, 1), dispute("pi_1", &dp, *after, 1)]).await;
            assert_eq!(now("disputes", "dispute_id", &dp).await, before.after(*after).name(), "{before:?} after {after:?}");
        }
    }
    for table in ["payments", "refunds", "disputes"] {
        let back = format!("UPDATE {table} SET status = CASE '{table}' WHEN 'payments' THEN 'pending' WHEN 'refunds' THEN 'requested' ELSE 'inquiry' END");
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(back)).execute(&pool).await.unwrap_err();
        assert!(
            refused.as_database_error().and_then(|error| error.constraint()).is_some_and(|name| name == format!("{table}_status_rises")),
            "{table}: {refused}"
        );
    }
}

#[tokio::test]
async fn sql_ranks_statuses_as_rust_does() {
    let pool = Stage::with_schema().await.pool();
    let ranks = async |kind: &str, ranks: Vec<(&str, i16)>| {
        for (name, rank) in ranks {
            let text = format!("SELECT {kind}_rank($1)");
            let sql: i16 = sqlx::query_scalar(sqlx::AssertSqlSafe(text)).bind(name).fetch_one(&pool).await.unwrap();
            assert_eq!(sql, rank, "{kind} {name}");
        }
    };
    ranks("payment", PaymentStatus::ALL.iter().map(|status| (status.name(), status.rank())).collect()).await;
    ranks("refund", RefundStatus::ALL.iter().map(|status| (status.name(), status.rank())).collect()).await;
    ranks("dispute", DisputeStatus::ALL.iter().map(|status| (status.name(), status.rank())).collect()).await;
}

#[tokio::test]
async fn failures_of_older_attempts_in_any_order_never_touch_a_paid_order() {
    let pool = Stage::with_schema().await.pool();
    let steps = [(News::Failed, "p1"), (News::Captured, "p2"), (News::Failed, "p1"), (News::Expired, "session")];
    for permutation in permutations(4) {
        let id = order(&pool).await;
        for step in permutation {
            let (what, payment) = steps[step];
            outcomes(&pool, &[news(what, id, &format!("{payment}_{id}"))]).await;
        }
        assert_eq!(status(&pool, id).await, "paid");
        assert_eq!(topics(&pool, id).await, ["order.paid"]);
    }
}

#[tokio::test]
async fn a_capture_after_failures_of_the_same_payment_pays_and_news_after_it_is_superseded() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let batch = [News::Failed, News::Failed, News::Captured, News::Cancelled, News::Pending, News::Authorised].map(|what| news(what, id, "pi_1"));
    use Outcome::{Applied, Superseded};
    assert_eq!(outcomes(&pool, &batch).await, [Applied, Applied, Applied, Superseded, Superseded, Superseded]);
    assert_eq!(status(&pool, id).await, "paid");
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(count - 1) {
        for at in 0..count {
            let mut longer = shorter.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}
