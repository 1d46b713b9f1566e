//! What on-call types: the commands that look at what went wrong and put it right.

use std::time::Duration;

use clap::{Args, Subcommand};
use counterfoil_inbox::dead::Filter;

use crate::options::span;

/// The commands of on-call.
#[derive(Debug, Clone, Subcommand)]
pub enum OnCall {
    /// One screen: whether money moves, what needs a person, what each process and queue does, and which replica would help.
    /// Ends with 1 when a person is needed.
    Status {
        /// Show it again every two seconds, until interrupted.
        #[arg(long)]
        watch: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Dead letters: what a consumer gave up. List, show, replay, discard, reopen.
    #[command(subcommand, name = "dead-letters", alias = "dead")]
    DeadLetters(Box<DeadLetters>),
    /// Replays of dead letters: list, show, stop.
    #[command(subcommand)]
    Replays(ReplaysOptions),
    /// Outbox rows that do not go out by themselves: list, release.
    #[command(subcommand)]
    Outbox(OutboxOptions),
    /// Stored webhook events: show, reprocess.
    #[command(subcommand)]
    Events(EventsOptions),
    /// Consumers: pause, resume, list the pauses.
    #[command(subcommand)]
    Consumer(ConsumerOptions),
    /// Who did what, to how many, why, from where, and what came of it.
    Audit {
        /// Within this time.
        #[arg(long, default_value = "24h", value_parser = span)]
        since: Duration,
        /// By this person.
        #[arg(long)]
        person: Option<String>,
        /// To this object, such as d_91.
        #[arg(long)]
        object: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Providers: last delivery, late ones, refused signatures.
    Providers {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check what goes wrong in practice, and name the fix. Ends with 1 when something is wrong.
    Doctor {
        /// One check alone, by name.
        #[arg(long)]
        check: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the console's address of something, such as d_91, r_12, or anything that has a trail.
    Link {
        /// What.
        id: String,
    },
    /// Remove a customer's personal data from orders, stored bodies, payloads, dead letters and answers. Amounts, ids and books stay.
    Erase {
        /// The customer: an e-mail address, or the shop's customer id.
        #[arg(long)]
        customer: String,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
        /// Say what would be touched, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which dead letters. All that is given must hold.
#[derive(Debug, Clone, Args)]
pub struct FilterOptions {
    /// Of this consumer: email, crm, ledger, refunds or tickets.
    #[arg(long)]
    consumer: Option<String>,
    /// Of this kind of error, such as http_404, smtp_550, crash.
    #[arg(long)]
    kind: Option<String>,
    /// In one of these states, with commas: open, queued, replaying, resolved, discarded; all for any.
    #[arg(long, default_value = "open")]
    state: String,
    /// Of this topic, such as order.paid.
    #[arg(long)]
    topic: Option<String>,
    /// Of this order, by id.
    #[arg(long)]
    order: Option<String>,
    /// Of this event.
    #[arg(long)]
    event: Option<String>,
    /// Died within this time, such as 2h.
    #[arg(long, value_parser = span)]
    since: Option<Duration>,
    /// Died before that, such as 10m.
    #[arg(long, value_parser = span)]
    until: Option<Duration>,
    /// After at least so many attempts.
    #[arg(long)]
    attempts: Option<u32>,
    /// That came back after a replay.
    #[arg(long)]
    came_back: bool,
    /// About money in this currency.
    #[arg(long)]
    currency: Option<String>,
    /// With this text in the error.
    #[arg(long)]
    text: Option<String>,
}

impl FilterOptions {
    /// As a filter.
    #[must_use]
    pub fn filter(&self) -> Filter {
        let seconds = |span: &Option<Duration>| span.map(|span| span.as_secs().to_string());
        Filter {
            consumer: self.consumer.clone(),
            kind: self.kind.clone(),
            state: (self.state != "all").then(|| self.state.clone()),
            topic: self.topic.clone(),
            order: self.order.clone(),
            event: self.event.clone(),
            since_s: seconds(&self.since),
            until_s: seconds(&self.until),
            attempts_min: self.attempts.map(|attempts| attempts.to_string()),
            came_back: self.came_back.then(|| "true".to_owned()),
            currency: self.currency.clone(),
            text: self.text.clone(),
            id: None,
        }
    }
}

/// A number with a letter in front of it, such as `d_91`, `r_12`, `p_12` or `12`.
fn number(text: &str) -> Result<i64, String> {
    let digits = text.split_once('_').map_or(text, |(_, digits)| digits);
    digits.parse().map_err(|_| format!("{text:?}: write a number as the list shows it, such as d_91"))
}

/// `10/s` or `10`.
fn rate(text: &str) -> Result<f64, String> {
    text.strip_suffix("/s").unwrap_or(text).parse().map_err(|_| format!("{text:?}: write how many a second, such as 10/s"))
}

/// What to do with dead letters.
#[derive(Debug, Clone, Subcommand)]
pub enum DeadLetters {
    /// List them, or with --group how many there are of each kind.
    List {
        /// Which.
        #[command(flatten)]
        filter: FilterOptions,
        /// Count by consumer and kind of error instead.
        #[arg(long)]
        group: bool,
        /// The oldest first.
        #[arg(long)]
        oldest: bool,
        /// At the most.
        #[arg(long, default_value_t = 50)]
        limit: i64,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one: what did not happen, to which order, why, and what a replay would do.
    Show {
        /// Its number, such as d_91.
        #[arg(value_parser = number)]
        id: i64,
        /// With its payload or not.
        #[command(flatten)]
        payload: PayloadOptions,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Plan a replay, which changes nothing; or run one: of one dead letter, or of a plan.
    Replay(ReplayOptions),
    /// Say that the effects need not happen. Reopen undoes it.
    Discard {
        /// Their numbers.
        #[arg(value_parser = number, required = true)]
        ids: Vec<i64>,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Open discarded or resolved ones again.
    Reopen {
        /// Their numbers.
        #[arg(value_parser = number, required = true)]
        ids: Vec<i64>,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
}

/// Whether the bytes are shown, and customer data among them.
#[derive(Debug, Clone, Args)]
pub struct PayloadOptions {
    /// With its payload, customer data masked.
    #[arg(long)]
    pub payload: bool,
    /// With its payload and customer data. Needs --reason, and is written down.
    #[arg(long)]
    pub reveal: bool,
    /// Why it is revealed.
    #[arg(long, default_value = "")]
    pub reason: String,
}

/// How to replay.
#[derive(Debug, Clone, Args)]
pub struct ReplayOptions {
    /// One dead letter, by number: it is replayed at once.
    #[arg(value_parser = number)]
    pub id: Option<i64>,
    /// Which, for a plan.
    #[command(flatten)]
    pub filter: FilterOptions,
    /// Run this plan, such as p_7. Twice is once.
    #[arg(long, value_parser = number)]
    pub plan: Option<i64>,
    /// Why. Required to run.
    #[arg(long, default_value = "")]
    pub reason: String,
    /// How many a second.
    #[arg(long, default_value = "10/s", value_parser = rate)]
    pub rate: f64,
    /// Do not wait for the first to succeed before the rest goes.
    #[arg(long)]
    pub all_at_once: bool,
    /// Stop by itself after so many came back.
    #[arg(long, default_value_t = 5)]
    pub stop_after: i32,
    /// Take those, too, of which nobody knows whether they happened: they may happen twice, under the same key.
    #[arg(long)]
    pub include_unknown: bool,
    /// Take those, too, whose dedupe record is gone: they may happen twice.
    #[arg(long)]
    pub include_unsafe: bool,
    /// How many will run: required for more than 100, and for what may happen twice.
    #[arg(long)]
    pub confirm: Option<u64>,
    /// Return once it runs, and leave it to housekeeping.
    #[arg(long)]
    pub detach: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs of replays.
#[derive(Debug, Clone, Subcommand)]
pub enum ReplaysOptions {
    /// List them, the newest first.
    List {
        /// At the most.
        #[arg(long, default_value_t = 20)]
        limit: i64,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one, with what came back.
    Show {
        /// Its number, such as r_12.
        #[arg(value_parser = number)]
        id: i64,
        /// Go on until it has ended.
        #[arg(long)]
        watch: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Stop one: what is not released is open again; what is released cannot be recalled.
    Stop {
        /// Its number.
        #[arg(value_parser = number)]
        id: i64,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
}

/// Rows of the outbox that do not go out by themselves.
#[derive(Debug, Clone, Subcommand)]
pub enum OutboxOptions {
    /// List what was put off or parked.
    List {
        /// Only what the broker would not take.
        #[arg(long)]
        parked: bool,
        /// Only what no queue is bound for.
        #[arg(long)]
        unroutable: bool,
        /// At the most.
        #[arg(long, default_value_t = 50)]
        limit: i64,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Let rows be tried at once.
    Release {
        /// Their ids.
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
}

/// Stored webhook events.
#[derive(Debug, Clone, Subcommand)]
pub enum EventsOptions {
    /// Show what is stored of a provider's event.
    Show {
        /// The provider's id, as the trail or the provider shows it.
        id: String,
        /// With its payload or not.
        #[command(flatten)]
        payload: PayloadOptions,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read a stored event again as this release reads it, and settle it: failed, unreadable, deferred, waiting or ignored ones.
    Reprocess {
        /// The provider's id.
        id: String,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
}

/// Consumers.
#[derive(Debug, Clone, Subcommand)]
pub enum ConsumerOptions {
    /// Stop a consumer's replicas from taking messages. It ends by itself.
    Pause {
        /// Its name.
        consumer: String,
        /// For how long, such as 30m; 12h at the most.
        #[arg(long = "for", value_parser = span)]
        span: Duration,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// End a pause.
    Resume {
        /// Its name.
        consumer: String,
        /// Why. Required.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// List the pauses in force.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}
