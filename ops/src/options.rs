//! The options of `counterfoil`.

use counterfoil_chassis::{Common, Configure, Problems};

/// The on-call's and operator's tool. Looking never changes anything.
#[derive(Debug, clap::Parser)]
#[command(name = "counterfoil", version)]
pub struct Options {
    /// PostgreSQL, as postgres://user:password@host:port/database. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// What to do.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Show the whole chain of one order, missing effects included: deliveries, payments, events, messages, effects, books.
    Trail {
        /// An order's id or reference, or a payment's id.
        id: String,
    },
}

/// Proven options.
#[derive(Debug)]
pub struct Settings {
    /// PostgreSQL.
    pub database_url: String,
    /// What to do.
    pub command: Command,
}

impl Configure for Options {
    type Checked = Settings;
    const NAME: &'static str = "counterfoil";

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, problems: &mut Problems) -> Option<Settings> {
        let database_url = problems.required("COUNTERFOIL_DATABASE_URL", self.database_url.as_ref());
        Some(Settings { database_url: database_url?, command: self.command.clone() })
    }
}
