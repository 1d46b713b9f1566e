//! Where a payment's money stands: what an event says about it, and what the books are posted from.

use serde::{Deserialize, Serialize};

use crate::money::Currency;

/// Where one payment's money stands, in minor units of its currency. All figures are sums since the payment began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Captured, the tip included.
    pub captured_minor: i64,
    /// What of it pays its order.
    pub settled_minor: i64,
    /// What of it is a tip.
    pub tip_minor: i64,
    /// Refunds that the provider has taken on.
    pub refund_pending_minor: i64,
    /// Refunds that succeeded.
    pub refunded_minor: i64,
    /// Taken by banks until they decide.
    pub disputed_minor: i64,
    /// Taken by banks for good.
    pub charged_back_minor: i64,
}

/// How an event moves a payment's money: the books post the difference of the two positions, so that the sum of all events
/// is the last position, whatever the order in which they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// The payment's currency.
    pub currency: Currency,
    /// Where the money stood.
    pub before: Position,
    /// Where it stands.
    pub after: Position,
}

impl Books {
    /// Whether nothing moves.
    #[must_use]
    pub fn unchanged(&self) -> bool {
        self.before == self.after
    }
}
