//! One file for each provider: verify a delivery's signature, read its body into a [`Fact`]; in [`api`], ask the provider
//! itself, and send money back.

pub mod api;
mod json;
pub mod options;
mod razorpay;
mod secret;
mod signature;
mod square;
mod standard;
mod stripe;

use counterfoil_payments::{Fact, Provider};
use http::HeaderMap;

pub use options::{ApiOptions, Apis};
pub use razorpay::{Razorpay, verify_return as verify_razorpay_return};
pub use secret::{BadSecret, Secret, secrets};
pub use signature::Rejected;
pub use square::Square;
pub use standard::Standard;
pub use stripe::Stripe;

/// Which events may change orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Real money.
    Live,
    /// The provider's sandbox.
    Test,
}

/// Largest difference between a signed time and our clock, either way, in seconds.
pub const TOLERANCE_SECONDS: i64 = 300;

/// Longest id of an event or payment that is taken at its word, in bytes; the longest documented one has 255.
pub const ID_BYTES_MAX: usize = 255;

/// What the body of an authentic delivery says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The connected account, or empty.
    pub account: String,
    /// What copies of this event share; `sha256:<hex of the body>` when it states no id.
    pub event_id: String,
    /// The provider's own id, where it is not what we dedupe on.
    pub provider_event_id: Option<String>,
    /// The provider's name for what happened.
    pub event_type: String,
    /// When the provider made it, by its own word, in Unix seconds.
    pub made_at: Option<i64>,
    /// The other ids that the body names: of a charge, a session, a refund, a dispute, an order.
    pub ids: Vec<String>,
    /// What it says.
    pub fact: Fact,
}

/// A provider's wire format.
pub trait Adapter: Send + Sync + std::fmt::Debug {
    /// Whose.
    fn provider(&self) -> Provider;

    /// Verifies the signature over the raw bytes; `now` in Unix seconds. Returns the position of the secret that matched.
    ///
    /// # Errors
    /// Why the delivery is not authentic.
    fn verify(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<usize, Rejected>;

    /// Reads an authentic body. Never fails: what cannot be read is a fact, too.
    fn read(&self, headers: &HeaderMap, body: &[u8], mode: Mode) -> Reading;
}
