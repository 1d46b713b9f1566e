//! Razorpay: `X-Razorpay-Signature` (razorpay.com/docs/webhooks/validate-test), nothing signed but the body.

use counterfoil_payments::{Contact, Currency, DisputeStatus, Fact, Money, News, PaymentDetails, PaymentKey, Provider, RefundStatus};
use http::HeaderMap;
use ring::hmac;
use serde::Deserialize;

use crate::json::{self, Raw, Unreadable};
use crate::secret::Secret;
use crate::signature::{self, Rejected};
use crate::stripe::{order_named, unreadable};
use crate::{Adapter, ID_BYTES_MAX, Mode, Reading};

/// Razorpay's wire format. Secrets are the webhook's, verbatim.
#[derive(Debug)]
pub struct Razorpay {
    keys: Vec<hmac::Key>,
}

impl Razorpay {
    /// With these secrets, newest first. Retries of older events stay signed with the secret of their time.
    #[must_use]
    pub fn new(secrets: &[Secret]) -> Self {
        Self { keys: signature::keys(secrets) }
    }
}

/// Verifies the signature that a browser brings back from checkout: over `order_id|payment_id`, or the fields of a
/// payment link or subscription joined likewise, with the API key's secret.
///
/// # Errors
/// When it does not match.
pub fn verify_return(api_secret: &Secret, fields: &[&str], signature: &str) -> Result<(), Rejected> {
    let tag = hex::decode(signature).map_err(|_| Rejected::Signature)?;
    signature::matching(&signature::keys(std::slice::from_ref(api_secret)), &[fields.join("|").as_bytes()], &[tag]).map(|_| ())
}

impl Adapter for Razorpay {
    fn provider(&self) -> Provider {
        Provider::Razorpay
    }

    fn verify(&self, headers: &HeaderMap, body: &[u8], _: i64) -> Result<usize, Rejected> {
        let header = signature::header(headers, "X-Razorpay-Signature")?.ok_or(Rejected::NotSigned)?;
        let tag = hex::decode(header.trim()).map_err(|_| Rejected::Signature)?;
        signature::matching(&self.keys, &[body], &[tag])
    }

    fn read(&self, headers: &HeaderMap, body: &[u8], _: Mode) -> Reading {
        let text = json::body_text(body);
        let envelope: Envelope<'_> = match serde_json::from_str(&text) {
            Ok(envelope) => envelope,
            Err(error) => return unreadable(body, "unknown", Unreadable::from(error)),
        };
        let event_type = json::text(envelope.event).unwrap_or_else(|| "unknown".into());
        let entities = match Entities::read(envelope.payload) {
            Ok(entities) => entities,
            Err(error) => return unreadable(body, &event_type, error),
        };
        let created = json::integer(envelope.created_at).map_or_else(String::new, |seconds| seconds.to_string());
        let event_id = entities.subject(&event_type).map(|id| format!("{event_type}:{id}:{created}")).filter(|id| id.len() <= ID_BYTES_MAX);
        let ids = entities.ids();
        Reading {
            account: String::new(), // payment ids are unique across Razorpay
            event_id: event_id.unwrap_or_else(|| json::digest_id(body)),
            // Outside the signature: for search, never for deduplication.
            provider_event_id: signature::header(headers, "x-razorpay-event-id").ok().flatten().map(|id| id.chars().take(ID_BYTES_MAX).collect()),
            made_at: json::seconds(envelope.created_at),
            ids,
            fact: fact(&event_type, &entities).unwrap_or_else(|error| Fact::Unreadable { reason: error.0 }),
            event_type,
        }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    event: Raw<'a>,
    #[serde(borrow)]
    payload: Raw<'a>,
    #[serde(borrow)]
    created_at: Raw<'a>,
}

#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow)]
    payment: Raw<'a>,
    #[serde(borrow)]
    order: Raw<'a>,
    #[serde(borrow)]
    payment_link: Raw<'a>,
    #[serde(borrow)]
    invoice: Raw<'a>,
    #[serde(borrow)]
    refund: Raw<'a>,
    #[serde(borrow)]
    dispute: Raw<'a>,
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    #[serde(borrow)]
    entity: Raw<'a>,
}

/// The fields of payments, orders, links, invoices, refunds and disputes that matter here.
#[derive(Deserialize, Clone, Copy)]
pub(crate) struct Entity<'a> {
    #[serde(borrow)]
    pub(crate) id: Raw<'a>,
    #[serde(borrow)]
    payment_id: Raw<'a>,
    #[serde(borrow)]
    amount: Raw<'a>,
    #[serde(borrow)]
    currency: Raw<'a>,
    #[serde(borrow)]
    pub(crate) status: Raw<'a>,
    /// Whether the money was taken: a payment that was given back without it has the status `refunded`, too.
    #[serde(borrow)]
    captured: Raw<'a>,
    #[serde(borrow)]
    pub(crate) amount_refunded: Raw<'a>,
    /// Razorpay's own order, of which the payment is one attempt.
    #[serde(borrow)]
    pub(crate) order_id: Raw<'a>,
    #[serde(borrow)]
    amount_deducted: Raw<'a>,
    #[serde(borrow)]
    phase: Raw<'a>,
    #[serde(borrow)]
    reason_code: Raw<'a>,
    #[serde(borrow)]
    pub(crate) receipt: Raw<'a>,
    #[serde(borrow)]
    reference_id: Raw<'a>,
    /// `[]` when empty, an object otherwise.
    #[serde(borrow)]
    notes: Raw<'a>,
    #[serde(borrow)]
    email: Raw<'a>,
    #[serde(borrow)]
    contact: Raw<'a>,
}

#[derive(Deserialize)]
struct Notes<'a> {
    #[serde(borrow)]
    order_id: Raw<'a>,
    /// Our mark on a refund that we asked for.
    #[serde(borrow)]
    counterfoil_refund: Raw<'a>,
}

impl Entity<'_> {
    pub(crate) fn noted_order(&self) -> Result<Option<String>, Unreadable> {
        Ok(json::object::<Notes<'_>>(self.notes)?.and_then(|notes| json::name(notes.order_id)))
    }

    /// Whether the money was never taken, as far as it says.
    fn uncaptured(&self) -> bool {
        json::boolean(self.captured) == Some(false)
    }
}

#[derive(Default)]
struct Entities<'a> {
    payment: Option<Entity<'a>>,
    order: Option<Entity<'a>>,
    payment_link: Option<Entity<'a>>,
    invoice: Option<Entity<'a>>,
    refund: Option<Entity<'a>>,
    dispute: Option<Entity<'a>>,
}

impl<'a> Entities<'a> {
    fn read(payload: Raw<'a>) -> Result<Self, Unreadable> {
        let entity = |raw: Raw<'a>| -> Result<Option<Entity<'a>>, Unreadable> {
            json::object::<Wrapped<'a>>(raw)?.map_or(Ok(None), |wrapped| json::object(wrapped.entity))
        };
        let Some(payload) = json::object::<Payload<'a>>(payload)? else {
            return Ok(Self::default());
        };
        Ok(Self {
            payment: entity(payload.payment)?,
            order: entity(payload.order)?,
            payment_link: entity(payload.payment_link)?,
            invoice: entity(payload.invoice)?,
            refund: entity(payload.refund)?,
            dispute: entity(payload.dispute)?,
        })
    }

    /// Every id that it names.
    fn ids(&self) -> Vec<String> {
        let all = [self.payment, self.order, self.payment_link, self.invoice, self.refund, self.dispute];
        json::ids(all.into_iter().flatten().flat_map(|entity| {
            [
                json::text(entity.id),
                json::text(entity.payment_id),
                json::text(entity.order_id),
                json::name(entity.receipt),
                json::name(entity.reference_id),
                entity.noted_order().ok().flatten(),
            ]
        }))
    }

    /// The id of what the event is about: the entity that its type names. A link or an invoice that is paid in parts says so
    /// once for each payment, within one second, too: then the payment's id stands behind it.
    fn subject(&self, event_type: &str) -> Option<String> {
        let entity = match event_type {
            dispute if dispute.starts_with("payment.dispute.") => self.dispute,
            link if link.starts_with("payment_link.") => self.payment_link,
            invoice if invoice.starts_with("invoice.") => self.invoice,
            order if order.starts_with("order.") => self.order,
            refund if refund.starts_with("refund.") => self.refund,
            _ => self.payment,
        };
        let id = json::text(entity?.id)?;
        let part = event_type.ends_with(".partially_paid").then(|| self.payment.and_then(|payment| json::text(payment.id))).flatten();
        Some(part.map_or_else(|| id.clone(), |payment| format!("{id}:{payment}")))
    }
}

fn fact(event_type: &str, entities: &Entities<'_>) -> Result<Fact, Unreadable> {
    let news = match event_type {
        // A part payment is a whole payment of its own, of less than the order's amount.
        "payment.captured" | "order.paid" | "payment_link.paid" | "payment_link.partially_paid" | "invoice.paid" | "invoice.partially_paid" => {
            taken(entities.payment.as_ref())
        }
        "payment.authorized" => News::Authorised,
        "payment.failed" => News::Failed,
        "payment_link.expired" | "invoice.expired" => News::Expired,
        "payment_link.cancelled" => News::Cancelled,
        // What goes back of a payment that was never captured is its authorisation: the attempt ends, no money moves.
        refund if refund.starts_with("refund.") && entities.payment.is_some_and(|payment| payment.uncaptured()) => News::Cancelled,
        refund if refund.starts_with("refund.") => {
            return refund_fact(event_type, &entities.refund.ok_or_else(|| Unreadable(format!("{event_type} without its refund")))?);
        }
        dispute if dispute.starts_with("payment.dispute.") => return dispute_fact(event_type, entities),
        _ => {
            return Ok(Fact::Ignored { reason: "a type that is not acted on".into() });
        }
    };
    let missing = |what: &str| Unreadable(format!("{event_type} without {what}"));
    // An attempt that ended before any payment was made is named by its link or invoice.
    let attempt = match news {
        News::Expired | News::Cancelled => entities.payment_link.or(entities.invoice).or(entities.payment),
        News::Captured | News::Authorised | News::Pending | News::Failed | News::FailedFinal => entities.payment,
    };
    let attempt = attempt.ok_or_else(|| missing("its payment"))?;
    let id = json::text(attempt.id).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id of its payment"))?;
    let money = money(&attempt)?;
    if news == News::Captured && money.is_none() {
        return Err(missing("an amount and a currency"));
    }
    let mut names = Vec::new();
    for entity in [entities.payment, entities.order, entities.payment_link, entities.invoice].into_iter().flatten() {
        names.push(entity.noted_order()?);
    }
    names.push(entities.order.and_then(|order| json::name(order.receipt)));
    names.push(entities.payment_link.and_then(|link| json::name(link.reference_id)));
    names.push(entities.invoice.and_then(|invoice| json::name(invoice.receipt)));
    let (order, remark) = order_named(&names);
    // Razorpay's placeholder where a checkout asks for no address.
    let email = json::text(attempt.email).filter(|email| email != "void@razorpay.com");
    let contact = Contact { email, name: None, phone: json::text(attempt.contact) };
    let checkout = entities.payment.and_then(|payment| json::text(payment.order_id)).or_else(|| entities.order.and_then(|order| json::text(order.id)));
    let checkout = checkout.or_else(|| entities.payment_link.and_then(|link| json::text(link.id)));
    Ok(Fact::Payment { news, payment: key(id), order, money, details: PaymentDetails { checkout, ..PaymentDetails::default() }, contact, remark })
}

/// What a type that says that a payment was made says of its money: captured, unless the payment itself says otherwise.
fn taken(payment: Option<&Entity<'_>>) -> News {
    match payment {
        Some(payment) if payment.uncaptured() && json::text(payment.status).as_deref() == Some("refunded") => News::Cancelled,
        Some(payment) if payment.uncaptured() => News::Authorised,
        Some(_) | None => News::Captured,
    }
}

/// What a payment says that was read from the API, and the receipt of Razorpay's order, where it was read, too.
pub(crate) fn payment_fact(payment: Entity<'_>, order: Option<Entity<'_>>) -> Result<Fact, Unreadable> {
    let event_type = match json::text(payment.status).as_deref() {
        Some("captured" | "refunded") => "payment.captured", // unless it says that it was not
        Some("authorized") => "payment.authorized",
        Some("failed") => "payment.failed",
        _ => return Ok(Fact::Ignored { reason: "a payment that has only been made".into() }),
    };
    fact(event_type, &Entities { payment: Some(payment), order, ..Entities::default() })
}

/// What a refund says, in an event or in an answer of the API.
pub(crate) fn refund_fact(what: &str, refund: &Entity<'_>) -> Result<Fact, Unreadable> {
    let missing = |field: &str| Unreadable(format!("{what} without {field}"));
    let payment = json::text(refund.payment_id).map(key).ok_or_else(|| missing("an id of its payment"))?;
    let refund_id = json::text(refund.id).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id"))?;
    let status = match (json::text(refund.status).as_deref(), what) {
        (Some("processed"), _) | (None, "refund.processed") => RefundStatus::Succeeded,
        (Some("failed"), _) | (None, "refund.failed") => RefundStatus::Failed,
        _ => RefundStatus::Pending,
    };
    let ours = json::object::<Notes<'_>>(refund.notes)?.and_then(|notes| json::text(notes.counterfoil_refund)).and_then(|mark| mark.parse().ok());
    Ok(Fact::Refund { payment, refund_id, status, money: money(refund)?.ok_or_else(|| missing("an amount and a currency"))?, ours, may_be_release: false })
}

fn dispute_fact(event_type: &str, entities: &Entities<'_>) -> Result<Fact, Unreadable> {
    let missing = |field: &str| Unreadable(format!("{event_type} without {field}"));
    let dispute = entities.dispute.ok_or_else(|| missing("its dispute"))?;
    let of = json::text(dispute.payment_id).or_else(|| entities.payment.and_then(|payment| json::text(payment.id)));
    let payment = of.map(key).ok_or_else(|| missing("an id of its payment"))?;
    let dispute_id = json::text(dispute.id).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id"))?;
    let disputed = money(&dispute)?.ok_or_else(|| missing("an amount and a currency"))?;
    // 0 until a dispute is lost, by the entity's documentation; from the outset, where the account is charged at once.
    let deducted = json::integer(dispute.amount_deducted).filter(|minor| *minor > 0);
    // A bank's suspicion of fraud and a retrieval are questions; money moves from the chargeback on.
    let question = matches!(json::text(dispute.phase).as_deref(), Some("fraud" | "retrieval")) && deducted.is_none();
    let (status, money) = match json::text(dispute.status).as_deref().unwrap_or_else(|| event_type.trim_start_matches("payment.dispute.")) {
        // Won in part: what stays deducted is lost.
        "lost" | "won" if deducted.is_some() => (DisputeStatus::Lost, Money::new(deducted.unwrap_or_default(), disputed.currency)),
        "won" => (DisputeStatus::Won, disputed),
        "lost" => (DisputeStatus::Lost, disputed),
        "closed" => (DisputeStatus::Withdrawn, disputed),
        _ if question => (DisputeStatus::Inquiry, disputed),
        _ => (DisputeStatus::Opened, disputed),
    };
    Ok(Fact::Dispute { payment, dispute_id, status, money, reason: json::text(dispute.reason_code) })
}

fn key(payment_id: String) -> PaymentKey {
    PaymentKey { provider: Provider::Razorpay, account: String::new(), payment_id }
}

fn money(entity: &Entity<'_>) -> Result<Option<Money>, Unreadable> {
    let (Some(amount), Some(currency)) = (json::integer(entity.amount), json::text(entity.currency)) else {
        return Ok(None);
    };
    checked(amount, &currency).map(Some)
}

/// An amount that is not negative, in a currency that exists.
pub(crate) fn checked(amount: i64, currency: &str) -> Result<Money, Unreadable> {
    let currency: Currency = currency.parse().map_err(|error| Unreadable(format!("{error}")))?;
    if amount < 0 { Err(Unreadable("a negative amount".into())) } else { Ok(Money::new(amount, currency)) }
}
