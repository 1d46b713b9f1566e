//! PostgreSQL: pools that guard against half-finished transactions, and what the database says of its deployment.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgConnection, PgPool, Row};
use tokio::time::timeout;

use crate::process::Process;

/// The newest migration that this release needs; `migrations/` has a test that compares.
pub const SCHEMA_VERSION: i64 = 5;

/// How long a connection may take to say that it is fit to go back to its pool.
const RELEASE_DEADLINE: Duration = Duration::from_secs(2);

/// The error of a server that has not answered in time. sqlx sets neither keepalive nor a deadline on its sockets, so
/// whoever waits for the database bounds the wait, and detaches the connection afterwards: it may never answer again.
#[must_use]
pub fn silent() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database does not answer in time"))
}

/// Does `work` on a connection of the pool within `deadline`; a connection whose server has not answered by then is thrown away.
///
/// # Errors
/// Those of the pool and of the work, and [`silent`].
pub async fn within<T>(pool: &PgPool, deadline: Duration, work: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>) -> sqlx::Result<T> {
    let mut connection = pool.acquire().await?;
    let done = timeout(deadline, work(&mut connection)).await;
    done.unwrap_or_else(|_| {
        drop(connection.detach());
        Err(silent())
    })
}

/// What a pool is for.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// Shown in `pg_stat_activity`.
    pub application_name: &'static str,
    /// Connections at the most.
    pub connections_max: u32,
    /// How long a caller waits for a connection.
    pub acquire_timeout: Duration,
    /// Settings of each session, such as `("statement_timeout", "5s")`.
    pub session: Vec<(&'static str, String)>,
}

/// Settings of a session whose statements all go by index. Without them, a plan that was made while a table was small reads all of it, each
/// time, until somebody analyzes the table. No plan is compiled: what has no index costs so much that it would be.
pub const BY_INDEX: [(&str, &str); 2] = [("enable_seqscan", "off"), ("jit", "off")];

/// Connection options from a URL, with the session settings of a pool.
///
/// # Errors
/// When the URL is none.
pub fn options(url: &str, settings: &PoolSettings) -> anyhow::Result<PgConnectOptions> {
    // The URL may hold a password: the error must not repeat it.
    let options = PgConnectOptions::from_str(url).ok().context("COUNTERFOIL_DATABASE_URL is not a PostgreSQL URL")?;
    let session = settings.session.iter().map(|(name, value)| (*name, value.as_str())).chain([("TimeZone", "UTC")]);
    Ok(options.application_name(settings.application_name).options(session))
}

/// A pool that connects when it is first used.
///
/// A connection that comes back inside a transaction is thrown away: sqlx 0.9.0 leaves it there when `begin()` is
/// cancelled, and later writes on it would never be committed (launchbadge/sqlx#4385).
///
/// # Errors
/// When the URL is none.
pub fn pool(url: &str, settings: &PoolSettings) -> anyhow::Result<PgPool> {
    Ok(PgPoolOptions::new()
        .max_connections(settings.connections_max)
        .acquire_timeout(settings.acquire_timeout)
        .test_before_acquire(false) // the guard below has just talked to the server
        .after_release(|connection, _| Box::pin(async move { timeout(RELEASE_DEADLINE, outside_transaction(connection)).await.unwrap_or(Err(silent())) }))
        .connect_lazy_with(options(url, settings)?))
}

/// Whether a connection is outside a transaction: only there does a statement begin one.
///
/// By the simple protocol. By the extended one the transaction begins at Bind and the statement at Execute, a microsecond
/// later, so that the two would differ always and every connection would be thrown away at its release.
async fn outside_transaction(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::raw_sql("SELECT now() = statement_timestamp()").fetch_one(connection).await?.try_get(0)
}

/// What the database says about its deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployment {
    /// The newest migration applied.
    pub schema: i64,
    /// The broker topology that `counterfoil-migrate` last brought; 0 before it ran.
    pub topology: i32,
}

/// Reads the deployment's versions; zeroes when `counterfoil-migrate` has never run.
///
/// # Errors
/// When the database cannot be asked.
pub async fn deployment(connection: &mut PgConnection) -> sqlx::Result<Deployment> {
    // Not checked at compile time: the tables may not exist, and that is an answer, too.
    let read = sqlx::query_as::<_, (i64, i32)>(
        "SELECT (SELECT COALESCE(max(version), 0) FROM _sqlx_migrations WHERE success), COALESCE((SELECT topology_version FROM deployment), 0)",
    )
    .fetch_one(connection)
    .await;
    match read {
        Ok((schema, topology)) => Ok(Deployment { schema, topology }),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42P01") => Ok(Deployment { schema: 0, topology: 0 }),
        Err(error) => Err(error),
    }
}

/// Records that the broker has the topology of `version`; never lowers it.
///
/// # Errors
/// When the database refuses it.
pub async fn record_topology(connection: &mut PgConnection, version: i32) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO deployment (topology_version) VALUES ($1)
         ON CONFLICT (only_row) DO UPDATE SET topology_version = GREATEST(deployment.topology_version, excluded.topology_version), recorded_at = now()",
    )
    .bind(version)
    .execute(connection)
    .await?;
    Ok(())
}

/// Writes down that a task has done its work, which it means to do every `interval`: whoever watches notices its silence.
///
/// # Errors
/// When the database refuses it.
pub async fn ran(connection: &mut PgConnection, task: &str, interval: Duration) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO task_runs (task, interval_s) VALUES ($1, $2)
         ON CONFLICT (task) DO UPDATE SET succeeded_at = now(), interval_s = excluded.interval_s",
    )
    .bind(task)
    .bind(interval.as_secs_f64())
    .execute(connection)
    .await?;
    Ok(())
}

/// A task and its last success.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// Its name.
    pub task: String,
    /// When it last succeeded, in seconds since 1970.
    pub succeeded_s: f64,
    /// How long ago.
    pub ago_s: f64,
    /// How often it means to.
    pub interval_s: f64,
}

/// The tasks that have ever run, and when last.
///
/// # Errors
/// When the database cannot be asked.
pub async fn tasks(connection: &mut PgConnection) -> sqlx::Result<Vec<Ran>> {
    let rows = sqlx::query_as::<_, (String, f64, f64, f64)>(
        "SELECT task, extract(epoch FROM succeeded_at)::float8, extract(epoch FROM now() - succeeded_at)::float8, interval_s FROM task_runs ORDER BY task",
    );
    Ok(rows.fetch_all(connection).await?.into_iter().map(|(task, succeeded_s, ago_s, interval_s)| Ran { task, succeeded_s, ago_s, interval_s }).collect())
}

/// Says why this release cannot work with the database, if it cannot.
///
/// # Errors
/// The reason, and the way out.
pub fn schema_fits(deployment: Deployment) -> Result<(), String> {
    if deployment.schema < SCHEMA_VERSION {
        return Err(format!("the database has schema {}, this release needs {SCHEMA_VERSION}: run counterfoil-migrate", deployment.schema));
    }
    Ok(())
}

/// How long a look may take.
const WATCH_DEADLINE: Duration = Duration::from_secs(5);

/// Pause between two looks.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the readiness condition `database` true to the facts until the process stops: whether rows can be written now.
pub async fn watch(pool: PgPool, process: Process) {
    while !process.shutdown.is_cancelled() {
        match timeout(WATCH_DEADLINE, writable(&pool)).await.unwrap_or_else(|_| Err("the database does not answer in time".to_owned())) {
            Ok(()) => process.readiness.holds("database"),
            Err(why) => process.readiness.fails("database", why),
        }
        let _ = timeout(WATCH_INTERVAL, process.shutdown.cancelled()).await;
    }
}

async fn writable(pool: &PgPool) -> Result<(), String> {
    let ask = async {
        let mut connection = pool.acquire().await?;
        let read_only: String = sqlx::query_scalar("SHOW transaction_read_only").fetch_one(&mut *connection).await?;
        Ok::<_, sqlx::Error>((read_only, deployment(&mut connection).await?))
    };
    let (read_only, deployment) = ask.await.map_err(|error| format!("the database does not answer: {error}"))?;
    if read_only == "on" {
        return Err("the database takes no writes: it is a standby or read-only".into());
    }
    schema_fits(deployment)
}
