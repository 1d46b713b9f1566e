//! What a provider's event says, in our own words.

use serde::{Deserialize, Serialize};

use crate::ids::{OrderKey, PaymentKey};
use crate::money::Money;
use crate::state::PaymentStatus;

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
}

impl News {
    /// Every kind of news.
    pub const ALL: [Self; 6] = [Self::Captured, Self::Authorised, Self::Pending, Self::Failed, Self::Cancelled, Self::Expired];

    /// What the payment's row becomes by it.
    #[must_use]
    pub fn payment_status(self) -> PaymentStatus {
        match self {
            Self::Captured => PaymentStatus::Captured,
            Self::Authorised => PaymentStatus::Authorised,
            Self::Pending => PaymentStatus::Pending,
            Self::Failed => PaymentStatus::Failed,
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
        /// How much; always there when captured.
        money: Option<Money>,
        /// Who paid.
        contact: Contact,
        /// Something on-call should see: two references that differ, say.
        remark: Option<String>,
    },
    /// A refund, a dispute or a part payment: stored, acted on by a later release.
    Deferred {
        /// Which payment's money it is about, where the event says so.
        payment: Option<PaymentKey>,
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
