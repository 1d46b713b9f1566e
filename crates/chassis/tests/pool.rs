//! The pool's guard against a half-finished transaction.

use std::time::Duration;

use counterfoil_chassis::postgres::{PoolSettings, pool};
use counterfoil_tests::Stage;

/// sqlx 0.9.0 leaves a pooled connection inside a transaction when `begin()` is cancelled; the next insert then returns
/// Ok and is never committed. Without the guard about a quarter of these inserts are lost.
#[tokio::test]
async fn a_connection_that_comes_back_outside_a_transaction_is_used_again() {
    let stage = Stage::with_schema().await;
    let settings = PoolSettings { application_name: "test", connections_max: 1, acquire_timeout: Duration::from_secs(5), session: Vec::new() };
    let pool = pool(&stage.database_url, &settings).unwrap();
    let mut backends = std::collections::HashSet::new();
    for _ in 0..20 {
        let mut tx = pool.begin().await.unwrap();
        backends.insert(sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap());
        tx.commit().await.unwrap();
    }
    assert_eq!(backends.len(), 1, "it was thrown away");
}

#[tokio::test]
async fn a_cancelled_begin_does_not_poison_the_pool() {
    let stage = Stage::with_schema().await;
    let settings = PoolSettings { application_name: "test", connections_max: 1, acquire_timeout: Duration::from_secs(5), session: Vec::new() };
    let pool = pool(&stage.database_url, &settings).unwrap();
    sqlx::query("CREATE TABLE kept (n integer)").execute(&pool).await.unwrap();
    for n in 0..80_i32 {
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(n.unsigned_abs()) * 8), pool.begin()).await;
        sqlx::query("INSERT INTO kept VALUES ($1)").bind(n).execute(&pool).await.unwrap();
    }
    drop(pool);
    assert_eq!(stage.count("SELECT count(*) FROM kept").await, 80);
}
