//! What a relay does to the outbox: claim rows under their lock, then say what became of each.

use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

/// A row in hand: its lock is held by the transaction that claimed it.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Identity of the row, not of the event: a replay is another row of the same event.
    pub id: i64,
    /// The event.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// Where it goes; empty for the default exchange.
    pub exchange: String,
    /// With which routing key.
    pub routing_key: String,
    /// The event's `data` as JSON text.
    pub data: String,
    /// Headers, a JSON object of strings.
    pub headers: serde_json::Value,
    /// When it was appended; for what is sent again, when the event itself was.
    pub created_at: OffsetDateTime,
    /// The bytes to send as they are: a replay's.
    pub body: Option<Vec<u8>>,
}

/// Claims up to `limit` rows that nobody else holds, oldest first; at most a quarter of them deferred ones whose time
/// has come, so that a heap of unroutable rows does not slow the rest. Fresh rows below `low_water` are not looked at.
///
/// # Errors
/// When the database fails.
pub async fn claim(tx: &mut PgTransaction<'_>, low_water: i64, limit: i64) -> sqlx::Result<Vec<Claimed>> {
    sqlx::query_as!(
        Claimed,
        r#"WITH deferred AS MATERIALIZED (
            SELECT * FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals > 0 AND next_attempt_at <= now()
            ORDER BY next_attempt_at LIMIT GREATEST($2::bigint / 4, 1) FOR UPDATE SKIP LOCKED
        ), fresh AS MATERIALIZED (
            SELECT * FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0 AND next_attempt_at <= now() AND id >= $1
            ORDER BY id LIMIT $2 - (SELECT count(*) FROM deferred) FOR UPDATE SKIP LOCKED
        )
        SELECT id AS "id!", event_id AS "event_id!", topic AS "topic!", order_id, exchange AS "exchange!", routing_key AS "routing_key!",
               payload::text AS "data!", headers AS "headers!", COALESCE(occurred_at, created_at) AS "created_at!", body
        FROM (SELECT * FROM fresh UNION ALL SELECT * FROM deferred) claimed ORDER BY id"#,
        low_water,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The lowest id that a plain read shows unpublished and never put off, else one past the highest: below it a claim
/// need not look. Rows that committed late may lie below it, which is why a relay sweeps from 0 now and then.
///
/// # Errors
/// When the database fails.
pub async fn low_water(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"SELECT COALESCE(
            (SELECT id FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0 ORDER BY id LIMIT 1),
            (SELECT max(id) + 1 FROM outbox), 0) AS "mark!""#
    )
    .fetch_one(connection)
    .await
}

/// Marks rows whose message the broker has confirmed.
///
/// # Errors
/// When the database fails; then nothing was marked and the rows go out again under the same event ids.
pub async fn mark_published(tx: &mut PgTransaction<'_>, ids: &[i64]) -> sqlx::Result<u64> {
    let done = sqlx::query!("UPDATE outbox SET published_at = now(), last_error = NULL WHERE id = ANY($1)", ids).execute(&mut **tx).await?;
    Ok(done.rows_affected())
}

/// Puts rows off for a trouble that is not theirs: no attempt is used, the pause doubles from a second to a minute.
///
/// # Errors
/// When the database fails.
pub async fn defer(tx: &mut PgTransaction<'_>, ids: &[i64], reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE outbox SET deferrals = deferrals + 1, last_error = $2,
                next_attempt_at = now() + LEAST(interval '1 second' * power(2, LEAST(deferrals, 6)), interval '1 minute')
         WHERE id = ANY($1)",
        ids,
        reason,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Counts an attempt that was the row's own fault, and parks it at `attempts_max`. Returns whether it was parked.
///
/// # Errors
/// When the database fails.
pub async fn count_attempt(tx: &mut PgTransaction<'_>, id: i64, reason: &str, attempts_max: i32) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"UPDATE outbox SET attempts = attempts + 1, deferrals = deferrals + 1, last_error = $2,
                next_attempt_at = now() + interval '200 milliseconds' * power(4, LEAST(attempts, 5)),
                parked_at = CASE WHEN attempts + 1 >= $3 THEN now() END
         WHERE id = $1 RETURNING parked_at IS NOT NULL AS "parked!""#,
        id,
        reason,
        attempts_max,
    )
    .fetch_one(&mut **tx)
    .await
}
