//! The transition table of `payments` and its repetition in SQL, pair by pair.

use counterfoil_payments::{News, OrderStatus, PaymentStatus};
use counterfoil_settlement::Outcome;
use counterfoil_tests::Stage;

use crate::support::{news, order, outcomes, status, topics};

#[tokio::test]
async fn sql_moves_an_order_exactly_as_the_transition_table_says_pair_by_pair() {
    let pool = Stage::with_schema().await.pool();
    for before in OrderStatus::ALL {
        for what in News::ALL {
            let id = order(&pool).await;
            let paid = "paid_provider = 'stripe', paid_account = '', paid_payment_id = 'pi_old', paid_at = now()";
            let paid = if before.was_paid() { format!(", {paid}") } else { String::new() };
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("UPDATE orders SET status = '{}'{paid} WHERE id = '{id}'", before.name()))).execute(&pool).await.unwrap();
            outcomes(&pool, &[news(what, id, &format!("pi_{id}"))]).await;
            let wanted = before.after(what).unwrap_or(*before);
            assert_eq!(status(&pool, id).await, wanted.name(), "{before:?} after {what:?}");
        }
    }
}

#[tokio::test]
async fn sql_ranks_payment_statuses_as_rust_does() {
    let pool = Stage::with_schema().await.pool();
    for status in PaymentStatus::ALL {
        let rank: i16 = sqlx::query_scalar("SELECT payment_rank($1)").bind(status.name()).fetch_one(&pool).await.unwrap();
        assert_eq!(rank, status.rank(), "{status:?}");
    }
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
