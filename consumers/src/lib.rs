//! Consumers: each is a file that says its name, its events and what it does with them; the runner does the rest.

pub mod crm;
pub mod email;
mod keeper;
pub mod ledger;
mod options;
pub mod refunds;
pub mod runner;
pub mod tickets;

use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::Process;
use counterfoil_chassis::postgres::{self, BY_INDEX, PoolSettings};
use sqlx::PgPool;

pub use options::{Options, Settings, Which};
use runner::{InDatabase, Outside, Runner};

fn pool(url: &str, concurrency: usize, more: &[(&'static str, &str)]) -> anyhow::Result<PgPool> {
    let session = [("lock_timeout", "5s"), ("statement_timeout", "15s"), ("idle_in_transaction_session_timeout", "120s")];
    postgres::pool(
        url,
        &PoolSettings {
            application_name: "counterfoil-consumers",
            // A handler holds at most two at once: its own, and the one that renews its lease.
            connections_max: u32::try_from(concurrency * 2 + 2).unwrap_or(32),
            acquire_timeout: Duration::from_secs(5),
            session: session.iter().chain(&BY_INDEX).chain(more).map(|(name, value)| (*name, (*value).to_owned())).collect(),
        },
    )
}

/// Runs one consumer until told to stop.
///
/// # Errors
/// When the configuration cannot work.
pub async fn run(settings: Settings, process: Process) -> anyhow::Result<()> {
    if matches!(settings.which, Which::DeadLetters) {
        let pool = pool(&settings.database_url, 1, &[])?;
        let watch = tokio::spawn(postgres::watch(pool.clone(), process.clone()));
        keeper::run(&settings.amqp_url, &pool, &process).await;
        let _ = watch.await;
        return Ok(());
    }
    let more: &[_] = if matches!(settings.which, Which::Tickets) { &counterfoil_tickets::SESSION } else { &[] };
    let pool = pool(&settings.database_url, settings.concurrency, more)?;
    let batch = settings.batch();
    let runner = Runner { amqp_url: settings.amqp_url, rungs: settings.rungs, prefetch: settings.prefetch, process: process.clone(), pool: pool.clone() };
    process.readiness.fails("database", "not asked yet");
    let watch = tokio::spawn(postgres::watch(pool.clone(), process.clone()));
    match settings.which {
        Which::DeadLetters => {}
        Which::Ledger => runner.run(Arc::new(InDatabase::new(ledger::Ledger, pool, batch))).await,
        Which::Tickets => runner.run(Arc::new(InDatabase::new(tickets::Tickets, pool, batch))).await,
        Which::Email(server, from) => {
            let email = email::Email::new(server, from, pool.clone());
            runner.run(Arc::new(Outside::new(email, pool, settings.concurrency, process.clone()))).await;
        }
        Which::Refunds(apis, policies) => {
            let refunds = refunds::Refunds::new(apis, policies, pool.clone());
            runner.run(Arc::new(Outside::new(refunds, pool, settings.concurrency, process.clone()))).await;
        }
        Which::Crm(crm) => {
            let crm = crm::Crm::new(crm, pool.clone())?;
            runner.run(Arc::new(Outside::new(crm, pool, settings.concurrency, process.clone()))).await;
        }
    }
    let _ = watch.await;
    Ok(())
}
