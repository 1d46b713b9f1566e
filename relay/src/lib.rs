//! Drains the outbox into RabbitMQ. Any number of relays may run: the row lock is the lease.
//!
//! A relay that dies rolls back, and its rows are free at once; what it had published goes out again under the same
//! event ids, which consumers recognise.

mod drain;
mod listen;
mod message;
mod options;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use counterfoil_broker::{Link, Pace, supervise, topology};
use counterfoil_chassis::postgres::{self, BY_INDEX, PoolSettings};
use counterfoil_chassis::{Process, replica};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use drain::{Drained, Drainer};
pub use options::{Options, Settings};

/// Batches in flight at once, each with a channel and a database connection of its own.
const WORKERS: u32 = 2;

/// Pauses between looks at an idle outbox: they double from the first to the second.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
const IDLE_PAUSE: Duration = Duration::from_millis(100);

/// A connection that stays blocked this long is torn down and made anew.
const BLOCKED_PATIENCE: Duration = Duration::from_secs(60);

fn pool(url: &str) -> anyhow::Result<sqlx::PgPool> {
    // The transaction stays open while the broker confirms; a relay that is stopped must not hold its rows for hours.
    let session = [("idle_in_transaction_session_timeout", "30s"), ("statement_timeout", "15s")];
    postgres::pool(
        url,
        &PoolSettings {
            application_name: "counterfoil-relay",
            connections_max: WORKERS + 1,
            acquire_timeout: Duration::from_secs(10),
            session: session.into_iter().chain(BY_INDEX).map(|(name, value)| (name, value.to_owned())).collect(),
        },
    )
}

/// Runs until told to stop: then the batches in flight are confirmed, marked and committed.
///
/// # Errors
/// When the configuration cannot work.
pub async fn run(settings: Settings, process: Process) -> anyhow::Result<()> {
    let pool = pool(&settings.database_url)?;
    let drainer = Arc::new(Drainer::new(pool.clone(), settings.batch, settings.confirm_deadline));
    let wake = Arc::new(Notify::new());
    let tracker = TaskTracker::new();
    process.readiness.fails("broker", "not connected yet");
    process.readiness.fails("topology", "not asked yet");
    let gate = watch::start(&tracker, pool.clone(), &process);
    let told = Arc::clone(&drainer);
    tracker.spawn(replica::report(pool.clone(), "relay".into(), process.clone(), move || told.report()));
    tracker.spawn(listen::listen(settings.database_url, pool, Arc::clone(&wake), process.shutdown.clone()));
    tracker.close();
    let readiness = process.readiness.clone();
    let told = |error: &anyhow::Error| readiness.fails("broker", format!("{error:#}"));
    let pace = Pace { most: Duration::from_secs(5), ..Pace::default() };
    supervise(&settings.amqp_url, "counterfoil-relay", pace, &process.shutdown, told, async |link| {
        topology::verify(link, topology::work_queues()).await?;
        process.readiness.holds("broker");
        let over = CancellationToken::new(); // when one worker finds the connection of no use, both end
        let (one, two) = tokio::join!(work(&drainer, link, &gate, &wake, &process, &over), work(&drainer, link, &gate, &wake, &process, &over));
        one.and(two)
    })
    .await;
    tracker.wait().await;
    Ok(())
}

/// One worker: drains while there is something, looks ever more rarely while there is nothing. Ends with `over`.
async fn work(drainer: &Drainer, link: &Link, gate: &watch::Gate, wake: &Notify, process: &Process, over: &CancellationToken) -> anyhow::Result<()> {
    let _over = over.clone().drop_guard();
    let mut channel = None;
    let mut pause = BUSY_PAUSE;
    while !process.shutdown.is_cancelled() && !over.is_cancelled() {
        if !link.connected() {
            anyhow::bail!("the broker has closed the connection");
        }
        if link.blocked() {
            wait_unblocked(link, process).await?;
            continue;
        }
        let drained = if gate.open() { drainer.drain_once(link, &mut channel).await? } else { Drained::default() };
        if drained.claimed == drainer.batch() {
            continue;
        }
        pause = if drained.claimed > 0 { BUSY_PAUSE } else { (pause * 2).min(IDLE_PAUSE) };
        tokio::select! {
            () = wake.notified() => pause = BUSY_PAUSE,
            () = tokio::time::sleep(pause) => {}
            () = process.shutdown.cancelled() => {}
        }
    }
    Ok(())
}

/// Waits, without a transaction, while the broker does not read. Restarting would not help; the outbox is the buffer.
async fn wait_unblocked(link: &Link, process: &Process) -> anyhow::Result<()> {
    let begun = Instant::now();
    process.readiness.fails("broker", "it has blocked the connection (memory or disk alarm)");
    metrics::gauge!("counterfoil_relay_broker_blocked").set(1.0);
    while link.blocked() && link.connected() && !process.shutdown.is_cancelled() && begun.elapsed() < BLOCKED_PATIENCE {
        let _ = timeout(Duration::from_millis(200), process.shutdown.cancelled()).await;
    }
    metrics::gauge!("counterfoil_relay_broker_blocked").set(0.0);
    anyhow::ensure!(!link.blocked(), "the broker has blocked the connection for {} s", begun.elapsed().as_secs());
    process.readiness.holds("broker");
    Ok(())
}
