//! Tells relays that there is work: an empty, coalesced NOTIFY on a connection of its own, after the commit.
//!
//! Never inside the payment's transaction: PostgreSQL takes one cluster-wide lock for it at commit.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::postgres::{self, PoolSettings};
use counterfoil_outbox::WAKE_CHANNEL;
use sqlx::{ConnectOptions, PgConnection};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Least pause between two notifications: forty a second at the most, however many commits there are.
const PAUSE: Duration = Duration::from_millis(25);

/// How long a notification may take; then the connection is made anew.
const DEADLINE: Duration = Duration::from_secs(2);

/// Raised after each commit; any number of raises before the next notification are one.
#[derive(Debug, Default)]
pub(crate) struct Wake(Notify);

impl Wake {
    /// Says that rows may have been added.
    pub(crate) fn raise(&self) {
        self.0.notify_one();
    }
}

/// Sends notifications until `stop`. A lost one costs a poll interval, no more.
pub(crate) async fn send(database_url: String, wake: Arc<Wake>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Ok(Ok(mut connection)) = tokio::time::timeout(DEADLINE, connect(&database_url)).await {
            while !stop.is_cancelled() {
                tokio::select! {
                    () = wake.0.notified() => {}
                    () = stop.cancelled() => return,
                }
                let sent = tokio::time::timeout(DEADLINE, sqlx::query("SELECT pg_notify($1, '')").bind(WAKE_CHANNEL).execute(&mut connection)).await;
                if !matches!(sent, Ok(Ok(_))) {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        let _ = tokio::time::timeout(Duration::from_secs(1), stop.cancelled()).await;
    }
}

async fn connect(database_url: &str) -> anyhow::Result<PgConnection> {
    let settings =
        PoolSettings { application_name: "counterfoil-ingest wake", connections_max: 1, acquire_timeout: Duration::from_secs(2), session: Vec::new() };
    Ok(postgres::options(database_url, &settings)?.connect().await?)
}
