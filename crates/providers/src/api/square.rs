//! Square's API (developer.squareup.com/reference/square): refunds, payments.

use counterfoil_payments::{Fact, PaymentKey};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::wire::{Wire, fitting};
use super::{CallError, PaymentState, RefundAnswer, RefundCall, answer_of};
use crate::json::{self, Raw};
use crate::square::{MARK, Payment, money, payment_fact, refund_fact};

/// Pinned, so that a change of the application's default version changes nothing here.
const VERSION: &str = "2025-01-23";

/// Longest idempotency key.
const KEY_CHARS_MAX: usize = 45;

/// Tenders of one of Square's orders that are read: more than anybody splits a payment into at a checkout.
const TENDERS_MAX: usize = 10;

#[derive(Deserialize)]
struct OrderAnswer<'a> {
    #[serde(borrow)]
    order: Raw<'a>,
}

#[derive(Deserialize)]
struct Order<'a> {
    #[serde(borrow, default)]
    tenders: Option<Vec<Raw<'a>>>,
}

#[derive(Deserialize)]
struct Tender<'a> {
    #[serde(borrow)]
    id: Raw<'a>,
    #[serde(borrow)]
    payment_id: Raw<'a>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    payment: Raw<'a>,
    #[serde(borrow)]
    refund: Raw<'a>,
}

async fn read(wire: &Wire, key: &PaymentKey) -> Result<Vec<u8>, CallError> {
    wire.send(wire.request(Method::GET, &["v2", "payments", &key.payment_id], &[]).header("Square-Version", VERSION)).await
}

fn part<'a>(wire: &Wire, text: &'a str, refund: bool) -> Result<Payment<'a>, CallError> {
    let answer: Answer<'a> = serde_json::from_str(text).map_err(|error| wire.unread(&error.into()))?;
    let part = json::object(if refund { answer.refund } else { answer.payment }).map_err(|error| wire.unread(&error))?;
    part.ok_or_else(|| CallError::Unknown("Square's answer lacks what was asked for".into()))
}

pub(super) async fn payment(wire: &Wire, key: &PaymentKey) -> Result<PaymentState, CallError> {
    let body = read(wire, key).await?;
    let text = json::body_text(&body).into_owned();
    let payment = part(wire, &text, false)?;
    let refunded_minor = money(payment.refunded_money).ok().flatten().map_or(0, |money| money.amount_minor);
    let fact = payment_fact("a payment", &payment).map_err(|error| wire.unread(&error))?;
    Ok(PaymentState { fact, refunded_minor })
}

/// Reads the payment of one of Square's orders that got furthest; a payment link makes such an order. A shop that told us a
/// payment's id instead is answered by that payment.
pub(super) async fn session(wire: &Wire, key: &PaymentKey) -> Result<PaymentState, CallError> {
    let request = wire.request(Method::GET, &["v2", "orders", &key.payment_id], &[]).header("Square-Version", VERSION);
    let body = match wire.send(request).await {
        Ok(body) => body,
        Err(CallError::NotFound(_)) => return payment(wire, key).await,
        Err(error) => return Err(error),
    };
    let mut furthest: Option<PaymentState> = None;
    for payment_id in tenders(wire, &json::body_text(&body))? {
        let state = payment(wire, &PaymentKey { payment_id, ..key.clone() }).await?;
        if furthest.as_ref().is_none_or(|known| state.rank() > known.rank()) {
            furthest = Some(state);
        }
    }
    furthest.ok_or_else(|| CallError::NotFound("the order has no payment yet".into()))
}

/// The payments of an order; a tender of an older order has the id of its payment itself.
fn tenders(wire: &Wire, text: &str) -> Result<Vec<String>, CallError> {
    let answer: OrderAnswer<'_> = serde_json::from_str(text).map_err(|error| wire.unread(&error.into()))?;
    let order: Option<Order<'_>> = json::object(answer.order).map_err(|error| wire.unread(&error))?;
    let raw = order.and_then(|order| order.tenders).unwrap_or_default();
    let read = raw.into_iter().take(TENDERS_MAX).filter_map(|tender| json::object::<Tender<'_>>(tender).ok().flatten());
    Ok(read.filter_map(|tender| json::text(tender.payment_id).or_else(|| json::text(tender.id))).collect())
}

pub(super) async fn refunds_of(wire: &Wire, key: &PaymentKey) -> Result<Vec<Fact>, CallError> {
    let body = read(wire, key).await?;
    let text = json::body_text(&body).into_owned();
    let payment = part(wire, &text, false)?;
    let ids: Vec<String> =
        payment.refund_ids.map(|ids| serde_json::from_str(ids.get())).transpose().map_err(|error| wire.unread(&error.into()))?.unwrap_or_default();
    let mut facts = Vec::with_capacity(ids.len());
    for id in ids {
        let body = wire.send(wire.request(Method::GET, &["v2", "refunds", &id], &[]).header("Square-Version", VERSION)).await?;
        facts.push(fact_of(wire, &json::body_text(&body))?);
    }
    Ok(facts)
}

fn fact_of(wire: &Wire, text: &str) -> Result<Fact, CallError> {
    refund_fact("a refund", &part(wire, text, true)?).map_err(|error| wire.unread(&error))
}

pub(super) async fn refund(wire: &Wire, call: &RefundCall) -> Result<RefundAnswer, CallError> {
    let body = json!({ "idempotency_key": wire_key(&call.key), "payment_id": call.payment.payment_id,
        "amount_money": { "amount": call.money.amount_minor, "currency": call.money.currency }, "reason": format!("{MARK}{}", call.mark) });
    let body = wire.send(wire.request(Method::POST, &["v2", "refunds"], &[]).header("Square-Version", VERSION).json(&body)).await?;
    answer_of(&fact_of(wire, &json::body_text(&body))?)
}

fn wire_key(key: &str) -> String {
    fitting(key.to_owned(), KEY_CHARS_MAX, |c| c.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fit_into_45_characters_and_stay_the_same_on_every_attempt() {
        let refund = format!("refund:{}", uuid::Uuid::nil());
        assert_eq!(wire_key(&refund), refund);
        let long = format!("refund:extra_capture:{}", "x".repeat(60));
        assert!(wire_key(&long).len() <= KEY_CHARS_MAX);
        assert_eq!(wire_key(&long), wire_key(&long));
    }
}
