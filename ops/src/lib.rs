//! The on-call's and operator's tool: what happened to a payment, what waits for a person, and the work that no message starts.

pub mod actions;
pub mod advice;
mod attention;
mod backfill;
mod books;
pub mod console;
pub mod depths;
pub mod doctor;
mod draws;
mod erase;
pub mod events;
pub mod facts;
pub mod find;
pub mod gather;
pub mod housekeep;
mod letters;
mod listed;
pub mod mask;
mod needs;
pub mod notify;
pub mod oncall;
mod options;
pub mod queues;
mod reconcile;
pub mod replays;
mod settings;
mod status;
pub mod timeline;
mod trail;
mod words;

use std::io::Write;
use std::time::Duration;

use clap::CommandFactory;
use counterfoil_chassis::Process;
use counterfoil_chassis::postgres::{self, PoolSettings};
use counterfoil_chassis::process::Exit;
use oncall::OnCall;
use replays::exit;
use sqlx::PgPool;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub use draws::Signer;
pub use options::Options;
pub use settings::{Command, Draws, Ledger, Settings};
pub use trail::{Trail, trail};

/// A pool for a person, or for housekeeping; `read_only` for those who only look. What they ask is found by index.
fn pool(url: &str, connections_max: u32, read_only: bool) -> anyhow::Result<PgPool> {
    pool_with(url, connections_max, read_only, &postgres::BY_INDEX)
}

/// A pool for who reads tables whole, the books of all orders, say.
fn wide_pool(url: &str) -> anyhow::Result<PgPool> {
    pool_with(url, 1, true, &[])
}

fn pool_with(url: &str, connections_max: u32, read_only: bool, more: &[(&'static str, &str)]) -> anyhow::Result<PgPool> {
    let mut session: Vec<(&'static str, String)> = vec![("lock_timeout", "2s".into()), ("idle_in_transaction_session_timeout", "60s".into())];
    session.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    if read_only {
        session.push(("default_transaction_read_only", "on".into()));
    } else {
        session.push(("statement_timeout", "30s".into()));
    }
    postgres::pool(url, &PoolSettings { application_name: "counterfoil", connections_max, acquire_timeout: Duration::from_secs(5), session })
}

/// Connections of housekeeping.
pub(crate) const HOUSEKEEP_CONNECTIONS: u32 = 6;

/// Writes to standard output.
fn print(text: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    std::io::stdout().write_fmt(text)
}

/// An instant in UTC, to the second.
pub(crate) fn instant(at: OffsetDateTime) -> String {
    at.replace_nanosecond(0).unwrap_or(at).format(&Rfc3339).unwrap_or_default()
}

/// Runs one command that ends by itself.
///
/// # Errors
/// When the database fails, or nothing matches; some say with which code to end.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    Box::pin(run_command(settings)).await.map_err(|error| {
        let away = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Tls(_))));
        if away { Exit::with(exit::UNREACHABLE, format!("the database cannot be reached (COUNTERFOIL_DATABASE_URL): {error:#}")).into() } else { error }
    })
}

/// Prints the trail that `id` leads to; where it leads to several orders, a line for each.
/// What is stored of an id that leads to no order.
fn unplaced(id: &str, deliveries: &[counterfoil_settlement::Seen], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return Ok(print(format_args!("{}\n", serde_json::json!({ "orders": [], "deliveries": deliveries })))?);
    }
    print(format_args!("{id}: it counts for no order here; {} it:\n", words::counted(deliveries.len(), "stored event names", "stored events name")))?;
    for seen in deliveries {
        let why = seen.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        print(format_args!("{}  {} {} {}  {}{why}\n", seen.received_at, seen.provider, seen.event_type, seen.event_id, seen.outcome))?;
    }
    Ok(print(format_args!("next  counterfoil events show <event>; counterfoil attention\n"))?)
}

async fn show_trail(pool: &PgPool, id: &str, as_json: bool) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await?;
    let orders = find::orders_of(&mut connection, id).await?;
    if orders.is_empty() {
        let deliveries = counterfoil_settlement::deliveries_naming(&mut connection, id).await?;
        if !deliveries.is_empty() {
            return unplaced(id, &deliveries, as_json);
        }
        let waiting = counterfoil_settlement::waiting_for_order(&mut connection, id).await?;
        let why = if waiting > 0 {
            format!("no order has the reference {id:?} yet, and {waiting} events wait for one: see counterfoil attention")
        } else {
            format!(
                "no payment, event, order, ticket, reservation or customer here has the id {id:?}. If the provider shows it as delivered, look for its event id: counterfoil events show <id>"
            )
        };
        return Err(replays::nothing(why));
    }
    let mut several = Vec::new();
    for order in &orders {
        several.extend(trail(&mut connection, *order).await?);
    }
    match (several.as_slice(), as_json) {
        ([one], true) => print(format_args!("{}\n", one.json()))?,
        ([one], false) => print(format_args!("{one}"))?,
        (_, true) => print(format_args!("{}\n", serde_json::json!({ "orders": several.iter().map(Trail::json).collect::<Vec<_>>() })))?,
        (_, false) => {
            for each in &several {
                print(format_args!("{}  {}  {}\n", each.order.id, each.order.reference, each.words()))?;
            }
        }
    }
    Ok(())
}

/// Asks `/readyz`; fails with what does not hold.
async fn healthy(address: &str) -> anyhow::Result<()> {
    let address = address.replacen("0.0.0.0", "127.0.0.1", 1);
    let client = reqwest::Client::builder().timeout(Duration::from_secs(3)).build()?;
    let answer = client.get(format!("http://{address}/readyz")).send().await?;
    let status = answer.status();
    let report = answer.text().await?;
    print(format_args!("{report}\n"))?;
    anyhow::ensure!(status.is_success(), "not ready");
    Ok(())
}

async fn on_call(settings: Settings, command: OnCall) -> anyhow::Result<()> {
    let (url, actor, horizon_s) = (&settings.database_url, &settings.actor, settings.horizon_s);
    match command {
        OnCall::DeadLetters(command) => letters::run(&pool(url, 2, false)?, actor, *command, horizon_s).await,
        OnCall::Replays(command) => letters::runs(&pool(url, 2, false)?, actor, command, horizon_s).await,
        OnCall::Outbox(command) => queues::outbox(&pool(url, 1, false)?, actor, command).await,
        OnCall::Consumer(command) => queues::consumer(&pool(url, 1, false)?, actor, command).await,
        OnCall::Audit { since, person, object, json } => queues::audit(&pool(url, 1, true)?, since, person.as_deref(), object.as_deref(), json).await,
        OnCall::Status { watch, json } => status::run(&pool(url, 1, true)?, settings.broker(), watch, json).await,
        OnCall::Providers { json } => status::show_providers(&pool(url, 1, true)?, json).await,
        OnCall::Events(command) => events::run(&pool(url, 2, false)?, actor, settings.mode, command).await,
        OnCall::Erase { customer, reason, dry_run } => erase::run(&pool(url, 2, false)?, actor, &customer, &reason, dry_run).await,
        OnCall::Link { id } => {
            let base = settings.console_url.as_deref().unwrap_or("http://127.0.0.1:9700").trim_end_matches('/');
            Ok(print(format_args!("{base}{}\n", console::place(&id)))?)
        }
        OnCall::Doctor { check, json } => {
            let (pool, broker) = (pool(url, 1, true)?, settings.broker());
            doctor::run(&doctor::Patient { pool: &pool, broker: broker.as_ref(), horizon_s }, check.as_deref(), json).await
        }
    }
}

async fn run_command(settings: Settings) -> anyhow::Result<()> {
    let url = &settings.database_url;
    match settings.command.clone() {
        Command::OnCall(command) => on_call(settings, command).await,
        Command::Completions(shell) => {
            clap_complete::generate(shell, &mut Options::command(), "counterfoil", &mut std::io::stdout());
            Ok(())
        }
        Command::Healthy(address) => healthy(&address).await,
        Command::Man => Ok(clap_mangen::Man::new(Options::command()).render(&mut std::io::stdout())?),
        Command::Trail { id, json } => show_trail(&pool(url, 1, true)?, &id, json).await,
        Command::Attention { action, limit } => attention::run(&pool(url, 1, action.is_none())?, &settings.actor, action, limit).await,
        Command::Draws(draws) => draws::run(&wide_pool(url)?, draws).await,
        Command::Ledger(ledger) => books::run(&wide_pool(url)?, ledger).await,
        Command::Reconcile { dry_run, order, pending_for, limit } => {
            reconcile::run(&pool(url, 2, false)?, &settings.apis, reconcile::Asked { dry_run, order, pending_for, limit }).await
        }
        Command::Backfill { mode, provider, since, settled_before, from, dry_run } => {
            backfill::run(&pool(url, 2, false)?, backfill::Asked { mode, provider, since, settled_before, from, dry_run }).await
        }
        Command::Housekeep(..) | Command::Console(_) => anyhow::bail!("this command runs until told to stop"),
    }
}

/// Runs the command that runs until told to stop.
///
/// # Errors
/// When the configuration cannot work.
pub async fn stay(settings: Settings, process: Process) -> anyhow::Result<()> {
    match settings.command.clone() {
        Command::Housekeep(mode, rhythm) => {
            let means = housekeep::Means { broker: settings.broker(), apis: settings.apis, notifier: settings.notifier };
            Box::pin(housekeep::run(pool(&settings.database_url, HOUSEKEEP_CONNECTIONS, false)?, means, mode, rhythm, process)).await
        }
        Command::Console(console) => {
            let broker = settings.broker();
            Box::pin(console::run(pool(&settings.database_url, console::CONNECTIONS, false)?, broker, *console, settings.horizon_s, process)).await
        }
        Command::Completions(_)
        | Command::Healthy(_)
        | Command::Man
        | Command::OnCall(_)
        | Command::Trail { .. }
        | Command::Attention { .. }
        | Command::Ledger(_)
        | Command::Draws(_)
        | Command::Reconcile { .. }
        | Command::Backfill { .. } => {
            anyhow::bail!("this command ends by itself")
        }
    }
}
