//! Whether a person has paused this consumer: looked up every second, since a pause is a row.

use std::time::Duration;

use counterfoil_chassis::postgres::within;
use counterfoil_inbox::pause::pauses;
use sqlx::{PgConnection, PgPool};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How often it is looked up, and how long a look may take. A database that does not answer changes nothing.
const LOOK: Duration = Duration::from_secs(1);

/// What is known, nothing at first, and the task that keeps it true until `stop`.
pub(crate) fn watch(consumer: &'static str, pool: PgPool, stop: CancellationToken) -> (watch::Receiver<Option<bool>>, impl Future<Output = ()>) {
    let (told, paused) = watch::channel(None);
    let task = async move {
        while !stop.is_cancelled() {
            if let Ok(found) = within(&pool, LOOK, async |connection: &mut PgConnection| pauses(connection).await).await {
                let paused = found.iter().any(|pause| pause.consumer == consumer);
                told.send_if_modified(|known| known.replace(paused) != Some(paused));
            }
            let _ = timeout(LOOK, stop.cancelled()).await;
        }
    };
    (paused, task)
}
