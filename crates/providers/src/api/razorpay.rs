//! Razorpay's API (razorpay.com/docs/api): refunds, payments, orders.

use counterfoil_payments::{Fact, News, PaymentKey};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::wire::{Wire, fitting};
use super::{CallError, PaymentState, RefundAnswer, RefundCall, answer_of};
use crate::json::{self, Raw};
use crate::razorpay::{Entity, payment_fact, refund_fact};

/// Longest idempotency key.
const KEY_CHARS_MAX: usize = 64;

#[derive(Deserialize)]
struct Collection<'a> {
    #[serde(borrow)]
    items: Vec<Raw<'a>>,
}

/// Reads a payment, and Razorpay's order of it where the payment's notes name none of ours.
pub(super) async fn payment(wire: &Wire, key: &PaymentKey) -> Result<PaymentState, CallError> {
    let body = wire.send(wire.request(Method::GET, &["v1", "payments", &key.payment_id], &[])).await?;
    let text = json::body_text(&body).into_owned();
    state_of(wire, &text).await
}

async fn state_of(wire: &Wire, text: &str) -> Result<PaymentState, CallError> {
    let entity: Entity<'_> = serde_json::from_str(text).map_err(|error| wire.unread(&error.into()))?;
    let reported = json::integer(entity.amount_refunded).unwrap_or(0);
    let noted = entity.noted_order().map_err(|error| wire.unread(&error))?;
    let order_text = match (noted, json::text(entity.order_id)) {
        (None, Some(order)) => {
            let body = wire.send(wire.request(Method::GET, &["v1", "orders", &order], &[])).await?;
            Some(json::body_text(&body).into_owned())
        }
        _ => None,
    };
    let order: Option<Entity<'_>> = order_text.as_deref().map(serde_json::from_str).transpose().map_err(|error| wire.unread(&error.into()))?;
    let fact = payment_fact(entity, order).map_err(|error| wire.unread(&error))?;
    let captured = matches!(fact, Fact::Payment { news: News::Captured, .. });
    Ok(PaymentState { fact, refunded_minor: if captured { reported } else { 0 } })
}

/// Reads the payment of a Razorpay order that got furthest.
pub(super) async fn order(wire: &Wire, key: &PaymentKey) -> Result<PaymentState, CallError> {
    let body = wire.send(wire.request(Method::GET, &["v1", "orders", &key.payment_id, "payments"], &[])).await?;
    let text = json::body_text(&body).into_owned();
    let list: Collection<'_> = serde_json::from_str(&text).map_err(|error| wire.unread(&error.into()))?;
    let mut furthest = None;
    for item in list.items.into_iter().flatten() {
        let entity: Entity<'_> = serde_json::from_str(item.get()).map_err(|error| wire.unread(&error.into()))?;
        let rank = match json::text(entity.status).as_deref() {
            Some("captured" | "refunded") => 3,
            Some("authorized") => 2,
            _ => 1,
        };
        if furthest.as_ref().is_none_or(|(known, _)| rank > *known) {
            furthest = Some((rank, item.get().to_owned()));
        }
    }
    let (_, payment) = furthest.ok_or_else(|| CallError::NotFound("the order has no payment yet".into()))?;
    state_of(wire, &payment).await
}

pub(super) async fn refunds_of(wire: &Wire, key: &PaymentKey) -> Result<Vec<Fact>, CallError> {
    let body = wire.send(wire.request(Method::GET, &["v1", "payments", &key.payment_id, "refunds"], &[("count", "100")])).await?;
    let text = json::body_text(&body).into_owned();
    let list: Collection<'_> = serde_json::from_str(&text).map_err(|error| wire.unread(&error.into()))?;
    list.items.into_iter().flatten().map(|refund| fact_of(wire, refund.get())).collect()
}

fn fact_of(wire: &Wire, text: &str) -> Result<Fact, CallError> {
    let entity: Entity<'_> = serde_json::from_str(text).map_err(|error| wire.unread(&error.into()))?;
    refund_fact("a refund", &entity).map_err(|error| wire.unread(&error))
}

pub(super) async fn refund(wire: &Wire, call: &RefundCall) -> Result<RefundAnswer, CallError> {
    let body = json!({ "amount": call.money.amount_minor, "notes": { "counterfoil_refund": call.mark }, "receipt": call.mark });
    let request = wire.request(Method::POST, &["v1", "payments", &call.payment.payment_id, "refund"], &[]);
    let body = wire.send(request.header("X-Refund-Idempotency", wire_key(&call.key)).json(&body)).await?;
    answer_of(&fact_of(wire, &json::body_text(&body))?)
}

/// Razorpay takes ten characters or more (ours have), letters, digits, `-` and `_`: colons become `_`; what still does not fit is
/// hashed.
fn wire_key(key: &str) -> String {
    fitting(key.replace(':', "_"), KEY_CHARS_MAX, |c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_characters_that_razorpay_takes() {
        assert_eq!(wire_key("refund:extra_capture:pay_1"), "refund_extra_capture_pay_1");
        assert_eq!(wire_key("refund:é").len(), 36);
    }
}
