//! How the fleet stands: gathered once, for the status screen, the console, the metrics and the notifications alike.

use std::collections::{BTreeMap, HashSet};

use counterfoil_broker::topology::{CONSUMERS, Rung, work_queue};
use counterfoil_chassis::postgres::{Ran, tasks};
use counterfoil_chassis::replica::{Replica, replicas};
use counterfoil_inbox::dead::{Filter, Group, groups};
use counterfoil_inbox::pause::{Pause, pauses};
use counterfoil_inbox::replay::stuck_seconds;
use counterfoil_inbox::upkeep::{Unfinished, unfinished};
use counterfoil_inbox::{Work, lost, work};
use counterfoil_outbox::{backlog, rates, unaccounted_from};
use counterfoil_settlement::ProviderHealth;
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::advice::{Advice, Standing};
use crate::depths::Depths;
use crate::gather::Wide;
use crate::needs;

/// Outbox rows that are looked at for one consumer's oldest, at the most.
const LOOK_MAX: i64 = 50_000;

/// How the fleet stands.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// By the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// In one sentence.
    pub verdict: String,
    /// What needs a person; empty: nobody.
    pub needs: Vec<String>,
    /// Webhooks and orders in.
    pub ingest: Stage,
    /// The outbox, and the relays that drain it.
    pub outbox: Outbox,
    /// Each consumer.
    pub consumers: Vec<Consumer>,
    /// Why the broker's queues are not known.
    pub broker_unknown: Option<String>,
    /// The largest groups of open dead letters.
    pub groups: Vec<Group>,
    /// What waits for a person or for something else, by kind.
    pub attention: Vec<Waiting>,
    /// The providers.
    pub providers: Vec<Provider>,
    /// Tasks and their last success, in seconds ago.
    pub tasks: Vec<Task>,
    /// What must never be, by check.
    pub violations: Vec<(String, i64)>,
    /// Messages that a queue lost and that have no effect yet.
    pub lost: i64,
    /// For how long a replay has made no progress, in seconds.
    pub replay_stuck_s: f64,
    /// Share of the database's connections in use.
    pub connections: f64,
}

/// A stage with its processes.
#[derive(Debug, Clone, Serialize)]
pub struct Stage {
    /// Processes that run.
    pub replicas: usize,
    /// Their mean busy share, where they say it.
    pub busy: Option<f64>,
    /// Things done within the last minute.
    pub last_minute: i64,
}

/// The outbox.
#[derive(Debug, Clone, Serialize)]
pub struct Outbox {
    /// The relays.
    #[serde(flatten)]
    pub stage: Stage,
    /// Rows appended within the last minute.
    pub appended_last_minute: i64,
    /// Rows not published.
    pub unpublished: i64,
    /// Age of the oldest, in seconds.
    pub oldest_s: f64,
    /// When it will be empty at these rates, in seconds; none: it does not shrink, or is empty.
    pub empty_in_s: Option<f64>,
    /// Rows for which no queue is bound.
    pub unroutable: i64,
    /// Rows that the broker would not take.
    pub parked: i64,
    /// What to do.
    pub advice: Advice,
}

/// A consumer.
#[derive(Debug, Clone, Serialize)]
pub struct Consumer {
    /// Its name.
    pub name: &'static str,
    /// Its replicas.
    #[serde(flatten)]
    pub stage: Stage,
    /// Published events without an effect or a dead letter.
    pub waiting: i64,
    /// How long ago the oldest of them was published, in seconds.
    pub oldest_s: f64,
    /// Its queues, where the broker was asked.
    pub queues: Option<Depths>,
    /// What it has in hand.
    pub work: Option<Work>,
    /// Its dead letters.
    pub dead: Option<Unfinished>,
    /// Its pause.
    pub pause: Option<Pause>,
    /// What to do.
    pub advice: Advice,
}

/// Things of one kind that wait.
#[derive(Debug, Clone, Serialize)]
pub struct Waiting {
    /// `held`, `waiting`, `refund`, …
    pub kind: String,
    /// How many.
    pub count: usize,
    /// Of them, for longer than an hour.
    pub overdue: usize,
    /// The money, in minor units by currency.
    pub amounts: BTreeMap<String, i64>,
}

/// A provider, as deliveries and ingest show it.
#[derive(Debug, Clone, Serialize)]
pub struct Provider {
    /// What was stored.
    #[serde(flatten)]
    pub health: ProviderHealth,
    /// Deliveries whose signature was refused since the ingest processes started.
    pub refused: i64,
}

/// A task and its last success.
#[derive(Debug, Clone, Serialize)]
pub struct Task {
    /// Its name.
    pub task: String,
    /// How long ago, in seconds.
    pub ago_s: f64,
    /// How often it means to, in seconds.
    pub interval_s: f64,
    /// When, in seconds since 1970.
    pub succeeded_s: f64,
}

impl Waiting {
    /// How many need a person: an event that has come before its order or capture is given an hour.
    #[must_use]
    pub fn needing(&self) -> usize {
        if self.kind == "waiting" { self.overdue } else { self.count }
    }
}

impl Task {
    pub(crate) fn silent(&self) -> bool {
        self.ago_s > 3.0 * self.interval_s.max(10.0)
    }
}

impl From<Ran> for Task {
    fn from(ran: Ran) -> Self {
        Self { task: ran.task, ago_s: ran.ago_s, interval_s: ran.interval_s, succeeded_s: ran.succeeded_s }
    }
}

/// Where the broker is asked.
#[derive(Debug, Clone)]
pub struct BrokerAt {
    /// RabbitMQ.
    pub amqp_url: String,
    /// The retry ladder.
    pub rungs: Vec<Rung>,
}

pub(crate) async fn read(connection: &mut PgConnection, queues: Result<Vec<Depths>, String>, asked: bool, wide: Wide) -> anyhow::Result<Facts> {
    let row = sqlx::query!(
        r#"SELECT now() AS "at!", (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::float8 / current_setting('max_connections')::float8 AS "connections!""#
    );
    let row = row.fetch_one(&mut *connection).await?;
    let running = replicas(&mut *connection).await?;
    let outbox = read_outbox(&mut *connection, &running, row.connections).await?;
    let consumers = read_consumers(&mut *connection, &running, queues.as_ref().ok(), row.connections).await?;
    let ingest = stage("ingest", &running, wide.health.iter().map(|provider| provider.last_minute).sum());
    let open = Filter { state: Some("open".into()), ..Filter::default() };
    let mut facts = Facts {
        at: row.at,
        verdict: String::new(),
        needs: Vec::new(),
        ingest,
        outbox,
        consumers,
        broker_unknown: queues.err(),
        groups: groups(&mut *connection, &open, 5).await?,
        attention: wide.attention,
        providers: wide.health.into_iter().map(|health| Provider { refused: refused(&running, &health.provider), health }).collect(),
        tasks: tasks(&mut *connection).await?.into_iter().map(Task::from).collect(),
        violations: wide.violations,
        lost: lost::still_lost(&mut *connection).await?,
        replay_stuck_s: stuck_seconds(connection).await?,
        connections: row.connections,
    };
    facts.needs = needs::needs(&facts);
    if let Some(why) = facts.broker_unknown.as_ref().filter(|_| asked) {
        facts.needs.push(format!("the broker cannot be asked: {why}"));
    }
    facts.verdict = needs::verdict(&facts);
    Ok(facts)
}

fn of<'a>(running: &'a [Replica], process: &'a str) -> impl Iterator<Item = &'a Replica> {
    running.iter().filter(move |replica| replica.process == process)
}

fn mean(running: &[Replica], process: &str, field: &str) -> Option<f64> {
    let shares: Vec<f64> = of(running, process).filter_map(|replica| replica.report[field].as_f64()).collect();
    #[expect(clippy::cast_precision_loss, reason = "a handful of replicas")]
    let count = shares.len() as f64;
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / count)
}

fn stage(process: &str, running: &[Replica], last_minute: i64) -> Stage {
    Stage { replicas: of(running, process).count(), busy: mean(running, process, "busy"), last_minute }
}

fn refused(running: &[Replica], provider: &str) -> i64 {
    of(running, "ingest").filter_map(|replica| replica.report["refused"][provider].as_i64()).sum()
}

fn text(running: &[Replica], process: &str, field: &str) -> Option<String> {
    of(running, process).find_map(|replica| replica.report[field].as_str().map(str::to_owned))
}

async fn read_outbox(connection: &mut PgConnection, running: &[Replica], database: f64) -> sqlx::Result<Outbox> {
    let backlog = backlog(&mut *connection).await?;
    let (appended, published) = rates(connection).await?;
    let stage = stage("relay", running, published);
    let standing = Standing {
        replicas: stage.replicas,
        busy: stage.busy.unwrap_or_default(),
        broker: mean(running, "relay", "broker").unwrap_or_default(),
        oldest_s: backlog.oldest_seconds,
        waiting: backlog.unpublished - backlog.deferred,
        database,
        trouble: text(running, "relay", "trouble"),
        ..Standing::default()
    };
    #[expect(clippy::cast_precision_loss, reason = "counts of rows")]
    let empty_in_s = (published > appended && backlog.unpublished > 0).then(|| backlog.unpublished as f64 * 60.0 / (published - appended) as f64);
    Ok(Outbox {
        stage,
        appended_last_minute: appended,
        unpublished: backlog.unpublished,
        oldest_s: backlog.oldest_seconds,
        empty_in_s,
        unroutable: backlog.unroutable,
        parked: backlog.parked,
        advice: Advice::on(&standing),
    })
}

async fn read_consumers(connection: &mut PgConnection, running: &[Replica], queues: Option<&Vec<Depths>>, database: f64) -> sqlx::Result<Vec<Consumer>> {
    let (marks, work, dead, paused) =
        (lost::marks(&mut *connection).await?, work(&mut *connection).await?, unfinished(&mut *connection).await?, pauses(&mut *connection).await?);
    let mut all = Vec::new();
    for consumer in CONSUMERS {
        let mark = marks.iter().find(|(name, _)| name == consumer.name).map_or(0, |(_, mark)| *mark);
        let (waiting, oldest_s) = waiting(&mut *connection, consumer.name, consumer.topics, mark).await?;
        let work = work.iter().find(|work| work.consumer == consumer.name).cloned();
        let process = format!("consumers {}", consumer.name);
        let stage = stage(&process, running, work.as_ref().map_or(0, |work| work.last_minute));
        let pause = paused.iter().find(|pause| pause.consumer == consumer.name).cloned();
        let queues = queues.and_then(|queues| queues.iter().find(|depths| depths.consumer == consumer.name)).cloned();
        let standing = Standing {
            replicas: stage.replicas,
            busy: stage.busy.unwrap_or_default(),
            oldest_s,
            waiting,
            paused_until: pause.as_ref().map(|pause| crate::instant(pause.paused_until)),
            outage: text(running, &process, "outage"),
            asked_until: text(running, &process, "asked_until"),
            trouble: text(running, &process, "trouble"),
            database,
            on_rungs: queues.as_ref().map_or(0, |depths| i64::from(depths.on_rungs())),
            ..Standing::default()
        };
        let dead = dead.iter().find(|dead| dead.consumer == consumer.name).cloned();
        all.push(Consumer { name: consumer.name, stage, waiting, oldest_s, queues, work, dead, pause, advice: Advice::on(&standing) });
    }
    Ok(all)
}

/// Published events that a consumer has neither done nor given up, and the age of the oldest.
async fn waiting(connection: &mut PgConnection, consumer: &str, topics: &[&str], mark: i64) -> sqlx::Result<(i64, f64)> {
    let topics: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
    let behind = unaccounted_from(&mut *connection, mark, &topics, &work_queue(consumer), 0, LOOK_MAX).await?;
    let ids: Vec<_> = behind.rows.iter().map(|row| row.event_id).collect();
    let open = lost::unaccounted(connection, consumer, &ids).await?;
    let names: HashSet<Uuid> = open.iter().map(|open| open.event_id).collect();
    let oldest = behind.rows.iter().filter(|row| names.contains(&row.event_id)).map(|row| row.age_s).fold(0.0, f64::max);
    Ok((i64::try_from(open.len()).unwrap_or(i64::MAX), oldest))
}

/// The facts as JSON.
#[must_use]
pub fn json(facts: &Facts) -> Value {
    serde_json::to_value(facts).unwrap_or_default()
}
