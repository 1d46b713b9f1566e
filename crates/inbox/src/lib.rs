//! `processed_events`: what each consumer has done with each event.
//!
//! A consumer inside the database inserts `done` rows together with its effects. A consumer outside claims first: the
//! claim carries a fence, which grows with every claim and which every later write must name, and a lease by the
//! database's clock. `done` is final; everything else may be claimed again.
//!
//! [`dead`] keeps what a consumer gave up ([`upkeep`] looks after it), [`replay`] sends it again, [`lost`] finds what a queue lost, [`pause`] stops a consumer for a
//! while.

pub mod dead;
mod filter;
pub mod lost;
pub mod pause;
pub mod replay;
mod runs;
pub mod upkeep;
mod verdict;

use std::time::Duration;

use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// What a claim found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is ours until the lease ends.
    Won {
        /// Names this claim in every later write.
        fence: i64,
        /// How often the event was claimed, this time included: a bound on calls to the outside.
        attempts: i32,
        /// Whether an earlier attempt ended without anybody knowing whether it had worked.
        may_repeat: bool,
    },
    /// Its effect has happened.
    Done,
    /// Somebody else works on it.
    Held,
}

/// Claims an event, for `lease`.
///
/// # Errors
/// When the database fails.
pub async fn claim(connection: &mut PgConnection, consumer: &str, event_id: Uuid, lease: Duration) -> sqlx::Result<Claim> {
    let won = sqlx::query!(
        r#"WITH before AS (SELECT state FROM processed_events WHERE consumer = $1 AND event_id = $2)
        INSERT INTO processed_events AS p (consumer, event_id, state, lease_until) VALUES ($1, $2, 'claimed', now() + make_interval(secs => $3))
        ON CONFLICT (consumer, event_id) DO UPDATE SET state = 'claimed', updated_at = now(), lease_until = excluded.lease_until, fence = p.fence + 1, attempts = p.attempts + 1
            WHERE p.state <> 'done' AND (p.state <> 'claimed' OR p.lease_until < now())
        RETURNING fence, attempts, COALESCE((SELECT state IN ('claimed', 'unknown') FROM before), false) AS "may_repeat!""#,
        consumer,
        event_id,
        lease.as_secs_f64(),
    )
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(won) = won {
        return Ok(Claim::Won { fence: won.fence, attempts: won.attempts, may_repeat: won.may_repeat });
    }
    let state =
        sqlx::query_scalar!("SELECT state FROM processed_events WHERE consumer = $1 AND event_id = $2", consumer, event_id).fetch_optional(connection).await?;
    Ok(if state.as_deref() == Some("done") { Claim::Done } else { Claim::Held })
}

/// Prolongs a lease. `false` when the claim is not ours any more.
///
/// # Errors
/// When the database fails.
pub async fn renew(connection: &mut PgConnection, consumer: &str, event_id: Uuid, fence: i64, lease: Duration) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "UPDATE processed_events SET lease_until = now() + make_interval(secs => $4) WHERE consumer = $1 AND event_id = $2 AND fence = $3 AND state = 'claimed'",
        consumer,
        event_id,
        fence,
        lease.as_secs_f64(),
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Writes that the effect happened. `false` when the claim is not ours any more.
///
/// # Errors
/// When the database fails.
pub async fn finish(connection: &mut PgConnection, consumer: &str, event_id: Uuid, fence: i64, external_ref: Option<&str>) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "UPDATE processed_events SET state = 'done', done_at = now(), lease_until = NULL, external_ref = $4, last_error = NULL
         WHERE consumer = $1 AND event_id = $2 AND fence = $3 AND state = 'claimed'",
        consumer,
        event_id,
        fence,
        external_ref,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How an attempt ended that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The effect did not happen.
    Failed,
    /// Nobody knows whether it happened.
    Unknown,
    /// It was not tried, or the other side was down: the attempt does not count.
    Uncounted,
}

/// Writes how an attempt ended, and frees the claim. `false` when it is not ours any more.
///
/// # Errors
/// When the database fails.
pub async fn give_up(connection: &mut PgConnection, consumer: &str, event_id: Uuid, fence: i64, ended: Ended, last_error: &str) -> sqlx::Result<bool> {
    let state = match ended {
        Ended::Failed | Ended::Uncounted => "failed",
        Ended::Unknown => "unknown",
    };
    let uncounted = i32::from(ended == Ended::Uncounted);
    let done = sqlx::query!(
        "UPDATE processed_events SET state = $4, updated_at = now(), lease_until = NULL, last_error = $5, attempts = attempts - $6 WHERE consumer = $1 AND event_id = $2 AND fence = $3 AND state = 'claimed'",
        consumer,
        event_id,
        fence,
        state,
        last_error,
        uncounted,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Inserts `done` rows for events of a consumer inside the database; returns those that were not done yet.
/// Sort `event_ids` first, so that two batches cannot deadlock.
///
/// # Errors
/// When the database fails.
pub async fn insert_done(tx: &mut PgTransaction<'_>, consumer: &str, event_ids: &[Uuid]) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "INSERT INTO processed_events (consumer, event_id, state, done_at) SELECT $1, id, 'done', now() FROM unnest($2::uuid[]) AS id
         ON CONFLICT (consumer, event_id) DO NOTHING RETURNING event_id",
        consumer,
        event_ids,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What a consumer has done with an event, as the trail shows it.
#[derive(Debug, Clone)]
pub struct Effect {
    /// The consumer.
    pub consumer: String,
    /// The event.
    pub event_id: Uuid,
    /// `claimed`, `unknown`, `done` or `failed`.
    pub state: String,
    /// Attempts so far.
    pub attempts: i32,
    /// When it was done, RFC 3339.
    pub done_at: Option<String>,
    /// What the other side calls it.
    pub external_ref: Option<String>,
    /// Why it has not happened.
    pub last_error: Option<String>,
    /// When it was tried first, RFC 3339.
    pub created_at: String,
    /// Until when an attempt holds it, RFC 3339.
    pub lease_until: Option<String>,
}

/// The effects of events.
///
/// # Errors
/// When the database fails.
pub async fn effects(connection: &mut PgConnection, event_ids: &[Uuid]) -> sqlx::Result<Vec<Effect>> {
    sqlx::query_as!(
        Effect,
        r#"SELECT consumer, event_id, state, attempts, to_char(done_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS done_at, external_ref, last_error,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!",
            to_char(CASE WHEN lease_until > now() THEN lease_until END AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS lease_until
        FROM processed_events p WHERE event_id = ANY ($1) ORDER BY p.done_at NULLS LAST, consumer"#,
        event_ids,
    )
    .fetch_all(connection)
    .await
}

/// Removes dedupe rows of effects that happened long ago, at most `limit`. What failed or is unknown stays.
///
/// # Errors
/// When the database fails.
pub async fn purge(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM processed_events WHERE (consumer, event_id) IN (SELECT consumer, event_id FROM processed_events
            WHERE created_at < now() - make_interval(secs => $1::bigint::float8) AND state = 'done' ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// What a consumer has in hand, and what it has done.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Work {
    /// The consumer.
    pub consumer: String,
    /// Effects done within the last minute.
    pub last_minute: i64,
    /// Events whose outcome nobody knows, and at which nobody works.
    pub unknown: i64,
    /// Events that were tried and have no effect yet, dead letters apart.
    pub retrying: i64,
    /// How long ago the oldest of these was tried first, in seconds.
    pub retrying_oldest_s: f64,
}

/// What the consumers have in hand. Dedupe rows of the last 15 minutes, and what is unfinished.
///
/// # Errors
/// When the database fails.
pub async fn work(connection: &mut PgConnection) -> sqlx::Result<Vec<Work>> {
    sqlx::query_as!(
        Work,
        r#"WITH unfinished AS (SELECT p.consumer, p.state, p.lease_until, p.created_at FROM processed_events p WHERE p.state <> 'done'
                AND NOT EXISTS (SELECT FROM dead_letters d WHERE d.consumer = p.consumer AND d.event_id = p.event_id AND d.state <> 'replaying')),
        done AS (SELECT consumer, count(*) AS done FROM processed_events WHERE created_at > now() - interval '15 minutes' AND done_at > now() - interval '1 minute' GROUP BY consumer),
        open AS (SELECT consumer, count(*) AS retrying, count(*) FILTER (WHERE state = 'unknown' OR (state = 'claimed' AND lease_until < now())) AS unknown,
            max(extract(epoch FROM now() - created_at))::float8 AS oldest FROM unfinished GROUP BY consumer)
        SELECT COALESCE(d.consumer, o.consumer) AS "consumer!", COALESCE(d.done, 0) AS "last_minute!", COALESCE(o.unknown, 0) AS "unknown!",
            COALESCE(o.retrying, 0) AS "retrying!", COALESCE(o.oldest, 0)::float8 AS "retrying_oldest_s!"
        FROM done d FULL JOIN open o ON o.consumer = d.consumer"#
    )
    .fetch_all(connection)
    .await
}

/// Takes these texts out of errors and out of what the other side calls an effect.
///
/// # Errors
/// When the database fails.
pub async fn erase_texts(tx: &mut PgTransaction<'_>, event_ids: &[Uuid], texts: &[String]) -> sqlx::Result<()> {
    for text in texts {
        sqlx::query!(
            "UPDATE processed_events SET last_error = replace(last_error, $2, '(erased)'), external_ref = replace(external_ref, $2, '(erased)')
             WHERE event_id = ANY ($1) AND (position($2 IN last_error) > 0 OR position($2 IN external_ref) > 0)",
            event_ids,
            text,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}
