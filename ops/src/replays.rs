//! Replays as people ask for them: what a role may take, and the one transaction that releases a dead letter into the outbox.

use anyhow::Context;
use counterfoil_broker::topology::work_queue;
use counterfoil_chassis::process::Exit;
use counterfoil_inbox::dead::{Filter, Verdict, discard, reopen};
use counterfoil_inbox::replay::{self, Orders, Released, Started, start};
use counterfoil_outbox::{Again, send_bytes};
use serde_json::{Map, Value};
use sqlx::PgPool;

use crate::actions::{Actor, Role, record};

/// The rate unless somebody says otherwise, and the highest.
pub const RATE_PER_S: f64 = 10.0;
/// The highest rate: the relay would take more, the other side would not.
pub const RATE_MAX_PER_S: f64 = 200.0;

/// More than this many are confirmed by their number.
pub const CONFIRM_ABOVE: u64 = 100;

/// Exit codes, as `counterfoil --help` documents them.
pub mod exit {
    /// Nothing matched.
    pub const NOTHING: u8 = 3;
    /// Refused: by role, by verdict, for want of a reason or a confirmation.
    pub const REFUSED: u8 = 4;
    /// The database cannot be reached.
    pub const UNREACHABLE: u8 = 5;
}

/// A refusal with its way out.
pub(crate) fn refused(message: impl Into<String>) -> anyhow::Error {
    Exit::with(exit::REFUSED, message).into()
}

/// Nothing matched.
pub(crate) fn nothing(message: impl Into<String>) -> anyhow::Error {
    Exit::with(exit::NOTHING, message).into()
}

/// Which verdicts somebody wants to be taken beside "will run".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Risks {
    /// What may happen twice under the same key.
    pub unknown: bool,
    /// What may happen twice, its dedupe row being gone.
    pub unsafe_: bool,
}

impl Risks {
    fn verdicts(self) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::WillRun];
        verdicts.extend(self.unknown.then_some(Verdict::Unknown));
        verdicts.extend(self.unsafe_.then_some(Verdict::Unsafe));
        verdicts
    }
}

/// How somebody wants a plan to run.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Why.
    pub reason: String,
    /// Released a second.
    pub rate_per_s: f64,
    /// Whether the first must succeed before the rest goes.
    pub one_first: bool,
    /// Stops by itself after so many came back.
    pub stop_after: i32,
    /// What else is taken.
    pub risks: Risks,
    /// The number that somebody typed.
    pub confirmed: Option<u64>,
}

/// Writes a refused attempt down; the refusal.
async fn refuse(pool: &PgPool, actor: &Actor, object: &str, reason: &str, why: String) -> anyhow::Error {
    let written = async { record(&mut *pool.acquire().await?, actor, "replay", object, 0, reason, &format!("refused: {why}")).await };
    match written.await {
        Ok(()) => refused(why),
        Err(error) => error.into(),
    }
}

/// Why somebody without a name changes nothing.
pub(crate) fn unnamed(actor: &Actor) -> Option<String> {
    (actor.person == "unknown").then(|| "who are you? Say so by --by or COUNTERFOIL_PERSON: everything that is changed is written down with a name".to_owned())
}

/// Confirms a plan in the name of `actor`; the refused attempt is written down, too.
///
/// # Errors
/// When the role, the reason or the confirmation does not suffice, or the database fails.
pub async fn confirm(pool: &PgPool, actor: &Actor, plan: i64, wanted: &Wanted, horizon_s: i64) -> anyhow::Result<Started> {
    let object = format!("r_{plan}");
    let refusal = if actor.role < Role::Operator {
        Some(format!("a {} may look, and not replay", actor.role.name()))
    } else if (wanted.risks.unsafe_ || wanted.risks.unknown) && actor.role < Role::Admin {
        Some("replaying what may happen twice needs the role admin".to_owned())
    } else if wanted.reason.trim().is_empty() {
        Some("a replay needs a reason".to_owned())
    } else if !(wanted.rate_per_s > 0.0 && wanted.rate_per_s <= RATE_MAX_PER_S) {
        Some(format!("the rate must be above 0 and at most {RATE_MAX_PER_S} a second"))
    } else if wanted.stop_after < 1 {
        Some("stop after at least 1 that came back".to_owned())
    } else {
        unnamed(actor)
    };
    if let Some(why) = refusal {
        return Err(refuse(pool, actor, &object, &wanted.reason, why).await);
    }
    let mut tx = pool.begin().await?;
    let orders = Orders {
        by: actor.person.clone(),
        reason: wanted.reason.clone(),
        rate_per_s: wanted.rate_per_s,
        one_first: wanted.one_first,
        stop_after: wanted.stop_after,
        verdicts: wanted.risks.verdicts(),
    };
    let started = start(&mut tx, plan, &orders, horizon_s).await?;
    // By what is judged now, not by what the plan said: a pause may have ended meanwhile.
    if let Started::Running(taken) = &started
        && (*taken > CONFIRM_ABOVE || wanted.risks != Risks::default())
        && wanted.confirmed != Some(*taken)
    {
        tx.rollback().await?;
        return Err(refuse(pool, actor, &object, &wanted.reason, format!("{taken} would be replayed: confirm it by this number")).await);
    }
    let (rows, outcome) = match &started {
        Started::Running(rows) => (usize::try_from(*rows)?, "started".to_owned()),
        Started::Already { by, at } => (0, format!("the same run that {by} started at {at}")),
        Started::Old => (0, "refused: the plan is older than 15 minutes".to_owned()),
        Started::NoPlan => (0, "refused: no such plan".to_owned()),
    };
    record(&mut tx, actor, "replay", &object, rows, &wanted.reason, &outcome).await?;
    tx.commit().await?;
    Ok(started)
}

/// One step of one run: what it releases goes to the outbox in the same transaction. `None` when no run is due.
///
/// # Errors
/// When the database fails.
pub async fn step(pool: &PgPool, run: Option<i64>, horizon_s: i64) -> anyhow::Result<Option<usize>> {
    let mut tx = pool.begin().await?;
    let Some(released) = replay::step(&mut tx, run, horizon_s).await? else { return Ok(None) };
    for letter in &released {
        send_bytes(&mut tx, &again(letter)).await.with_context(|| format!("d_{}", letter.id))?;
    }
    counterfoil_chassis::fault::point("replay.before_commit");
    tx.commit().await?;
    Ok(Some(released.len()))
}

/// The message of a replay: the same bytes, the trace and the attempt before it linked, the number of the replay in a header.
fn again(letter: &Released) -> Again {
    let of = |name: &str| letter.headers.get(name).and_then(Value::as_str).map(|text| Value::String(text.to_owned()));
    let mut headers = Map::new();
    for name in ["traceparent", "x-counterfoil-first-failed-at", "x-counterfoil-previous"] {
        headers.extend(of(name).map(|value| (name.to_owned(), value)));
    }
    headers.insert("x-counterfoil-replay".into(), Value::String(letter.replay.to_string()));
    Again {
        event_id: letter.event_id,
        topic: letter.topic.clone(),
        order_id: letter.order_id,
        version: letter.version,
        queue: work_queue(&letter.consumer),
        headers: Value::Object(headers),
        body: letter.body.clone(),
    }
}

/// Stops a run in the name of `actor`.
///
/// # Errors
/// When the role does not suffice, or the database fails.
pub async fn stop(pool: &PgPool, actor: &Actor, run: i64, reason: &str) -> anyhow::Result<bool> {
    may(pool, actor, "stop", &format!("r_{run}"), reason).await?;
    let mut tx = pool.begin().await?;
    let stopped = replay::stop(&mut tx, run, &format!("stopped by {}", actor.person)).await?;
    record(&mut tx, actor, "stop", &format!("r_{run}"), usize::from(stopped), reason, if stopped { "stopped" } else { "did not run" }).await?;
    tx.commit().await?;
    Ok(stopped)
}

/// Discards open dead letters, or opens closed ones again.
///
/// # Errors
/// When the role or the reason does not suffice, or the database fails.
pub async fn decide(pool: &PgPool, actor: &Actor, ids: &[i64], discarding: bool, reason: &str) -> anyhow::Result<Vec<i64>> {
    let action = if discarding { "discard" } else { "reopen" };
    let object = ids.first().map_or_else(String::new, |id| if ids.len() == 1 { format!("d_{id}") } else { format!("{} dead letters", ids.len()) });
    may(pool, actor, action, &object, reason).await?;
    let mut tx = pool.begin().await?;
    let done = if discarding { discard(&mut tx, ids, &actor.person, reason).await? } else { reopen(&mut tx, ids).await? };
    for id in &done {
        record(&mut tx, actor, action, &format!("d_{id}"), 1, reason, "done").await?;
    }
    tx.commit().await?;
    Ok(done)
}

/// Refuses a viewer, and writes that down.
///
/// # Errors
/// The refusal, or the database's.
pub async fn may(pool: &PgPool, actor: &Actor, action: &str, object: &str, reason: &str) -> anyhow::Result<()> {
    let why = if actor.role < Role::Operator {
        format!("a {} may look, and not {action}", actor.role.name())
    } else if reason.trim().is_empty() {
        format!("{action} needs a reason")
    } else if let Some(why) = unnamed(actor) {
        why
    } else {
        return Ok(());
    };
    record(&mut *pool.acquire().await?, actor, action, object, 0, reason, &format!("refused: {why}")).await?;
    Err(refused(why))
}

/// Refuses a filter that chooses nothing.
///
/// # Errors
/// The refusal.
pub fn must_choose(filter: &Filter) -> anyhow::Result<()> {
    if filter.is_empty() {
        Err(refused("a replay of everything is refused: say which, by --consumer, --kind, --order, --topic, --since or a number"))
    } else {
        Ok(())
    }
}
