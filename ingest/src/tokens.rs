//! Bearer tokens of the order API, compared in constant time.

use ring::hmac;
use ring::rand::SystemRandom;

/// Shortest token, in characters: 128 bits written in hexadecimal.
const LENGTH_MIN: usize = 16;

/// Who may use the order API.
#[derive(Debug)]
pub struct Tokens {
    /// Tokens are kept as their MAC under a key of this process, so that comparing tells nothing about their text.
    key: hmac::Key,
    known: Vec<(String, hmac::Tag)>,
}

impl Tokens {
    /// Reads `name:token,…`; the empty text names none.
    ///
    /// # Errors
    /// Says which part is wrong, never repeating a token.
    pub fn read(list: &str) -> Result<Self, String> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| "no random bytes to be had".to_owned())?;
        let mut known = Vec::new();
        for (nth, part) in list.split(',').enumerate().filter(|_| !list.is_empty()) {
            let (name, token) = part.split_once(':').ok_or_else(|| format!("part {} is not name:token", nth + 1))?;
            if name.is_empty() || token.chars().count() < LENGTH_MIN || token.contains(char::is_whitespace) {
                return Err(format!("part {}: a name and a token of at least {LENGTH_MIN} characters without blanks are needed", nth + 1));
            }
            known.push((name.to_owned(), hmac::sign(&key, token.as_bytes())));
        }
        Ok(Self { key, known })
    }

    /// Whether there is none.
    pub(crate) fn none(&self) -> bool {
        self.known.is_empty()
    }

    /// The name of the token in an `Authorization` header. Looks at all tokens, whichever matches.
    pub(crate) fn name_of(&self, authorization: Option<&str>) -> Option<&str> {
        let (scheme, token) = authorization?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut found = None;
        for (name, tag) in &self.known {
            if hmac::verify(&self.key, token.trim().as_bytes(), tag.as_ref()).is_ok() {
                found = Some(name.as_str());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_to_its_name_and_nothing_else_does() {
        let tokens = Tokens::read("shop:0123456789abcdef,shop:fedcba9876543210,ops:aaaaaaaaaaaaaaaa").unwrap();
        assert_eq!(tokens.name_of(Some("Bearer fedcba9876543210")), Some("shop"));
        assert_eq!(tokens.name_of(Some("bearer aaaaaaaaaaaaaaaa")), Some("ops"));
        for wrong in [None, Some(""), Some("Bearer"), Some("Bearer 0123456789abcde"), Some("Basic 0123456789abcdef")] {
            assert_eq!(tokens.name_of(wrong), None);
        }
        assert!(Tokens::read("").unwrap().none());
        assert!(Tokens::read("shop").is_err() && Tokens::read("shop:short").is_err());
    }
}
