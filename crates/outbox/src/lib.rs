//! The outbox table and nothing else: append, claim, mark, watch.
//!
//! A row is *fresh* until something delays it (`deferrals = 0`), then *deferred* until its `next_attempt_at`; it ends
//! published or parked. The row lock is the lease: a claim lives as long as its transaction.

mod claim;
mod watch;

pub use claim::{Claimed, claim, count_attempt, defer, low_water, mark_published};
pub use watch::{Backlog, Published, backlog, of_order, purge};

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
    let done = sqlx::query!(
        "INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, headers) VALUES ($1, $2, $3, $4, $2, $5, $6)
         ON CONFLICT (event_id) WHERE exchange = 'counterfoil.events' DO NOTHING",
        event.event_id,
        event.topic,
        event.order_id,
        event.version,
        event.payload,
        event.headers,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
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
