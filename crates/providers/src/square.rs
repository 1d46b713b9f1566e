//! Square: `x-square-hmacsha256-signature` over the notification URL and the body (developer.squareup.com/docs/webhooks).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use counterfoil_payments::{Contact, DisputeStatus, Fact, Money, News, PaymentDetails, PaymentKey, Provider, RefundStatus};
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
        let ids = ids_of(envelope.data);
        let fact = fact(&event_type, envelope.data).unwrap_or_else(|error| Fact::Unreadable { reason: error.0 });
        let made_at = json::text(envelope.created_at).and_then(|text| json::instant(&text));
        Reading { account: String::new(), event_id, provider_event_id: None, event_type, made_at, ids, fact } // payment ids are unique across Square
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    event_id: Raw<'a>,
    #[serde(borrow, rename = "type")]
    event_type: Raw<'a>,
    #[serde(borrow)]
    created_at: Raw<'a>,
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
    #[serde(borrow)]
    dispute: Raw<'a>,
}

/// The fields of payments, refunds and disputes that matter here.
#[derive(Deserialize)]
pub(crate) struct Payment<'a> {
    #[serde(borrow)]
    pub(crate) id: Raw<'a>,
    #[serde(borrow)]
    dispute_id: Raw<'a>,
    #[serde(borrow)]
    payment_id: Raw<'a>,
    #[serde(borrow)]
    disputed_payment: Raw<'a>,
    #[serde(borrow)]
    state: Raw<'a>,
    #[serde(borrow)]
    reason: Raw<'a>,
    #[serde(borrow)]
    pub(crate) refunded_money: Raw<'a>,
    #[serde(borrow)]
    pub(crate) refund_ids: Raw<'a>,
    #[serde(borrow)]
    pub(crate) status: Raw<'a>,
    #[serde(borrow)]
    reference_id: Raw<'a>,
    /// Square's own order, which a payment link makes.
    #[serde(borrow)]
    order_id: Raw<'a>,
    #[serde(borrow)]
    amount_money: Raw<'a>,
    #[serde(borrow)]
    total_money: Raw<'a>,
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

fn ids_of(data: Raw<'_>) -> Vec<String> {
    let Ok(Some(Ok(Some(object)))) = json::object::<Data<'_>>(data).map(|data| data.map(|data| json::object::<Object<'_>>(data.object))) else {
        return Vec::new();
    };
    let parts = [object.payment, object.refund, object.dispute].into_iter().filter_map(|raw| json::object::<Payment<'_>>(raw).ok().flatten());
    json::ids(parts.flat_map(|part| {
        [json::text(part.id), json::text(part.dispute_id), json::text(part.payment_id), json::text(part.order_id), json::name(part.reference_id)]
    }))
}

fn fact(event_type: &str, data: Raw<'_>) -> Result<Fact, Unreadable> {
    let object: Option<Object<'_>> = json::object::<Data<'_>>(data)?.and_then(|data| json::object(data.object).transpose()).transpose()?;
    let missing = |what: &str| Unreadable(format!("{event_type} without {what}"));
    let (payment, refund, dispute) = object.map_or((None, None, None), |object| (object.payment, object.refund, object.dispute));
    if event_type.starts_with("refund.") {
        return refund_fact(event_type, &json::object(refund)?.ok_or_else(|| missing("its refund"))?);
    }
    if event_type.starts_with("dispute.") {
        return dispute_fact(event_type, &json::object(dispute)?.ok_or_else(|| missing("its dispute"))?);
    }
    if event_type != "payment.created" && event_type != "payment.updated" {
        return Ok(Fact::Ignored { reason: "a type that is not acted on".into() });
    }
    payment_fact(event_type, &json::object(payment)?.ok_or_else(|| missing("its payment"))?)
}

/// What a payment says, in an event or in an answer of the API.
pub(crate) fn payment_fact(what: &str, payment: &Payment<'_>) -> Result<Fact, Unreadable> {
    let missing = |field: &str| Unreadable(format!("{what} without {field}"));
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
    let price = money(payment.amount_money)?;
    if news == News::Captured && price.is_none() {
        return Err(missing("amount_money"));
    }
    let (money, tip_minor) = with_tip(price, money(payment.total_money)?);
    let (order, remark) = order_named(&[json::name(payment.reference_id)]);
    let contact = Contact { email: json::text(payment.buyer_email_address), ..Contact::default() };
    let details = PaymentDetails { checkout: json::text(payment.order_id), tip_minor, ..PaymentDetails::default() };
    Ok(Fact::Payment { news, payment: key(id), order, money, details, contact, remark })
}

/// How our mark on a refund ends its `reason`, which Square gives back: its refunds have no metadata.
pub(crate) const MARK: &str = "counterfoil ";

/// What a refund says, in an event or in an answer of the API.
pub(crate) fn refund_fact(what: &str, refund: &Payment<'_>) -> Result<Fact, Unreadable> {
    let missing = |field: &str| Unreadable(format!("{what} without {field}"));
    let payment = json::text(refund.payment_id).map(key).ok_or_else(|| missing("payment_id"))?;
    let refund_id = json::text(refund.id).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id"))?;
    let status = match json::text(refund.status).as_deref() {
        Some("COMPLETED") => RefundStatus::Succeeded,
        Some("REJECTED" | "FAILED") => RefundStatus::Failed,
        Some("PENDING") => RefundStatus::Pending,
        _ => return Err(missing("a status that is documented")),
    };
    let ours = json::text(refund.reason).and_then(|reason| reason.rsplit_once(MARK).and_then(|(_, mark)| mark.parse().ok()));
    Ok(Fact::Refund { payment, refund_id, status, money: money(refund.amount_money)?.ok_or_else(|| missing("amount_money"))?, ours, may_be_release: false })
}

fn dispute_fact(what: &str, dispute: &Payment<'_>) -> Result<Fact, Unreadable> {
    let missing = |field: &str| Unreadable(format!("{what} without {field}"));
    let of =
        json::object::<Payment<'_>>(dispute.disputed_payment)?.and_then(|payment| json::text(payment.payment_id)).or_else(|| json::text(dispute.payment_id));
    let payment = of.map(key).ok_or_else(|| missing("its payment"))?;
    let dispute_id = json::text(dispute.id).or_else(|| json::text(dispute.dispute_id)).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id"))?;
    let status = match json::text(dispute.state).as_deref() {
        Some("WON") => DisputeStatus::Won,
        Some("LOST" | "ACCEPTED") => DisputeStatus::Lost,
        Some("INQUIRY_CLOSED") => DisputeStatus::Closed,
        Some("INQUIRY_EVIDENCE_REQUIRED" | "INQUIRY_PROCESSING") => DisputeStatus::Inquiry,
        Some("EVIDENCE_REQUIRED" | "PROCESSING" | "WAITING_THIRD_PARTY") => DisputeStatus::Opened,
        _ => return Err(missing("a state that is documented")),
    };
    let money = money(dispute.amount_money)?.ok_or_else(|| missing("amount_money"))?;
    Ok(Fact::Dispute { payment, dispute_id, status, money, reason: json::text(dispute.reason) })
}

/// `amount_money` pays the order; what `total_money` has beyond it is a tip. Both are captured, and both can go back.
fn with_tip(price: Option<Money>, total: Option<Money>) -> (Option<Money>, i64) {
    match (price, total) {
        (Some(price), Some(total)) if total.currency == price.currency && total.amount_minor > price.amount_minor => {
            (Some(total), total.amount_minor - price.amount_minor)
        }
        (price, _) => (price, 0),
    }
}

fn key(payment_id: String) -> PaymentKey {
    PaymentKey { provider: Provider::Square, account: String::new(), payment_id }
}

/// An amount, where it is there whole.
pub(crate) fn money(raw: Raw<'_>) -> Result<Option<Money>, Unreadable> {
    let Some(amount) = json::object::<Amount<'_>>(raw)? else {
        return Ok(None);
    };
    let (Some(minor), Some(currency)) = (json::integer(amount.amount), json::text(amount.currency)) else {
        return Ok(None);
    };
    checked(minor, &currency).map(Some)
}
