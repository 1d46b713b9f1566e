//! Asking a provider itself: what became of a payment, what went back of it; and sending money back.
//!
//! Every call has a deadline and follows no redirect. A refund carries an idempotency key that the caller derives from the
//! action, the same on every attempt, and our mark, which the provider's own events and lists give back.
//!
//! | answer | means |
//! |---|---|
//! | no connection, TLS, 3xx | an outage: nothing is wrong with the call |
//! | 401, 403 | denied: our key, or this account's; other keys and accounts are not concerned |
//! | 429, 503 | an outage, as long as `Retry-After` asks |
//! | 408, 409, 425 | the same call is running, or was too early: later, under the same key |
//! | other 5xx, no answer in time, an answer that cannot be read | unknown: look, then the same key |
//! | 404 | not there |
//! | other 4xx | refused |

mod razorpay;
mod square;
mod stripe;
mod wire;

use std::time::Duration;

use counterfoil_payments::{Fact, Money, OrderKey, PaymentKey, Provider, RefundStatus};
use url::Url;
use uuid::Uuid;

use crate::secret::Secret;
pub use wire::retry_after;

/// Longest time for one call, from the first byte sent to the last byte read.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Why a call did not lead to an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The provider will not do it, and will not tomorrow.
    #[error("{0}")]
    Refused(String),
    /// The provider knows no such thing.
    #[error("{0}")]
    NotFound(String),
    /// Nothing was done; later, under the same key.
    #[error("{0}")]
    Later(String),
    /// Nobody knows whether it was done.
    #[error("{0}")]
    Unknown(String),
    /// Our key may not do this.
    #[error("{0}")]
    Denied(String),
    /// The provider is away, or asks for a pause.
    #[error("{reason}")]
    Outage {
        /// Why.
        reason: String,
        /// How long it asks us to wait.
        pause: Option<Duration>,
    },
}

/// A refund to be made.
#[derive(Debug, Clone)]
pub struct RefundCall {
    /// Whose money.
    pub payment: PaymentKey,
    /// How much.
    pub money: Money,
    /// The action's key, such as `refund:<id>`.
    pub key: String,
    /// Our mark: the refund's id here.
    pub mark: Uuid,
}

/// What a provider made of a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundAnswer {
    /// Its id there.
    pub refund_id: String,
    /// Where it stands.
    pub status: RefundStatus,
}

/// A payment as its provider tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentState {
    /// The same as a webhook would say.
    pub fact: Fact,
    /// How much of it went back, in minor units.
    pub refunded_minor: i64,
}

impl PaymentState {
    /// Whether the money was captured.
    #[must_use]
    pub fn captured(&self) -> bool {
        matches!(self.fact, Fact::Payment { news: counterfoil_payments::News::Captured, .. })
    }

    /// How far the payment got; 0 for a state that is not acted on.
    fn rank(&self) -> i16 {
        match &self.fact {
            Fact::Payment { news, .. } => news.payment_status().rank(),
            Fact::Unsupported { .. }
            | Fact::Refund { .. }
            | Fact::RefundsReported { .. }
            | Fact::Dispute { .. }
            | Fact::Ignored { .. }
            | Fact::Unreadable { .. } => 0,
        }
    }

    /// The order that the payment names.
    #[must_use]
    pub fn order(&self) -> Option<&OrderKey> {
        self.fact.order()
    }
}

/// A provider's API, with our credentials.
#[derive(Debug, Clone)]
pub struct Api {
    provider: Provider,
    wire: wire::Wire,
}

/// Where a provider's API is when nothing else is configured.
fn usual_base(provider: Provider) -> Option<&'static str> {
    match provider {
        Provider::Stripe => Some("https://api.stripe.com"),
        Provider::Razorpay => Some("https://api.razorpay.com"),
        Provider::Square => Some("https://connect.squareup.com"),
        Provider::Standard => None,
    }
}

impl Api {
    /// With this key; `base` replaces the provider's usual address. `None` for a provider without an API of its own.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(provider: Provider, key: Secret, base: Option<Url>) -> Result<Option<Self>, reqwest::Error> {
        let Some(base) = base.or_else(|| usual_base(provider).and_then(|base| base.parse().ok())) else { return Ok(None) };
        Ok(Some(Self { provider, wire: wire::Wire::new(provider, base, key)? }))
    }

    /// Whose.
    #[must_use]
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// Reads a payment.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn payment(&self, payment: &PaymentKey) -> Result<PaymentState, CallError> {
        match self.provider {
            Provider::Stripe => stripe::payment(&self.wire, payment).await,
            Provider::Razorpay => razorpay::payment(&self.wire, payment).await,
            Provider::Square => square::payment(&self.wire, payment).await,
            Provider::Standard => Err(CallError::Refused("this sender has no API".into())),
        }
    }

    /// Reads a checkout session, with the payment that came of it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn session(&self, session: &PaymentKey) -> Result<PaymentState, CallError> {
        match self.provider {
            Provider::Stripe => stripe::session(&self.wire, session).await,
            Provider::Razorpay => razorpay::order(&self.wire, session).await,
            Provider::Square => square::session(&self.wire, session).await,
            Provider::Standard => Err(CallError::Refused("this sender has no API".into())),
        }
    }

    /// Lists the refunds of a payment, as facts.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn refunds_of(&self, payment: &PaymentKey) -> Result<Vec<Fact>, CallError> {
        match self.provider {
            Provider::Stripe => stripe::refunds_of(&self.wire, payment).await,
            Provider::Razorpay => razorpay::refunds_of(&self.wire, payment).await,
            Provider::Square => square::refunds_of(&self.wire, payment).await,
            Provider::Standard => Err(CallError::Refused("this sender has no API".into())),
        }
    }

    /// Sends money back.
    ///
    /// # Errors
    /// When it was not done, or nobody knows.
    pub async fn refund(&self, call: &RefundCall) -> Result<RefundAnswer, CallError> {
        match self.provider {
            Provider::Stripe => stripe::refund(&self.wire, call).await,
            Provider::Razorpay => razorpay::refund(&self.wire, call).await,
            Provider::Square => square::refund(&self.wire, call).await,
            Provider::Standard => Err(CallError::Refused("this sender has no API".into())),
        }
    }
}

/// The answer that a refund's fact amounts to.
fn answer_of(fact: &Fact) -> Result<RefundAnswer, CallError> {
    match fact {
        Fact::Refund { refund_id, status, .. } => Ok(RefundAnswer { refund_id: refund_id.clone(), status: *status }),
        Fact::Payment { .. }
        | Fact::Unsupported { .. }
        | Fact::RefundsReported { .. }
        | Fact::Dispute { .. }
        | Fact::Ignored { .. }
        | Fact::Unreadable { .. } => Err(CallError::Unknown("the answer is no refund".into())),
    }
}
