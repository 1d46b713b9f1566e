//! What becomes of dead letters over time: counted, opened again when their replay was lost, erased, removed.

use serde::Serialize;
use serde_json::json;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// Open dead letters of one consumer, for gauges.
#[derive(Debug, Clone, Serialize)]
pub struct Unfinished {
    /// Whose.
    pub consumer: String,
    /// Need a decision.
    pub open: i64,
    /// Are being replayed, or are about to.
    pub replaying: i64,
    /// Age of the oldest that is open, in seconds.
    pub oldest_seconds: f64,
}

/// Counts what is unfinished, by consumer.
///
/// # Errors
/// When the database fails.
pub async fn unfinished(connection: &mut PgConnection) -> sqlx::Result<Vec<Unfinished>> {
    sqlx::query_as!(
        Unfinished,
        r#"SELECT consumer, count(*) FILTER (WHERE state = 'open') AS "open!", count(*) FILTER (WHERE state <> 'open') AS "replaying!",
            COALESCE(extract(epoch FROM now() - min(died_at) FILTER (WHERE state = 'open')), 0)::float8 AS "oldest_seconds!"
        FROM dead_letters WHERE state IN ('open', 'queued', 'replaying') GROUP BY consumer ORDER BY consumer"#
    )
    .fetch_all(connection)
    .await
}

/// Erases the customer of these orders, whose addresses are `texts`, from dead letters; what can have no effect without an address is discarded.
///
/// # Errors
/// When the database fails.
pub async fn erase_dead(tx: &mut PgTransaction<'_>, orders: &[Uuid], texts: &[String]) -> sqlx::Result<u64> {
    let texts: Vec<Vec<u8>> = texts.iter().map(|text| format!("\"{text}\"").into_bytes()).collect(); // a whole JSON string, not a part of one
    let nobody = json!({ "email": null, "name": null, "phone": null });
    let events = sqlx::query!(
        r#"UPDATE dead_letters SET body = convert_to((CASE WHEN convert_from(body, 'UTF8')::jsonb #> '{data,customer}' IS NULL THEN convert_from(body, 'UTF8')::jsonb
            ELSE jsonb_set(convert_from(body, 'UTF8')::jsonb, '{data,customer}', $2) END)::text, 'UTF8'), erased_at = now()
        WHERE order_id = ANY ($1) AND event_id IS NOT NULL AND erased_at IS NULL"#,
        orders,
        nobody,
    );
    let mut erased = events.execute(&mut **tx).await?.rows_affected();
    let others = sqlx::query!(
        "UPDATE dead_letters SET body = '', erased_at = now() WHERE event_id IS NULL AND erased_at IS NULL
            AND EXISTS (SELECT FROM unnest($1::bytea[]) AS t (text) WHERE position(t.text IN body) > 0)",
        &texts
    );
    erased += others.execute(&mut **tx).await?.rows_affected();
    // A mail or a contact without an address cannot be made any more.
    sqlx::query!(
        "UPDATE dead_letters SET state = 'discarded', closed_at = now(), closed_by = 'erase', closed_reason = 'the customer was erased'
         WHERE order_id = ANY ($1) AND consumer IN ('email', 'crm') AND state = 'open'",
        orders
    )
    .execute(&mut **tx)
    .await?;
    Ok(erased)
}

/// Removes those that were closed long ago, at most `limit`. What is open stays.
///
/// # Errors
/// When the database fails.
pub async fn purge_dead(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM dead_letters WHERE id IN (SELECT id FROM dead_letters WHERE closed_at < now() - make_interval(secs => $1::bigint::float8) LIMIT $2 FOR UPDATE SKIP LOCKED)",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// Age of the oldest that is not closed, in seconds since it failed first: it must stay below the time for which dedupe rows are kept.
///
/// # Errors
/// When the database fails.
pub async fn oldest_open_seconds(connection: &mut PgConnection) -> sqlx::Result<f64> {
    sqlx::query_scalar!(
        r#"SELECT COALESCE(max(extract(epoch FROM now() - first_failed_at)), 0)::float8 AS "seconds!" FROM dead_letters WHERE state IN ('open', 'queued', 'replaying')"#
    )
    .fetch_one(connection)
    .await
}

/// Opens letters again whose replay has brought neither an effect nor another death for `settled_s` seconds, at which nobody works: their
/// message was lost. Returns how many.
///
/// # Errors
/// When the database fails.
pub async fn open_lost_replays(tx: &mut PgTransaction<'_>, settled_s: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "UPDATE dead_letters d SET state = 'open', came_back = came_back + 1, previous_error = error, error = 'its replay was lost on its way: no effect and no error came of it'
         WHERE d.state = 'replaying' AND d.replayed_at < now() - make_interval(secs => $1::bigint::float8)
            AND NOT EXISTS (SELECT FROM processed_events p WHERE p.consumer = d.consumer AND p.event_id = d.event_id
                AND (p.state = 'done' OR p.lease_until > now() OR p.updated_at > now() - make_interval(secs => $1::bigint::float8)))",
        settled_s
    );
    Ok(done.execute(&mut **tx).await?.rows_affected())
}

/// How many of these orders' letters are about to be sent again, or were.
///
/// # Errors
/// When the database fails.
pub async fn replaying(connection: &mut PgConnection, orders: &[Uuid]) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM dead_letters WHERE order_id = ANY ($1) AND state IN ('queued', 'replaying')"#, orders)
        .fetch_one(connection)
        .await
}
