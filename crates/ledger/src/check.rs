//! Whether the books say what the payments say: captured − refunded − charged back, for each order and currency. The
//! comparison is the view `books_differences`, so that anybody with psql can make it; [`compare`] makes it of a few orders.

use sqlx::{PgConnection, PgTransaction};
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

/// Up to where books and payments were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// The last outbox row whose order was looked at.
    pub outbox_id: i64,
    /// The last order that the turn through all of them has come to.
    pub order_id: Uuid,
}

/// Takes the mark, until the transaction ends.
///
/// # Errors
/// When the database fails.
pub async fn compared(tx: &mut PgTransaction<'_>) -> sqlx::Result<Compared> {
    sqlx::query_as!(Compared, "SELECT outbox_id, order_id FROM books_compared FOR UPDATE").fetch_one(&mut **tx).await
}

/// Compares these orders, and those that differed before; sets the mark. Returns those that differ and have not changed for
/// `settled_s` seconds. What it costs follows from what it is given, not from what has been.
///
/// # Errors
/// When the database fails.
pub async fn compare(tx: &mut PgTransaction<'_>, orders: &[Uuid], mark: Compared, settled_s: i64) -> sqlx::Result<Vec<Difference>> {
    let rows = sqlx::query!(
        r#"SELECT b.order_id AS "order_id!", b.currency AS "currency!", b.expected_minor AS "expected_minor!", b.booked_minor AS "booked_minor!",
            b.changed_at <= now() - make_interval(secs => $2::bigint::float8) AS "settled!"
        FROM (SELECT id FROM unnest($1::uuid[]) AS n (id) UNION SELECT order_id FROM books_differing) o
        CROSS JOIN LATERAL (SELECT * FROM order_books x WHERE x.order_id = o.id OFFSET 0) b
        WHERE b.expected_minor <> b.booked_minor ORDER BY 1, 2"#,
        orders,
        settled_s,
    )
    .fetch_all(&mut **tx)
    .await?;
    let differing: Vec<Uuid> = rows.iter().map(|row| row.order_id).collect();
    sqlx::query!(
        "WITH agreeing AS (DELETE FROM books_differing WHERE order_id <> ALL ($1)),
        differing AS (INSERT INTO books_differing (order_id) SELECT DISTINCT id FROM unnest($1::uuid[]) AS n (id) ON CONFLICT (order_id) DO NOTHING)
        UPDATE books_compared SET outbox_id = $2, order_id = $3",
        &differing,
        mark.outbox_id,
        mark.order_id,
    )
    .execute(&mut **tx)
    .await?;
    let settled = rows.into_iter().filter(|row| row.settled);
    Ok(settled
        .map(|row| Difference { order_id: row.order_id, currency: row.currency, expected_minor: row.expected_minor, booked_minor: row.booked_minor })
        .collect())
}
