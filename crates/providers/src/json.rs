//! Reads the few fields we need out of somebody's JSON, never a whole value.
//!
//! A missing, null or oddly typed field is absent; a field of ours twice makes its object unreadable. Half a surrogate
//! pair, in a key or a value, or a byte that is not UTF-8 costs one character, not the event; NUL becomes U+FFFD, since
//! PostgreSQL takes none.

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

/// The body as text: a byte order mark skipped, bytes that are not UTF-8 replaced, and escapes of half a surrogate pair, too:
/// serde_json refuses an object for one in any of its keys, those that nobody reads among them.
pub(crate) fn body_text(body: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body));
    match without_half_surrogates(text.as_bytes()) {
        Some(mended) => Cow::Owned(String::from_utf8_lossy(&mended).into_owned()),
        None => text,
    }
}

/// The code unit that a `\u` escape at the start of `bytes` names.
fn escaped_unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// JSON text with `\ufffd` for each escape of a surrogate without its other half (RFC 8259, 8.2); `None` when there is none.
fn without_half_surrogates(text: &[u8]) -> Option<Vec<u8>> {
    const ESCAPE: usize = 6; // bytes of \uXXXX
    let (mut mended, mut at): (Option<Vec<u8>>, usize) = (None, 0);
    while let Some(found) = text.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\\')) {
        at += found;
        match escaped_unit(&text[at..]) {
            Some(0xD800..=0xDBFF) if matches!(escaped_unit(&text[at + ESCAPE..]), Some(0xDC00..=0xDFFF)) => at += 2 * ESCAPE,
            Some(0xD800..=0xDFFF) => {
                mended.get_or_insert_with(|| text.to_vec())[at..at + ESCAPE].copy_from_slice(b"\\ufffd");
                at += ESCAPE;
            }
            Some(_) => at += ESCAPE,
            None => at += 2, // an escape of one character, the backslash's own among them
        }
    }
    mended
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

/// A name that a shop gives: a text, or an integer, its digits as they are written.
pub(crate) fn name(raw: Raw<'_>) -> Option<String> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text(raw).or_else(|| raw.map(RawValue::get).filter(|text| digits(text.strip_prefix('-').unwrap_or(text))).map(str::to_owned))
}

/// The ids among these that are ids, each once: what somebody may have in hand who looks for the event.
pub(crate) fn ids(found: impl IntoIterator<Item = Option<String>>) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for id in found.into_iter().flatten() {
        if id.len() <= crate::ID_BYTES_MAX && !id.chars().any(char::is_control) && !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
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
    fn half_a_surrogate_pair_costs_one_character_wherever_it_stands() {
        for (json, wanted) in [
            (r#"{"k\ud800":"x"}"#, r#"{"k\ufffd":"x"}"#),
            (r#""\ud83d\ude00 \uDC00 \ud800""#, r#""\ud83d\ude00 \ufffd \ufffd""#),
            (r#""\ud800\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\ud800 \\\ud800""#, r#""\\ud800 \\\ufffd""#),
            (r#""\ud8""#, r#""\ud8""#),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(body_text(json.as_bytes()), wanted);
        }
    }

    #[test]
    fn names_are_texts_or_integers_with_exact_digits() {
        assert_eq!(name(Some(&raw("1042074810"))).unwrap(), "1042074810");
        assert_eq!(name(Some(&raw("12345678901234567890123"))).unwrap(), "12345678901234567890123");
        assert_eq!(name(Some(&raw("\"A-1\""))).unwrap(), "A-1");
        for json in ["1.0", "1e3", "null", "true", "[1]", "\"\"", "-"] {
            assert_eq!(serde_json::from_str::<Box<RawValue>>(json).ok().and_then(|raw| name(Some(&raw))), None, "{json}");
        }
    }

    #[test]
    fn ids_may_be_expanded_objects() {
        assert_eq!(id(Some(&raw(r#""pi_1""#))).unwrap(), "pi_1");
        assert_eq!(id(Some(&raw(r#"{"object":"payment_intent","id":"pi_1"}"#))).unwrap(), "pi_1");
    }
}
