//! What Stripe's objects say: sessions, payment intents, charges, invoices, refunds and disputes, in events and in answers of the
//! API alike.

use counterfoil_payments::{Contact, Currency, DisputeStatus, Fact, Money, News, PaymentDetails, PaymentKey, Provider, RefundStatus};
use serde::Deserialize;

use super::order_named;
use crate::ID_BYTES_MAX;
use crate::json::{self, Raw, Unreadable};

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    object: Raw<'a>,
}

/// The fields of sessions, payment intents, charges, invoices, refunds and disputes that matter here.
#[derive(Deserialize)]
pub(crate) struct Object<'a> {
    #[serde(borrow)]
    pub(crate) id: Raw<'a>,
    #[serde(borrow)]
    amount: Raw<'a>,
    #[serde(borrow)]
    amount_total: Raw<'a>,
    #[serde(borrow)]
    amount_received: Raw<'a>,
    #[serde(borrow)]
    amount_captured: Raw<'a>,
    #[serde(borrow)]
    amount_paid: Raw<'a>,
    #[serde(borrow)]
    pub(crate) amount_refunded: Raw<'a>,
    #[serde(borrow)]
    currency: Raw<'a>,
    #[serde(borrow)]
    pub(crate) captured: Raw<'a>,
    #[serde(borrow)]
    pub(crate) status: Raw<'a>,
    #[serde(borrow)]
    reason: Raw<'a>,
    #[serde(borrow)]
    pub(crate) latest_charge: Raw<'a>,
    #[serde(borrow)]
    pub(crate) payment_intent: Raw<'a>,
    #[serde(borrow)]
    charge: Raw<'a>,
    #[serde(borrow)]
    invoice: Raw<'a>,
    #[serde(borrow)]
    pub(crate) payment_status: Raw<'a>,
    #[serde(borrow)]
    mode: Raw<'a>,
    #[serde(borrow)]
    client_reference_id: Raw<'a>,
    #[serde(borrow)]
    metadata: Raw<'a>,
    #[serde(borrow)]
    customer_details: Raw<'a>,
    #[serde(borrow)]
    billing_details: Raw<'a>,
    #[serde(borrow)]
    receipt_email: Raw<'a>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    order_id: Raw<'a>,
    /// Our mark on a refund that we asked for.
    #[serde(borrow)]
    counterfoil_refund: Raw<'a>,
}

#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow)]
    email: Raw<'a>,
    #[serde(borrow)]
    name: Raw<'a>,
    #[serde(borrow)]
    phone: Raw<'a>,
}

/// Whether the uncaptured rest of an authorisation is told of as a refund: until API version 2025-03-31 it was, in a charge's
/// `amount_refunded`, in refund objects and in their events (docs.stripe.com/changelog/basil/2025-03-31).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Releases {
    AreRefunds,
    AreNot,
}

impl Releases {
    /// By the API version that the event states; without one it is told the old way.
    pub(super) fn of(api_version: Option<&str>) -> Self {
        match api_version.and_then(|version| version.get(..10)) {
            Some(date) if date >= "2025-03-31" => Self::AreNot,
            Some(_) | None => Self::AreRefunds,
        }
    }

    /// What went back of a charge whose `amount_refunded` is `reported`, all in minor units. The figures mostly tell by
    /// themselves whether what was released is among them; where both readings fit, the version decides.
    pub(crate) fn gone_back(self, reported: i64, captured: i64, released: i64) -> i64 {
        match self {
            _ if captured > 0 && reported > captured => reported - released,
            _ if reported < released => reported,
            Self::AreRefunds => reported - released,
            Self::AreNot => reported,
        }
    }
}

/// In whose words an object is told.
#[derive(Clone, Copy)]
pub(crate) struct Told<'a> {
    pub(crate) event_type: &'a str,
    pub(crate) account: &'a str,
    pub(crate) releases: Releases,
}

/// What a type means. `None` for a type that says nothing to us.
enum Meaning {
    News(News),
    /// Money was taken in a way that this release does not settle, and why.
    Unsupported(&'static str),
    Refund,
    RefundsReported,
    Dispute,
}

const SUBSCRIPTION: &str = "a subscription's checkout is not supported: its payment belongs to an invoice, which names no order";

fn meaning(event_type: &str, object: &Object<'_>) -> Option<Meaning> {
    let news = match event_type {
        "checkout.session.completed" => match json::text(object.payment_status).as_deref() {
            _ if json::text(object.mode).as_deref() == Some("setup") => return None,
            Some("paid" | "no_payment_required") if without_payment(object) => return Some(Meaning::Unsupported(SUBSCRIPTION)),
            Some("paid" | "no_payment_required") => News::Captured,
            Some("unpaid") => News::Pending,
            _ => return None,
        },
        "checkout.session.async_payment_succeeded" if without_payment(object) => return Some(Meaning::Unsupported(SUBSCRIPTION)),
        "checkout.session.async_payment_succeeded" | "payment_intent.succeeded" | "charge.captured" => News::Captured,
        "charge.succeeded" => match json::boolean(object.captured)? {
            true => News::Captured,
            false => News::Authorised,
        },
        "invoice.paid" if json::id(object.payment_intent).is_some() => News::Captured,
        "payment_intent.amount_capturable_updated" => News::Authorised,
        "payment_intent.processing" | "payment_intent.requires_action" => News::Pending,
        "payment_intent.payment_failed" | "charge.failed" | "checkout.session.async_payment_failed" => News::Failed,
        "payment_intent.canceled" => News::Cancelled,
        "checkout.session.expired" | "charge.expired" => News::Expired,
        // What goes back of a charge that was never captured is its authorisation: the attempt ends, no money moves.
        refund if is_refund(refund) && json::text(object.reason).as_deref() == Some("expired_uncaptured_charge") => News::Expired,
        "charge.refunded" if json::boolean(object.captured) == Some(false) => News::Cancelled,
        "charge.refunded" => return Some(Meaning::RefundsReported),
        refund if is_refund(refund) => return Some(Meaning::Refund),
        dispute if dispute.starts_with("charge.dispute.") => return Some(Meaning::Dispute),
        _ => return None,
    };
    Some(Meaning::News(news))
}

/// Whether an event of this type carries a refund.
fn is_refund(event_type: &str) -> bool {
    matches!(event_type, "refund.created" | "refund.updated" | "refund.failed" | "charge.refund.updated")
}

/// Whether a session took money by no payment of its own.
fn without_payment(session: &Object<'_>) -> bool {
    json::id(session.payment_intent).is_none() && json::integer(session.amount_total).is_some_and(|amount| amount > 0)
}

fn object_of<'a>(data: Raw<'a>) -> Result<Option<Object<'a>>, Unreadable> {
    json::object::<Data<'a>>(data)?.and_then(|data| json::object(data.object).transpose()).transpose()
}

pub(super) fn ids_of(data: Raw<'_>) -> Vec<String> {
    let Ok(Some(object)) = object_of(data) else { return Vec::new() };
    let metadata = json::object::<Metadata<'_>>(object.metadata).ok().flatten();
    let own = [json::text(object.id), json::id(object.payment_intent), json::id(object.charge), json::id(object.latest_charge), json::id(object.invoice)];
    json::ids(own.into_iter().chain(named_orders(&object, metadata.as_ref())))
}

/// The names that an object gives its order.
fn named_orders(object: &Object<'_>, metadata: Option<&Metadata<'_>>) -> [Option<String>; 2] {
    [json::name(object.client_reference_id), metadata.and_then(|metadata| json::name(metadata.order_id))]
}

pub(super) fn fact(told: &Told<'_>, data: Raw<'_>) -> Result<Fact, Unreadable> {
    let object = object_of(data)?.ok_or_else(|| Unreadable(format!("{} without data.object", told.event_type)))?;
    object_fact(told, &object)
}

/// What an object says, as an event of this type would carry it.
pub(crate) fn object_fact(told: &Told<'_>, object: &Object<'_>) -> Result<Fact, Unreadable> {
    let Told { event_type, account, releases } = *told;
    let missing = |what: &str| Unreadable(format!("{event_type} without {what}"));
    let Some(meaning) = meaning(event_type, object) else {
        return Ok(Fact::Ignored { reason: "a type or state that is not acted on".into() });
    };
    let payment = identity(event_type, object).filter(|id| id.len() <= ID_BYTES_MAX);
    let payment = payment.map(|payment_id| PaymentKey { provider: Provider::Stripe, account: account.to_owned(), payment_id });
    let payment = payment.ok_or_else(|| missing("an id of its payment"))?;
    let money = money(event_type, object)?;
    let metadata = json::object::<Metadata<'_>>(object.metadata)?;
    let id = || json::text(object.id).filter(|id| id.len() <= ID_BYTES_MAX).ok_or_else(|| missing("an id"));
    let some_money = || money.ok_or_else(|| missing("an amount and a currency"));
    let (order, remark) = order_named(&named_orders(object, metadata.as_ref()));
    match meaning {
        Meaning::News(news) => {
            if news == News::Captured {
                some_money()?;
            }
            Ok(Fact::Payment { news, payment, order, money, details: details(event_type, object)?, contact: contact(object)?, remark })
        }
        Meaning::Unsupported(reason) => Ok(Fact::Unsupported { payment, money, order, reason: reason.to_owned() }),
        Meaning::RefundsReported => {
            let total = some_money()?;
            match releases.gone_back(total.amount_minor, captured_minor(object)?, released_minor(object)?) {
                back @ 1.. => Ok(Fact::RefundsReported { payment, total: Money::new(back, total.currency) }),
                _ => Ok(Fact::Ignored { reason: "only what was authorised and not captured was released: no money went back".into() }),
            }
        }
        Meaning::Refund => {
            let status = match json::text(object.status).as_deref() {
                Some("succeeded") => RefundStatus::Succeeded,
                Some("pending" | "requires_action") => RefundStatus::Pending,
                Some("failed" | "canceled") => RefundStatus::Failed,
                _ => return Err(missing("a status that is documented")),
            };
            let ours: Option<uuid::Uuid> = metadata.and_then(|metadata| json::text(metadata.counterfoil_refund)).and_then(|mark| mark.parse().ok());
            let may_be_release = releases == Releases::AreRefunds && ours.is_none();
            Ok(Fact::Refund { payment, refund_id: id()?, status, money: some_money()?, ours, may_be_release })
        }
        Meaning::Dispute => {
            let status = json::text(object.status).as_deref().and_then(dispute_status).ok_or_else(|| missing("a status that is documented"))?;
            Ok(Fact::Dispute { payment, dispute_id: id()?, status, money: some_money()?, reason: json::text(object.reason) })
        }
    }
}

/// Where a dispute stands; docs/disputes.md has the table with its sources.
fn dispute_status(status: &str) -> Option<DisputeStatus> {
    Some(match status {
        "needs_response" | "under_review" => DisputeStatus::Opened,
        "won" => DisputeStatus::Won,
        "lost" => DisputeStatus::Lost,
        "warning_needs_response" | "warning_under_review" => DisputeStatus::Inquiry,
        "warning_closed" => DisputeStatus::Closed,
        "prevented" | "charge_refunded" => DisputeStatus::Withdrawn,
        _ => return None,
    })
}

/// What only some objects tell of a payment.
fn details(event_type: &str, object: &Object<'_>) -> Result<PaymentDetails, Unreadable> {
    let session = event_type.starts_with("checkout.");
    Ok(PaymentDetails {
        checkout: if session { json::text(object.id) } else { None },
        tip_minor: 0,
        released_minor: released_minor(object)?,
        by_price: session && json::integer(object.amount_total).is_some_and(|amount| amount > 0),
    })
}

/// What was captured of a charge or payment intent; 0 where it does not say.
pub(crate) fn captured_minor(object: &Object<'_>) -> Result<i64, Unreadable> {
    let taken = json::integer(object.amount_captured).or_else(|| json::integer(object.amount_received)).filter(|taken| *taken > 0);
    match (taken, json::text(object.currency)) {
        (Some(taken), Some(currency)) => minor_units(taken, currency.parse().map_err(|error| Unreadable(format!("{error}")))?),
        _ => Ok(0),
    }
}

/// What was authorised and not captured, of a charge or payment intent that was captured; what is left to release.
pub(crate) fn released_minor(object: &Object<'_>) -> Result<i64, Unreadable> {
    let taken = json::integer(object.amount_captured).or_else(|| json::integer(object.amount_received)).filter(|taken| *taken > 0);
    let (Some(authorised), Some(taken), Some(currency)) = (json::integer(object.amount), taken, json::text(object.currency)) else { return Ok(0) };
    let currency: Currency = currency.parse().map_err(|error| Unreadable(format!("{error}")))?;
    if authorised > taken { minor_units(authorised - taken, currency) } else { Ok(0) }
}

/// The payment intent, else the charge, else the session.
fn identity(event_type: &str, object: &Object<'_>) -> Option<String> {
    if event_type.starts_with("payment_intent.") {
        return json::text(object.id);
    }
    json::id(object.payment_intent).or_else(|| json::id(object.charge)).or_else(|| json::text(object.id))
}

fn money(event_type: &str, object: &Object<'_>) -> Result<Option<Money>, Unreadable> {
    let amount = match event_type.split('.').next() {
        Some("checkout") => json::integer(object.amount_total),
        Some("invoice") => json::integer(object.amount_paid),
        Some("payment_intent") if event_type.ends_with(".succeeded") => json::integer(object.amount_received).or_else(|| json::integer(object.amount)),
        Some("charge") if event_type == "charge.refunded" => json::integer(object.amount_refunded),
        Some("charge") if !matches!(event_type, "charge.failed" | "charge.refund.updated") && !event_type.starts_with("charge.dispute.") => {
            json::integer(object.amount_captured).filter(|amount| *amount != 0).or_else(|| json::integer(object.amount))
        }
        _ => json::integer(object.amount),
    };
    let (Some(amount), Some(currency)) = (amount, json::text(object.currency)) else {
        return Ok(None);
    };
    let currency: Currency = currency.parse().map_err(|error| Unreadable(format!("{error}")))?;
    if amount < 0 {
        return Err(Unreadable("a negative amount".into()));
    }
    Ok(Some(Money::new(minor_units(amount, currency)?, currency)))
}

/// Stripe writes ISK and UGX with two decimals and MGA with none, unlike ISO 4217 (docs.stripe.com/currencies).
pub(crate) fn minor_units(amount: i64, currency: Currency) -> Result<i64, Unreadable> {
    match currency.code() {
        "ISK" | "UGX" if amount % 100 == 0 => Ok(amount / 100),
        "ISK" | "UGX" => Err(Unreadable(format!("{amount} {currency} is no whole amount: Stripe writes this currency with two decimals"))),
        "MGA" => amount.checked_mul(100).ok_or_else(|| Unreadable("an amount out of range".into())),
        _ => Ok(amount),
    }
}

fn contact(object: &Object<'_>) -> Result<Contact, Unreadable> {
    for raw in [object.customer_details, object.billing_details] {
        if let Some(details) = json::object::<Details<'_>>(raw)? {
            let email = json::text(details.email).or_else(|| json::text(object.receipt_email));
            return Ok(Contact { email, name: json::text(details.name), phone: json::text(details.phone) });
        }
    }
    Ok(Contact { email: json::text(object.receipt_email), ..Contact::default() })
}
