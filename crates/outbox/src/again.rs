//! Sending again: to one queue alone, under the same event id; and rows that a person looks after.

use serde::Serialize;
use serde_json::Value;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

/// A message that died, to be sent to its consumer's queue once more, byte for byte.
#[derive(Debug, Clone)]
pub struct Again {
    /// The event.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// The order's version after it.
    pub version: Option<i64>,
    /// Where it goes.
    pub queue: String,
    /// Headers, a JSON object of strings.
    pub headers: Value,
    /// The bytes as they died.
    pub body: Vec<u8>,
}

/// Appends it, for the relay to send; returns the row's id.
///
/// # Errors
/// When the database fails.
pub async fn send_bytes(tx: &mut PgTransaction<'_>, again: &Again) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        "INSERT INTO outbox (event_id, topic, order_id, version, exchange, routing_key, payload, headers, body) VALUES ($1, $2, $3, $4, '', $5, 'null', $6, $7) RETURNING id",
        again.event_id,
        again.topic,
        again.order_id,
        again.version,
        again.queue,
        again.headers,
        again.body,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Sends published rows to one queue once more, under the same event ids and with the time of their facts.
///
/// # Errors
/// When the database fails.
pub async fn send_again(tx: &mut PgTransaction<'_>, ids: &[i64], queue: &str) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "INSERT INTO outbox (event_id, topic, order_id, version, exchange, routing_key, payload, headers, occurred_at)
         SELECT event_id, topic, order_id, version, '', $2, payload, headers, created_at FROM outbox WHERE id = ANY ($1) ORDER BY id",
        ids,
        queue,
    );
    Ok(done.execute(&mut **tx).await?.rows_affected())
}

/// Published rows that a consumer should have had.
#[derive(Debug, Clone)]
pub struct Behind {
    /// Up to which row everything was published long enough ago.
    pub mark: i64,
    /// The last row looked at.
    pub last: i64,
    /// The rows, oldest first.
    pub rows: Vec<Expected>,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// The row.
    pub id: i64,
    /// Its event.
    pub event_id: Uuid,
    /// How long ago it was published, in seconds.
    pub age_s: f64,
}

/// Rows behind `mark` that were published more than `settled_s` seconds ago for one of `topics` or for `queue` alone, oldest first; and up to which row
/// everything was published that long ago. What was withheld was never sent. At most `limit` rows are looked at.
///
/// # Errors
/// When the database fails.
pub async fn unaccounted_from(connection: &mut PgConnection, mark: i64, topics: &[String], queue: &str, settled_s: i64, limit: i64) -> sqlx::Result<Behind> {
    let rows = sqlx::query!(
        r#"SELECT id, event_id, ((exchange = 'counterfoil.events' AND topic = ANY ($2) AND last_error IS NULL) OR (exchange = '' AND routing_key = $5)) AND published_at IS NOT NULL AS "expected!",
            COALESCE(published_at, parked_at) <= now() - make_interval(secs => $3::bigint::float8) AS "settled?",
            extract(epoch FROM now() - published_at)::float8 AS age_s FROM outbox WHERE id > $1 ORDER BY id LIMIT $4"#,
        mark,
        topics,
        settled_s,
        limit,
        queue,
    )
    .fetch_all(connection)
    .await?;
    let (mut behind, mut held) = (Behind { mark, last: mark, rows: Vec::new() }, false);
    for row in rows {
        let settled = row.settled == Some(true);
        held |= !settled; // a row that has not gone out yet holds the mark, not the look
        if !held {
            behind.mark = row.id;
        }
        behind.last = row.id;
        if settled && row.expected {
            behind.rows.push(Expected { id: row.id, event_id: row.event_id, age_s: row.age_s.unwrap_or_default() });
        }
    }
    Ok(behind)
}

/// A row that does not go out by itself.
#[derive(Debug, Clone, Serialize)]
pub struct Stuck {
    /// The row.
    pub id: i64,
    /// Its event.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// Where it should go; empty for one queue alone.
    pub exchange: String,
    /// With which routing key, or to which queue.
    pub routing_key: String,
    /// When it was appended.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it is tried next.
    #[serde(with = "time::serde::rfc3339")]
    pub next_attempt_at: OffsetDateTime,
    /// When the relay gave it up.
    #[serde(with = "time::serde::rfc3339::option")]
    pub parked_at: Option<OffsetDateTime>,
    /// Attempts that were its own fault.
    pub attempts: i32,
    /// How often it was put off.
    pub deferrals: i32,
    /// Why.
    pub last_error: Option<String>,
}

/// Rows that were put off or parked, oldest first; only the parked, or only the unroutable, where asked.
///
/// # Errors
/// When the database fails.
pub async fn stuck(connection: &mut PgConnection, parked: bool, unroutable: bool, limit: i64) -> sqlx::Result<Vec<Stuck>> {
    sqlx::query_as!(
        Stuck,
        "SELECT id, event_id, topic, order_id, exchange, routing_key, created_at, next_attempt_at, parked_at, attempts, deferrals, last_error FROM outbox
         WHERE published_at IS NULL AND (parked_at IS NOT NULL OR deferrals > 0)
            AND (NOT $1 OR parked_at IS NOT NULL) AND (NOT $2 OR (parked_at IS NULL AND last_error LIKE 'unroutable%'))
         ORDER BY id LIMIT $3",
        parked,
        unroutable,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Lets a row that was put off or parked be tried at once, as if for the first time. `false` when it is not stuck.
///
/// # Errors
/// When the database fails.
pub async fn release(connection: &mut PgConnection, id: i64) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "UPDATE outbox SET parked_at = NULL, attempts = 0, deferrals = 0, next_attempt_at = now(), last_error = NULL
         WHERE id = $1 AND published_at IS NULL AND (parked_at IS NOT NULL OR deferrals > 0)",
        id
    );
    Ok(done.execute(connection).await?.rows_affected() == 1)
}

/// Erases the customer of these orders from what was sent. Returns how many rows changed, and how many have not gone out yet.
///
/// # Errors
/// When the database fails.
pub async fn erase_payloads(tx: &mut PgTransaction<'_>, orders: &[Uuid]) -> sqlx::Result<(u64, i64)> {
    let waiting = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM outbox WHERE order_id = ANY ($1) AND published_at IS NULL"#, orders);
    let waiting = waiting.fetch_one(&mut **tx).await?;
    let nobody = serde_json::json!({ "email": null, "name": null, "phone": null });
    let done = sqlx::query!(
        "UPDATE outbox SET payload = CASE WHEN payload ? 'customer' THEN jsonb_set(payload, '{customer}', $2) ELSE payload END, body = NULL
         WHERE order_id = ANY ($1) AND (payload ? 'customer' OR body IS NOT NULL)",
        orders,
        nobody,
    );
    Ok((done.execute(&mut **tx).await?.rows_affected(), waiting))
}
