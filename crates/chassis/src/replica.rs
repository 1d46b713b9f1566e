//! `replicas`: the processes that run now, and what each says of itself. What the operator's advice is made of.

use std::time::Duration;

use serde_json::Value;
use sqlx::{PgConnection, PgPool};
use tokio::time::timeout;
use uuid::Uuid;

use crate::postgres::within;
use crate::process::Process;

/// How often a process reports.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// A process that has not reported for this long is gone.
pub const GONE_S: f64 = 30.0;

/// Longest time for a report.
const DEADLINE: Duration = Duration::from_secs(3);

/// Reports as `name` until the process stops, then takes the report back. A database that does not answer is not waited for.
pub async fn report(pool: PgPool, name: String, process: Process, look: impl Fn() -> Value) {
    let instance = Uuid::new_v4();
    while !process.shutdown.is_cancelled() {
        let mut report = look();
        let (ready, conditions) = process.readiness.report();
        if let Some((condition, why)) = conditions.into_iter().find(|(_, why)| !ready && why != "ok" && why != "stopping") {
            report["trouble"] = format!("{condition}: {why}").into();
        }
        let said = within(&pool, DEADLINE, async |connection: &mut PgConnection| say(connection, &name, instance, &report).await);
        if let Err(error) = said.await {
            tracing::debug!(%error, "the report of this process could not be written");
        }
        let _ = timeout(INTERVAL, process.shutdown.cancelled()).await;
    }
    let _ = within(&pool, DEADLINE, async |connection: &mut PgConnection| leave(connection, &name, instance).await).await;
}

async fn say(connection: &mut PgConnection, name: &str, instance: Uuid, report: &Value) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO replicas (process, instance, report) VALUES ($1, $2, $3) ON CONFLICT (process, instance) DO UPDATE SET seen_at = now(), report = excluded.report")
        .bind(name)
        .bind(instance)
        .bind(report)
        .execute(connection)
        .await?;
    Ok(())
}

async fn leave(connection: &mut PgConnection, name: &str, instance: Uuid) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM replicas WHERE process = $1 AND instance = $2").bind(name).bind(instance).execute(connection).await?;
    Ok(())
}

/// A process that runs.
#[derive(Debug, Clone)]
pub struct Replica {
    /// `ingest`, `relay`, `consumers crm`, …
    pub process: String,
    /// For how long.
    pub up_s: f64,
    /// What it last said of itself.
    pub report: Value,
}

/// The processes that run now.
///
/// # Errors
/// When the database cannot be asked.
pub async fn replicas(connection: &mut PgConnection) -> sqlx::Result<Vec<Replica>> {
    let rows = sqlx::query_as::<_, (String, f64, Value)>(
        "SELECT process, extract(epoch FROM now() - started_at)::float8, report FROM replicas WHERE seen_at > now() - make_interval(secs => $1) ORDER BY process, started_at",
    );
    Ok(rows.bind(GONE_S).fetch_all(connection).await?.into_iter().map(|(process, up_s, report)| Replica { process, up_s, report }).collect())
}

/// Removes the reports of processes that were killed.
///
/// # Errors
/// When the database cannot be asked.
pub async fn forget_gone(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM replicas WHERE seen_at < now() - interval '10 minutes'").execute(connection).await?;
    Ok(())
}
