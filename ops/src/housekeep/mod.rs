//! `counterfoil housekeep`: the work that no message starts. Any number may run: each job takes its rows with `SKIP LOCKED`,
//! in small batches, by the database's clock.

mod jobs;
mod rhythm;

use std::sync::Mutex;
use std::time::Duration;

use counterfoil_chassis::{Process, postgres};
use counterfoil_payments::Provider;
use counterfoil_providers::{Adapter, Apis, Mode, Razorpay, Square, Standard, Stripe};
use sqlx::PgPool;
use tokio::time::timeout;

use jobs::Jobs;
pub use rhythm::{Rhythm, RhythmOptions};

/// Longest time for one step, so that a silent database hangs no job for good.
const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// An adapter that only reads: no secret is needed for what was verified before, or comes from the provider's own list.
pub(crate) fn reader(provider: Provider) -> Option<Box<dyn Adapter>> {
    match provider {
        Provider::Stripe => Some(Box::new(Stripe::new(&[]))),
        Provider::Razorpay => Some(Box::new(Razorpay::new(&[]))),
        Provider::Square => Square::new(&[], "-").ok().map(|square| Box::new(square) as Box<dyn Adapter>),
        Provider::Standard => Standard::new(&[]).ok().map(|standard| Box::new(standard) as Box<dyn Adapter>),
    }
}

/// Runs until told to stop.
///
/// # Errors
/// Never: a job that fails says so and tries again.
pub async fn run(pool: PgPool, apis: Apis, mode: Mode, rhythm: Rhythm, process: Process) -> anyhow::Result<()> {
    process.readiness.fails("database", "not asked yet");
    let jobs = Jobs { pool: pool.clone(), apis, mode, rhythm: rhythm.clone(), reported: Mutex::default() };
    tokio::join!(
        postgres::watch(pool, process.clone()),
        every("waiting", rhythm.often, &process, || jobs.drive_waiting()),
        every("deferred", rhythm.seldom, &process, || jobs.drive_deferred()),
        every("expiry", rhythm.often, &process, || jobs.expire()),
        every("places", rhythm.often, &process, || jobs.release_places()),
        every("keys", rhythm.often, &process, || jobs.settle_keys()),
        every("reads", rhythm.often, &process, || jobs.read_due()),
        every("refunds", rhythm.often, &process, || jobs.resume_refunds()),
        every("retention", rhythm.seldom, &process, || jobs.purge()),
        every("books", rhythm.seldom, &process, || jobs.compare_books()),
    );
    Ok(())
}

/// A dumb loop around a step: at once again while there is work, else after a pause.
async fn every<W: Future<Output = anyhow::Result<usize>>>(job: &'static str, pause: Duration, process: &Process, step: impl Fn() -> W) {
    while !process.shutdown.is_cancelled() {
        let begun = tokio::time::Instant::now();
        let done = timeout(STEP_DEADLINE, step()).await.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {} s", STEP_DEADLINE.as_secs())));
        metrics::histogram!("counterfoil_housekeeping_seconds", "job" => job).record(begun.elapsed());
        let more = match done {
            Ok(done) => {
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
