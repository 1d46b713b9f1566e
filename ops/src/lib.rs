//! The on-call's tool: what happened to a payment.

mod options;
mod trail;

use std::time::Duration;

use counterfoil_chassis::postgres::{self, PoolSettings};

pub use options::{Command, Options, Settings};
pub use trail::{Trail, trail};

/// Runs one command.
///
/// # Errors
/// When the database fails, or nothing matches.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let pool = PoolSettings {
        application_name: "counterfoil",
        connections_max: 1,
        acquire_timeout: Duration::from_secs(5),
        session: vec![("default_transaction_read_only", "on".into())],
    };
    let pool = postgres::pool(&settings.database_url, &pool)?;
    match settings.command {
        Command::Trail { id } => {
            let mut connection = pool.acquire().await?;
            let trail = trail(&mut connection, &id).await?;
            anyhow::ensure!(trail.is_some(), "no order has the id or reference {id:?}, and no payment of ours has this id");
            if let Some(trail) = trail {
                use std::io::Write;
                write!(std::io::stdout(), "{trail}")?;
            }
        }
    }
    Ok(())
}
