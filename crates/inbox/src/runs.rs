//! Plans and runs of replays as they are read.

use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::filter::Filter;
use crate::replay::PLAN_VALID_S;
use crate::verdict::Verdict;

/// A plan or a run.
#[derive(Debug, Clone, Serialize)]
pub struct Replay {
    /// Its number; people write `r_` in front of it.
    pub id: i64,
    /// `planned`, `running`, `done` or `stopped`.
    pub state: String,
    /// What was chosen, in words.
    pub choice: String,
    /// Who planned it.
    pub planned_by: String,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub planned_at: OffsetDateTime,
    /// Who confirmed it.
    pub started_by: Option<String>,
    /// When.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// Why.
    pub reason: Option<String>,
    /// Released a second.
    pub rate_per_s: Option<f64>,
    /// Whether the first must succeed before the rest goes.
    pub one_first: bool,
    /// Stops by itself after so many came back.
    pub stop_after: i32,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Why it was stopped.
    pub stopped_why: Option<String>,
    /// Dead letters in the plan.
    pub planned: i64,
    /// Of these, the run takes.
    pub taken: i64,
    /// Not released.
    pub left: i64,
    /// Released, and not ended.
    pub released: i64,
    /// Their effect is done.
    pub done: i64,
    /// Their effect had been done before, or by a newer event.
    pub skipped: i64,
    /// Died again.
    pub came_back: i64,
    /// For how many seconds the plan may still be confirmed.
    pub seconds_valid: i64,
}

impl Replay {
    /// `38 done · 3 skipped · 1 came back · 0 left`.
    #[must_use]
    pub fn words(&self) -> String {
        let under_way = if self.released > 0 { format!(" · {} under way", self.released) } else { String::new() };
        format!("{} done · {} skipped · {} came back{under_way} · {} left", self.done, self.skipped, self.came_back, self.left)
    }
}

/// One line of a plan: a verdict, and how many have it.
#[derive(Debug, Clone, Serialize)]
pub struct PlanLine {
    /// What would happen.
    pub verdict: Verdict,
    /// To how many.
    pub letters: i64,
    /// Of how many orders.
    pub orders: i64,
    /// The money at stake, a JSON object of minor units by currency.
    pub amounts: Value,
}

/// What a plan would do.
///
/// # Errors
/// When the database fails.
pub async fn plan_lines(connection: &mut PgConnection, replay: i64) -> sqlx::Result<Vec<PlanLine>> {
    let rows = sqlx::query!(
        r#"WITH item AS (SELECT i.verdict, d.order_id, d.currency, d.amount_minor FROM replay_items i JOIN dead_letters d ON d.id = i.dead_letter_id WHERE i.replay_id = $1),
        money AS (SELECT verdict, jsonb_object_agg(currency, minor) AS amounts FROM (
            SELECT verdict, currency, sum(amount_minor) AS minor FROM item WHERE currency IS NOT NULL GROUP BY verdict, currency) m GROUP BY verdict)
        SELECT i.verdict, count(*) AS "letters!", count(DISTINCT i.order_id) AS "orders!",
            COALESCE((SELECT amounts FROM money m WHERE m.verdict = i.verdict), '{}') AS "amounts!"
        FROM item i GROUP BY i.verdict"#,
        replay,
    )
    .fetch_all(connection)
    .await?;
    let mut lines: Vec<PlanLine> =
        rows.into_iter().map(|row| PlanLine { verdict: Verdict::read(&row.verdict), letters: row.letters, orders: row.orders, amounts: row.amounts }).collect();
    lines.sort_by_key(|line| line.verdict);
    Ok(lines)
}

/// Reads plans and runs, the newest first; one alone, where `id` says so.
///
/// # Errors
/// When the database fails.
pub async fn replays(connection: &mut PgConnection, id: Option<i64>, limit: i64) -> sqlx::Result<Vec<Replay>> {
    sqlx::query_as!(
        Replay,
        r#"SELECT r.id, r.state, r.choice, r.planned_by, r.planned_at, r.started_by, r.started_at, r.reason, r.rate_per_s, r.one_first, r.stop_after, r.ended_at, r.stopped_why,
            count(i.dead_letter_id) AS "planned!", count(*) FILTER (WHERE i.taken) AS "taken!",
            count(*) FILTER (WHERE i.taken AND i.outcome = 'left') AS "left!", count(*) FILTER (WHERE i.outcome = 'released') AS "released!",
            count(*) FILTER (WHERE i.outcome = 'done') AS "done!", count(*) FILTER (WHERE i.outcome = 'skipped') AS "skipped!",
            count(*) FILTER (WHERE i.outcome = 'came_back') AS "came_back!",
            GREATEST(0, $3 - extract(epoch FROM now() - r.planned_at))::bigint AS "seconds_valid!"
        FROM replays r LEFT JOIN replay_items i ON i.replay_id = r.id WHERE ($1::bigint IS NULL OR r.id = $1) AND ($1 IS NOT NULL OR r.state <> 'planned')
        GROUP BY r.id ORDER BY r.id DESC LIMIT $2"#,
        id,
        limit,
        PLAN_VALID_S as f64,
    )
    .fetch_all(connection)
    .await
}

/// How many open ones match a plan's choice that died after it was frozen; and that choice, where it was not made one by one.
///
/// # Errors
/// When the database fails.
pub async fn newer_than_plan(connection: &mut PgConnection, replay: i64) -> sqlx::Result<(i64, Option<Filter>)> {
    let row = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM dead_letters_matching(r.filter) m WHERE m.id > r.cut_off) AS "count!", r.filter FROM replays r WHERE r.id = $1"#,
        replay,
    );
    let Some(row) = row.fetch_optional(connection).await? else { return Ok((0, None)) };
    let filter = serde_json::from_value::<Filter>(row.filter).ok().filter(|filter| filter.id.is_none());
    Ok((row.count, filter))
}

/// The plans and runs that a dead letter was in, the newest first, as people write them.
///
/// # Errors
/// When the database fails.
pub async fn of_letter(connection: &mut PgConnection, dead_letter: i64) -> sqlx::Result<Vec<String>> {
    let runs = sqlx::query_scalar!("SELECT replay_id FROM replay_items WHERE dead_letter_id = $1 AND taken ORDER BY replay_id DESC LIMIT 20", dead_letter);
    Ok(runs.fetch_all(connection).await?.into_iter().map(|id| format!("r_{id}")).collect())
}

/// One dead letter of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Item {
    /// Which.
    pub dead_letter_id: i64,
    /// Whose.
    pub consumer: String,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// What the plan said.
    pub verdict: String,
    /// Whether the run takes it.
    pub taken: bool,
    /// `left`, `released`, `done`, `skipped` or `came_back`.
    pub outcome: String,
    /// What it had died of.
    pub error_before: Option<String>,
    /// What it died of again.
    pub error: Option<String>,
}

/// The dead letters of a plan or run, in the order in which they go; of one outcome, where asked.
///
/// # Errors
/// When the database fails.
pub async fn items(connection: &mut PgConnection, replay: i64, outcome: Option<&str>, limit: i64) -> sqlx::Result<Vec<Item>> {
    sqlx::query_as!(
        Item,
        "SELECT i.dead_letter_id, d.consumer, d.order_id, i.verdict, i.taken, i.outcome, i.error_before, i.error FROM replay_items i JOIN dead_letters d ON d.id = i.dead_letter_id
         WHERE i.replay_id = $1 AND ($2::text IS NULL OR i.outcome = $2) ORDER BY i.position LIMIT $3",
        replay,
        outcome,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Runs that have not got on for so long, and how long.
///
/// # Errors
/// When the database fails.
pub async fn stuck_seconds(connection: &mut PgConnection) -> sqlx::Result<f64> {
    sqlx::query_scalar!(r#"SELECT COALESCE(max(extract(epoch FROM now() - progress_at)), 0)::float8 AS "seconds!" FROM replays WHERE state = 'running'"#)
        .fetch_one(connection)
        .await
}

/// Removes plans that nobody confirmed, and runs that ended long ago, at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn purge_replays(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM replays WHERE id IN (SELECT id FROM replays WHERE (state = 'planned' AND planned_at < now() - interval '1 day')
            OR ended_at < now() - make_interval(secs => $1::bigint::float8) LIMIT $2)",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}
