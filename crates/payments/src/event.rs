//! The events that leave by the outbox: topics, ids derived from the fact, and reading them back.

use serde::Deserialize;
use uuid::Uuid;

use crate::ids::{OrderId, PaymentKey, Provider};
use crate::state::{DisputeStatus, RefundStatus};

pub use crate::data::{Customer, DisputeData, DisputeEventData, Line, OrderData, PaymentData, PaymentEventData, RefundData, RefundEventData};
pub use crate::tickets::{TicketRange, TicketsData, UnavailableData, UnavailableLine};

/// The namespace of all event ids: UUIDv5 of `counterfoil.events` in the DNS namespace of RFC 9562.
const NAMESPACE: Uuid = Uuid::from_u128(0x66fb_c701_a258_5767_b459_d9d3_1916_562c);

/// The id of the event that says `fact`: a UUIDv5, so that one business fact has one id whoever announced it.
///
/// `fact` is spelled `<topic>:<what>`: `order.paid:<order>`, `payment.extra:<provider>:<account>:<payment>`.
#[must_use]
pub fn event_id(fact: &str) -> Uuid {
    Uuid::new_v5(&NAMESPACE, fact.as_bytes())
}

/// What an event is about; its routing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// An order became paid.
    OrderPaid,
    /// The contact of a paid order became known.
    OrderContactKnown,
    /// A second payment was captured for a paid order.
    PaymentExtra,
    /// A captured payment does not fit its order.
    PaymentHeld,
    /// Money of an order goes back, or went back.
    OrderRefunded,
    /// A customer objects at their bank, or that is decided.
    OrderDisputed,
    /// A refund is to be sent to its provider.
    RefundRequested,
    /// A refund did not work, or came home again.
    RefundFailed,
    /// An order's ticket numbers were given out, or are valid again.
    TicketsIssued,
    /// An order's tickets are void: its money went back.
    TicketsVoided,
    /// An order was paid, and its tickets had been sold to others by then.
    TicketsUnavailable,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 11] = [
        Self::OrderPaid,
        Self::OrderContactKnown,
        Self::PaymentExtra,
        Self::PaymentHeld,
        Self::OrderRefunded,
        Self::OrderDisputed,
        Self::RefundRequested,
        Self::RefundFailed,
        Self::TicketsIssued,
        Self::TicketsVoided,
        Self::TicketsUnavailable,
    ];

    /// The name in messages and bindings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OrderPaid => "order.paid",
            Self::OrderContactKnown => "order.contact_known",
            Self::PaymentExtra => "payment.extra",
            Self::PaymentHeld => "payment.held",
            Self::OrderRefunded => "order.refunded",
            Self::OrderDisputed => "order.disputed",
            Self::RefundRequested => "refund.requested",
            Self::RefundFailed => "refund.failed",
            Self::TicketsIssued => "tickets.issued",
            Self::TicketsVoided => "tickets.voided",
            Self::TicketsUnavailable => "tickets.unavailable",
        }
    }
}

/// `order.paid:<order>`.
#[must_use]
pub fn order_paid(order: OrderId) -> Uuid {
    event_id(&format!("order.paid:{order}"))
}

/// `order.contact_known:<order>`.
#[must_use]
pub fn order_contact_known(order: OrderId) -> Uuid {
    event_id(&format!("order.contact_known:{order}"))
}

/// `payment.extra:<provider>:<account>:<payment>`.
#[must_use]
pub fn payment_extra(payment: &PaymentKey) -> Uuid {
    event_id(&format!("payment.extra:{payment}"))
}

/// `payment.held:<provider>:<account>:<payment>:<reason>`.
#[must_use]
pub fn payment_held(payment: &PaymentKey, reason: &str) -> Uuid {
    event_id(&format!("payment.held:{payment}:{reason}"))
}

/// `order.refunded:<provider>:<refund>:<state>`.
#[must_use]
pub fn order_refunded(provider: Provider, provider_refund_id: &str, status: RefundStatus) -> Uuid {
    event_id(&format!("order.refunded:{provider}:{provider_refund_id}:{}", status.name()))
}

/// `order.disputed:<provider>:<dispute>:<state>`.
#[must_use]
pub fn order_disputed(provider: Provider, dispute_id: &str, status: DisputeStatus) -> Uuid {
    event_id(&format!("order.disputed:{provider}:{dispute_id}:{}", status.name()))
}

/// `refund.requested:<our refund id>`.
#[must_use]
pub fn refund_requested(refund: Uuid) -> Uuid {
    event_id(&format!("refund.requested:{refund}"))
}

/// `refund.failed:<our refund id>` of one that its provider never took on, and `refund.failed:<our refund id>:<their id>` of
/// one that came home again: one refund may do both, one after the other.
#[must_use]
pub fn refund_failed(refund: Uuid, provider_refund_id: Option<&str>) -> Uuid {
    match provider_refund_id {
        None => event_id(&format!("refund.failed:{refund}")),
        Some(theirs) => event_id(&format!("refund.failed:{refund}:{theirs}")),
    }
}

/// `tickets.issued:<order>`.
#[must_use]
pub fn tickets_issued(order: OrderId) -> Uuid {
    event_id(&format!("tickets.issued:{order}"))
}

/// `tickets.issued:<order>:<why>`: the same numbers once more, since their contact became known (`contact`), or since they are
/// valid again (the order's version).
#[must_use]
pub fn tickets_issued_again(order: OrderId, why: &str) -> Uuid {
    event_id(&format!("tickets.issued:{order}:{why}"))
}

/// `tickets.voided:<order>:<version>`.
#[must_use]
pub fn tickets_voided(order: OrderId, version: i64) -> Uuid {
    event_id(&format!("tickets.voided:{order}:{version}"))
}

/// `tickets.unavailable:<order>`.
#[must_use]
pub fn tickets_unavailable(order: OrderId) -> Uuid {
    event_id(&format!("tickets.unavailable:{order}"))
}

/// The id of our row for a refund that somebody else asked for, or of the one automatic refund of a payment: derived, so
/// that it cannot be made twice. `what` is `<provider>:<account>:<refund id>`, or the automatic refund's key.
#[must_use]
pub fn derived_refund(what: &str) -> Uuid {
    event_id(&format!("refund:{what}"))
}

/// A whole event as consumers read it: the CloudEvents envelope and its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The derived id.
    pub id: Uuid,
    /// The order it is about.
    pub order_id: OrderId,
    /// When the fact was recorded, RFC 3339 in UTC.
    pub time: String,
    /// What it says.
    pub body: Body,
}

/// What an event says, by topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// `order.paid`
    OrderPaid(OrderData),
    /// `order.contact_known`
    OrderContactKnown(OrderData),
    /// `payment.extra`
    PaymentExtra(PaymentEventData),
    /// `payment.held`
    PaymentHeld(PaymentEventData),
    /// `order.refunded`
    OrderRefunded(RefundEventData),
    /// `order.disputed`
    OrderDisputed(DisputeEventData),
    /// `refund.requested`
    RefundRequested(RefundEventData),
    /// `refund.failed`
    RefundFailed(RefundEventData),
    /// `tickets.issued`
    TicketsIssued(TicketsData),
    /// `tickets.voided`
    TicketsVoided(TicketsData),
    /// `tickets.unavailable`
    TicketsUnavailable(UnavailableData),
}

/// Why a message is not an event of ours.
#[derive(Debug, thiserror::Error)]
pub enum NotAnEvent {
    /// Not JSON, or fields are missing.
    #[error("not a CloudEvent of ours: {0}")]
    Json(#[from] serde_json::Error),
    /// A topic that this release does not know.
    #[error("unknown topic {0:?}")]
    Topic(String),
    /// A later version of the data.
    #[error("unknown schema {0:?}: this release reads version {SCHEMA_VERSION}")]
    Schema(String),
}

/// The version of all `data` shapes, the end of `dataschema`.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Deserialize)]
struct Envelope<'a> {
    specversion: String,
    id: Uuid,
    #[serde(rename = "type")]
    topic: String,
    subject: OrderId,
    time: String,
    #[serde(default)]
    dataschema: Option<String>,
    #[serde(borrow)]
    data: &'a serde_json::value::RawValue,
}

impl Event {
    /// Reads the body of a message: CloudEvents 1.0 in JSON (structured mode).
    ///
    /// # Errors
    /// When the bytes are not an event that this release knows.
    pub fn read(message: &[u8]) -> Result<Self, NotAnEvent> {
        let envelope: Envelope<'_> = serde_json::from_slice(message)?;
        let schema = envelope.dataschema.unwrap_or_default();
        if envelope.specversion != "1.0" || !schema.ends_with(&format!("/{SCHEMA_VERSION}")) {
            return Err(NotAnEvent::Schema(schema.chars().take(100).collect()));
        }
        let data = envelope.data.get();
        let topic = Topic::ALL.into_iter().find(|topic| topic.name() == envelope.topic);
        let body = match topic.ok_or_else(|| NotAnEvent::Topic(envelope.topic.chars().take(100).collect()))? {
            Topic::OrderPaid => Body::OrderPaid(serde_json::from_str(data)?),
            Topic::OrderContactKnown => Body::OrderContactKnown(serde_json::from_str(data)?),
            Topic::PaymentExtra => Body::PaymentExtra(serde_json::from_str(data)?),
            Topic::PaymentHeld => Body::PaymentHeld(serde_json::from_str(data)?),
            Topic::OrderRefunded => Body::OrderRefunded(serde_json::from_str(data)?),
            Topic::OrderDisputed => Body::OrderDisputed(serde_json::from_str(data)?),
            Topic::RefundRequested => Body::RefundRequested(serde_json::from_str(data)?),
            Topic::RefundFailed => Body::RefundFailed(serde_json::from_str(data)?),
            Topic::TicketsIssued => Body::TicketsIssued(serde_json::from_str(data)?),
            Topic::TicketsVoided => Body::TicketsVoided(serde_json::from_str(data)?),
            Topic::TicketsUnavailable => Body::TicketsUnavailable(serde_json::from_str(data)?),
        };
        Ok(Self { id: envelope.id, order_id: envelope.subject, time: envelope.time, body })
    }

    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> Topic {
        match self.body {
            Body::OrderPaid(_) => Topic::OrderPaid,
            Body::OrderContactKnown(_) => Topic::OrderContactKnown,
            Body::PaymentExtra(_) => Topic::PaymentExtra,
            Body::PaymentHeld(_) => Topic::PaymentHeld,
            Body::OrderRefunded(_) => Topic::OrderRefunded,
            Body::OrderDisputed(_) => Topic::OrderDisputed,
            Body::RefundRequested(_) => Topic::RefundRequested,
            Body::RefundFailed(_) => Topic::RefundFailed,
            Body::TicketsIssued(_) => Topic::TicketsIssued,
            Body::TicketsVoided(_) => Topic::TicketsVoided,
            Body::TicketsUnavailable(_) => Topic::TicketsUnavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These ids are in databases and queues: a change here would let every fact happen once more.
    #[test]
    fn event_ids_are_pinned() {
        let order = OrderId("0190a3c4-0000-7000-8000-000000000001".parse().unwrap());
        let payment = PaymentKey { provider: Provider::Stripe, account: String::new(), payment_id: "pi_1".into() };
        let ids = [
            order_paid(order),
            order_contact_known(order),
            payment_extra(&payment),
            payment_held(&payment, "amount_differs"),
            order_refunded(Provider::Stripe, "re_1", RefundStatus::Succeeded),
            order_disputed(Provider::Stripe, "dp_1", DisputeStatus::Lost),
            refund_requested(order.0),
            refund_failed(order.0, None),
            refund_failed(order.0, Some("re_1")),
            derived_refund("stripe::re_1"),
            tickets_issued(order),
            tickets_issued_again(order, "contact"),
            tickets_voided(order, 4),
            tickets_unavailable(order),
        ];
        assert_eq!(ids.map(|id| id.to_string()), PINNED);
    }

    const PINNED: [&str; 14] = [
        "15a360fe-3f8d-5cdc-a0a8-48b73ba32b62",
        "d621a972-8603-5c3c-8f7f-90c21c9c55dc",
        "ab05dc77-0bd9-5602-83d0-3244f7342312",
        "fd233788-5543-5b7c-a0c2-5860e85c8bda",
        "191478d9-7ab5-573b-979c-ad84b7a8fe17",
        "160bf0eb-f28e-59c0-99b8-a807eac51e74",
        "d6de6c90-3778-5b23-97b8-d2fa0ce3c44a",
        "156d3a96-00bb-5f7d-8aa3-3a357eb76dbf",
        "4d92d301-7f0c-544d-b44d-99833e3c2434",
        "651691a5-2f50-564d-aa65-8ca4a04645bc",
        "32b5a9eb-5de7-521e-b801-9ba0087460db",
        "95bd796c-3bdb-5c5d-85d6-e056dd73a2e3",
        "213593cb-0da1-5798-9a67-173510a14f9a",
        "7318ff84-1a64-5428-8f5b-9c05279d163a",
    ];
}
