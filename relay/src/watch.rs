//! Looks every second whether the topology is recent enough to claim, and exports the backlog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_broker::TOPOLOGY_VERSION;
use counterfoil_chassis::Process;
use counterfoil_chassis::postgres::{deployment, schema_fits};
use counterfoil_outbox::backlog;
use sqlx::PgPool;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const INTERVAL: Duration = Duration::from_secs(1);

/// How long a look may take.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Whether rows may be claimed: the recorded topology is at least the one this release was built with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<AtomicBool>);

impl Gate {
    pub(crate) fn open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Starts the watch; the gate is shut until the database has said that it may open.
pub(crate) fn start(tracker: &TaskTracker, pool: PgPool, process: &Process) -> Gate {
    let gate = Gate::default();
    let (told, process) = (gate.clone(), process.clone());
    tracker.spawn(async move {
        while !process.shutdown.is_cancelled() {
            match timeout(LOOK_DEADLINE, look(&pool)).await.unwrap_or_else(|_| Err("the database does not answer in time".to_owned())) {
                Ok(()) => {
                    told.0.store(true, Ordering::Relaxed);
                    process.readiness.holds("topology");
                }
                Err(why) => {
                    // An unreachable database shuts nothing: claims fail by themselves, and it may be back at once.
                    process.readiness.fails("topology", why);
                }
            }
            let _ = timeout(INTERVAL, process.shutdown.cancelled()).await;
        }
    });
    gate
}

async fn look(pool: &PgPool) -> Result<(), String> {
    let unreachable = |error: sqlx::Error| format!("the database does not answer: {error}");
    let mut connection = pool.acquire().await.map_err(unreachable)?;
    let deployment = deployment(&mut connection).await.map_err(unreachable)?;
    schema_fits(deployment)?;
    if deployment.topology < TOPOLOGY_VERSION {
        return Err(format!(
            "the recorded topology is {}, this release needs {TOPOLOGY_VERSION}: run counterfoil-migrate; nothing is claimed until then",
            deployment.topology
        ));
    }
    let backlog = backlog(&mut connection).await.map_err(unreachable)?;
    let gauge = |name: &'static str, count: i64| metrics::gauge!(name).set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    gauge("counterfoil_outbox_unpublished", backlog.unpublished);
    gauge("counterfoil_outbox_unroutable", backlog.unroutable);
    gauge("counterfoil_outbox_deferred", backlog.deferred);
    gauge("counterfoil_outbox_parked", backlog.parked);
    metrics::gauge!("counterfoil_outbox_oldest_unpublished_seconds").set(backlog.oldest_seconds);
    Ok(())
}
