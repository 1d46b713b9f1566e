//! `dead_letters`: what a consumer gave up, moved out of the broker so that looking disturbs nothing.
//!
//! One row for an event that died at a consumer, however often. Its bytes are never edited: the event's id derives from its fact.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

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

/// Which dead letters. Everything that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Of this consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Of this kind of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In one of these states, with commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Of this order, by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Of this event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Died within the last so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_s: Option<String>,
    /// Died before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_s: Option<String>,
    /// After at least so many attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_min: Option<String>,
    /// Came back after a replay, or not: `true` or `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came_back: Option<String>,
    /// Of this currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// With this text in the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// This one alone, by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Filter {
    /// Whether it chooses nothing but a state: everything that is open, say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Self { state: None, ..self.clone().sound() } == Self::default()
    }

    /// Without what chooses nothing: blanks, and zeroes of times and attempts.
    #[must_use]
    pub fn sound(mut self) -> Self {
        for field in [
            &mut self.consumer,
            &mut self.kind,
            &mut self.state,
            &mut self.topic,
            &mut self.order,
            &mut self.event,
            &mut self.currency,
            &mut self.text,
            &mut self.came_back,
        ] {
            if field.as_deref().is_some_and(|text| text.trim().is_empty()) {
                *field = None;
            }
        }
        for field in [&mut self.since_s, &mut self.until_s, &mut self.attempts_min] {
            if field.as_deref().is_some_and(|text| text.trim().trim_start_matches('0').is_empty()) {
                *field = None;
            }
        }
        self
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!(self)
    }

    /// In words: `consumer=crm kind=http_404 state=open`.
    #[must_use]
    pub fn words(&self) -> String {
        let value = self.json();
        let parts = value.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
        parts.collect::<Vec<_>>().join(" ")
    }
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

/// What a replay would do with one.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    /// Which.
    pub id: i64,
    /// What.
    pub verdict: Verdict,
    /// When it was done, by which version it was superseded, or what blocks it.
    pub detail: String,
}

/// What a replay would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The effect has not happened and will be tried.
    WillRun,
    /// The effect has happened: nothing to do.
    Done,
    /// A newer event of the same order has done its work.
    Superseded,
    /// Nobody knows whether it happened: it may happen twice, under the same key.
    Unknown,
    /// Its dedupe row may have been removed: it may happen twice.
    Unsafe,
    /// The consumer is paused, or an attempt is at work.
    Blocked,
    /// Its body is no event of ours.
    NotAnEvent,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 7] = [Self::WillRun, Self::Done, Self::Superseded, Self::Unknown, Self::Unsafe, Self::Blocked, Self::NotAnEvent];

    /// As it is stored.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WillRun => "will_run",
            Self::Done => "done",
            Self::Superseded => "superseded",
            Self::Unknown => "unknown",
            Self::Unsafe => "unsafe",
            Self::Blocked => "blocked",
            Self::NotAnEvent => "not_an_event",
        }
    }

    /// In words, with what is known.
    #[must_use]
    pub fn words(self, detail: &str) -> String {
        match self {
            Self::WillRun => "Will run".into(),
            Self::Done if detail.is_empty() => "Will be skipped: already done".into(),
            Self::Done => format!("Will be skipped: already done at {detail}"),
            Self::Superseded if detail.is_empty() => "Superseded by a newer version".into(),
            Self::Superseded => format!("Superseded by version {detail}"),
            Self::Unknown => "Outcome unknown: may happen twice, same key".into(),
            Self::Unsafe => "Unsafe: its dedupe record is gone".into(),
            Self::Blocked if detail.is_empty() => "Blocked: consumer paused, or an attempt holds the lease".into(),
            Self::Blocked => format!("Blocked: {detail}"),
            Self::NotAnEvent => "Cannot be replayed: not an event of ours".into(),
        }
    }

    pub(crate) fn read(name: &str) -> Self {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name).unwrap_or(Self::Unsafe)
    }
}

/// Judges dead letters. `horizon_s`: how long dedupe rows are kept.
///
/// # Errors
/// When the database fails.
pub async fn judge(connection: &mut PgConnection, ids: &[i64], horizon_s: i64) -> sqlx::Result<Vec<Judgement>> {
    let rows = sqlx::query!(r#"SELECT id AS "id!", verdict AS "verdict!", detail AS "detail!" FROM dead_letters_judged($1, $2)"#, ids, horizon_s);
    let rows = rows.fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| Judgement { id: row.id, verdict: Verdict::read(&row.verdict), detail: row.detail }).collect())
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
