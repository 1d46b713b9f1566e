//! The deploy step: schema and broker topology, in this order, on connections of its own.
//!
//! Idempotent, and safe when several start at once or one is killed: one advisory lock of the session serialises them,
//! and PostgreSQL drops it with the connection. It only adds.

use std::time::Duration;

use anyhow::{Context, bail};
use counterfoil_broker::Link;
use counterfoil_broker::topology::{self, Rung, TOPOLOGY_VERSION};
use counterfoil_chassis::postgres::{self, PoolSettings};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{ConnectOptions, Connection, PgConnection};

/// The schema, in order.
pub static SCHEMA: Migrator = sqlx::migrate!("./sql");

/// The advisory lock of this deploy step, beside the one that sqlx takes for the schema alone.
const DEPLOY_LOCK: i64 = 0x636f_756e_7465_7266;

/// Where to deploy to.
#[derive(Debug, Clone)]
pub struct Target {
    /// PostgreSQL.
    pub database_url: String,
    /// RabbitMQ.
    pub amqp_url: String,
    /// The retry ladder of every consumer.
    pub rungs: Vec<Rung>,
}

/// Connects as the deploy step: no pool, no statement timeout.
///
/// # Errors
/// When the database cannot be reached.
pub async fn connect(database_url: &str) -> anyhow::Result<PgConnection> {
    let settings = PoolSettings { application_name: "counterfoil-migrate", connections_max: 1, acquire_timeout: Duration::from_secs(10), session: Vec::new() };
    postgres::options(database_url, &settings)?.connect().await.context("the database cannot be reached (COUNTERFOIL_DATABASE_URL)")
}

/// Brings schema and topology.
///
/// # Errors
/// When the database is newer than this release, a queue has other arguments, or either side fails.
pub async fn migrate(target: &Target) -> anyhow::Result<()> {
    let mut database = connect(&target.database_url).await?;
    sqlx::query("SELECT pg_advisory_lock($1)").bind(DEPLOY_LOCK).execute(&mut database).await?;
    migrate_schema(&mut database).await?;
    tracing::info!(schema = postgres::SCHEMA_VERSION, "the schema is there");
    counterfoil_chassis::fault::point("migrate.schema");
    bring_topology(target).await?;
    counterfoil_chassis::fault::point("migrate.topology");
    postgres::record_topology(&mut database, TOPOLOGY_VERSION).await?;
    tracing::info!(topology = TOPOLOGY_VERSION, "the topology is there");
    database.close().await?;
    Ok(())
}

/// Brings the schema alone.
///
/// # Errors
/// When the database is newer than this release, or refuses.
pub async fn migrate_schema(database: &mut PgConnection) -> anyhow::Result<()> {
    match SCHEMA.run(database).await {
        Ok(()) => Ok(()),
        Err(MigrateError::VersionMissing(version)) => bail!(
            "the database is newer than this release: it has migration {version}, and the newest one here is {}. \
             Run the counterfoil-migrate of the newer release; this one changes nothing",
            postgres::SCHEMA_VERSION
        ),
        Err(MigrateError::VersionMismatch(version)) => {
            bail!("migration {version} was applied with another text: a released migration must never change")
        }
        Err(error) => Err(error).context("the schema could not be brought"),
    }
}

/// Brings the topology alone.
///
/// # Errors
/// When a queue has other arguments, or the broker fails.
pub async fn bring_topology(target: &Target) -> anyhow::Result<()> {
    let link = Link::connect(&target.amqp_url, "counterfoil-migrate").await.context("COUNTERFOIL_AMQP_URL")?;
    let brought = topology::bring(&link.channel().await?, &target.rungs).await;
    link.close().await;
    Ok(brought?)
}

/// Says what a deploy would have to do, without doing it.
///
/// # Errors
/// When schema or topology is not what this release needs.
pub async fn check(target: &Target) -> anyhow::Result<()> {
    let mut database = connect(&target.database_url).await?;
    let deployment = postgres::deployment(&mut database).await?;
    if let Err(why) = postgres::schema_fits(deployment) {
        bail!(why);
    }
    if deployment.topology < TOPOLOGY_VERSION {
        bail!("the recorded topology is {}, this release needs {TOPOLOGY_VERSION}: run counterfoil-migrate", deployment.topology);
    }
    let link = Link::connect(&target.amqp_url, "counterfoil-migrate").await.context("COUNTERFOIL_AMQP_URL")?;
    let mut names: Vec<String> = topology::work_queues().collect();
    for consumer in topology::CONSUMERS {
        names.push(topology::dead_queue(consumer.name));
        names.extend(target.rungs.iter().map(|rung| topology::rung_queue(consumer.name, &rung.name)));
    }
    topology::verify(&link, names).await?;
    link.close().await;
    tracing::info!(
        schema = postgres::SCHEMA_VERSION,
        topology = TOPOLOGY_VERSION,
        "schema and queues are there; whether each is bound, AMQP does not tell: counterfoil doctor --check bindings"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_version_that_processes_ask_for_is_the_newest_migration() {
        assert_eq!(SCHEMA.iter().map(|migration| migration.version).max(), Some(postgres::SCHEMA_VERSION));
    }
}
