//! Stored webhook events as people look at them.

use sqlx::PgConnection;
use uuid::Uuid;

/// A stored webhook event, as the trail shows it.
#[derive(Debug, Clone, serde::Serialize)]
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
    /// When the provider made it, by its own word, RFC 3339.
    pub made_at: Option<String>,
}

/// A stored webhook event as a person asks for it.
#[derive(Debug, Clone, serde::Serialize)]
pub struct StoredEvent {
    /// Who sent it.
    pub provider: String,
    /// The account, or empty.
    pub account: String,
    /// Its id, by which copies are known.
    pub event_id: String,
    /// The id that the provider shows and does not sign.
    pub provider_event_id: Option<String>,
    /// The provider's name for what happened.
    pub event_type: String,
    /// How often it came.
    pub deliveries: i64,
    /// Copies whose body differed.
    pub differing: i64,
    /// What became of it.
    pub outcome: String,
    /// Why.
    pub reason: Option<String>,
    /// What it waits for.
    pub waits_for: Option<String>,
    /// Why settling it failed.
    pub last_error: Option<String>,
    /// The payment that it is about.
    pub payment_id: Option<String>,
    /// First arrival, RFC 3339.
    pub received_at: String,
    /// When it was settled, RFC 3339.
    pub processed_at: Option<String>,
    /// The bytes as they were signed.
    #[serde(skip)]
    pub body: Vec<u8>,
}

/// The stored events with this id, the signed or the unsigned one.
///
/// # Errors
/// When the database fails.
pub async fn stored_events(connection: &mut PgConnection, id: &str) -> sqlx::Result<Vec<StoredEvent>> {
    let providers: Vec<String> = counterfoil_payments::Provider::ALL.map(|provider| provider.name().to_owned()).to_vec();
    sqlx::query_as!(
        StoredEvent,
        r#"SELECT provider, account, event_id, provider_event_id, event_type, deliveries, differing, outcome, reason, waits_for, last_error, payment_id,
            to_char(received_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "received_at!",
            to_char(processed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS processed_at, body
        FROM webhook_events w WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM webhook_events WHERE provider = ANY ($2) AND account = '' AND event_id = $1
            UNION ALL SELECT ctid FROM webhook_events WHERE account <> '' AND event_id = $1 UNION ALL SELECT ctid FROM webhook_events WHERE provider_event_id = $1))
        ORDER BY w.received_at DESC LIMIT 10"#,
        id,
        &providers,
    )
    .fetch_all(connection)
    .await
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

/// The stored events about one of the order's payments, and those that name the order. For people.
///
/// # Errors
/// When the database fails.
pub async fn deliveries_of_order(connection: &mut PgConnection, order_id: Uuid) -> sqlx::Result<Vec<Seen>> {
    sqlx::query_as!(
        Seen,
        r#"WITH theirs AS (
            SELECT w.provider, w.account, w.event_id FROM webhook_events w
                WHERE w.ids && (SELECT ARRAY[o.id::text, o.reference] || COALESCE(o.session_id, '') FROM orders o WHERE o.id = $1)
            UNION SELECT w.provider, w.account, w.event_id FROM payments p
                JOIN webhook_events w ON w.payment_id = p.payment_id AND w.provider = p.provider AND (w.payment_account = p.account OR w.payment_account = '' OR p.account = '')
                WHERE p.order_id = $1)
        SELECT provider, event_type, event_id, deliveries, outcome, reason, late_deliveries,
            to_char(received_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "received_at!",
            to_char(made_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS made_at
        FROM webhook_events w JOIN theirs USING (provider, account, event_id) ORDER BY w.received_at LIMIT 200"#,
        order_id,
    )
    .fetch_all(connection)
    .await
}

/// The stored events that name this id, whatever it is of: an event, a payment, a charge, a session, a refund, a dispute, an
/// order. The newest first, twenty at the most. For people who look for money that counts for no order.
///
/// # Errors
/// When the database fails.
pub async fn deliveries_naming(connection: &mut PgConnection, id: &str) -> sqlx::Result<Vec<Seen>> {
    let providers: Vec<String> = counterfoil_payments::Provider::ALL.map(|provider| provider.name().to_owned()).to_vec();
    sqlx::query_as!(
        Seen,
        r#"WITH theirs AS (
            SELECT provider, account, event_id FROM webhook_events WHERE provider = ANY ($2) AND account = '' AND event_id = $1
            UNION SELECT provider, account, event_id FROM webhook_events WHERE account <> '' AND event_id = $1
            UNION SELECT provider, account, event_id FROM webhook_events WHERE provider_event_id = $1
            UNION SELECT provider, account, event_id FROM webhook_events WHERE payment_id = $1
            UNION SELECT provider, account, event_id FROM webhook_events WHERE ids @> ARRAY[$1])
        SELECT provider, event_type, event_id, deliveries, outcome, reason, late_deliveries,
            to_char(received_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "received_at!",
            to_char(made_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS made_at
        FROM webhook_events w JOIN theirs USING (provider, account, event_id) ORDER BY w.received_at DESC LIMIT 20"#,
        id,
        &providers,
    )
    .fetch_all(connection)
    .await
}
