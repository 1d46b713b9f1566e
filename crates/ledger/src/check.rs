//! Whether the books say what the payments say: captured − refunded − charged back, for each order and currency. The
//! comparison is the view `books_differences`, so that anybody with psql can make it.

use sqlx::PgConnection;
use uuid::Uuid;

/// An order whose books differ from its payments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The order.
    pub order_id: Uuid,
    /// The currency.
    pub currency: String,
    /// Captured − refunded − charged back, in minor units.
    pub expected_minor: i64,
    /// What stands in `assets:receivable`.
    pub booked_minor: i64,
}

/// Finds the orders whose books differ, looking at those whose last change is older than `settled_s` seconds: younger ones
/// may have an event on its way. What backfill recorded is in neither sum.
///
/// # Errors
/// When the database fails.
pub async fn differences(connection: &mut PgConnection, settled_s: i64, limit: i64) -> sqlx::Result<Vec<Difference>> {
    sqlx::query_as!(
        Difference,
        r#"SELECT order_id AS "order_id!", currency AS "currency!", expected_minor AS "expected_minor!", booked_minor AS "booked_minor!"
        FROM books_differences WHERE changed_at IS NULL OR changed_at <= now() - make_interval(secs => $1::bigint::float8) ORDER BY 1, 2 LIMIT $2"#,
        settled_s,
        limit,
    )
    .fetch_all(connection)
    .await
}
