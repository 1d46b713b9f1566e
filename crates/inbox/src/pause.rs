//! `consumer_pauses`: a person stops a consumer for a while; a pause always ends by itself.

use std::time::Duration;

use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;

/// The longest pause: after that somebody must say so again.
pub const PAUSE_MAX: Duration = Duration::from_secs(12 * 3600);

/// A pause.
#[derive(Debug, Clone, Serialize)]
pub struct Pause {
    /// Whose.
    pub consumer: String,
    /// Until when.
    #[serde(with = "time::serde::rfc3339")]
    pub paused_until: OffsetDateTime,
    /// By whom.
    pub paused_by: String,
    /// Why.
    pub reason: String,
}

/// Pauses a consumer from now on for `span`, whatever was said before.
///
/// # Errors
/// When the database fails.
pub async fn pause(tx: &mut PgTransaction<'_>, consumer: &str, span: Duration, by: &str, reason: &str) -> sqlx::Result<Pause> {
    sqlx::query_as!(
        Pause,
        "INSERT INTO consumer_pauses (consumer, paused_until, paused_by, reason) VALUES ($1, now() + make_interval(secs => $2), $3, $4)
         ON CONFLICT (consumer) DO UPDATE SET paused_until = excluded.paused_until, paused_by = excluded.paused_by, reason = excluded.reason, paused_at = now()
         RETURNING consumer, paused_until, paused_by, reason",
        consumer,
        span.min(PAUSE_MAX).as_secs_f64(),
        by,
        reason,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Ends a pause. `false` when there was none.
///
/// # Errors
/// When the database fails.
pub async fn resume(tx: &mut PgTransaction<'_>, consumer: &str) -> sqlx::Result<bool> {
    let done = sqlx::query!("DELETE FROM consumer_pauses WHERE consumer = $1 AND paused_until > now()", consumer);
    Ok(done.execute(&mut **tx).await?.rows_affected() == 1)
}

/// The pauses that are in force.
///
/// # Errors
/// When the database fails.
pub async fn pauses(connection: &mut PgConnection) -> sqlx::Result<Vec<Pause>> {
    sqlx::query_as!(Pause, "SELECT consumer, paused_until, paused_by, reason FROM consumer_pauses WHERE paused_until > now() ORDER BY consumer")
        .fetch_all(connection)
        .await
}
