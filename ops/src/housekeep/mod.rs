//! `counterfoil housekeep`: the work that no message starts. Any number may run: each job takes its rows with `SKIP LOCKED`,
//! in small batches, by the database's clock.

mod jobs;
mod lost;
mod rhythm;
mod watch;

use std::sync::Mutex;
use std::time::Duration;

use counterfoil_chassis::{Process, postgres, replica};
use counterfoil_payments::Provider;
use counterfoil_providers::{Adapter, Apis, Mode, Razorpay, Square, Standard, Stripe};
use counterfoil_settlement::Delivery;
use counterfoil_settlement::housekeeping::Deferred;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use tokio::time::{Instant, timeout};

use crate::facts::BrokerAt;
use crate::gather::Gatherer;
use crate::notify::Notifier;
use jobs::Jobs;
pub use rhythm::{Rhythm, RhythmOptions};

/// Longest time for one step, so that a silent database hangs no job for good.
const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// How often a job that works says so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// Pause between two steps of replays: a rate is kept to a fifth of a second.
const REPLAY_PAUSE: Duration = Duration::from_millis(200);

/// What it works with beside the database.
#[derive(Debug)]
pub struct Means {
    /// The providers that can be asked.
    pub apis: Apis,
    /// Where the broker can be asked.
    pub broker: Option<BrokerAt>,
    /// Tells humans.
    pub notifier: Notifier,
}

/// An adapter that only reads: no secret is needed for what was verified before, or comes from the provider's own list.
pub(crate) fn reader(provider: Provider) -> Option<Box<dyn Adapter>> {
    match provider {
        Provider::Stripe => Some(Box::new(Stripe::new(&[]))),
        Provider::Razorpay => Some(Box::new(Razorpay::new(&[]))),
        Provider::Square => Square::new(&[], "-").ok().map(|square| Box::new(square) as Box<dyn Adapter>),
        Provider::Standard => Standard::new(&[]).ok().map(|standard| Box::new(standard) as Box<dyn Adapter>),
    }
}

/// A stored event, read as this release reads it, to be driven again. `None` when nothing here reads its provider.
pub(crate) fn read_again(event: &Deferred, mode: Mode) -> Option<Delivery> {
    let reading = reader(event.provider)?.read(&http::HeaderMap::new(), &event.body, mode);
    Some(Delivery {
        provider: event.provider,
        account: event.account.clone(),
        event_id: event.event_id.clone(),
        provider_event_id: None,
        event_type: event.event_type.clone(),
        body: Vec::new(),
        secret_position: 0,
        made_at: reading.made_at,
        late: false,
        ids: reading.ids,
        fact: reading.fact,
        traceparent: None,
    })
}

/// Runs until told to stop.
///
/// # Errors
/// Never: a job that fails says so and tries again.
pub async fn run(pool: PgPool, means: Means, mode: Mode, rhythm: Rhythm, process: Process) -> anyhow::Result<()> {
    process.readiness.fails("database", "not asked yet");
    let Means { apis, broker, notifier } = means;
    if broker.is_none() {
        tracing::warn!("COUNTERFOIL_AMQP_URL is not set: what a queue lost is found only after the whole retry ladder, and queue depths are unknown");
    }
    let gatherer = Gatherer::new(broker.clone());
    let jobs = Jobs { pool: pool.clone(), apis, broker, gatherer, notifier, mode, rhythm: rhythm.clone(), reported: Mutex::default() };
    tokio::join!(
        postgres::watch(pool.clone(), process.clone()),
        replica::report(pool, "housekeep".into(), process.clone(), || json!({ "connections": crate::HOUSEKEEP_CONNECTIONS })),
        every("replays", REPLAY_PAUSE, &process, &jobs.pool, || jobs.replay()),
        every("resolved", rhythm.often, &process, &jobs.pool, || jobs.resolve()),
        every("watch", rhythm.often, &process, &jobs.pool, || jobs.watch()),
        every("lost", rhythm.often * 3, &process, &jobs.pool, || jobs.find_lost()),
        every("waiting", rhythm.often, &process, &jobs.pool, || jobs.drive_waiting()),
        every("deferred", rhythm.seldom, &process, &jobs.pool, || jobs.drive_deferred()),
        every("expiry", rhythm.often, &process, &jobs.pool, || jobs.expire()),
        every("places", rhythm.often, &process, &jobs.pool, || jobs.release_places()),
        every("keys", rhythm.often, &process, &jobs.pool, || jobs.settle_keys()),
        every("reads", rhythm.often, &process, &jobs.pool, || jobs.read_due()),
        every("refunds", rhythm.often, &process, &jobs.pool, || jobs.resume_refunds()),
        every("retention", rhythm.seldom, &process, &jobs.pool, || jobs.purge()),
        every("books", rhythm.seldom, &process, &jobs.pool, || jobs.compare_books()),
    );
    Ok(())
}

/// A dumb loop around a step: at once again while there is work, else after a pause.
///
/// Each minute at the most it writes down that it works, for whoever watches.
async fn every<W: Future<Output = anyhow::Result<usize>>>(job: &'static str, pause: Duration, process: &Process, pool: &PgPool, step: impl Fn() -> W) {
    let mut said: Option<Instant> = None;
    let interval = pause.max(SIGN_OF_LIFE);
    while !process.shutdown.is_cancelled() {
        let begun = Instant::now();
        let done = timeout(STEP_DEADLINE, step()).await.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {} s", STEP_DEADLINE.as_secs())));
        metrics::histogram!("counterfoil_housekeeping_seconds", "job" => job).record(begun.elapsed());
        let more = match done {
            Ok(done) => {
                if said.is_none_or(|at| at.elapsed() >= interval)
                    && postgres::within(pool, STEP_DEADLINE, async |connection: &mut PgConnection| postgres::ran(connection, job, interval).await).await.is_ok()
                {
                    said = Some(Instant::now());
                }
                metrics::counter!("counterfoil_housekeeping_done_total", "job" => job).increment(done as u64);
                if done > 0 {
                    tracing::info!(job, done, "housekeeping");
                }
                done > 0
            }
            Err(error) => {
                metrics::counter!("counterfoil_housekeeping_failures_total", "job" => job).increment(1);
                tracing::error!(job, error = format!("{error:#}"), "housekeeping failed; it tries again");
                false
            }
        };
        let pause = if more { Duration::from_millis(50) } else { pause };
        let _ = timeout(pause, process.shutdown.cancelled()).await;
    }
}
