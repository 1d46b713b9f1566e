//! What the schemes share: HMAC-SHA256 in constant time over several secrets, and the clock's tolerance.

use http::HeaderMap;
use ring::hmac;

use crate::secret::Secret;

/// Why a delivery is not authentic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The header that carries the signature is missing.
    #[error("the signature header is missing")]
    NotSigned,
    /// The header is not of its documented form.
    #[error("the signature header is malformed")]
    Header,
    /// No signature matches any secret.
    #[error("no signature matches")]
    Signature,
    /// The signed time is too far from our clock.
    #[error("the signed time is outside the tolerance")]
    Timestamp,
}

impl Rejected {
    /// A short name for labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotSigned => "not_signed",
            Self::Header => "header",
            Self::Signature => "signature",
            Self::Timestamp => "timestamp",
        }
    }
}

/// A header's text; `None` when it is missing.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Rejected> {
    headers.get(name).map(|value| value.to_str().map_err(|_| Rejected::Header)).transpose()
}

/// HMAC keys made of secrets' text as it stands.
pub(crate) fn keys(secrets: &[Secret]) -> Vec<hmac::Key> {
    secrets.iter().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes())).collect()
}

/// The position of the key under which one of `tags` signs `parts` put together. Each comparison takes constant time.
pub(crate) fn matching(keys: &[hmac::Key], parts: &[&[u8]], tags: &[Vec<u8>]) -> Result<usize, Rejected> {
    let message = parts.concat();
    keys.iter().position(|key| tags.iter().any(|tag| hmac::verify(key, &message, tag).is_ok())).ok_or(Rejected::Signature)
}

/// Refuses a signed time more than `tolerance` seconds away from `now`, either way; exactly as far is accepted.
pub(crate) fn fresh(signed: i64, now: i64, tolerance: i64) -> Result<(), Rejected> {
    match signed.checked_sub(now) {
        Some(difference) if difference.abs() <= tolerance => Ok(()),
        _ => Err(Rejected::Timestamp),
    }
}
