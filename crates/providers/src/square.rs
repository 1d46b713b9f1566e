//! Square: `x-square-hmacsha256-signature` over the notification URL and the body (developer.squareup.com/docs/webhooks).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use counterfoil_payments::{Contact, Fact, Money, News, PaymentKey, Provider};
use http::HeaderMap;
use ring::hmac;
use serde::Deserialize;

use crate::json::{self, Raw, Unreadable};
use crate::razorpay::checked;
use crate::secret::{BadSecret, Secret};
use crate::signature::{self, Rejected};
use crate::stripe::{order_named, unreadable};
use crate::{Adapter, ID_BYTES_MAX, Mode, Reading};

/// Square's wire format. Keys are used verbatim, not decoded.
#[derive(Debug)]
pub struct Square {
    keys: Vec<hmac::Key>,
    notification_url: String,
}

impl Square {
    /// With these keys, newest first, and the URL exactly as it is registered at Square.
    ///
    /// # Errors
    /// When the URL is empty.
    pub fn new(secrets: &[Secret], notification_url: &str) -> Result<Self, BadSecret> {
        if notification_url.is_empty() {
            return Err(BadSecret::NotificationUrl);
        }
        Ok(Self { keys: signature::keys(secrets), notification_url: notification_url.to_owned() })
    }
}

impl Adapter for Square {
    fn provider(&self) -> Provider {
        Provider::Square
    }

    fn verify(&self, headers: &HeaderMap, body: &[u8], _: i64) -> Result<usize, Rejected> {
        let header = signature::header(headers, "x-square-hmacsha256-signature")?.ok_or(Rejected::NotSigned)?;
        let tag = STANDARD.decode(header.trim()).map_err(|_| Rejected::Signature)?;
        signature::matching(&self.keys, &[self.notification_url.as_bytes(), body], &[tag])
    }

    fn read(&self, _: &HeaderMap, body: &[u8], _: Mode) -> Reading {
        let text = json::body_text(body);
        let envelope: Envelope<'_> = match serde_json::from_str(&text) {
            Ok(envelope) => envelope,
            Err(error) => return unreadable(body, "unknown", Unreadable::from(error)),
        };
        let event_type = json::text(envelope.event_type).unwrap_or_else(|| "unknown".into());
        let Some(event_id) = json::text(envelope.event_id).filter(|id| id.len() <= ID_BYTES_MAX) else {
            return unreadable(body, &event_type, Unreadable("it has no event_id".into()));
        };
        let fact = fact(&event_type, envelope.data).unwrap_or_else(|error| Fact::Unreadable { reason: error.0 });
        Reading { account: String::new(), event_id, provider_event_id: None, event_type, fact } // payment ids are unique across Square
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    event_id: Raw<'a>,
    #[serde(borrow, rename = "type")]
    event_type: Raw<'a>,
    #[serde(borrow)]
    data: Raw<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    object: Raw<'a>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    payment: Raw<'a>,
    #[serde(borrow)]
    refund: Raw<'a>,
}

#[derive(Deserialize)]
struct Payment<'a> {
    #[serde(borrow)]
    id: Raw<'a>,
    #[serde(borrow)]
    payment_id: Raw<'a>,
    #[serde(borrow)]
    status: Raw<'a>,
    #[serde(borrow)]
    reference_id: Raw<'a>,
    #[serde(borrow)]
    amount_money: Raw<'a>,
    #[serde(borrow)]
    buyer_email_address: Raw<'a>,
}

#[derive(Deserialize)]
struct Amount<'a> {
    #[serde(borrow)]
    amount: Raw<'a>,
    #[serde(borrow)]
    currency: Raw<'a>,
}

fn fact(event_type: &str, data: Raw<'_>) -> Result<Fact, Unreadable> {
    let object: Option<Object<'_>> = json::object::<Data<'_>>(data)?.and_then(|data| json::object(data.object).transpose()).transpose()?;
    if event_type.starts_with("refund.") || event_type.starts_with("dispute.") {
        let refund = object.map(|object| json::object::<Payment<'_>>(object.refund)).transpose()?.flatten();
        return Ok(Fact::Deferred { payment: refund.and_then(|refund| json::text(refund.payment_id)).map(key) });
    }
    if event_type != "payment.created" && event_type != "payment.updated" {
        return Ok(Fact::Ignored { reason: "a type that is not acted on".into() });
    }
    let missing = |what: &str| Unreadable(format!("{event_type} without {what}"));
    let payment = object.map(|object| json::object::<Payment<'_>>(object.payment)).transpose()?.flatten().ok_or_else(|| missing("its payment"))?;
    let news = match json::text(payment.status).as_deref() {
        Some("COMPLETED") => News::Captured,
        Some("APPROVED") => News::Authorised,
        Some("PENDING") => News::Pending,
        Some("CANCELED") => News::Cancelled,
        Some("FAILED") => News::Failed,
        _ => {
            return Ok(Fact::Ignored { reason: "a payment status that is not known".into() });
        }
    };
    let id = json::text(payment.id).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id of its payment"))?;
    let money = money(payment.amount_money)?;
    if news == News::Captured && money.is_none() {
        return Err(missing("amount_money"));
    }
    let (order, remark) = order_named(&[json::text(payment.reference_id)]);
    let contact = Contact { email: json::text(payment.buyer_email_address), ..Contact::default() };
    Ok(Fact::Payment { news, payment: key(id), order, money, contact, remark })
}

fn key(payment_id: String) -> PaymentKey {
    PaymentKey { provider: Provider::Square, account: String::new(), payment_id }
}

/// `amount_money`: `total_money` would include the tip.
fn money(raw: Raw<'_>) -> Result<Option<Money>, Unreadable> {
    let Some(amount) = json::object::<Amount<'_>>(raw)? else {
        return Ok(None);
    };
    let (Some(minor), Some(currency)) = (json::integer(amount.amount), json::text(amount.currency)) else {
        return Ok(None);
    };
    checked(minor, &currency).map(Some)
}
