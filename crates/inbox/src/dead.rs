//! `dead_letters`: what a consumer gave up, moved out of the broker so that looking disturbs nothing.
//!
//! One row for an event that died at a consumer, however often. Its bytes are never edited: the event's id derives from its fact.

use serde::Serialize;
use serde_json::Value;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

pub use crate::filter::Filter;
pub use crate::verdict::{Judgement, Verdict, judge};

/// A message from a terminal queue.
#[derive(Debug, Clone)]
pub struct Died {
    /// Whose.
    pub consumer: String,
    /// The event; none when the body is no event of ours.
    pub event_id: Option<Uuid>,
    /// The event's id, or the hash of the body.
    pub identity: String,
    /// The event's topic.
    pub topic: Option<String>,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// The order's version after it.
    pub version: Option<i64>,
    /// The money at stake, in minor units.
    pub amount_minor: Option<i64>,
    /// Its currency.
    pub currency: Option<String>,
    /// The bytes.
    pub body: Vec<u8>,
    /// Headers as texts.
    pub headers: Value,
    /// The replay that it died of; 0 for none.
    pub replay: i32,
    /// What kind of error, such as `http_404`.
    pub kind: String,
    /// The error.
    pub error: String,
    /// Attempts that were made.
    pub attempts: i32,
    /// When it failed first; none: when it died.
    pub first_failed_at: Option<OffsetDateTime>,
    /// When it died; none: now.
    pub died_at: Option<OffsetDateTime>,
}

/// Keeps a message that died, once: a copy of the same death changes nothing. Which death it is its replay's number says, not a clock;
/// only two deaths of the same replay are told apart by their time. One that died again after a replay, or after somebody
/// had closed it, is open again. Returns whether anything changed.
///
/// # Errors
/// When the database fails.
pub async fn keep(tx: &mut PgTransaction<'_>, died: &Died) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "INSERT INTO dead_letters AS d (consumer, event_id, identity, topic, order_id, version, amount_minor, currency, body, headers, replay, kind, error, attempts,
            first_failed_at, died_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, COALESCE($15, $16, now()), COALESCE($16, now()))
         ON CONFLICT (consumer, identity) DO UPDATE SET
            state = CASE WHEN d.state = 'queued' THEN 'queued' ELSE 'open' END,
            came_back = d.came_back + CASE WHEN d.state = 'replaying' THEN 1 ELSE 0 END,
            previous_error = CASE WHEN d.state = 'replaying' THEN d.error ELSE d.previous_error END,
            kind = excluded.kind, error = excluded.error, attempts = d.attempts + excluded.attempts, died_at = excluded.died_at, headers = excluded.headers,
            replay = excluded.replay, closed_at = NULL, closed_by = NULL, closed_reason = NULL
         WHERE excluded.replay > d.replay OR (excluded.replay = d.replay AND (d.state = 'replaying' OR excluded.died_at > d.died_at))",
        died.consumer,
        died.event_id,
        died.identity,
        died.topic,
        died.order_id,
        died.version,
        died.amount_minor,
        died.currency,
        died.body,
        died.headers,
        died.replay,
        died.kind,
        died.error,
        died.attempts,
        died.first_failed_at,
        died.died_at,
    );
    Ok(done.execute(&mut **tx).await?.rows_affected() == 1)
}

/// A dead letter, without its bytes.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetter {
    /// Its number; people write `d_` in front of it.
    pub id: i64,
    /// Whose.
    pub consumer: String,
    /// The event; none when the body is no event of ours.
    pub event_id: Option<Uuid>,
    /// Its topic.
    pub topic: Option<String>,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// The order's version after it.
    pub version: Option<i64>,
    /// The money at stake.
    pub amount_minor: Option<i64>,
    /// Its currency.
    pub currency: Option<String>,
    /// `open`, `queued`, `replaying`, `resolved` or `discarded`.
    pub state: String,
    /// What kind of error.
    pub kind: String,
    /// The error.
    pub error: String,
    /// What it had died of before the last replay.
    pub previous_error: Option<String>,
    /// Attempts, all replays together.
    pub attempts: i32,
    /// Replays so far.
    pub replay: i32,
    /// How often it died again after one.
    pub came_back: i32,
    /// When it failed first.
    #[serde(with = "time::serde::rfc3339")]
    pub first_failed_at: OffsetDateTime,
    /// When it died last.
    #[serde(with = "time::serde::rfc3339")]
    pub died_at: OffsetDateTime,
    /// When its last replay was released.
    #[serde(with = "time::serde::rfc3339::option")]
    pub replayed_at: Option<OffsetDateTime>,
    /// When it was resolved or discarded.
    #[serde(with = "time::serde::rfc3339::option")]
    pub closed_at: Option<OffsetDateTime>,
    /// By whom.
    pub closed_by: Option<String>,
    /// Why.
    pub closed_reason: Option<String>,
    /// Size of the body in bytes.
    pub body_bytes: i32,
    /// When customer data was erased from it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
}

/// How a list is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The latest death first.
    #[default]
    Newest,
    /// The oldest first.
    Oldest,
}

/// Lists what a filter chooses.
///
/// # Errors
/// When the database fails.
pub async fn list(connection: &mut PgConnection, filter: &Filter, order: Order, offset: i64, limit: i64) -> sqlx::Result<Vec<DeadLetter>> {
    sqlx::query_as!(
        DeadLetter,
        r#"SELECT id AS "id!", consumer AS "consumer!", event_id, topic, order_id, version, amount_minor, currency, state AS "state!", kind AS "kind!",
            error AS "error!", previous_error, attempts AS "attempts!", replay AS "replay!", came_back AS "came_back!", first_failed_at AS "first_failed_at!",
            died_at AS "died_at!", replayed_at, closed_at, closed_by, closed_reason, octet_length(body) AS "body_bytes!", erased_at
        FROM dead_letters_matching($1) ORDER BY CASE WHEN $2 THEN died_at END, CASE WHEN NOT $2 THEN died_at END DESC, id LIMIT $3 OFFSET $4"#,
        filter.json(),
        order == Order::Oldest,
        limit,
        offset,
    )
    .fetch_all(connection)
    .await
}

/// Counts what a filter chooses.
///
/// # Errors
/// When the database fails.
pub async fn count(connection: &mut PgConnection, filter: &Filter) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT count(*) AS "count!" FROM dead_letters_matching($1)"#, filter.json()).fetch_one(connection).await
}

/// Reads one.
///
/// # Errors
/// When the database fails.
pub async fn find(connection: &mut PgConnection, id: i64) -> sqlx::Result<Option<DeadLetter>> {
    let filter = Filter { id: Some(id.to_string()), ..Filter::default() };
    Ok(list(connection, &filter, Order::Newest, 0, 1).await?.pop())
}

/// Its bytes and its headers.
///
/// # Errors
/// When the database fails.
pub async fn bytes(connection: &mut PgConnection, id: i64) -> sqlx::Result<Option<(Vec<u8>, Value)>> {
    let row = sqlx::query!("SELECT body, headers FROM dead_letters WHERE id = $1", id).fetch_optional(connection).await?;
    Ok(row.map(|row| (row.body, row.headers)))
}

/// Dead letters with the same consumer and kind of error.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// Whose.
    pub consumer: String,
    /// What kind of error.
    pub kind: String,
    /// One of the errors.
    pub example: String,
    /// How many.
    pub letters: i64,
    /// Of how many orders.
    pub orders: i64,
    /// The first of them died.
    #[serde(with = "time::serde::rfc3339")]
    pub first_died_at: OffsetDateTime,
    /// The last of them died.
    #[serde(with = "time::serde::rfc3339")]
    pub last_died_at: OffsetDateTime,
    /// How many came back after a replay.
    pub came_back: i64,
    /// The money at stake, a JSON object of minor units by currency.
    pub amounts: Value,
}

/// Groups what a filter chooses, the largest first.
///
/// # Errors
/// When the database fails.
pub async fn groups(connection: &mut PgConnection, filter: &Filter, limit: i64) -> sqlx::Result<Vec<Group>> {
    sqlx::query_as!(
        Group,
        r#"WITH chosen AS (SELECT * FROM dead_letters_matching($1)),
        money AS (SELECT consumer, kind, jsonb_object_agg(currency, minor) AS amounts FROM (
            SELECT consumer, kind, currency, sum(amount_minor) AS minor FROM chosen WHERE currency IS NOT NULL GROUP BY consumer, kind, currency) m GROUP BY consumer, kind)
        SELECT c.consumer AS "consumer!", c.kind AS "kind!", (array_agg(c.error ORDER BY c.died_at DESC))[1] AS "example!", count(*) AS "letters!",
            count(DISTINCT c.order_id) AS "orders!", min(c.died_at) AS "first_died_at!", max(c.died_at) AS "last_died_at!",
            count(*) FILTER (WHERE c.came_back > 0) AS "came_back!", COALESCE((SELECT amounts FROM money m WHERE m.consumer = c.consumer AND m.kind = c.kind), '{}') AS "amounts!"
        FROM chosen c GROUP BY c.consumer, c.kind ORDER BY count(*) DESC, c.consumer, c.kind LIMIT $2"#,
        filter.json(),
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Says of open ones that their effect need not happen. Returns which.
///
/// # Errors
/// When the database fails.
pub async fn discard(tx: &mut PgTransaction<'_>, ids: &[i64], by: &str, reason: &str) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar!(
        "UPDATE dead_letters SET state = 'discarded', closed_at = now(), closed_by = $2, closed_reason = $3 WHERE id = ANY ($1) AND state = 'open' RETURNING id",
        ids,
        by,
        reason,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Opens closed ones again, so that they can be replayed or discarded. Returns which.
///
/// # Errors
/// When the database fails.
pub async fn reopen(tx: &mut PgTransaction<'_>, ids: &[i64]) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar!(
        "UPDATE dead_letters SET state = 'open', closed_at = NULL, closed_by = NULL, closed_reason = NULL
         WHERE id = ANY ($1) AND state IN ('discarded', 'resolved') RETURNING id",
        ids,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The dead letters of an order, or of an event.
///
/// # Errors
/// When the database fails.
pub async fn of_order(connection: &mut PgConnection, order_id: Uuid) -> sqlx::Result<Vec<DeadLetter>> {
    let ids = sqlx::query_scalar!("SELECT id FROM dead_letters WHERE order_id = $1 ORDER BY id LIMIT 100", order_id).fetch_all(&mut *connection).await?;
    let mut letters = Vec::new();
    for id in ids {
        letters.extend(find(&mut *connection, id).await?);
    }
    Ok(letters)
}

/// The order of a dead letter's event.
///
/// # Errors
/// When the database fails.
pub async fn order_of_event(connection: &mut PgConnection, event_id: Uuid) -> sqlx::Result<Option<Uuid>> {
    let order = sqlx::query_scalar!("SELECT order_id FROM dead_letters WHERE event_id = $1 AND order_id IS NOT NULL LIMIT 1", event_id);
    Ok(order.fetch_optional(connection).await?.flatten())
}
