//! The outbox table and nothing else: append, claim, mark, watch.
//!
//! A row is *fresh* until something delays it (`deferrals = 0`), then *deferred* until its `next_attempt_at`; it ends
//! published or parked. The row lock is the lease: a claim lives as long as its transaction.

mod again;
mod claim;
mod watch;

pub use again::{Again, Behind, Expected, Stuck, erase_payloads, release, send_again, send_bytes, stuck, unaccounted_from};
pub use claim::{Claimed, claim, count_attempt, defer, low_water, mark_published};
pub use watch::{Backlog, Published, Since, backlog, newest, of_event, of_order, orders_since, purge, rates};

use serde_json::Value;
use sqlx::PgTransaction;
use uuid::Uuid;

/// The exchange that all events go to.
pub const EVENTS_EXCHANGE: &str = "counterfoil.events";

/// The channel on which ingest hints that rows were added. Its payload is empty; polling is the truth.
pub const WAKE_CHANNEL: &str = "counterfoil_outbox";

/// An event to append.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Derived from the fact.
    pub event_id: Uuid,
    /// Also its routing key.
    pub topic: &'static str,
    /// The order it is about.
    pub order_id: Uuid,
    /// The order's version after it.
    pub version: i64,
    /// The event's `data`.
    pub payload: Value,
    /// Trace context.
    pub headers: Value,
}

/// Appends an event, unless the fact has its event already. Returns whether it was new.
///
/// # Errors
/// When the database refuses it.
pub async fn append(tx: &mut PgTransaction<'_>, event: &NewEvent) -> sqlx::Result<bool> {
    Ok(append_all(tx, std::slice::from_ref(event)).await? == 1)
}

/// Appends events in one statement, in their order, but those whose fact has its event already. Returns how many were new.
///
/// # Errors
/// When the database refuses them.
pub async fn append_all(tx: &mut PgTransaction<'_>, events: &[NewEvent]) -> sqlx::Result<u64> {
    if events.is_empty() {
        return Ok(0);
    }
    let ids: Vec<Uuid> = events.iter().map(|event| event.event_id).collect();
    let topics: Vec<String> = events.iter().map(|event| event.topic.to_owned()).collect();
    let orders: Vec<Uuid> = events.iter().map(|event| event.order_id).collect();
    let versions: Vec<i64> = events.iter().map(|event| event.version).collect();
    let payloads: Vec<String> = events.iter().map(|event| event.payload.to_string()).collect();
    let headers: Vec<String> = events.iter().map(|event| event.headers.to_string()).collect();
    let done = sqlx::query!(
        "INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, headers)
         SELECT event_id, topic, order_id, version, topic, payload::jsonb, headers::jsonb
         FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::text[]) WITH ORDINALITY
            AS e (event_id, topic, order_id, version, payload, headers, n) ORDER BY n
         ON CONFLICT (event_id) WHERE exchange = 'counterfoil.events' DO NOTHING",
        &ids,
        &topics,
        &orders,
        &versions,
        &payloads,
        &headers,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}

/// An event that the current transaction has appended.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The event.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its `data`.
    pub payload: Value,
}

/// The events that this transaction has appended so far: its own rows carry its own `now()`.
///
/// # Errors
/// When the database fails.
pub async fn appended(tx: &mut PgTransaction<'_>) -> sqlx::Result<Vec<Appended>> {
    sqlx::query_as!(
        Appended,
        "SELECT event_id, topic, payload FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0 AND created_at = now() ORDER BY id"
    )
    .fetch_all(&mut **tx)
    .await
}

/// Sends events that this transaction has appended to one queue, too, by the default exchange and under the same ids.
///
/// # Errors
/// When the database fails.
pub async fn send_to(tx: &mut PgTransaction<'_>, event_ids: &[Uuid], queue: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO outbox (event_id, topic, order_id, version, exchange, routing_key, payload, headers)
         SELECT event_id, topic, order_id, version, '', $2, payload, headers FROM outbox WHERE event_id = ANY ($1) AND exchange = 'counterfoil.events'",
        event_ids,
        queue,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Keeps events from being sent, before anybody can see them: their ids stay, so that no later event says the same again.
///
/// # Errors
/// When the database fails.
pub async fn withhold(tx: &mut PgTransaction<'_>, event_ids: &[Uuid], why: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE outbox SET published_at = now(), last_error = $2 WHERE event_id = ANY ($1) AND exchange = 'counterfoil.events' AND published_at IS NULL AND created_at = now()",
        event_ids,
        why,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
