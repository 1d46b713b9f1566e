//! Reads the few fields we need out of somebody's JSON, never a whole value.
//!
//! A missing, null or oddly typed field is absent; the same key twice makes its object unreadable. Half a surrogate
//! pair or a byte that is not UTF-8 costs one character, not the event; NUL becomes U+FFFD, since PostgreSQL takes none.

use std::borrow::Cow;

use ring::digest;
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A field's bytes, unread.
pub(crate) type Raw<'a> = Option<&'a RawValue>;

/// An object that says something twice or is not JSON.
#[derive(Debug)]
pub(crate) struct Unreadable(pub(crate) String);

impl From<serde_json::Error> for Unreadable {
    /// Names the place and the kind, never the text: it may be a customer's.
    fn from(error: serde_json::Error) -> Self {
        Self(format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column()))
    }
}

/// The body as text: a byte order mark skipped, bytes that are not UTF-8 replaced.
pub(crate) fn body_text(body: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body))
}

/// An object; absent when it is missing or anything but an object.
pub(crate) fn object<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Result<Option<T>, Unreadable> {
    match raw {
        Some(raw) if raw.get().starts_with('{') => Ok(Some(serde_json::from_str(raw.get())?)),
        _ => Ok(None),
    }
}

/// A text that is not empty.
pub(crate) fn text(raw: Raw<'_>) -> Option<String> {
    let text: Lossy = serde_json::from_str(raw?.get()).ok()?;
    Some(text.0).filter(|text| !text.is_empty())
}

/// An id: a text, or the `id` of an expanded object.
pub(crate) fn id(raw: Raw<'_>) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Expanded<'a> {
        #[serde(borrow)]
        id: Raw<'a>,
    }
    text(raw).or_else(|| object::<Expanded<'_>>(raw).ok().flatten().and_then(|object| text(object.id)))
}

/// An exact integer; `1000.0`, `1e3` and `"1000"` are none.
pub(crate) fn integer(raw: Raw<'_>) -> Option<i64> {
    serde_json::from_str(raw?.get()).ok()
}

/// true or false.
pub(crate) fn boolean(raw: Raw<'_>) -> Option<bool> {
    serde_json::from_str(raw?.get()).ok()
}

/// An instant in Unix seconds, before the year 10000.
pub(crate) fn seconds(raw: Raw<'_>) -> Option<i64> {
    integer(raw).filter(|seconds| (0..253_402_300_800).contains(seconds))
}

/// An instant as RFC 3339 writes it, in Unix seconds.
pub(crate) fn instant(text: &str) -> Option<i64> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp)
}

/// The id of an event that states none: what its bytes are.
pub(crate) fn digest_id(body: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest::digest(&digest::SHA256, body)))
}

struct Lossy(String);

impl<'de> Deserialize<'de> for Lossy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Lossy;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Lossy, E> {
                Ok(Lossy(String::from_utf8_lossy(bytes).replace('\0', "\u{FFFD}")))
            }
        }
        // As bytes, since serde_json lets half a surrogate pair pass there and not in a `String`.
        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn amounts_are_exact_integers_or_absent() {
        assert_eq!(integer(Some(&raw("9007199254740993"))), Some(9_007_199_254_740_993));
        for json in ["1e3", "1000.0", "1000.5", "1e400", "9223372036854775808", "\"1000\"", "null", "true", "-0"] {
            assert_eq!(integer(Some(&raw(json))), None, "{json}");
        }
    }

    #[test]
    fn text_survives_nul_and_half_an_emoji() {
        assert_eq!(text(Some(&raw(r#""N\u0000ul \ud83d""#))).unwrap().replace('\u{FFFD}', "?").trim_end_matches('?'), "N?ul ");
        assert_eq!(text(Some(&raw(r#""gr\u00e5d \ud83d\ude00""#))).unwrap(), "gråd 😀");
        assert_eq!(text(Some(&raw("\"\""))), None);
        assert_eq!(text(Some(&raw("[1]"))), None);
    }

    #[test]
    fn ids_may_be_expanded_objects() {
        assert_eq!(id(Some(&raw(r#""pi_1""#))).unwrap(), "pi_1");
        assert_eq!(id(Some(&raw(r#"{"object":"payment_intent","id":"pi_1"}"#))).unwrap(), "pi_1");
    }
}
