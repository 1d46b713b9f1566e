//! Hears ingest's notifications, and notices when it has gone deaf.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_outbox::WAKE_CHANNEL;
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Silence after which the listener calls itself; a notification of our own must come back.
const SILENCE: Duration = Duration::from_secs(10);

/// How long its own call may take; then the connection is dead, whatever TCP says.
const ECHO: Duration = Duration::from_secs(3);

/// Raises `wake` at each notification until `stop`. Losing one costs a poll interval, no more.
pub(crate) async fn listen(database_url: String, pool: PgPool, wake: Arc<Notify>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        tokio::select! {
            ended = hear(&database_url, &pool, &wake) => {
                metrics::counter!("counterfoil_relay_listener_reconnects_total").increment(1);
                tracing::info!(reason = ended, "the listener connects anew; polling goes on meanwhile");
                wake.notify_one(); // what came in between was not heard
                let _ = timeout(Duration::from_secs(1), stop.cancelled()).await;
            }
            () = stop.cancelled() => {}
        }
    }
}

/// Listens until the connection fails; says why.
async fn hear(database_url: &str, pool: &PgPool, wake: &Notify) -> String {
    let connected = async {
        let mut listener = PgListener::connect(database_url).await?;
        listener.listen(WAKE_CHANNEL).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    let mut listener = match timeout(SILENCE, connected).await {
        Ok(Ok(listener)) => listener,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return "the database does not answer in time".to_owned(),
    };
    loop {
        let heard = match timeout(SILENCE, listener.recv()).await {
            Ok(heard) => heard,
            Err(_) => {
                let called = timeout(ECHO, sqlx::query("SELECT pg_notify($1, '')").bind(WAKE_CHANNEL).execute(pool)).await;
                if !matches!(called, Ok(Ok(_))) {
                    return "it cannot call itself".to_owned();
                }
                match timeout(ECHO, listener.recv()).await {
                    Ok(heard) => heard,
                    Err(_) => return "it does not hear its own call".to_owned(),
                }
            }
        };
        match heard {
            Ok(_) => {
                metrics::counter!("counterfoil_relay_wakes_total").increment(1);
                wake.notify_one();
            }
            Err(error) => return error.to_string(),
        }
    }
}
