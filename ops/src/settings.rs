//! What a command line comes down to: proven options.

use std::path::PathBuf;
use std::time::Duration;

use counterfoil_broker::Rung;
use counterfoil_payments::{OrderKey, Provider};
use counterfoil_providers::{Apis, Mode};

use crate::actions::Actor;
use crate::console::ConsoleSettings;
use crate::draws::Signer;
use crate::facts::BrokerAt;
use crate::housekeep::Rhythm;
use crate::notify::Notifier;
use crate::oncall::OnCall;
use crate::options::AttentionOptions;

/// What to do with the books.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Ledger {
    /// Write them as plain-text accounting, to standard output.
    Export {
        /// hledger or beancount.
        #[arg(long, value_parser = |text: &str| text.parse::<counterfoil_ledger::export::Format>())]
        format: counterfoil_ledger::export::Format,
    },
    /// Compare them with the payments: captured − refunded − charged back, for each order and currency. Fails when they differ.
    Check {
        /// Leave out orders that changed in the last so many seconds: their events may be on their way.
        #[arg(long, default_value_t = 60)]
        settled_s: i64,
    },
}

/// What to do.
#[derive(Debug, Clone)]
pub enum Command {
    /// Show one order's chain.
    Trail {
        /// What leads to it.
        id: String,
        /// As JSON.
        json: bool,
    },
    /// Ask a process whether it is ready.
    Healthy(String),
    /// Completions for a shell.
    Completions(clap_complete::Shell),
    /// The manual page.
    Man,
    /// The on-call's page.
    Console(Box<ConsoleSettings>),
    /// What on-call asks for.
    OnCall(OnCall),
    /// List what waits for a person.
    Attention {
        /// What a person decides; none: list.
        action: Option<AttentionOptions>,
        /// At the most.
        limit: i64,
    },
    /// The long-running part.
    Housekeep(Mode, Rhythm),
    /// Ask the providers.
    Reconcile {
        /// Change nothing.
        dry_run: bool,
        /// One order alone.
        order: Option<String>,
        /// Pending for longer than this.
        pending_for: Duration,
        /// At the most.
        limit: i64,
    },
    /// Record past events.
    Backfill {
        /// Which events may change orders.
        mode: Mode,
        /// Whose.
        provider: Provider,
        /// How far back.
        since: Duration,
        /// Nothing younger than this.
        settled_before: Duration,
        /// Where they stand.
        from: PathBuf,
        /// Change nothing.
        dry_run: bool,
    },
    /// The books.
    Ledger(Ledger),
    /// A draw.
    Draws(Draws),
}

/// What to do with a draw.
#[derive(Debug, Clone)]
pub enum Draws {
    /// Prove that it adds up.
    Audit {
        /// By id or reference.
        draw: OrderKey,
        /// As JSON.
        json: bool,
        /// Leave out what is younger.
        settled_s: i64,
    },
    /// Write its entry list.
    Export {
        /// By id or reference.
        draw: OrderKey,
        /// Into this folder.
        to: PathBuf,
        /// Signed by this key.
        key: Signer,
    },
}

/// Proven options.
#[derive(Debug)]
pub struct Settings {
    /// PostgreSQL.
    pub database_url: String,
    /// RabbitMQ, where it is known.
    pub amqp_url: Option<String>,
    /// The retry ladder.
    pub rungs: Vec<Rung>,
    /// Who acts.
    pub actor: Actor,
    /// How long dedupe rows are kept, in seconds.
    pub horizon_s: i64,
    /// The providers that can be asked.
    pub apis: Apis,
    /// Tells humans.
    pub notifier: Notifier,
    /// The console's public address, where it is known.
    pub console_url: Option<String>,
    /// Which events may change orders, where it was said.
    pub mode: Option<Mode>,
    /// What to do.
    pub command: Command,
}

impl Settings {
    /// Where the broker can be asked, if that is known.
    #[must_use]
    pub fn broker(&self) -> Option<BrokerAt> {
        self.amqp_url.clone().map(|amqp_url| BrokerAt { amqp_url, rungs: self.rungs.clone() })
    }

    /// Whether the command runs until told to stop.
    #[must_use]
    pub fn long_running(&self) -> bool {
        matches!(self.command, Command::Housekeep(..) | Command::Console(_))
    }
}
