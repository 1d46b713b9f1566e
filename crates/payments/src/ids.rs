//! Names of things: providers, orders, payments.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A payment provider whose webhooks Counterfoil reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Stripe.
    Stripe,
    /// Razorpay.
    Razorpay,
    /// Square.
    Square,
    /// Anybody who signs by Standard Webhooks 1.0.0 and sends the body of interface.md.
    Standard,
}

impl Provider {
    /// Every provider.
    pub const ALL: [Self; 4] = [Self::Stripe, Self::Razorpay, Self::Square, Self::Standard];

    /// The name in paths, tables and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::Razorpay => "razorpay",
            Self::Square => "square",
            Self::Standard => "standard",
        }
    }
}

/// A name that no provider of ours has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no provider is called {0:?}")]
pub struct UnknownProvider(pub String);

impl FromStr for Provider {
    type Err = UnknownProvider;
    fn from_str(name: &str) -> Result<Self, UnknownProvider> {
        Self::ALL.into_iter().find(|provider| provider.name() == name).ok_or_else(|| UnknownProvider(name.chars().take(32).collect()))
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The id that we gave an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OrderId(pub Uuid);

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The shop's own name for an order: 1 to 200 characters, no control characters, and never the shape of a UUID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reference(String);

/// Why a text is no reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReference {
    /// Nothing, or more than fits.
    #[error("must have 1 to {} characters", Reference::LENGTH_MAX)]
    Length,
    /// A UUID names an order by its id, so a reference of that shape would be ambiguous.
    #[error("must not have the shape of a UUID: that shape is reserved for order ids")]
    UuidShaped,
    /// Control characters, or blanks at an end.
    #[error("must not hold control characters, nor begin or end with a blank")]
    Characters,
}

impl Reference {
    /// Longest reference in characters: Stripe's `client_reference_id` holds 200, the others less.
    pub const LENGTH_MAX: usize = 200;

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Reference {
    type Err = BadReference;
    fn from_str(text: &str) -> Result<Self, BadReference> {
        if text.is_empty() || text.chars().count() > Self::LENGTH_MAX {
            return Err(BadReference::Length);
        }
        if Uuid::try_parse(text).is_ok() {
            return Err(BadReference::UuidShaped);
        }
        if text.trim() != text || text.chars().any(char::is_control) {
            return Err(BadReference::Characters);
        }
        Ok(Self(text.to_owned()))
    }
}

/// How a provider's event names an order: a value that parses as a UUID is an id, anything else a reference.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderKey {
    /// By our id.
    Id(OrderId),
    /// By the shop's reference.
    Reference(Reference),
}

impl OrderKey {
    /// Reads what an event says; `None` for a text that can name no order of ours.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        match Uuid::try_parse(text) {
            Ok(id) => Some(Self::Id(OrderId(id))),
            Err(_) => text.parse().ok().map(Self::Reference),
        }
    }

    /// What a waiting event waits for: `order:<id or reference>`.
    #[must_use]
    pub fn waits_for(&self) -> String {
        match self {
            Self::Id(id) => format!("order:{id}"),
            Self::Reference(reference) => format!("order:{}", reference.as_str()),
        }
    }
}

/// A payment as its provider names it. `account` is empty where the provider's ids need none to be unique.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PaymentKey {
    /// Who took the money.
    pub provider: Provider,
    /// The connected account, or empty.
    pub account: String,
    /// The provider's own id.
    pub payment_id: String,
}

impl PaymentKey {
    /// What a refund or dispute waits for that came before its payment's capture: `payment:<provider>:<account>:<id>`.
    #[must_use]
    pub fn waits_for(&self) -> String {
        format!("payment:{self}")
    }
}

impl fmt::Display for PaymentKey {
    /// `stripe:acct_1:pi_1`, as in the names that event ids are derived from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.provider, self.account, self.payment_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_never_has_the_shape_of_a_uuid() {
        for text in ["67e55044-10b1-426f-9247-bb680e5fe0c8", "67e5504410b1426f9247bb680e5fe0c8", "{67e55044-10b1-426f-9247-bb680e5fe0c8}"] {
            assert_eq!(text.parse::<Reference>(), Err(BadReference::UuidShaped));
            assert!(matches!(OrderKey::read(text), Some(OrderKey::Id(_))));
        }
        assert!(matches!(OrderKey::read(" A-1042 "), Some(OrderKey::Reference(r)) if r.as_str() == "A-1042"));
        assert_eq!(OrderKey::read("a\0b"), None);
    }
}
