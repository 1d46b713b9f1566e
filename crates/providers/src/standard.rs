//! Standard Webhooks 1.0.0 (github.com/standard-webhooks/standard-webhooks): `v1` HMAC-SHA256 and `v1a` Ed25519.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use counterfoil_payments::{Contact, DisputeStatus, Fact, News, PaymentDetails, PaymentKey, Provider, RefundStatus};
use http::HeaderMap;
use ring::{hmac, signature as ed25519};
use serde::Deserialize;

use crate::json::{self, Raw, Unreadable};
use crate::razorpay::checked;
use crate::secret::{BadSecret, Secret};
use crate::signature::{self, Rejected};
use crate::stripe::{order_named, other_mode, unreadable};
use crate::{Adapter, ID_BYTES_MAX, Mode, Reading, TOLERANCE_SECONDS};

enum Key {
    Shared(hmac::Key),
    Public([u8; 32]),
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[key]")
    }
}

/// The wire format of Standard Webhooks, with the body of interface.md.
#[derive(Debug)]
pub struct Standard {
    keys: Vec<Key>,
}

impl Standard {
    /// With these secrets, newest first: base64 with or without `whsec_`, or public keys with `whpk_`.
    ///
    /// # Errors
    /// When one cannot be decoded.
    pub fn new(secrets: &[Secret]) -> Result<Self, BadSecret> {
        let keys = secrets.iter().map(key_of).collect::<Result<_, _>>()?;
        Ok(Self { keys })
    }

    /// Whether one of the signatures in the list is right for this key.
    fn matches(key: &Key, message: &[u8], signatures: &str) -> bool {
        signatures.split(' ').any(|signature| {
            let Some((version, text)) = signature.split_once(',') else {
                return false;
            };
            let Ok(tag) = STANDARD.decode(text) else {
                return false;
            };
            match (version, key) {
                ("v1", Key::Shared(key)) => hmac::verify(key, message, &tag).is_ok(),
                ("v1a", Key::Public(key)) => ed25519::UnparsedPublicKey::new(&ed25519::ED25519, key).verify(message, &tag).is_ok(),
                _ => false,
            }
        })
    }
}

fn key_of(secret: &Secret) -> Result<Key, BadSecret> {
    if let Some(public) = secret.expose().strip_prefix("whpk_") {
        let bytes = STANDARD.decode(public).map_err(|_| BadSecret::Base64)?;
        return bytes.try_into().map(Key::Public).map_err(|_| BadSecret::PublicKey);
    }
    let text = secret.expose().strip_prefix("whsec_").unwrap_or(secret.expose());
    let bytes = STANDARD.decode(text).map_err(|_| BadSecret::Base64)?;
    Ok(Key::Shared(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
}

impl Adapter for Standard {
    fn provider(&self) -> Provider {
        Provider::Standard
    }

    fn verify(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<usize, Rejected> {
        let header = |name: &str| signature::header(headers, name)?.filter(|text| !text.is_empty()).ok_or(Rejected::NotSigned);
        let (id, time, signatures) = (header("webhook-id")?, header("webhook-timestamp")?, header("webhook-signature")?);
        let signed: i64 = time.parse().map_err(|_| Rejected::Header)?;
        if id.contains('.') {
            return Err(Rejected::Header);
        }
        let message = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
        let position = self.keys.iter().position(|key| Self::matches(key, &message, signatures)).ok_or(Rejected::Signature)?;
        signature::fresh(signed, now, TOLERANCE_SECONDS)?;
        Ok(position)
    }

    fn read(&self, headers: &HeaderMap, body: &[u8], mode: Mode) -> Reading {
        let text = json::body_text(body);
        let event_id = signature::header(headers, "webhook-id").ok().flatten().filter(|id| id.len() <= ID_BYTES_MAX);
        let event_id = event_id.map_or_else(|| json::digest_id(body), str::to_owned);
        let envelope: Envelope<'_> = match serde_json::from_str(&text) {
            Ok(envelope) => envelope,
            Err(error) => {
                return Reading { event_id, ..unreadable(body, "unknown", Unreadable::from(error)) };
            }
        };
        let event_type = json::text(envelope.event_type).unwrap_or_else(|| "unknown".into());
        let ids = ids_of(envelope.data);
        let fact = fact(envelope.data, mode).unwrap_or_else(|error| Fact::Unreadable { reason: error.0 });
        let made_at = json::text(envelope.timestamp).and_then(|text| json::instant(&text));
        Reading { account: String::new(), event_id, provider_event_id: None, event_type, made_at, ids, fact }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    event_type: Raw<'a>,
    #[serde(borrow)]
    timestamp: Raw<'a>,
    #[serde(borrow)]
    data: Raw<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    order: Raw<'a>,
    #[serde(borrow)]
    payment_id: Raw<'a>,
    #[serde(borrow)]
    amount_minor: Raw<'a>,
    #[serde(borrow)]
    currency: Raw<'a>,
    #[serde(borrow)]
    status: Raw<'a>,
    #[serde(borrow)]
    refund_id: Raw<'a>,
    #[serde(borrow)]
    dispute_id: Raw<'a>,
    #[serde(borrow)]
    livemode: Raw<'a>,
    #[serde(borrow)]
    customer: Raw<'a>,
}

#[derive(Deserialize)]
struct Customer<'a> {
    #[serde(borrow)]
    email: Raw<'a>,
    #[serde(borrow)]
    name: Raw<'a>,
    #[serde(borrow)]
    phone: Raw<'a>,
}

fn ids_of(data: Raw<'_>) -> Vec<String> {
    let Ok(Some(data)) = json::object::<Data<'_>>(data) else { return Vec::new() };
    json::ids([json::name(data.order), json::text(data.refund_id), json::text(data.dispute_id)])
}

fn fact(data: Raw<'_>, mode: Mode) -> Result<Fact, Unreadable> {
    let missing = |what: &str| Unreadable(format!("data without {what}"));
    let Some(data) = json::object::<Data<'_>>(data)? else {
        return Ok(Fact::Ignored { reason: "an event without data".into() });
    };
    if let Some(ignored) = other_mode(json::boolean(data.livemode), mode) {
        return Ok(ignored);
    }
    let payment = json::text(data.payment_id).filter(|id| id.len() <= ID_BYTES_MAX);
    let payment = payment.map(|payment_id| PaymentKey { provider: Provider::Standard, account: String::new(), payment_id });
    let money = match (json::integer(data.amount_minor), json::text(data.currency)) {
        (Some(amount), Some(currency)) => Some(checked(amount, &currency)?),
        _ => None,
    };
    let some_payment = || payment.clone().ok_or_else(|| missing("payment_id"));
    let some_money = || money.ok_or_else(|| missing("amount_minor and currency"));
    let own_id = |raw, what| json::text(raw).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing(what));
    let refund = |status| {
        Ok(Fact::Refund {
            payment: some_payment()?,
            refund_id: own_id(data.refund_id, "refund_id")?,
            status,
            money: some_money()?,
            ours: None,
            may_be_release: false,
        })
    };
    let dispute =
        |status| Ok(Fact::Dispute { payment: some_payment()?, dispute_id: own_id(data.dispute_id, "dispute_id")?, status, money: some_money()?, reason: None });
    let news = match json::text(data.status).as_deref() {
        Some("captured" | "paid") => News::Captured,
        Some("authorised" | "authorized") => News::Authorised,
        Some("pending") => News::Pending,
        Some("failed") => News::Failed,
        Some("failed_final") => News::FailedFinal,
        Some("cancelled" | "canceled") => News::Cancelled,
        Some("expired") => News::Expired,
        Some("refund_pending") => return refund(RefundStatus::Pending),
        Some("refunded") => return refund(RefundStatus::Succeeded),
        Some("refund_failed") => return refund(RefundStatus::Failed),
        Some("disputed") => return dispute(DisputeStatus::Opened),
        Some("dispute_lost") => return dispute(DisputeStatus::Lost),
        Some("dispute_won") => return dispute(DisputeStatus::Won),
        _ => {
            return Ok(Fact::Ignored { reason: "a status that is not known".into() });
        }
    };
    let payment = some_payment()?;
    if news == News::Captured {
        some_money()?;
    }
    let (order, remark) = order_named(&[json::name(data.order)]);
    let contact = json::object::<Customer<'_>>(data.customer)?.map(|customer| Contact {
        email: json::text(customer.email),
        name: json::text(customer.name),
        phone: json::text(customer.phone),
    });
    Ok(Fact::Payment { news, payment, order, money, details: PaymentDetails::default(), contact: contact.unwrap_or_default(), remark })
}
