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
            Self::Payment { payment, .. } | Self::Refund { payment, .. } | Self::RefundsReported { payment, .. } | Self::Dispute { payment, .. } => {
                Some(payment)
            }
            Self::Ignored { .. } | Self::Unreadable { .. } => None,
        }
    }
}
