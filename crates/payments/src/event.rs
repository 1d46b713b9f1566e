//! The events that leave by the outbox: topics, ids derived from the fact, and the fields of `data`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{OrderId, PaymentKey, Provider};
use crate::money::{Currency, Money};
use crate::state::Disposition;

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
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 4] = [Self::OrderPaid, Self::OrderContactKnown, Self::PaymentExtra, Self::PaymentHeld];

    /// The name in messages and bindings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OrderPaid => "order.paid",
            Self::OrderContactKnown => "order.contact_known",
            Self::PaymentExtra => "payment.extra",
            Self::PaymentHeld => "payment.held",
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

/// One thing that was bought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What it is.
    pub description: String,
    /// How many; 1 where the shop does not say.
    #[serde(default = "one")]
    pub quantity: i64,
    /// What the line costs in all, in minor units of the order's currency.
    pub amount_minor: i64,
}

fn one() -> i64 {
    1
}

/// The customer, as the order knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Customer {
    /// E-mail address, where known.
    pub email: Option<String>,
    /// Name, where known.
    pub name: Option<String>,
    /// Phone number, where known.
    pub phone: Option<String>,
}

/// A payment inside an event's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentData {
    /// Who took the money.
    pub provider: Provider,
    /// The connected account, or empty.
    pub account: String,
    /// The provider's id.
    pub payment_id: String,
    /// Minor units captured.
    pub amount_minor: i64,
    /// The currency captured.
    pub currency: Currency,
    /// What had become of this money before this event: tells the books what is posted already.
    pub before: Disposition,
}

/// `data` of `order.paid` and `order.contact_known`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderData {
    /// The order's id.
    pub order_id: OrderId,
    /// The shop's reference.
    pub reference: String,
    /// The order's version after this event.
    pub version: i64,
    /// What was to be paid, in minor units.
    pub amount_minor: i64,
    /// Its currency.
    pub currency: Currency,
    /// Who bought.
    pub customer: Customer,
    /// What was bought; may be empty.
    pub lines: Vec<Line>,
    /// When it became paid, RFC 3339 in UTC.
    pub paid_at: String,
    /// What paid it.
    pub payment: PaymentData,
}

/// `data` of `payment.extra` and `payment.held`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentEventData {
    /// The order that the payment names.
    pub order_id: OrderId,
    /// The order's version after this event.
    pub version: i64,
    /// Why the money does not fit: `already_paid`, `amount_differs`, `currency_differs`, `claimed_by_other_order`, `order_cancelled`, `order_expired`.
    pub reason: String,
    /// The payment.
    pub payment: PaymentData,
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
        }
    }
}

impl OrderData {
    /// The order's amount.
    #[must_use]
    pub fn money(&self) -> Money {
        Money::new(self.amount_minor, self.currency)
    }
}

impl PaymentData {
    /// The payment's key.
    #[must_use]
    pub fn key(&self) -> PaymentKey {
        PaymentKey { provider: self.provider, account: self.account.clone(), payment_id: self.payment_id.clone() }
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
        let ids = [order_paid(order), order_contact_known(order), payment_extra(&payment), payment_held(&payment, "amount_differs")];
        assert_eq!(ids.map(|id| id.to_string()), PINNED);
    }

    const PINNED: [&str; 4] = [
        "15a360fe-3f8d-5cdc-a0a8-48b73ba32b62",
        "d621a972-8603-5c3c-8f7f-90c21c9c55dc",
        "ab05dc77-0bd9-5602-83d0-3244f7342312",
        "fd233788-5543-5b7c-a0c2-5860e85c8bda",
    ];
}
