//! The fields of events' `data`, topic by topic; docs/events.md in code.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::books::Books;
use crate::ids::{OrderId, PaymentKey, Provider};
use crate::money::{Currency, Money};
use crate::state::{DisputeStatus, RefundStatus};

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
    /// The draw that it buys tickets of; then `quantity` is their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Uuid>,
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
    /// What of it pays the order.
    pub settled_minor: i64,
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
    /// How the money moves. Absent in `order.contact_known`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub books: Option<Books>,
}

/// `data` of `payment.extra` and `payment.held`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentEventData {
    /// The order that the payment names.
    pub order_id: OrderId,
    /// The order's version after this event.
    pub version: i64,
    /// Why the money does not fit: `already_paid`, `amount_differs`, `currency_differs`, `claimed_by_other_order`, `order_cancelled`,
    /// `order_expired`, `captured_more`, `extra_captured_more`, `captured_less`.
    pub reason: String,
    /// The payment.
    pub payment: PaymentData,
    /// How the money moves. Absent where a second order claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub books: Option<Books>,
    /// The order's status after this event. Absent in events of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_status: Option<String>,
    /// The shop's reference. Absent in events of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Who bought. Absent in events of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<Customer>,
}

/// A refund inside an event's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundData {
    /// Our id.
    pub id: Uuid,
    /// The provider's id, once it is known.
    pub provider_refund_id: Option<String>,
    /// Who asked for it: `api`, `provider`, or a policy: `extra`, `late`, `mismatch`, `sold_out`.
    pub origin: String,
    /// Where it stands after this event.
    pub status: RefundStatus,
    /// Where it stood before.
    pub before: RefundStatus,
    /// Minor units that go back.
    pub amount_minor: i64,
    /// Their currency.
    pub currency: Currency,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
}

/// `data` of `refund.requested`, `order.refunded` and `refund.failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundEventData {
    /// The order.
    pub order_id: OrderId,
    /// Its version after this event.
    pub version: i64,
    /// Its status after this event.
    pub order_status: String,
    /// The refund.
    pub refund: RefundData,
    /// Whose money.
    pub payment: PaymentKey,
    /// How the money moves. Absent in `refund.requested`, and where the refund is in another currency than its payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub books: Option<Books>,
    /// The shop's reference. Absent in events of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Who bought. Absent in events of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<Customer>,
}

/// A dispute inside an event's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisputeData {
    /// The provider's id.
    pub dispute_id: String,
    /// Where it stands after this event.
    pub status: DisputeStatus,
    /// Where it stood before; null when this is the first that was heard of it.
    pub before: Option<DisputeStatus>,
    /// Minor units disputed.
    pub amount_minor: i64,
    /// Their currency.
    pub currency: Currency,
    /// The provider's word for why.
    pub reason: Option<String>,
}

/// `data` of `order.disputed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisputeEventData {
    /// The order.
    pub order_id: OrderId,
    /// Its version after this event.
    pub version: i64,
    /// The dispute.
    pub dispute: DisputeData,
    /// Whose money.
    pub payment: PaymentKey,
    /// How the money moves. Absent where the dispute is in another currency than its payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub books: Option<Books>,
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
