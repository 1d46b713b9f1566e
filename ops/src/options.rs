//! The options of `counterfoil`.

use std::path::PathBuf;
use std::time::Duration;

use counterfoil_broker::topology;
use counterfoil_chassis::{Common, Configure, Problems};
use counterfoil_payments::OrderKey;
use counterfoil_providers::{ApiOptions, Mode};

use crate::actions::{Actor, Role};
use crate::console::ConsoleOptions;
use crate::draws::Signer;
use crate::housekeep::RhythmOptions;
use crate::notify::NotifyOptions;
use crate::oncall::OnCall;
use crate::settings::{Command, Draws, Ledger, Settings};

/// Below --help.
const EXAMPLES: &str = "\
Examples:
  counterfoil status                                   is money moving, and what needs me?
  counterfoil trail pi_3Px…                            what happened to this payment
  counterfoil dead-letters list --group                what died, by kind
  counterfoil dead-letters replay d_91 --reason \"token rotated\"
  counterfoil dead-letters replay --consumer crm --kind http_404        a plan; changes nothing
  counterfoil dead-letters replay --plan p_7 --reason \"…\" --rate 10/s
  counterfoil consumer pause crm --for 30m --reason \"the CRM migrates\"
  counterfoil doctor                                   what is wrong, and the fix

Exit codes:
  0 done, or all is well      1 failed, some came back, or (status, doctor) a person is needed
  3 nothing matched           4 refused: a verdict, a role, a missing reason or confirmation
  5 the database is away      64 the options or the configuration cannot work

Nothing ever asks: what is missing is named. Times are UTC. With --json the fields are stable: names are added, never changed.";

/// The on-call's and operator's tool. Looking never changes anything; what changes something needs a reason that is written down, or
/// says with --dry-run, or by a plan, what it would do.
#[derive(Debug, clap::Parser)]
#[command(name = "counterfoil", version, after_help = EXAMPLES)]
pub struct Options {
    /// PostgreSQL, as postgres://user:password@host:port/database. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// housekeep, backfill: which events may change orders: live or test.
    #[arg(long, env = "COUNTERFOIL_MODE")]
    mode: Option<String>,
    /// draws export: the Ed25519 key that signs, PKCS#8 in PEM, as `openssl genpkey -algorithm ed25519` writes it. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_EXPORT_KEY", hide_env_values = true)]
    export_key: Option<String>,
    /// RabbitMQ, for queue depths (status, doctor) and for the audit of what queues lost (housekeep). Also _FILE.
    #[arg(long, env = "COUNTERFOIL_AMQP_URL", hide_env_values = true)]
    amqp_url: Option<String>,
    /// The retry ladder that counterfoil-migrate has brought.
    #[arg(long, env = "COUNTERFOIL_RETRY_RUNGS", default_value = "5s,15s,1m,4m,15m,1h")]
    retry_rungs: String,
    /// Who you are, for the record of what was done. Default: the login name.
    #[arg(long = "by", env = "COUNTERFOIL_PERSON", global = true)]
    person: Option<String>,
    /// Days that consumers' dedupe rows are kept: a dead letter that is older is not safe to replay.
    #[arg(long, env = "COUNTERFOIL_RETENTION_PROCESSED_DAYS", default_value = "120")]
    horizon_days: String,
    /// console: who may sign in, name:role:token,… with roles viewer, operator and admin. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_CONSOLE_TOKENS", hide_env_values = true)]
    console_tokens: Option<String>,
    #[command(flatten)]
    notify: NotifyOptions,
    #[command(flatten)]
    apis: ApiOptions,
    #[command(subcommand)]
    command: CommandOptions,
    #[command(flatten)]
    common: Common,
}

/// What a person decides about an entry of the list.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum AttentionOptions {
    /// Close an entry, with a reason, because it was dealt with elsewhere or needs nothing. It opens again when what it says changes.
    Decide {
        /// The entry, as the list names it, such as refund:0190a3c4-….
        subject: String,
        /// Why; recorded under your name.
        #[arg(long)]
        reason: String,
    },
    /// Take a decision back: the entry is open again.
    Undo {
        /// The entry.
        subject: String,
        /// Why; recorded under your name.
        #[arg(long)]
        reason: String,
    },
    /// List the decisions in force, newest first.
    Decisions {
        /// Decisions at the most.
        #[arg(long, default_value_t = 200)]
        limit: i64,
    },
}

#[derive(Debug, Clone, clap::Subcommand)]
enum CommandOptions {
    /// Show the whole chain of one order, missing effects included: deliveries, payments, events, messages, effects, books.
    Trail {
        /// Anything that leads to it: an order's id or reference, a payment, a provider's event, one of ours, a refund, a
        /// reservation, a ticket as `draw#number`, a dead letter as d_91, an e-mail address.
        id: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask the process on this machine whether it is ready, at its admin address: for health checks of containers. Ends with 1 when not.
    Healthy,
    /// Print completions for a shell, to be sourced.
    Completions {
        /// Which.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff.
    Man,
    /// Serve the on-call's page until told to stop. Its address is loopback unless told otherwise; put TLS in front of it.
    Console(ConsoleOptions),
    #[command(flatten)]
    OnCall(OnCall),
    /// List what waits for a person: money without a place, events without an order, refunds and keys that hang, disputes.
    #[command(args_conflicts_with_subcommands = true)]
    Attention {
        #[command(subcommand)]
        action: Option<AttentionOptions>,
        /// Entries at the most, oldest first.
        #[arg(long, default_value_t = 200)]
        limit: i64,
    },
    /// Run until told to stop: the work that no message starts. Run any number of them.
    ///
    /// Waiting events whose order has appeared, orders past their deadline, idempotency keys that a crash left in progress,
    /// reconciliation with the providers, retention, and the comparison of books and payments.
    Housekeep(RhythmOptions),
    /// Read orders that have been pending for too long, and refunds in doubt, from their provider, and settle what it says.
    Reconcile {
        /// Say what would change, and change nothing.
        #[arg(long)]
        dry_run: bool,
        /// One order alone, by id or reference, due or not.
        #[arg(long)]
        order: Option<String>,
        /// How long an order may be pending before it is asked about, such as 10m.
        #[arg(long, default_value = "10m", value_parser = span)]
        pending_for: Duration,
        /// Orders at the most.
        #[arg(long, default_value_t = 100)]
        limit: i64,
    },
    /// Record past events of a provider, so that later copies are known. Orders that they paid are marked as paid; nothing is
    /// announced for what was settled before, and no receipt goes out again. Run again, it goes on where it ended.
    Backfill {
        /// Whose events.
        #[arg(long)]
        provider: String,
        /// How far back, such as 30d; older lines are skipped.
        #[arg(long, default_value = "30d", value_parser = span)]
        since: Duration,
        /// Leave out what is younger than this, such as 2h: what was merely missed would get no receipt. Reconcile it instead, or
        /// let the provider send it again.
        #[arg(long, default_value = "0s", value_parser = span)]
        settled_before: Duration,
        /// The provider's event list, one JSON event a line; - for standard input.
        #[arg(long)]
        from: PathBuf,
        /// Say what would change, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// The books.
    #[command(subcommand)]
    Ledger(Ledger),
    /// Draws: the proof that one adds up, and its entry list for an auditor.
    #[command(subcommand)]
    Draws(DrawsOptions),
}

#[derive(Debug, Clone, clap::Subcommand)]
enum DrawsOptions {
    /// Prove that captured payments, orders, reservations, tickets and voids of a draw add up, that its numbers are consecutive, and
    /// what goes to charity, to the minor unit. Fails with 1 where something does not add up, and names it.
    Audit {
        /// The draw's id or reference.
        draw: String,
        /// As JSON instead of a table.
        #[arg(long)]
        json: bool,
        /// Hold orders that changed in the last so many seconds not to what their events have yet to do.
        #[arg(long, default_value_t = 60)]
        settled_s: i64,
    },
    /// Write the entry list of a draw as CSV with a hash chain, its signature and the public key, into a folder: entries.csv,
    /// entries.csv.sig, entries.pub.pem. docs/tickets.md says how to verify them with standard tools.
    Export {
        /// The draw's id or reference.
        draw: String,
        /// The folder; it is made where it is missing. Files in it are not overwritten.
        #[arg(long)]
        to: PathBuf,
    },
}

/// A span of time such as 45s, 10m, 12h, 30d.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?}: write a whole number and s, m, h or d behind it");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

impl Configure for Options {
    type Checked = Settings;
    const NAME: &'static str = "counterfoil";

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, problems: &mut Problems) -> Option<Settings> {
        let alone = matches!(self.command, CommandOptions::Completions { .. } | CommandOptions::Man | CommandOptions::Healthy);
        let database_url = if alone { Some(String::new()) } else { problems.required("COUNTERFOIL_DATABASE_URL", self.database_url.as_ref()) };
        let apis = self.apis.apis(|variable, why| problems.note(variable, why));
        let command = self.command(problems);
        let notifier = self.notify.check(problems);
        let rungs = topology::rungs(&self.retry_rungs).map_err(|error| problems.note("COUNTERFOIL_RETRY_RUNGS", error)).ok();
        let days = problems.bounded("COUNTERFOIL_RETENTION_PROCESSED_DAYS", &self.horizon_days, 1..=36_500);
        Some(Settings {
            database_url: database_url?,
            amqp_url: self.amqp_url.clone().filter(|url| !url.trim().is_empty()),
            rungs: rungs?,
            actor: self.actor(),
            horizon_s: i64::try_from(days?).ok()?.saturating_mul(86_400),
            apis,
            notifier,
            console_url: self.notify.console_url.clone(),
            mode: self.mode.as_deref().and_then(|_| self.mode(&mut Problems::default())),
            command: command?,
        })
    }
}

impl Options {
    /// Whoever holds the database's password may do everything; what they do is written down under their name.
    fn actor(&self) -> Actor {
        let login = || ["SUDO_USER", "LOGNAME", "USER"].into_iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
        let person = self.person.clone().filter(|person| !person.trim().is_empty()).or_else(login).unwrap_or_else(|| "unknown".into());
        let host = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok()).unwrap_or_default();
        Actor { person, role: Role::Admin, came_from: format!("cli {}", host.trim()).trim_end().to_owned() }
    }

    fn command(&self, problems: &mut Problems) -> Option<Command> {
        Some(match self.command.clone() {
            CommandOptions::Trail { id, json } => Command::Trail { id, json },
            CommandOptions::OnCall(command) => Command::OnCall(command),
            CommandOptions::Completions { shell } => Command::Completions(shell),
            CommandOptions::Man => Command::Man,
            CommandOptions::Healthy => Command::Healthy(self.common.admin_listen.clone()),
            CommandOptions::Console(options) => {
                let mode = self.mode(problems)?;
                let shared = self.database_url.as_deref().unwrap_or_default();
                let mode = if mode == Mode::Live { "live" } else { "test" };
                Command::Console(Box::new(options.check(problems, self.console_tokens.as_ref(), shared, self.notify.console_url.as_ref(), mode)?))
            }
            CommandOptions::Attention { action, limit } => Command::Attention { action, limit },
            CommandOptions::Housekeep(rhythm) => {
                let (mode, rhythm) = (self.mode(problems), rhythm.check(problems));
                Command::Housekeep(mode?, rhythm?)
            }
            CommandOptions::Reconcile { dry_run, order, pending_for, limit } => Command::Reconcile { dry_run, order, pending_for, limit },
            CommandOptions::Backfill { provider, since, settled_before, from, dry_run } => {
                let (mode, provider) = (self.mode(problems), problems.parsed("--provider", &provider));
                Command::Backfill { mode: mode?, provider: provider?, since, settled_before, from, dry_run }
            }
            CommandOptions::Ledger(ledger) => Command::Ledger(ledger),
            CommandOptions::Draws(draws) => Command::Draws(read_draws(draws, self.export_key.as_ref(), problems)?),
        })
    }

    fn mode(&self, problems: &mut Problems) -> Option<Mode> {
        match self.mode.as_deref() {
            Some("live") => Some(Mode::Live),
            Some("test") => Some(Mode::Test),
            _ => {
                problems.note("COUNTERFOIL_MODE", "must be live or test");
                None
            }
        }
    }
}

fn read_draws(options: DrawsOptions, export_key: Option<&String>, problems: &mut Problems) -> Option<Draws> {
    let name = |problems: &mut Problems, draw: &str| {
        let key = OrderKey::read(draw);
        if key.is_none() {
            problems.note("<DRAW>", "must be a draw's id or reference");
        }
        key
    };
    match options {
        DrawsOptions::Audit { draw, json, settled_s } => Some(Draws::Audit { draw: name(problems, &draw)?, json, settled_s }),
        DrawsOptions::Export { draw, to } => {
            let draw = name(problems, &draw);
            let key = problems.required("COUNTERFOIL_EXPORT_KEY", export_key);
            let key = key.and_then(|pem| Signer::read(&pem).map_err(|why| problems.note("COUNTERFOIL_EXPORT_KEY", why)).ok());
            Some(Draws::Export { draw: draw?, to, key: key? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_have_a_number_and_a_unit() {
        assert_eq!(span("30d"), Ok(Duration::from_secs(2_592_000)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        for wrong in ["", "d", "10", "1.5h", "-1d", "3w", "99999999999999999999d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
