//! Stripe's API (docs.stripe.com/api): refunds, payment intents, charges, checkout sessions.

use counterfoil_payments::{Currency, Fact, News, PaymentKey};
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use url::form_urlencoded::Serializer;

use super::wire::{Wire, fitting};
use super::{CallError, PaymentState, RefundAnswer, RefundCall, answer_of};
use crate::json::{self, Raw};
use crate::stripe::object::{Object, Releases, Told, captured_minor, minor_units, object_fact, released_minor};

/// Pinned, so that a change of the account's default version changes nothing here.
const VERSION: &str = "2026-07-29.dahlia";

/// Longest idempotency key.
const KEY_CHARS_MAX: usize = 255;

/// Refunds of one payment that are listed; Stripe's own limit for a page.
const PAGE: &str = "100";

fn prepared(request: RequestBuilder, account: &str) -> RequestBuilder {
    let request = request.header("Stripe-Version", VERSION);
    if account.is_empty() { request } else { request.header("Stripe-Account", account) }
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    data: Vec<Raw<'a>>,
}

/// Reads a payment intent with its latest charge, or a charge, or a session that moved no money.
pub(super) async fn payment(wire: &Wire, key: &PaymentKey) -> Result<PaymentState, CallError> {
    let id = key.payment_id.as_str();
    if id.starts_with("cs_") {
        return session(wire, key).await;
    }
    let charge = id.starts_with("ch_") || id.starts_with("py_");
    let (path, query) = if charge { ("charges", vec![]) } else { ("payment_intents", vec![("expand[]", "latest_charge")]) };
    let body = wire.send(prepared(wire.request(Method::GET, &["v1", path, id], &query), &key.account)).await?;
    let text = json::body_text(&body).into_owned();
    let object: Object<'_> = serde_json::from_str(&text).map_err(|error| wire.unread(&error.into()))?;
    let latest: Option<Object<'_>> = json::object(object.latest_charge).map_err(|error| wire.unread(&error))?;
    let reported = json::integer(latest.as_ref().map_or(object.amount_refunded, |charge| charge.amount_refunded)).unwrap_or(0);
    let mut fact = object_fact(&told(event_type(charge, &object), key), &object).map_err(|error| wire.unread(&error))?;
    let taken = captured_minor(&object).map_err(|error| wire.unread(&error))?;
    let released = released_minor(&object).map_err(|error| wire.unread(&error))?;
    let refunded_minor = Releases::AreRefunds.gone_back(in_minor_units(&fact, reported), taken, released);
    if let Fact::Payment { order: order @ None, .. } = &mut fact
        && !charge
    {
        *order = order_of_session(wire, key).await?;
    }
    Ok(PaymentState { fact, refunded_minor })
}

fn told<'a>(event_type: &'a str, key: &'a PaymentKey) -> Told<'a> {
    // Payments of before the pinned version may be listed with what was released among their refunds.
    Told { event_type, account: &key.account, releases: Releases::AreRefunds }
}

fn in_minor_units(fact: &Fact, amount: i64) -> i64 {
    match fact {
        Fact::Payment { money: Some(money), .. } => minor_units(amount, money.currency).unwrap_or(amount),
        _ => amount,
    }
}

/// The event type that would carry an object in this state.
fn event_type(charge: bool, object: &Object<'_>) -> &'static str {
    match (charge, json::text(object.status).as_deref()) {
        (true, Some("succeeded")) => "charge.succeeded",
        (true, Some("failed")) => "charge.failed",
        (false, Some("succeeded")) => "payment_intent.succeeded",
        (false, Some("processing")) => "payment_intent.processing",
        (false, Some("requires_action")) => "payment_intent.requires_action",
        (false, Some("requires_capture")) => "payment_intent.amount_capturable_updated",
        (false, Some("canceled")) => "payment_intent.canceled",
        _ => "a state that is not acted on",
    }
}

/// The order that the session of a payment intent names, where the intent itself names none.
async fn order_of_session(wire: &Wire, key: &PaymentKey) -> Result<Option<counterfoil_payments::OrderKey>, CallError> {
    let query = [("payment_intent", key.payment_id.as_str()), ("limit", "1")];
    let body = wire.send(prepared(wire.request(Method::GET, &["v1", "checkout", "sessions"], &query), &key.account)).await?;
    let text = json::body_text(&body).into_owned();
    let list: List<'_> = serde_json::from_str(&text).map_err(|error| wire.unread(&error.into()))?;
    let Some(session) = list.data.into_iter().flatten().next() else { return Ok(None) };
    let object: Object<'_> = serde_json::from_str(session.get()).map_err(|error| wire.unread(&error.into()))?;
    Ok(match object_fact(&told("checkout.session.completed", key), &object) {
        Ok(Fact::Payment { order, .. }) => order,
        _ => None,
    })
}

/// Reads a checkout session; how much was captured, from its payment intent: the session knows its price alone.
pub(super) async fn session(wire: &Wire, key: &PaymentKey) -> Result<PaymentState, CallError> {
    let body = wire.send(prepared(wire.request(Method::GET, &["v1", "checkout", "sessions", &key.payment_id], &[]), &key.account)).await?;
    let text = json::body_text(&body).into_owned();
    let object: Object<'_> = serde_json::from_str(&text).map_err(|error| wire.unread(&error.into()))?;
    let event_type = match json::text(object.status).as_deref() {
        Some("complete") => "checkout.session.completed",
        Some("expired") => "checkout.session.expired",
        _ => "a state that is not acted on",
    };
    let fact = object_fact(&told(event_type, key), &object).map_err(|error| wire.unread(&error))?;
    let (Fact::Payment { news: News::Captured | News::Pending, payment: intent, order, contact, .. }, Some(_)) = (&fact, json::id(object.payment_intent))
    else {
        return Ok(PaymentState { fact, refunded_minor: 0 });
    };
    let mut state = Box::pin(payment(wire, intent)).await?;
    if let Fact::Payment { order: named, contact: who, .. } = &mut state.fact {
        *named = order.clone().or(named.take());
        *who = contact.clone();
    }
    Ok(state)
}

/// The parameter that names a payment.
fn named(key: &PaymentKey) -> (&'static str, &str) {
    let charge = key.payment_id.starts_with("ch_") || key.payment_id.starts_with("py_");
    (if charge { "charge" } else { "payment_intent" }, &key.payment_id)
}

pub(super) async fn refunds_of(wire: &Wire, key: &PaymentKey) -> Result<Vec<Fact>, CallError> {
    let query = [named(key), ("limit", PAGE)];
    let body = wire.send(prepared(wire.request(Method::GET, &["v1", "refunds"], &query), &key.account)).await?;
    let text = json::body_text(&body).into_owned();
    let list: List<'_> = serde_json::from_str(&text).map_err(|error| wire.unread(&error.into()))?;
    list.data.into_iter().flatten().map(|refund| refund_fact(wire, &key.account, refund.get())).collect()
}

fn refund_fact(wire: &Wire, account: &str, text: &str) -> Result<Fact, CallError> {
    let object: Object<'_> = serde_json::from_str(text).map_err(|error| wire.unread(&error.into()))?;
    let told = Told { event_type: "refund.updated", account, releases: Releases::AreRefunds };
    object_fact(&told, &object).map_err(|error| wire.unread(&error))
}

pub(super) async fn refund(wire: &Wire, call: &RefundCall) -> Result<RefundAnswer, CallError> {
    let key = &call.payment;
    let (name, id) = named(key);
    let form = Serializer::new(String::new())
        .append_pair(name, id)
        .append_pair("amount", &stripe_amount(call.money.amount_minor, call.money.currency)?.to_string())
        .append_pair("metadata[counterfoil_refund]", &call.mark.to_string())
        .finish();
    let request = prepared(wire.request(Method::POST, &["v1", "refunds"], &[]), &key.account)
        .header("Idempotency-Key", fitting(call.key.clone(), KEY_CHARS_MAX, |c| c.is_ascii_graphic()))
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(form);
    let body = wire.send(request).await?;
    answer_of(&refund_fact(wire, &key.account, &json::body_text(&body))?)
}

/// The other way round of [`minor_units`].
fn stripe_amount(minor: i64, currency: Currency) -> Result<i64, CallError> {
    match currency.code() {
        "ISK" | "UGX" => minor.checked_mul(100).ok_or_else(|| CallError::Refused("an amount out of range".into())),
        "MGA" if minor % 100 == 0 => Ok(minor / 100),
        "MGA" => Err(CallError::Refused("Stripe takes whole ariary only".into())),
        _ => Ok(minor),
    }
}
