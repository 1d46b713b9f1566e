//! `POST /orders/{id}/claim-token` and `POST /claims`: a guest's order becomes a customer's.
//!
//! A token is `cf1.<key>.<payload>.<signature>`: the payload 16 bytes of a random id and 8 of the expiry in Unix seconds (big-endian),
//! the signature HMAC-SHA256 over all in front of the last dot, both in base64url. Nothing personal is in it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use counterfoil_payments::{OrderId, OrderKey};
use counterfoil_settlement::{ClaimRefused, NewToken, claim, issue_token, receipts_of, view};
use ring::hmac;
use serde_json::json;
use uuid::Uuid;

use crate::Ingest;
use crate::answers::Problem;
use crate::api::{caller, field_problems, in_task, key_in_path, not_found, read_json, with_tickets};
use crate::fields::Fields;
use crate::keyed::database_trouble;
use crate::new_order::customer_id;

/// How long a token is good unless the shop says otherwise: 30 days, in seconds.
const EXPIRES_IN_S: i64 = 30 * 86_400;

/// The longest that it may be: a year, in seconds.
const EXPIRES_IN_S_MAX: i64 = 365 * 86_400;

/// The form of our tokens.
const FORM: &str = "cf1";

/// Shortest signing secret, in characters: 256 bits written in hexadecimal would be 64, in base64 44.
const SECRET_CHARS_MIN: usize = 32;

/// The keys that sign tokens: the first signs, all verify.
#[derive(Debug)]
pub struct ClaimKeys(Vec<(String, hmac::Key)>);

impl ClaimKeys {
    /// Reads `name:secret,…`, newest first; the empty text names none.
    ///
    /// # Errors
    /// Says which part is wrong, never repeating a secret.
    pub fn read(list: &str) -> Result<Self, String> {
        let mut keys: Vec<(String, hmac::Key)> = Vec::new();
        for (nth, part) in list.split(',').enumerate().filter(|_| !list.is_empty()) {
            let (name, secret) = part.split_once(':').ok_or_else(|| format!("part {} is not name:secret", nth + 1))?;
            let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            if !plain || secret.chars().count() < SECRET_CHARS_MIN || secret.contains(char::is_whitespace) {
                return Err(format!(
                    "part {}: a name of letters, digits, - and _, and a secret of at least {SECRET_CHARS_MIN} characters without blanks are needed",
                    nth + 1
                ));
            }
            if keys.iter().any(|(known, _)| known == name) {
                return Err(format!("part {}: its name stands twice", nth + 1));
            }
            keys.push((name.to_owned(), hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())));
        }
        Ok(Self(keys))
    }

    fn sign(&self, id: Uuid, expires_at: i64) -> Option<String> {
        let (name, key) = self.0.first()?;
        let payload = URL_SAFE_NO_PAD.encode([id.as_bytes().as_slice(), &expires_at.to_be_bytes()].concat());
        let signed = format!("{FORM}.{name}.{payload}");
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(key, signed.as_bytes()));
        Some(format!("{signed}.{signature}"))
    }

    /// The id in a token that we signed.
    fn verify(&self, token: &str) -> Option<Uuid> {
        let (signed, signature) = token.rsplit_once('.')?;
        let mut parts = signed.split('.');
        let (Some(FORM), Some(name), Some(payload), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else { return None };
        let (_, key) = self.0.iter().find(|(known, _)| known == name)?;
        hmac::verify(key, signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
        let payload: [u8; 24] = URL_SAFE_NO_PAD.decode(payload).ok()?.try_into().ok()?;
        Uuid::from_slice(&payload[..16]).ok()
    }
}

fn keys(ingest: &Ingest) -> Result<&ClaimKeys, Problem> {
    let off = || Problem::new(StatusCode::NOT_FOUND, "claims are off: COUNTERFOIL_CLAIM_KEYS names no key");
    Some(&ingest.claim_keys).filter(|keys| !keys.0.is_empty()).ok_or_else(off)
}

/// Makes a token for an order: `{"customer_id"?, "expires_in_s"?}`.
pub(crate) async fn issue(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    caller(&ingest, &parts.headers)?;
    keys(&ingest)?;
    let order = key_in_path(path)?;
    let body = read_json(&parts.headers, body).await?;
    let (meant_for, expires_in_s) = Fields::read(&body, |fields| {
        fields.only(&["customer_id", "expires_in_s"]);
        let meant_for = fields.named("customer_id").then(|| customer_id(fields, "customer_id")).flatten();
        let seconds = fields.integer("expires_in_s", 1, Some(EXPIRES_IN_S))?;
        if seconds > EXPIRES_IN_S_MAX {
            fields.note("expires_in_s", format!("must be at most {EXPIRES_IN_S_MAX} seconds"));
        }
        Some((meant_for, seconds))
    })
    .map_err(field_problems)?;
    let signer = Arc::clone(&ingest);
    in_task(ingest, move |tx| {
        Box::pin(async move {
            let new = NewToken { id: Uuid::new_v4(), meant_for, expires_in_s };
            let issued = issue_token(&mut *tx, &order, &new).await.map_err(|refused| refusal(&refused))?;
            let (seconds, expires_at) = issued.ok_or_else(not_found)?;
            Ok(json!({ "token": signer.claim_keys.sign(new.id, seconds), "expires_at": expires_at }))
        })
    })
    .await
}

/// Attaches the order of a token to a customer: `{"token", "customer_id"}`. The shop's own token is needed, too: it vouches for the
/// customer.
pub(crate) async fn take(State(ingest): State<Arc<Ingest>>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    caller(&ingest, &headers)?;
    let keys = keys(&ingest)?;
    let body = read_json(&headers, body).await?;
    let (token, customer) = Fields::read(&body, |fields| {
        fields.only(&["token", "customer_id"]);
        let token = fields.text("token", true);
        Some((token, customer_id(fields, "customer_id")?))
    })
    .map_err(field_problems)?;
    let forged = || Problem::new(StatusCode::BAD_REQUEST, "this is no token of ours, or it was altered: nothing was changed");
    let id = token.and_then(|token| keys.verify(&token)).ok_or_else(forged)?;
    in_task(ingest, move |tx| {
        Box::pin(async move {
            let trouble = |error: sqlx::Error| database_trouble(&error);
            let claimed = claim(tx, id, &customer).await.map_err(|refused| refusal(&refused))?;
            let order = view(&mut *tx, &OrderKey::Id(OrderId(claimed.order_id))).await.map_err(trouble)?.ok_or_else(not_found)?;
            let order = with_tickets(&mut *tx, &order).await.map_err(trouble)?;
            let receipts = receipts_of(&mut *tx, claimed.order_id).await.map_err(trouble)?;
            Ok(json!({ "customer_id": customer, "order": order, "receipts": receipts }))
        })
    })
    .await
}

fn refusal(refused: &ClaimRefused) -> Problem {
    let status = match refused {
        ClaimRefused::Unknown | ClaimRefused::Expired => StatusCode::GONE,
        ClaimRefused::OtherCustomer => StatusCode::FORBIDDEN,
        ClaimRefused::OrderTaken => StatusCode::CONFLICT,
        ClaimRefused::Database(error) => return database_trouble(error),
    };
    Problem::new(status, format!("{refused}; nothing was changed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_verified_by_any_key_and_altered_nowhere() {
        let old = ClaimKeys::read("a:0123456789abcdef0123456789abcdef").unwrap();
        let both = ClaimKeys::read("b:fedcba9876543210fedcba9876543210,a:0123456789abcdef0123456789abcdef").unwrap();
        let (id, token) = (Uuid::from_u128(7), old.sign(Uuid::from_u128(7), 1_800_000_000).unwrap());
        assert_eq!((old.verify(&token), both.verify(&token)), (Some(id), Some(id)));
        assert!(both.sign(id, 1).unwrap().starts_with("cf1.b."), "the newest signs");
        let newest = ClaimKeys::read("b:fedcba9876543210fedcba9876543210").unwrap();
        assert_eq!(newest.verify(&token), None, "a key that is gone verifies nothing");
        for nth in 0..token.len() {
            let mut altered = token.clone().into_bytes();
            altered[nth] = if altered[nth] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(altered).unwrap();
            assert!(both.verify(&altered).is_none(), "{altered}");
        }
        for wrong in ["", ".", "cf1", "cf1.a.b", "cf1.a..", &format!("{token}."), &format!("cf1.{token}")] {
            assert_eq!(both.verify(wrong), None);
        }
    }

    #[test]
    fn keys_are_read_and_short_ones_refused() {
        assert!(ClaimKeys::read("").unwrap().0.is_empty());
        for wrong in ["a", "a:short", "a.b:0123456789abcdef0123456789abcdef", "a:0123456789abcdef0123456789abcdef,a:0123456789abcdef0123456789abcdef"] {
            assert!(ClaimKeys::read(wrong).is_err());
        }
    }
}
