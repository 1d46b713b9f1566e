//! Replays: a frozen plan, a run under the same id, and what became of each dead letter.
//!
//! A plan only writes itself. A run is paced by [`step`], which any number of processes may call: the run's row is the lease.

use serde_json::Value;
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::dead::{self, Filter, Verdict};
pub use crate::runs::{Item, PlanLine, Replay, items, newer_than_plan, of_letter, plan_lines, purge_replays, replays, stuck_seconds};

/// How long a plan may be confirmed, in seconds: what it says grows old.
pub const PLAN_VALID_S: i64 = 15 * 60;

/// Dead letters of one plan at the most; the oldest versions first.
pub const PLAN_MAX: i64 = 10_000;

/// Released in one transaction at the most.
const STEP_MAX: i64 = 100;

/// Freezes a plan of what is open and matches; writes nothing else. Returns its number.
///
/// # Errors
/// When the database fails.
pub async fn plan(tx: &mut PgTransaction<'_>, filter: &Filter, ids: Option<&[i64]>, by: &str, horizon_s: i64) -> sqlx::Result<i64> {
    let filter = Filter { state: Some("open".into()), ..filter.clone().sound() };
    let choice = ids.map_or_else(|| filter.words(), |ids| format!("{} chosen one by one", ids.len()));
    let id = sqlx::query_scalar!(
        "INSERT INTO replays (choice, filter, cut_off, planned_by) SELECT $1, $3, COALESCE(max(id), 0), $2 FROM dead_letters RETURNING id",
        choice,
        by,
        if ids.is_some() { serde_json::json!({ "id": "0" }) } else { filter.json() },
    );
    let id = id.fetch_one(&mut **tx).await?;
    sqlx::query!(
        "WITH chosen AS (SELECT m.id, row_number() OVER (ORDER BY m.order_id, m.version, m.id)::integer AS position, m.error FROM dead_letters_matching($2) m
            WHERE $3::bigint[] IS NULL OR m.id = ANY ($3) ORDER BY m.order_id, m.version, m.id LIMIT $4)
         INSERT INTO replay_items (replay_id, dead_letter_id, position, verdict, error_before)
         SELECT $1, c.id, c.position, j.verdict, c.error FROM chosen c JOIN dead_letters_judged((SELECT array_agg(id) FROM chosen), $5) j ON j.id = c.id",
        id,
        filter.json(),
        ids,
        PLAN_MAX,
        horizon_s,
    )
    .execute(&mut **tx)
    .await?;
    Ok(id)
}

/// How a run is to go.
#[derive(Debug, Clone)]
pub struct Orders {
    /// Who confirms it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Released a second.
    pub rate_per_s: f64,
    /// Whether the first must succeed before the rest goes.
    pub one_first: bool,
    /// Stops by itself after so many came back.
    pub stop_after: i32,
    /// Which verdicts are taken.
    pub verdicts: Vec<Verdict>,
}

/// What became of a confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It runs, with so many.
    Running(u64),
    /// Somebody had confirmed it before: the same run.
    Already {
        /// Who.
        by: String,
        /// When, RFC 3339.
        at: String,
    },
    /// The plan is older than 15 minutes.
    Old,
    /// No plan has this number.
    NoPlan,
}

/// Confirms a plan: what it takes is judged once more and queued. Twice is once.
///
/// # Errors
/// When the database fails.
pub async fn start(tx: &mut PgTransaction<'_>, replay: i64, orders: &Orders, horizon_s: i64) -> sqlx::Result<Started> {
    let row = sqlx::query!(
        r#"SELECT state, started_by, to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS started_at,
            planned_at < now() - make_interval(secs => $2::bigint::float8) AS "old!" FROM replays WHERE id = $1 FOR UPDATE"#,
        replay,
        PLAN_VALID_S,
    );
    let Some(row) = row.fetch_optional(&mut **tx).await? else { return Ok(Started::NoPlan) };
    if row.state != "planned" {
        return Ok(Started::Already { by: row.started_by.unwrap_or_default(), at: row.started_at.unwrap_or_default() });
    }
    if row.old {
        return Ok(Started::Old);
    }
    let verdicts: Vec<String> = orders.verdicts.iter().map(|verdict| verdict.name().to_owned()).collect();
    let taken = sqlx::query!(
        "WITH open AS (SELECT d.id FROM replay_items i JOIN dead_letters d ON d.id = i.dead_letter_id WHERE i.replay_id = $1 AND d.state = 'open' ORDER BY d.id FOR UPDATE OF d),
         chosen AS (SELECT j.id FROM dead_letters_judged((SELECT array_agg(id) FROM open), $3) j WHERE j.verdict = ANY ($2)),
         queued AS (UPDATE dead_letters SET state = 'queued' WHERE id IN (SELECT id FROM chosen) RETURNING id)
         UPDATE replay_items i SET taken = true FROM queued q WHERE i.replay_id = $1 AND i.dead_letter_id = q.id",
        replay,
        &verdicts,
        horizon_s,
    );
    let taken = taken.execute(&mut **tx).await?.rows_affected();
    // There is nothing to do for these: they are closed, and counted as skipped.
    sqlx::query!(
        "WITH open AS (SELECT d.id FROM replay_items i JOIN dead_letters d ON d.id = i.dead_letter_id WHERE i.replay_id = $1 AND d.state = 'open'),
         over AS (SELECT j.id, j.verdict, j.detail FROM dead_letters_judged((SELECT array_agg(id) FROM open), $2) j WHERE j.verdict IN ('done', 'superseded')),
         closed AS (UPDATE dead_letters d SET state = 'resolved', closed_at = now(), closed_by = $3,
            closed_reason = CASE o.verdict WHEN 'done' THEN 'the effect was done at ' || o.detail ELSE 'superseded by version ' || o.detail END
            FROM over o WHERE d.id = o.id AND d.state = 'open' RETURNING d.id)
         UPDATE replay_items i SET outcome = 'skipped', ended_at = now(), taken = true FROM closed c WHERE i.replay_id = $1 AND i.dead_letter_id = c.id",
        replay,
        horizon_s,
        orders.by,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "UPDATE replays SET state = CASE WHEN $7 THEN 'done' ELSE 'running' END, started_by = $2, reason = $3, rate_per_s = $4, one_first = $5, stop_after = $6, started_at = now(),
            paced_from = now(), progress_at = now(), ended_at = CASE WHEN $7 THEN now() END WHERE id = $1",
        replay,
        orders.by,
        orders.reason,
        orders.rate_per_s,
        orders.one_first && taken > 1,
        orders.stop_after,
        taken == 0,
    )
    .execute(&mut **tx)
    .await?;
    Ok(Started::Running(taken))
}

/// Stops a run: what is not released is open again. `false` when it does not run.
///
/// # Errors
/// When the database fails.
pub async fn stop(tx: &mut PgTransaction<'_>, replay: i64, why: &str) -> sqlx::Result<bool> {
    let stopped = sqlx::query!("UPDATE replays SET state = 'stopped', stopped_why = $2, ended_at = now() WHERE id = $1 AND state = 'running'", replay, why);
    if stopped.execute(&mut **tx).await?.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query!(
        "UPDATE dead_letters SET state = 'open' WHERE state = 'queued' AND id IN (SELECT dead_letter_id FROM replay_items WHERE replay_id = $1 AND taken AND outcome = 'left')",
        replay
    )
    .execute(&mut **tx)
    .await?;
    Ok(true)
}

/// A dead letter that is released: to be written to the outbox by the same transaction.
#[derive(Debug, Clone)]
pub struct Released {
    /// Which.
    pub id: i64,
    /// To whom.
    pub consumer: String,
    /// The event.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// The order it is about.
    pub order_id: Option<Uuid>,
    /// The order's version after it.
    pub version: Option<i64>,
    /// Its bytes.
    pub body: Vec<u8>,
    /// Its headers as it died.
    pub headers: Value,
    /// The number of this replay.
    pub replay: i32,
}

/// One step of one run that nobody else has in hand: says what ended, stops by itself where it must, and releases what its rate allows.
/// `None` when no run is due.
///
/// # Errors
/// When the database fails.
pub async fn step(tx: &mut PgTransaction<'_>, replay: Option<i64>, horizon_s: i64) -> sqlx::Result<Option<Vec<Released>>> {
    let run = sqlx::query!(
        r#"SELECT id, one_first, stop_after, rate_per_s AS "rate_per_s!", paced_released, extract(epoch FROM clock_timestamp() - paced_from)::float8 AS "paced_s!" FROM replays
        WHERE state = 'running' AND ($1::bigint IS NULL OR id = $1) ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED"#,
        replay,
    );
    let Some(run) = run.fetch_optional(&mut **tx).await? else { return Ok(None) };
    let ended = settle_items(tx, run.id).await?;
    if ended.came_back >= i64::from(run.stop_after) || (run.one_first && ended.came_back > 0 && ended.done == 0) {
        let why = if run.one_first && ended.done == 0 { "the first one came back".to_owned() } else { format!("{} came back", ended.came_back) };
        stop(tx, run.id, &why).await?;
        return Ok(Some(Vec::new()));
    }
    if ended.left == 0 && ended.released == 0 {
        sqlx::query!("UPDATE replays SET state = 'done', ended_at = now(), progress_at = now() WHERE id = $1", run.id).execute(&mut **tx).await?;
        return Ok(Some(Vec::new()));
    }
    let allowed = if run.one_first && ended.done + ended.skipped == 0 {
        if ended.released + ended.came_back > 0 { 0 } else { 1 }
    } else if run.one_first {
        // The first has succeeded: the rest is paced from here on.
        sqlx::query!("UPDATE replays SET one_first = false, paced_from = clock_timestamp(), paced_released = 0 WHERE id = $1", run.id)
            .execute(&mut **tx)
            .await?;
        1
    } else {
        let owed = due(run.rate_per_s, run.paced_s) - i64::from(run.paced_released);
        let burst = due(run.rate_per_s, 1.0);
        if owed > burst {
            // Nobody released anything for a while: what was not used is not made up for.
            sqlx::query!("UPDATE replays SET paced_from = clock_timestamp(), paced_released = 0 WHERE id = $1", run.id).execute(&mut **tx).await?;
        }
        owed.min(burst)
    };
    release(tx, run.id, allowed.clamp(0, STEP_MAX), horizon_s).await.map(Some)
}

/// How many may have gone after so many seconds.
fn due(rate_per_s: f64, seconds: f64) -> i64 {
    let due = (rate_per_s * seconds.max(0.0)).floor().min(1e9);
    #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
    let due = due as i64;
    due + 1
}

/// How many of a run's items are where.
struct Counts {
    left: i64,
    released: i64,
    done: i64,
    skipped: i64,
    came_back: i64,
}

/// Says of released items how they ended, and counts.
async fn settle_items(tx: &mut PgTransaction<'_>, replay: i64) -> sqlx::Result<Counts> {
    resolve(tx).await?;
    let settled = sqlx::query!(
        "UPDATE replay_items i SET outcome = CASE WHEN d.state = 'resolved' THEN 'done' ELSE 'came_back' END, ended_at = now(),
            error = CASE WHEN d.state <> 'resolved' THEN d.error END
         FROM dead_letters d WHERE i.replay_id = $1 AND i.outcome = 'released' AND d.id = i.dead_letter_id
            AND (d.state = 'resolved' OR (d.state <> 'replaying' AND d.replay >= i.replay) OR d.replay > i.replay)",
        replay
    );
    if settled.execute(&mut **tx).await?.rows_affected() > 0 {
        sqlx::query!("UPDATE replays SET progress_at = now() WHERE id = $1", replay).execute(&mut **tx).await?;
    }
    sqlx::query_as!(
        Counts,
        r#"SELECT count(*) FILTER (WHERE outcome = 'left') AS "left!", count(*) FILTER (WHERE outcome = 'released') AS "released!", count(*) FILTER (WHERE outcome = 'done') AS "done!",
            count(*) FILTER (WHERE outcome = 'skipped') AS "skipped!", count(*) FILTER (WHERE outcome = 'came_back') AS "came_back!" FROM replay_items WHERE replay_id = $1 AND taken"#,
        replay
    )
    .fetch_one(&mut **tx)
    .await
}

/// Closes dead letters whose effect is done by now, by a replay or by another copy. Returns how many.
///
/// # Errors
/// When the database fails.
pub async fn resolve(tx: &mut PgTransaction<'_>) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "UPDATE dead_letters d SET state = 'resolved', closed_at = now(), closed_by = COALESCE(d.closed_by, 'replay'), closed_reason = 'the effect was done at '
            || to_char(p.done_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
         FROM processed_events p WHERE d.state IN ('replaying', 'open') AND p.consumer = d.consumer AND p.event_id = d.event_id AND p.state = 'done'"
    );
    Ok(done.execute(&mut **tx).await?.rows_affected())
}

/// Releases up to `limit` items: those whose effect happened meanwhile are skipped, those that are blocked wait.
async fn release(tx: &mut PgTransaction<'_>, replay: i64, limit: i64, horizon_s: i64) -> sqlx::Result<Vec<Released>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let next = sqlx::query_scalar!(
        "SELECT i.dead_letter_id FROM replay_items i JOIN dead_letters d ON d.id = i.dead_letter_id
         WHERE i.replay_id = $1 AND i.taken AND i.outcome = 'left' ORDER BY i.position LIMIT $2 FOR UPDATE OF d",
        replay,
        limit
    );
    let next = next.fetch_all(&mut **tx).await?;
    let (mut skipped, mut going) = (Vec::new(), Vec::new());
    for judged in dead::judge(&mut *tx, &next, horizon_s).await? {
        match judged.verdict {
            Verdict::Done | Verdict::Superseded => skipped.push((judged.id, judged.verdict.words(&judged.detail))),
            Verdict::Blocked | Verdict::NotAnEvent => {}
            Verdict::WillRun | Verdict::Unknown | Verdict::Unsafe => going.push(judged.id),
        }
    }
    let (skipped, why): (Vec<i64>, Vec<String>) = skipped.into_iter().unzip();
    sqlx::query!(
        "WITH closed AS (UPDATE dead_letters d SET state = 'resolved', closed_at = now(), closed_by = 'replay', closed_reason = s.why
            FROM unnest($2::bigint[], $3::text[]) AS s (id, why) WHERE d.id = s.id AND d.state = 'queued' RETURNING d.id)
         UPDATE replay_items i SET outcome = 'skipped', ended_at = now() FROM closed c WHERE i.replay_id = $1 AND i.dead_letter_id = c.id",
        replay,
        &skipped,
        &why,
    )
    .execute(&mut **tx)
    .await?;
    let released = sqlx::query_as!(
        Released,
        r#"UPDATE dead_letters SET state = 'replaying', replay = replay + 1, replayed_at = now() WHERE id = ANY ($1) AND state = 'queued'
        RETURNING id, consumer, event_id AS "event_id!", COALESCE(topic, '') AS "topic!", order_id, version, body, headers, replay"#,
        &going
    );
    let mut released = released.fetch_all(&mut **tx).await?;
    released.sort_by_key(|letter| next.iter().position(|id| *id == letter.id));
    let (ids, numbers): (Vec<i64>, Vec<i32>) = released.iter().map(|letter| (letter.id, letter.replay)).unzip();
    sqlx::query!(
        "WITH gone AS (SELECT * FROM unnest($2::bigint[], $3::integer[]) AS g (id, replay)),
         items AS (UPDATE replay_items i SET outcome = 'released', released_at = now(), replay = g.replay FROM gone g WHERE i.replay_id = $1 AND i.dead_letter_id = g.id),
         -- A person has looked at it: the calls that one event may cost begin anew.
         calls AS (UPDATE processed_events p SET attempts = 0 FROM gone g JOIN dead_letters d ON d.id = g.id
            WHERE p.consumer = d.consumer AND p.event_id = d.event_id AND p.state IN ('failed', 'unknown'))
         UPDATE replays SET paced_released = paced_released + (SELECT count(*) FROM gone), progress_at = CASE WHEN EXISTS (SELECT FROM gone) THEN now() ELSE progress_at END WHERE id = $1",
        replay,
        &ids,
        &numbers,
    )
    .execute(&mut **tx)
    .await?;
    Ok(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_never_lets_more_go_than_it_says_but_for_the_first() {
        assert_eq!(due(5.0, 0.0), 1);
        assert_eq!(due(5.0, 10.0), 51);
        assert_eq!(due(0.5, 3.9), 2);
        assert_eq!(due(10.0, -3.0), 1, "a clock that steps back releases nothing");
    }
}
