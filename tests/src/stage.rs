//! A database and a virtual host that no other test touches.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use counterfoil_broker::topology::{CONSUMERS, dead_queue, rung_queue, rungs, work_queue};
use counterfoil_broker::{Link, Rung};
use counterfoil_migrate::{Target, bring_topology};
use futures_util::future::join_all;
use lapin::options::QueueDeleteOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

/// Rungs that tests climb in milliseconds.
pub const RUNGS: &str = "60ms,120ms,240ms";

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with `make test`"))
}

/// The project's root folder.
#[must_use]
pub fn root() -> PathBuf {
    setting("COUNTERFOIL_TEST_ROOT").into()
}

/// Where the test runs.
#[derive(Debug, Clone)]
pub struct Stage {
    /// A database of its own.
    pub database_url: String,
    /// A virtual host of its own; empty until it was asked for.
    pub amqp_url: String,
    _lent: Option<Arc<Lent>>,
}

impl Stage {
    /// A fresh database with the schema, no virtual host.
    pub async fn with_schema() -> Self {
        Self::on(&setting("COUNTERFOIL_TEST_DATABASE_SERVER"), Some("counterfoil_template")).await
    }

    /// A fresh, empty database and an empty virtual host: before `counterfoil-migrate` has run.
    pub async fn empty() -> Self {
        Self::on(&setting("COUNTERFOIL_TEST_DATABASE_SERVER"), None).await.with_vhost()
    }

    /// A fresh database and a virtual host, schema and topology brought, the latter with [`RUNGS`].
    pub async fn new() -> Self {
        let stage = Self::with_schema().await.with_vhost();
        stage.bring_topology().await;
        stage
    }

    async fn on(server: &str, template: Option<&str>) -> Self {
        let name = format!("t_{}", uuid::Uuid::new_v4().simple());
        let mut admin = PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
        let template = template.map(|template| format!(" TEMPLATE {template}")).unwrap_or_default();
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}{template}"))).execute(&mut admin).await.unwrap();
        Self { database_url: format!("{server}/{name}"), amqp_url: String::new(), _lent: None }
    }

    fn with_vhost(self) -> Self {
        let lent = Lent::take();
        Self { amqp_url: lent.0.clone(), _lent: Some(Arc::new(lent)), ..self }
    }

    /// The same, its database reached by another address.
    #[must_use]
    pub fn reached_at(&self, database_url: String) -> Self {
        Self { database_url, ..self.clone() }
    }

    /// Brings the broker's side and records it.
    pub async fn bring_topology(&self) {
        bring_topology(&self.target()).await.unwrap();
        let mut database = PgConnection::connect(&self.database_url).await.unwrap();
        counterfoil_chassis::postgres::record_topology(&mut database, counterfoil_broker::TOPOLOGY_VERSION).await.unwrap();
    }

    /// What `counterfoil-migrate` would be told.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { database_url: self.database_url.clone(), amqp_url: self.amqp_url.clone(), rungs: test_rungs() }
    }

    /// A pool on the database, guarded as the processes' pools are.
    #[must_use]
    pub fn pool(&self) -> PgPool {
        PgPoolOptions::new().max_connections(12).connect_lazy(&self.database_url).unwrap()
    }

    /// One number out of the database.
    pub async fn count(&self, query: &'static str) -> i64 {
        let mut database = PgConnection::connect(&self.database_url).await.unwrap();
        sqlx::query_scalar(query).fetch_one(&mut database).await.unwrap()
    }

    /// Has the server end and refuse every connection to this database, or take them again: as good as its being away.
    pub async fn refuse_connections(&self, refuse: bool) {
        let (server, name) = self.database_url.rsplit_once('/').unwrap();
        let mut other = PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
        let change = format!("ALTER DATABASE \"{name}\" WITH ALLOW_CONNECTIONS {}", !refuse);
        sqlx::raw_sql(AssertSqlSafe(change)).execute(&mut other).await.unwrap();
        if refuse {
            sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1").bind(name).execute(&mut other).await.unwrap();
        }
    }

    /// How many rows of a table hold a text anywhere, bytes included.
    pub async fn count_in(&self, table: &str, text: &str) -> i64 {
        let mut database = PgConnection::connect(&self.database_url).await.unwrap();
        let hex = text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let query = format!("SELECT count(*) FROM {table} AS row WHERE row::text ILIKE '%{text}%' OR row::text ILIKE '%{hex}%'");
        sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut database).await.unwrap()
    }

    /// Runs statements.
    pub async fn execute(&self, statements: &str) {
        let mut database = PgConnection::connect(&self.database_url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut database).await.unwrap();
    }
}

/// The rungs of [`RUNGS`].
#[must_use]
pub fn test_rungs() -> Vec<Rung> {
    rungs(RUNGS).unwrap()
}

/// A virtual host, emptied when the last who has it lets go: the idle quorum queues of a hundred tests keep half a core busy.
#[derive(Debug)]
struct Lent(String);

impl Lent {
    /// Takes an unused one out of the pool that `make test` made in one call.
    fn take() -> Self {
        let pool = PathBuf::from(setting("COUNTERFOIL_TEST_VHOSTS"));
        for entry in std::fs::read_dir(&pool).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let taken = pool.join(format!(".taken-{name}"));
            if !name.starts_with('.') && std::fs::rename(entry.path(), taken).is_ok() {
                return Self(format!("{}/{name}", setting("COUNTERFOIL_TEST_AMQP_SERVER")));
            }
        }
        panic!("no virtual host is left: deploy/local/test must make more");
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let url = std::mem::take(&mut self.0);
        let work = std::thread::spawn(move || tokio::runtime::Runtime::new().unwrap().block_on(empty(&url)));
        if let Ok(Err(error)) = work.join() {
            eprintln!("a virtual host keeps its queues: {error:#}");
        }
    }
}

/// Deletes every queue that the topology of tests has.
async fn empty(url: &str) -> anyhow::Result<()> {
    let link = Link::connect(url, "counterfoil-tests").await?;
    let channel = link.channel().await?;
    let rungs = test_rungs();
    let queues = CONSUMERS.iter().flat_map(|consumer| {
        let rungs = rungs.iter().map(|rung| rung_queue(consumer.name, &rung.name));
        [work_queue(consumer.name), dead_queue(consumer.name)].into_iter().chain(rungs)
    });
    let deleted = queues.map(|queue| {
        let channel = &channel;
        async move { channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await }
    });
    let deleted = tokio::time::timeout(Duration::from_secs(20), join_all(deleted)).await.context("the broker takes too long")?;
    link.close().await;
    deleted.into_iter().try_for_each(|answer| answer.map(drop).map_err(Into::into))
}

/// A second PostgreSQL and RabbitMQ, for tests that break them. One test at a time has them.
#[derive(Debug)]
pub struct Services {
    name: &'static str,
    _turn: std::fs::File,
}

impl Services {
    /// Waits for its turn, then starts them.
    #[must_use]
    pub fn faulty() -> Self {
        let turn = std::fs::File::create(root().join(".local/faults.turn")).unwrap();
        turn.lock().unwrap();
        let services = Self { name: "faults", _turn: turn };
        services.call("up");
        services
    }

    /// A stage on them.
    pub async fn stage(&self) -> Stage {
        let database = self.env("COUNTERFOIL_DATABASE_URL");
        let server = database.rsplit_once('/').unwrap().0.to_owned();
        let stage = Stage { amqp_url: self.vhost(), ..Stage::on(&server, None).await };
        counterfoil_migrate::migrate(&stage.target()).await.unwrap();
        stage
    }

    fn vhost(&self) -> String {
        let name = format!("f_{}", uuid::Uuid::new_v4().simple());
        self.ctl(&["add_vhost", &name]);
        self.ctl(&["set_permissions", "-p", &name, "counterfoil", ".*", ".*", ".*"]);
        format!("{}/{name}", self.env("COUNTERFOIL_AMQP_URL").rsplit_once('/').unwrap().0)
    }

    /// Starts what does not run.
    pub fn up(&self) {
        self.call("up");
    }

    /// rabbitmqctl.
    pub fn ctl(&self, arguments: &[&str]) {
        let out = Command::new(root().join("deploy/local/services")).args(["ctl", self.name]).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// Kills the broker.
    pub fn kill_broker(&self) {
        kill_group(&self.env("COUNTERFOIL_LOCAL_RABBIT_PID"));
    }

    /// Kills PostgreSQL.
    pub fn kill_postgres(&self) {
        kill_group(&self.env("COUNTERFOIL_LOCAL_PG_PID"));
    }

    fn call(&self, command: &str) {
        let out = Command::new(root().join("deploy/local/services")).args([command, self.name]).output().unwrap();
        assert!(out.status.success(), "services {command}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn env(&self, name: &str) -> String {
        let out = Command::new(root().join("deploy/local/services")).args(["env", self.name]).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap().to_owned()
    }
}

/// SIGKILL to a server and all its children: each was started in a session of its own.
fn kill_group(pid_file: &str) {
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let pid = pid.trim();
    // Stopped first, so that it starts no child while its children die.
    for arguments in [vec!["kill", "-STOP", pid], vec!["pkill", "-KILL", "-P", pid], vec!["kill", "-KILL", "--", &format!("-{pid}")]] {
        let _ = Command::new(arguments[0]).args(&arguments[1..]).status();
    }
    let gone = Instant::now();
    while std::path::Path::new(&format!("/proc/{pid}")).exists() && gone.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
}

/// How much slower than ours the machine may be on which the tests run.
const PATIENCE: u64 = 3;

/// Looks until `look` gives `want`, for at most `seconds` of a machine like ours.
pub async fn until<T: PartialEq + std::fmt::Debug>(what: &str, seconds: u64, want: T, mut look: impl AsyncFnMut() -> T) {
    let begun = Instant::now();
    loop {
        let got = look().await;
        if got == want {
            return;
        }
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_secs(seconds * PATIENCE), "{what}: still {got:?} after {} s, wanted {want:?}", elapsed.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
