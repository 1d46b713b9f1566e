//! What a provider's event says, in our own words.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{OrderKey, PaymentKey};
use crate::money::Money;
use crate::state::{DisputeStatus, PaymentStatus, RefundStatus};

/// News about one payment that settlement acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// The money was taken.
    Captured,
    /// The money is reserved.
    Authorised,
    /// The payment is under way.
    Pending,
    /// This attempt did not work.
    Failed,
    /// This attempt was called off.
    Cancelled,
    /// This attempt ran out of time.
    Expired,
    /// It did not work, and its provider's table says that the whole order failed with it. The order stays payable.
    FailedFinal,
}

impl News {
    /// Every kind of news.
    pub const ALL: [Self; 7] = [Self::Captured, Self::Authorised, Self::Pending, Self::Failed, Self::Cancelled, Self::Expired, Self::FailedFinal];

    /// What the payment's row becomes by it.
    #[must_use]
    pub fn payment_status(self) -> PaymentStatus {
        match self {
            Self::Captured => PaymentStatus::Captured,
            Self::Authorised => PaymentStatus::Authorised,
            Self::Pending => PaymentStatus::Pending,
            Self::Failed | Self::FailedFinal => PaymentStatus::Failed,
            Self::Cancelled => PaymentStatus::Cancelled,
            Self::Expired => PaymentStatus::Expired,
        }
    }
}

/// Who paid, as far as an event says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// E-mail address.
    pub email: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
}

/// What only some providers tell of a payment. Amounts in minor units of the payment's currency.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PaymentDetails {
    /// The provider's checkout object that it came of (a session, an order, a link), where the event names one: it leads to
    /// the order whose shop told us of that object.
    pub checkout: Option<String>,
    /// What of the captured money is a tip: it pays no part of the order.
    pub tip_minor: i64,
    /// What had been authorised and was not captured: it never moved, though some providers tell of it as a refund.
    pub released_minor: i64,
    /// The amount is the price of a checkout, not what the payment itself says was captured.
    pub by_price: bool,
}

/// One provider event, translated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// News about a payment.
    Payment {
        /// What happened.
        news: News,
        /// Which payment.
        payment: PaymentKey,
        /// Which order, where the event names one.
        order: Option<OrderKey>,
        /// How much, tip included; always there when captured.
        money: Option<Money>,
        /// What else is told of it.
        #[serde(default)]
        details: PaymentDetails,
        /// Who paid.
        contact: Contact,
        /// Something on-call should see: two references that differ, say.
        remark: Option<String>,
    },
    /// News about one refund of a payment, whoever asked for it.
    Refund {
        /// Which payment's money goes back.
        payment: PaymentKey,
        /// The provider's own id for the refund: its identity.
        refund_id: String,
        /// Where it stands.
        status: RefundStatus,
        /// How much of it.
        money: Money,
        /// The id that we gave it, where the provider carries our mark back.
        ours: Option<Uuid>,
        /// Whether its provider may tell of the rest of an authorisation so, which was released and never captured.
        #[serde(default)]
        may_be_release: bool,
    },
    /// Captured money that this release does not settle: a person must know of it.
    Unsupported {
        /// Which payment, as its provider names it.
        payment: PaymentKey,
        /// How much.
        money: Option<Money>,
        /// The order that it names.
        order: Option<OrderKey>,
        /// Why it is not settled.
        reason: String,
    },
    /// A cumulative figure that names no single refund (Stripe's `charge.refunded`): it only prompts a look-up.
    RefundsReported {
        /// Of which payment.
        payment: PaymentKey,
        /// How much of it went back so far.
        total: Money,
    },
    /// News about one dispute of a payment.
    Dispute {
        /// Which payment.
        payment: PaymentKey,
        /// The provider's own id for the dispute: its identity.
        dispute_id: String,
        /// Where it stands.
        status: DisputeStatus,
        /// How much is disputed.
        money: Money,
        /// The provider's word for why.
        reason: Option<String>,
    },
    /// Authentic, but nothing to act on.
    Ignored {
        /// Why, in words.
        reason: String,
    },
    /// Authentic, but not what the provider documents.
    Unreadable {
        /// What could not be read, without customer data.
        reason: String,
    },
}

impl Fact {
    /// The payment that it is about.
    #[must_use]
    pub fn payment(&self) -> Option<&PaymentKey> {
        match self {
            Self::Payment { payment, .. }
            | Self::Unsupported { payment, .. }
            | Self::Refund { payment, .. }
            | Self::RefundsReported { payment, .. }
            | Self::Dispute { payment, .. } => Some(payment),
            Self::Ignored { .. } | Self::Unreadable { .. } => None,
        }
    }

    /// The order that it names, of a payment that counts for one.
    #[must_use]
    pub fn order(&self) -> Option<&OrderKey> {
        match self {
            Self::Payment { order, .. } => order.as_ref(),
            Self::Unsupported { .. }
            | Self::Refund { .. }
            | Self::RefundsReported { .. }
            | Self::Dispute { .. }
            | Self::Ignored { .. }
            | Self::Unreadable { .. } => None,
        }
    }

    /// Captured money that it reports.
    #[must_use]
    pub fn captured(&self) -> Option<Money> {
        match self {
            Self::Payment { news: News::Captured, money, .. } | Self::Unsupported { money, .. } => *money,
            Self::Payment { .. }
            | Self::Refund { .. }
            | Self::RefundsReported { .. }
            | Self::Dispute { .. }
            | Self::Ignored { .. }
            | Self::Unreadable { .. } => None,
        }
    }

    /// A fingerprint of what it says about money, states and names: copies of one event that agree in it differ in spelling
    /// alone. Who paid is not part of it.
    #[must_use]
    pub fn meaning(&self) -> Uuid {
        let mut bare = self.clone();
        match &mut bare {
            Self::Payment { contact, remark, .. } => (*contact, *remark) = (Contact::default(), None),
            Self::Unreadable { reason } => reason.clear(), // it names a place in the text
            Self::Unsupported { .. } | Self::Refund { .. } | Self::RefundsReported { .. } | Self::Dispute { .. } | Self::Ignored { .. } => {}
        }
        Uuid::new_v5(&Uuid::NAMESPACE_OID, &serde_json::to_vec(&bare).unwrap_or_default())
    }
}
