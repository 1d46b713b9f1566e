//! Stored webhook events as people look at them.

use sqlx::PgConnection;
use uuid::Uuid;

/// A stored webhook event, as the trail shows it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Who sent it.
    pub provider: String,
    /// The provider's name for what happened.
    pub event_type: String,
    /// Its id.
    pub event_id: String,
    /// How often it came.
    pub deliveries: i64,
    /// What became of it.
    pub outcome: String,
    /// Why, where that is worth saying.
    pub reason: Option<String>,
    /// Deliveries that came more than 24 hours after the event was made.
    pub late_deliveries: i64,
    /// First arrival, RFC 3339.
    pub received_at: String,
}

/// How many events wait for an order of this name.
///
/// # Errors
/// When the database fails.
pub async fn waiting_for_order(connection: &mut PgConnection, name: &str) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM webhook_events WHERE outcome = 'waiting' AND waits_for = 'order:' || $1"#, name)
        .fetch_one(connection)
        .await
}

/// The stored events whose body names the order or one of its payments. A search over recent events, for people.
///
/// # Errors
/// When the database fails.
pub async fn deliveries_of_order(connection: &mut PgConnection, order_id: Uuid) -> sqlx::Result<Vec<Seen>> {
    sqlx::query_as!(
        Seen,
        r#"WITH names AS (
            SELECT id::text AS name FROM orders WHERE id = $1 UNION SELECT reference FROM orders WHERE id = $1 UNION SELECT payment_id FROM payments WHERE order_id = $1)
        SELECT provider, event_type, event_id, deliveries, outcome, reason, late_deliveries,
            to_char(received_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "received_at!"
        FROM webhook_events w WHERE received_at > now() - interval '7 days'
            AND EXISTS (SELECT FROM names WHERE position(convert_to(name, 'UTF8') IN w.body) > 0)
        ORDER BY w.received_at LIMIT 200"#,
        order_id,
    )
    .fetch_all(connection)
    .await
}
