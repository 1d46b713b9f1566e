//! What a queue lost: events that were published and have neither an effect nor a dead letter.

use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// Up to which outbox row everything of a consumer is accounted for; `newest` for one that is new.
///
/// # Errors
/// When the database fails.
pub async fn mark(tx: &mut PgTransaction<'_>, consumer: &str, newest: i64) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        "INSERT INTO audit_marks AS m (consumer, outbox_id) VALUES ($1, $2) ON CONFLICT (consumer) DO UPDATE SET looked_at = now() RETURNING outbox_id",
        consumer,
        newest
    )
    .fetch_one(&mut **tx)
    .await
}

/// The marks as they are, without touching them.
///
/// # Errors
/// When the database fails.
pub async fn marks(connection: &mut PgConnection) -> sqlx::Result<Vec<(String, i64)>> {
    let rows = sqlx::query!("SELECT consumer, outbox_id FROM audit_marks").fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| (row.consumer, row.outbox_id)).collect())
}

/// Lost messages that were sent again and have no effect yet.
///
/// # Errors
/// When the database fails.
pub async fn still_lost(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM lost_messages WHERE settled_at IS NULL"#).fetch_one(connection).await
}

/// Moves the mark on.
///
/// # Errors
/// When the database fails.
pub async fn move_mark(tx: &mut PgTransaction<'_>, consumer: &str, outbox_id: i64) -> sqlx::Result<()> {
    sqlx::query!("UPDATE audit_marks SET outbox_id = GREATEST(outbox_id, $2) WHERE consumer = $1", consumer, outbox_id).execute(&mut **tx).await?;
    Ok(())
}

/// An event without effect or dead letter.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// Which.
    pub event_id: Uuid,
    /// How long nobody has worked on it, in seconds; 0 while somebody does, without end when nobody ever has.
    pub idle_s: f64,
}

/// Which of these events have neither an effect nor a dead letter at a consumer.
///
/// # Errors
/// When the database fails.
pub async fn unaccounted(connection: &mut PgConnection, consumer: &str, event_ids: &[Uuid]) -> sqlx::Result<Vec<Open>> {
    sqlx::query_as!(
        Open,
        r#"SELECT e.event AS "event_id!", CASE WHEN p.event_id IS NULL THEN 'Infinity'::float8 WHEN p.lease_until > now() THEN 0
            ELSE extract(epoch FROM now() - p.updated_at)::float8 END AS "idle_s!"
        FROM unnest($2::uuid[]) AS e (event) LEFT JOIN processed_events p ON p.consumer = $1 AND p.event_id = e.event
        WHERE p.state IS DISTINCT FROM 'done' AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.consumer = $1 AND d.event_id = e.event)"#,
        consumer,
        event_ids,
    )
    .fetch_all(connection)
    .await
}

/// Writes down that messages were lost and are sent again now; once more after `again_s` seconds at the earliest, three times at the most.
/// Returns the outbox rows to send.
///
/// # Errors
/// When the database fails.
pub async fn send_lost(tx: &mut PgTransaction<'_>, consumer: &str, lost: &[(i64, Uuid)], again_s: i64) -> sqlx::Result<Vec<i64>> {
    let (rows, events): (Vec<i64>, Vec<Uuid>) = lost.iter().copied().unzip();
    sqlx::query_scalar!(
        "INSERT INTO lost_messages AS l (consumer, event_id, outbox_id, sent_again, sent_again_at) SELECT $1, event_id, outbox_id, 1, now() FROM unnest($2::bigint[], $3::uuid[]) AS u (outbox_id, event_id)
         ON CONFLICT (consumer, event_id) DO UPDATE SET sent_again = l.sent_again + 1, sent_again_at = now(), settled_at = NULL
            WHERE l.sent_again < 3 AND l.sent_again_at < now() - make_interval(secs => $4::bigint::float8)
         RETURNING outbox_id",
        consumer,
        &rows,
        &events,
        again_s,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Takes lost messages that were sent again `again_s` seconds ago and are still without effect, three times at the most; returns the
/// outbox rows to send once more.
///
/// # Errors
/// When the database fails.
pub async fn send_lost_again(tx: &mut PgTransaction<'_>, consumer: &str, again_s: i64) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar!(
        "UPDATE lost_messages SET sent_again = sent_again + 1, sent_again_at = now() WHERE (consumer, event_id) IN (
            SELECT consumer, event_id FROM lost_messages WHERE consumer = $1 AND settled_at IS NULL AND sent_again < 3
                AND sent_again_at < now() - make_interval(secs => $2::bigint::float8) ORDER BY sent_again_at LIMIT 500)
         RETURNING outbox_id",
        consumer,
        again_s,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Consumers that lost messages within the last `within_s` seconds: how many, and when last.
///
/// # Errors
/// When the database fails.
pub async fn lost_lately(connection: &mut PgConnection, within_s: i64) -> sqlx::Result<Vec<(String, i64, time::OffsetDateTime)>> {
    let rows = sqlx::query!(
        r#"SELECT consumer, count(*) AS "count!", max(found_at) AS "last!" FROM lost_messages WHERE found_at > now() - make_interval(secs => $1::bigint::float8) GROUP BY consumer"#,
        within_s
    );
    Ok(rows.fetch_all(connection).await?.into_iter().map(|row| (row.consumer, row.count, row.last)).collect())
}

/// Settles lost messages whose effect is done, or that died; counts (settled now, still without effect).
///
/// # Errors
/// When the database fails.
pub async fn settle_lost(tx: &mut PgTransaction<'_>) -> sqlx::Result<(u64, i64)> {
    let settled = sqlx::query!(
        "UPDATE lost_messages l SET settled_at = now() WHERE settled_at IS NULL AND (
            EXISTS (SELECT FROM processed_events p WHERE p.consumer = l.consumer AND p.event_id = l.event_id AND p.state = 'done')
            OR EXISTS (SELECT FROM dead_letters d WHERE d.consumer = l.consumer AND d.event_id = l.event_id))"
    );
    let settled = settled.execute(&mut **tx).await?.rows_affected();
    let open = sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM lost_messages WHERE settled_at IS NULL"#).fetch_one(&mut **tx).await?;
    Ok((settled, open))
}

/// Removes what was settled long ago, at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn purge_lost(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM lost_messages WHERE (consumer, event_id) IN (SELECT consumer, event_id FROM lost_messages
            WHERE found_at < now() - make_interval(secs => $1::bigint::float8) AND settled_at < now() - make_interval(secs => $1::bigint::float8) ORDER BY found_at LIMIT $2)",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}
