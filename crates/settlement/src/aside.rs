//! Money that does not fit its order: put aside, said once, and given another place when the order turns out paid.

use counterfoil_outbox::{NewEvent, append};
use counterfoil_payments::{Disposition, Fact, Money, PaymentKey, Topic, event};
use serde_json::json;
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::delivery::{Delivery, Outcome};
use crate::orders;
use crate::statement::headers;
use crate::stored::parsed;

/// A payment that belongs to another order.
pub(crate) const CLAIMED: &str = "claimed_by_other_order";

/// More of a payment was captured than had been, and what was there before has its place.
const CAPTURED_MORE: &str = "captured_more";

/// The same of a second payment of its order.
const EXTRA_CAPTURED_MORE: &str = "extra_captured_more";

/// Why the growth of a payment is put aside.
pub(crate) fn growth(disposition: Option<&str>) -> &'static str {
    if disposition == Some(Disposition::Extra.name()) { EXTRA_CAPTURED_MORE } else { CAPTURED_MORE }
}

/// What became of a payment's money when it was put aside.
struct Aside {
    amount_minor: i64,
    currency: String,
    settled_minor: i64,
    before: String,
    before_minor: i64,
    before_settled_minor: i64,
}

/// Gives captured money that does not fit its place, unless it has one (it settled another order, say).
async fn place(tx: &mut PgTransaction<'_>, payment: &PaymentKey, money: &Money, disposition: Disposition, reason: &str) -> sqlx::Result<Aside> {
    sqlx::query_as!(
        Aside,
        r#"WITH old AS (SELECT disposition FROM payments
            WHERE provider = $1 AND account = $2 AND payment_id = $3 FOR NO KEY UPDATE)
           UPDATE payments p SET status = 'captured', amount_minor = CASE WHEN p.status = 'captured' THEN p.amount_minor ELSE $4 END,
               currency = CASE WHEN p.status = 'captured' THEN p.currency ELSE $5 END, updated_at = now(),
               disposition = CASE WHEN p.disposition = 'none' THEN $6 ELSE p.disposition END,
               held_reason = CASE WHEN p.disposition = 'none' THEN $7 ELSE p.held_reason END
           FROM old WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3
           RETURNING p.amount_minor AS "amount_minor!", p.currency AS "currency!", p.settled_minor, old.disposition AS "before!",
               CASE WHEN old.disposition = 'none' THEN 0 ELSE p.before_minor END AS "before_minor!", p.before_settled_minor"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        money.amount_minor,
        money.currency.code(),
        disposition.name(),
        reason,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Puts money aside: the payment's disposition, the event's outcome, and the outbox row that says so.
pub(crate) async fn set_aside(
    tx: &mut PgTransaction<'_>,
    event: &Delivery,
    order: Uuid,
    payment: &PaymentKey,
    outcome: Outcome,
    reason: &str,
) -> sqlx::Result<()> {
    let Fact::Payment { money: Some(money), .. } = &event.fact else {
        return Ok(());
    };
    let disposition = if outcome == Outcome::Extra { Disposition::Extra } else { Disposition::Held };
    sqlx::query!(
        "UPDATE webhook_events SET outcome = $4, reason = $5 WHERE provider = $1 AND account = $2 AND event_id = $3",
        event.provider.name(),
        event.account,
        event.event_id,
        outcome.name(),
        reason,
    )
    .execute(&mut **tx)
    .await?;
    let aside = place(tx, payment, money, disposition, reason).await?;
    // An extra payment is money of the order, too: it may stand in for one that went back.
    let restated = orders::restate(tx, order).await?;
    let version = restated.version;
    let (event_id, topic) = match outcome {
        Outcome::Extra => (event::payment_extra(payment), Topic::PaymentExtra),
        _ if reason == CAPTURED_MORE || reason == EXTRA_CAPTURED_MORE => {
            (event::payment_held(payment, &format!("{reason}:{}", aside.amount_minor)), Topic::PaymentHeld)
        }
        _ if reason == CLAIMED => (event::payment_held(payment, &format!("{reason}:{order}")), Topic::PaymentHeld), // one for each claimant
        _ => (event::payment_held(payment, reason), Topic::PaymentHeld),
    };
    // A claim by another order moves no money: what is booked stays as it is.
    let (booked_minor, booked_settled_minor) = match (reason == CLAIMED, aside.before.as_str()) {
        (true, "none") => (0, 0),
        (true, _) => (aside.amount_minor, aside.settled_minor),
        (false, _) => (aside.before_minor, aside.before_settled_minor),
    };
    let payload = payload(order, &restated, reason, payment, &aside, (booked_minor, booked_settled_minor));
    append(tx, &NewEvent { event_id, topic: topic.name(), order_id: order, version, payload, headers: headers(event.traceparent.as_deref()) }).await?;
    Ok(())
}

fn payload(order: Uuid, restated: &orders::Restated, reason: &str, payment: &PaymentKey, aside: &Aside, booked: (i64, i64)) -> serde_json::Value {
    json!({
        "order_id": order, "version": restated.version, "reason": reason,
        "order_status": restated.status, "reference": restated.reference, "customer": restated.customer(),
        "payment": { "provider": payment.provider, "account": payment.account, "payment_id": payment.payment_id,
            "amount_minor": aside.amount_minor, "currency": aside.currency, "settled_minor": aside.settled_minor, "before": aside.before,
            "booked_minor": booked.0, "booked_settled_minor": booked.1 },
    })
}

/// Payments that did not fit an unpaid order are extra ones, now that another has paid it: as if they had come afterwards.
pub(crate) async fn now_extra(tx: &mut PgTransaction<'_>, order: Uuid) -> sqlx::Result<()> {
    let rows = sqlx::query!(
        r#"UPDATE payments SET disposition = 'extra', held_reason = 'already_paid', updated_at = now()
        WHERE order_id = $1 AND disposition = 'held' AND held_reason IN ('amount_differs', 'currency_differs')
        RETURNING provider, account, payment_id, amount_minor AS "amount_minor!", currency AS "currency!""#,
        order,
    )
    .fetch_all(&mut **tx)
    .await?;
    for row in rows {
        let provider = parsed(&row.provider)?;
        let payment = PaymentKey { provider, account: row.account, payment_id: row.payment_id };
        let amount_minor = row.amount_minor;
        let aside =
            Aside { amount_minor, currency: row.currency, settled_minor: 0, before: "held".into(), before_minor: amount_minor, before_settled_minor: 0 };
        let restated = orders::restate(tx, order).await?;
        let version = restated.version;
        let payload = payload(order, &restated, "already_paid", &payment, &aside, (amount_minor, 0));
        let event_id = event::payment_extra(&payment);
        append(tx, &NewEvent { event_id, topic: Topic::PaymentExtra.name(), order_id: order, version, payload, headers: headers(None) }).await?;
    }
    Ok(())
}

/// Says that more was captured than the order costs, when a payment that had been held for it pays by its right amount.
pub(crate) async fn surplus(tx: &mut PgTransaction<'_>, order: Uuid, payment: &PaymentKey, traceparent: Option<&str>) -> sqlx::Result<()> {
    let row = sqlx::query!(
        r#"SELECT amount_minor AS "amount_minor!", currency AS "currency!", settled_minor FROM payments
        WHERE provider = $1 AND account = $2 AND payment_id = $3 AND disposition = 'settled' AND amount_minor > settled_minor"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
    )
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let (amount_minor, settled_minor) = (row.amount_minor, row.settled_minor);
    let aside = Aside {
        amount_minor,
        currency: row.currency,
        settled_minor,
        before: "settled".into(),
        before_minor: amount_minor,
        before_settled_minor: settled_minor,
    };
    let restated = orders::restate(tx, order).await?;
    let version = restated.version;
    let payload = payload(order, &restated, CAPTURED_MORE, payment, &aside, (amount_minor, settled_minor));
    let event_id = event::payment_held(payment, &format!("{CAPTURED_MORE}:{amount_minor}"));
    append(tx, &NewEvent { event_id, topic: Topic::PaymentHeld.name(), order_id: order, version, payload, headers: headers(traceparent) }).await?;
    Ok(())
}
