//! A verified, translated delivery, and what became of it.

use counterfoil_payments::{Fact, OrderId, OrderKey, Provider};
use serde::Serialize;
use uuid::Uuid;

/// Providers retry for up to three days, and people replay for longer: what comes after a day is flagged and counted.
pub const LATE_AFTER_SECONDS: i64 = 24 * 60 * 60;

/// One delivery of one webhook event: authentic, translated, not yet stored.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Who sent it.
    pub provider: Provider,
    /// The connected account, or empty.
    pub account: String,
    /// What copies of it share.
    pub event_id: String,
    /// The provider's own id for it, for search.
    pub provider_event_id: Option<String>,
    /// The provider's name for what happened.
    pub event_type: String,
    /// The exact bytes that were signed.
    pub body: Vec<u8>,
    /// Position of the secret that matched; 0 is the newest, -1 when nothing was signed (we asked the provider ourselves).
    pub secret_position: i32,
    /// When the provider made the event, by its own word, in Unix seconds.
    pub made_at: Option<i64>,
    /// Whether it came more than [`LATE_AFTER_SECONDS`] after that.
    pub late: bool,
    /// The other ids that its body names, for search.
    pub ids: Vec<String>,
    /// What it says.
    pub fact: Fact,
    /// Trace context, to travel with the effects.
    pub traceparent: Option<String>,
}

impl Delivery {
    /// What we read from a provider ourselves, as if it had been sent: its event id is derived from the fact, so that reading
    /// the same again is a copy.
    #[must_use]
    pub fn of_read(provider: Provider, account: &str, fact: Fact) -> Self {
        let (what, at) = match &fact {
            Fact::Payment { news, payment, money, .. } => (format!("{payment}:{}", news.payment_status().name()), money.map_or(0, |money| money.amount_minor)),
            Fact::Refund { payment, refund_id, status, money, .. } => (format!("{payment}:{refund_id}:{}", status.name()), money.amount_minor),
            Fact::Dispute { payment, dispute_id, status, money, .. } => (format!("{payment}:{dispute_id}:{}", status.name()), money.amount_minor),
            Fact::RefundsReported { payment, total } => (payment.to_string(), total.amount_minor),
            Fact::Unsupported { payment, money, .. } => (format!("{payment}:unsupported"), money.map_or(0, |money| money.amount_minor)),
            Fact::Ignored { .. } | Fact::Unreadable { .. } => ("nothing".to_owned(), 0),
        };
        Self {
            provider,
            account: account.to_owned(),
            event_id: format!("read:{what}:{at}"),
            provider_event_id: None,
            event_type: "counterfoil.read".into(),
            body: serde_json::to_vec(&fact).unwrap_or_default(),
            secret_position: -1,
            made_at: None,
            late: false,
            ids: Vec::new(),
            fact,
            traceparent: None,
        }
    }

    /// Of this order, where the provider's object names none: it was read because the order knows its session or payment.
    #[must_use]
    pub fn about(mut self, order_id: Uuid) -> Self {
        if let Fact::Payment { order: order @ None, .. } = &mut self.fact {
            *order = Some(OrderKey::Id(OrderId(order_id)));
        }
        self
    }
}

/// What is stored about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It changed a payment, and perhaps its order.
    Applied,
    /// We knew as much or more already.
    Superseded,
    /// Nothing we act on.
    Ignored,
    /// Its order does not exist yet.
    Waiting,
    /// Money that does not fit; on-call decides.
    Held,
    /// A second payment of a paid order.
    Extra,
    /// Stored by an earlier release that did not act on it; housekeeping drives it again.
    Deferred,
    /// Authentic, but not what the provider documents.
    Unreadable,
    /// Settling it alone failed; reprocessable.
    Failed,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 9] =
        [Self::Applied, Self::Superseded, Self::Ignored, Self::Waiting, Self::Held, Self::Extra, Self::Deferred, Self::Unreadable, Self::Failed];

    /// The name in tables, answers and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Superseded => "superseded",
            Self::Ignored => "ignored",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Extra => "extra",
            Self::Deferred => "deferred",
            Self::Unreadable => "unreadable",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn read(name: &str) -> Self {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name).expect("a CHECK of the table admits these names only")
    }
}

/// What became of a stored delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// What is stored about its event.
    pub outcome: Outcome,
    /// Whether the event was there before.
    pub duplicate: bool,
    /// Whether its body differs from the one in force.
    pub differs: bool,
    /// Whether the order became paid by it.
    pub paid: Option<Uuid>,
}

/// What [`crate::settle()`] says of one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored, once the transaction commits.
    Settled(Settled),
    /// Somebody else holds its order's row: nothing was stored.
    Locked(Uuid),
    /// No such order: nothing was stored.
    NoOrder(OrderKey),
}

impl Verdict {
    pub(crate) fn stored(outcome: Outcome, duplicate: bool, differs: bool) -> Self {
        Self::Settled(Settled { outcome, duplicate, differs, paid: None })
    }
}
