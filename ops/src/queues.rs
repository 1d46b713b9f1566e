//! `counterfoil outbox`, `counterfoil consumer`, `counterfoil audit`: rows that are stuck, pauses, and the record of who did what.

use std::time::Duration;

use counterfoil_broker::topology::CONSUMERS;
use counterfoil_inbox::pause::{PAUSE_MAX, Pause, pause, pauses, resume};
use counterfoil_outbox::{release, stuck};
use counterfoil_settlement::references;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::actions::{Action, Actor, actions, record};
use crate::oncall::{ConsumerOptions, OutboxOptions};
use crate::replays::{may, nothing, refused};
use crate::words::counted;
use crate::{instant, print};

pub(crate) async fn outbox(pool: &PgPool, actor: &Actor, command: OutboxOptions) -> anyhow::Result<()> {
    match command {
        OutboxOptions::List { parked, unroutable, limit, json } => {
            let mut connection = pool.acquire().await?;
            let rows = stuck(&mut connection, parked, unroutable, limit).await?;
            if json {
                return Ok(print(format_args!("{}\n", json!({ "rows": rows })))?);
            }
            let orders: Vec<Uuid> = rows.iter().filter_map(|row| row.order_id).collect();
            let references = references(&mut connection, &orders).await?;
            for row in &rows {
                let state = row.parked_at.map_or_else(|| format!("next try {}", instant(row.next_attempt_at)), |at| format!("parked {}", instant(at)));
                let order = row.order_id.map_or_else(|| "-".into(), |id| references.get(&id).cloned().unwrap_or_else(|| id.to_string()));
                print(format_args!(
                    "{:<8} {}  {:<20} {state}  order {order}\n         {}\n",
                    row.id,
                    instant(row.created_at),
                    row.topic,
                    row.last_error.as_deref().unwrap_or("waiting")
                ))?;
            }
            Ok(print(format_args!("{}\n", counted(rows.len(), "row", "rows")))?)
        }
        OutboxOptions::Release { ids, reason } => {
            let mut released = 0;
            for id in &ids {
                let done = release_row(pool, actor, *id, &reason).await?;
                released += usize::from(done);
                print(format_args!("{id}  {}\n", if done { "is tried now" } else { "not changed: it is not there, or not stuck" }))?;
            }
            anyhow::ensure!(released == ids.len(), nothing(format!("{released} of {} released", ids.len())));
            Ok(())
        }
    }
}

/// Lets a row be tried at once, in the name of `actor`.
///
/// # Errors
/// When the role or the reason does not suffice, or the database fails.
pub async fn release_row(pool: &PgPool, actor: &Actor, id: i64, reason: &str) -> anyhow::Result<bool> {
    let object = format!("outbox {id}");
    may(pool, actor, "release", &object, reason).await?;
    let mut tx = pool.begin().await?;
    let done = release(&mut tx, id).await?;
    record(&mut tx, actor, "release", &object, usize::from(done), reason, if done { "released" } else { "was not stuck" }).await?;
    tx.commit().await?;
    Ok(done)
}

pub(crate) async fn consumer(pool: &PgPool, actor: &Actor, command: ConsumerOptions) -> anyhow::Result<()> {
    match command {
        ConsumerOptions::Pause { consumer, span, reason } => {
            let pause = pause_consumer(pool, actor, &consumer, span, &reason).await?;
            Ok(print(format_args!("{consumer} takes nothing until {}; what arrives waits in its queue\n", instant(pause.paused_until)))?)
        }
        ConsumerOptions::Resume { consumer, reason } => {
            anyhow::ensure!(resume_consumer(pool, actor, &consumer, &reason).await?, nothing(format!("{consumer} is not paused")));
            Ok(print(format_args!("{consumer} goes on within a second\n"))?)
        }
        ConsumerOptions::List { json } => {
            let pauses = pauses(&mut *pool.acquire().await?).await?;
            if json {
                return Ok(print(format_args!("{}\n", json!({ "pauses": pauses })))?);
            }
            for pause in &pauses {
                print(format_args!("{:<8} until {}  by {}: {}\n", pause.consumer, instant(pause.paused_until), pause.paused_by, pause.reason))?;
            }
            Ok(print(format_args!("{} paused\n", pauses.len()))?)
        }
    }
}

fn known(consumer: &str) -> anyhow::Result<()> {
    let names: Vec<&str> = CONSUMERS.iter().map(|consumer| consumer.name).collect();
    anyhow::ensure!(names.contains(&consumer), refused(format!("no consumer is called {consumer:?}: {}", names.join(", "))));
    Ok(())
}

/// Pauses a consumer in the name of `actor`.
///
/// # Errors
/// When there is no such consumer, the role, the reason or the time does not suffice, or the database fails.
pub async fn pause_consumer(pool: &PgPool, actor: &Actor, consumer: &str, span: Duration, reason: &str) -> anyhow::Result<Pause> {
    known(consumer)?;
    anyhow::ensure!(!span.is_zero() && span <= PAUSE_MAX, refused("a pause lasts between a second and 12 hours"));
    let object = format!("consumer {consumer}");
    may(pool, actor, "pause", &object, reason).await?;
    let mut tx = pool.begin().await?;
    let pause = pause(&mut tx, consumer, span, &actor.person, reason).await?;
    record(&mut tx, actor, "pause", &object, 1, reason, &format!("until {}", instant(pause.paused_until))).await?;
    tx.commit().await?;
    Ok(pause)
}

/// Ends a pause in the name of `actor`.
///
/// # Errors
/// When there is no such consumer, the role or the reason does not suffice, or the database fails.
pub async fn resume_consumer(pool: &PgPool, actor: &Actor, consumer: &str, reason: &str) -> anyhow::Result<bool> {
    known(consumer)?;
    let object = format!("consumer {consumer}");
    may(pool, actor, "resume", &object, reason).await?;
    let mut tx = pool.begin().await?;
    let resumed = resume(&mut tx, consumer).await?;
    record(&mut tx, actor, "resume", &object, usize::from(resumed), reason, if resumed { "resumed" } else { "was not paused" }).await?;
    tx.commit().await?;
    Ok(resumed)
}

pub(crate) async fn audit(pool: &PgPool, since: Duration, person: Option<&str>, object: Option<&str>, json: bool) -> anyhow::Result<()> {
    let done = actions(&mut *pool.acquire().await?, i64::try_from(since.as_secs())?, object, person, 500).await?;
    if json {
        return Ok(print(format_args!("{}\n", json!({ "actions": done })))?);
    }
    for Action { at, person, role, came_from, action, object, rows_touched, reason, outcome, .. } in &done {
        print(format_args!("{}  {person} ({role}, {came_from})  {action} {object} × {rows_touched}: {outcome}  [{reason}]\n", instant(*at)))?;
    }
    Ok(print(format_args!("{} actions\n", done.len()))?)
}
