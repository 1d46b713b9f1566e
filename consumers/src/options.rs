//! The options of `counterfoil-consumers`.

use counterfoil_broker::{Rung, topology};
use counterfoil_chassis::{Common, Configure, Problems};
use counterfoil_providers::{ApiOptions, Apis};
use lettre::message::Mailbox;

use crate::crm::CrmSettings;
use crate::email::Server;
use crate::refunds::{Policies, Policy};

/// Turns events into effects: one receipt, one CRM contact, one ledger entry, one refund, one
/// range of ticket numbers; and keeps what was given up (dead-letters). Run as many of each as you like.
#[derive(Debug, clap::Parser)]
#[command(name = "counterfoil-consumers", version)]
pub struct Options {
    /// Which consumer to run; dead-letters moves what the others gave up from the broker into the database, where on-call looks.
    #[arg(value_parser = ["email", "crm", "ledger", "refunds", "tickets", "dead-letters"])]
    consumer: String,
    /// PostgreSQL, as postgres://user:password@host:port/database. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// RabbitMQ, as amqp://user:password@host:port/vhost (the vhost / is written %2f). Also _FILE.
    #[arg(long, env = "COUNTERFOIL_AMQP_URL", hide_env_values = true)]
    amqp_url: Option<String>,
    /// The retry ladder that counterfoil-migrate has brought: delays, shortest first. Attempts are one more.
    #[arg(long, env = "COUNTERFOIL_RETRY_RUNGS", default_value = "5s,15s,1m,4m,15m,1h")]
    retry_rungs: String,
    /// Events handled at once (email, crm, refunds): each waits for the other side, so a few in parallel hide its latency, and
    /// few enough that a slow server is not flooded. Ledger and tickets take whole batches, one after the other.
    #[arg(long, env = "COUNTERFOIL_CONCURRENCY", default_value = "8")]
    concurrency: String,
    /// Messages taken from the broker ahead of their ack. Default: the concurrency for email and crm, since more would
    /// only wait here and lose a delivery count at each restart; 400 for ledger and tickets: half of it is a batch, while
    /// the other half arrives.
    #[arg(long, env = "COUNTERFOIL_PREFETCH")]
    prefetch: Option<String>,
    /// email: the mail server, as smtp://host:port (plain), smtp://host:port?tls=required (STARTTLS, also the default when
    /// the URL has a password; ?tls=none turns it off), smtps://host:port (TLS); user and password in the URL,
    /// percent-encoded. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_SMTP_URL", hide_env_values = true)]
    smtp_url: Option<String>,
    /// email: the sender, as `address` or `Name <address>`.
    #[arg(long, env = "COUNTERFOIL_MAIL_FROM")]
    mail_from: Option<String>,
    /// crm: webhook (JSON to COUNTERFOIL_CRM_URL, upserted by external_id) or hubspot (contact batch upsert by e-mail).
    #[arg(long, env = "COUNTERFOIL_CRM_KIND", default_value = "webhook")]
    crm_kind: String,
    /// crm: where contacts go; for hubspot the API's base.
    #[arg(long, env = "COUNTERFOIL_CRM_URL")]
    crm_url: Option<String>,
    /// crm: bearer token. Required for hubspot. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_CRM_TOKEN", hide_env_values = true)]
    crm_token: Option<String>,
    /// refunds: a second payment of a paid order: `refund`, once both payments were read from their provider and found captured,
    /// distinct and of this order; or `hold`, until a person decides.
    #[arg(long, env = "COUNTERFOIL_POLICY_EXTRA", default_value = "refund")]
    policy_extra: String,
    /// refunds: a payment of an order that was cancelled or has expired: refund or hold.
    #[arg(long, env = "COUNTERFOIL_POLICY_LATE", default_value = "hold")]
    policy_late: String,
    /// refunds: a payment of another amount or currency than its order's: refund or hold. Hold, where payments are captured in
    /// parts: the first part would go back.
    #[arg(long, env = "COUNTERFOIL_POLICY_MISMATCH", default_value = "hold")]
    policy_mismatch: String,
    /// refunds: a payment of an order whose tickets had been given back and sold to others when it came: refund or hold.
    #[arg(long, env = "COUNTERFOIL_POLICY_SOLD_OUT", default_value = "refund")]
    policy_sold_out: String,
    #[command(flatten)]
    apis: ApiOptions,
    #[command(flatten)]
    common: Common,
}

/// A consumer with what it needs.
#[derive(Debug)]
pub enum Which {
    /// What the others gave up.
    DeadLetters,
    /// The books.
    Ledger,
    /// Ticket numbers.
    Tickets,
    /// Receipts and ticket numbers by mail.
    Email(Server, Mailbox),
    /// Contacts.
    Crm(CrmSettings),
    /// Money that goes back.
    Refunds(Apis, Policies),
}

/// Proven options.
#[derive(Debug)]
pub struct Settings {
    /// Which consumer.
    pub which: Which,
    /// PostgreSQL.
    pub database_url: String,
    /// RabbitMQ.
    pub amqp_url: String,
    /// The retry ladder.
    pub rungs: Vec<Rung>,
    /// Events handled at once.
    pub concurrency: usize,
    /// Messages ahead of their ack.
    pub prefetch: u16,
}

impl Settings {
    /// Messages that a consumer inside the database takes in one transaction: the other half of the prefetch arrives meanwhile.
    #[must_use]
    pub fn batch(&self) -> u16 {
        self.prefetch.div_ceil(2)
    }
}

impl Configure for Options {
    type Checked = Settings;
    const NAME: &'static str = "counterfoil-consumers";

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, problems: &mut Problems) -> Option<Settings> {
        let database_url = problems.required("COUNTERFOIL_DATABASE_URL", self.database_url.as_ref());
        let amqp_url = problems.required("COUNTERFOIL_AMQP_URL", self.amqp_url.as_ref());
        let rungs = topology::rungs(&self.retry_rungs).map_err(|error| problems.note("COUNTERFOIL_RETRY_RUNGS", error)).ok();
        let concurrency = problems.bounded("COUNTERFOIL_CONCURRENCY", &self.concurrency, 1..=64);
        let default = if matches!(self.consumer.as_str(), "ledger" | "tickets") { 400 } else { concurrency.unwrap_or(8) };
        let prefetch = self.prefetch.as_ref().map_or(Some(default), |prefetch| problems.bounded("COUNTERFOIL_PREFETCH", prefetch, 1..=2000));
        let which = match self.consumer.as_str() {
            "dead-letters" => Some(Which::DeadLetters),
            "ledger" => Some(Which::Ledger),
            "tickets" => Some(Which::Tickets),
            "email" => self.email(problems),
            "refunds" => self.refunds(problems),
            _ => CrmSettings::read(problems, &self.crm_kind, self.crm_url.as_ref(), self.crm_token.as_ref()).map(Which::Crm),
        };
        let (concurrency, prefetch) = (concurrency?, u16::try_from(prefetch?).ok()?);
        Some(Settings { which: which?, database_url: database_url?, amqp_url: amqp_url?, rungs: rungs?, concurrency, prefetch })
    }
}

impl Options {
    fn refunds(&self, problems: &mut Problems) -> Option<Which> {
        let mut policy = |variable: &str, text: &str| match text {
            "refund" => Some(Policy::Refund),
            "hold" => Some(Policy::Hold),
            _ => {
                problems.note(variable, "must be refund or hold");
                None
            }
        };
        let extra = policy("COUNTERFOIL_POLICY_EXTRA", &self.policy_extra);
        let late = policy("COUNTERFOIL_POLICY_LATE", &self.policy_late);
        let mismatch = policy("COUNTERFOIL_POLICY_MISMATCH", &self.policy_mismatch);
        let sold_out = policy("COUNTERFOIL_POLICY_SOLD_OUT", &self.policy_sold_out);
        let apis = self.apis.apis(|variable, why| problems.note(variable, why));
        Some(Which::Refunds(apis, Policies { extra: extra?, late: late?, mismatch: mismatch?, sold_out: sold_out? }))
    }

    fn email(&self, problems: &mut Problems) -> Option<Which> {
        let url = problems.required("COUNTERFOIL_SMTP_URL", self.smtp_url.as_ref());
        let from = problems.required("COUNTERFOIL_MAIL_FROM", self.mail_from.as_ref()).and_then(|from| problems.parsed("COUNTERFOIL_MAIL_FROM", &from));
        let server = url.and_then(|url| Server::read(&url).map_err(|why| problems.note("COUNTERFOIL_SMTP_URL", why)).ok());
        Some(Which::Email(server?, from?))
    }
}
