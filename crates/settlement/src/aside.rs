//! Money that does not fit its order: put aside, said once, and given another place when the order turns out paid.

use counterfoil_outbox::NewEvent;
use counterfoil_payments::{Books, Disposition, Fact, Money, PaymentKey, Topic, event};
use serde_json::json;
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::delivery::{Delivery, Outcome};
use crate::statement::headers;
use crate::stored::parsed;
use crate::{orders, positions};

/// A payment that belongs to another order.
pub(crate) const CLAIMED: &str = "claimed_by_other_order";

/// More of a payment was captured than had been, and what was there before has its place.
const CAPTURED_MORE: &str = "captured_more";

/// The same of a second payment of its order.
const EXTRA_CAPTURED_MORE: &str = "extra_captured_more";

/// Less of a payment was captured than the price of its checkout, by which it had its place.
pub(crate) const CAPTURED_LESS: &str = "captured_less";

/// Why the growth of a payment is put aside.
pub(crate) fn growth(disposition: Option<&str>) -> &'static str {
    if disposition == Some(Disposition::Extra.name()) { EXTRA_CAPTURED_MORE } else { CAPTURED_MORE }
}

/// What of a payment's money there is.
struct Amounts {
    amount_minor: i64,
    currency: String,
    settled_minor: i64,
}

/// Gives captured money that does not fit its place, unless it has one (it grew, say).
async fn place(tx: &mut PgTransaction<'_>, payment: &PaymentKey, disposition: Disposition, reason: &str) -> sqlx::Result<Amounts> {
    sqlx::query_as!(
        Amounts,
        r#"UPDATE payments p SET updated_at = now(),
               disposition = CASE WHEN p.disposition = 'none' THEN $4 ELSE p.disposition END,
               held_reason = CASE WHEN p.disposition = 'none' THEN $5 ELSE p.held_reason END
           WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3
           RETURNING p.amount_minor AS "amount_minor!", p.currency AS "currency!", p.settled_minor"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        disposition.name(),
        reason,
    )
    .fetch_one(&mut **tx)
    .await
}

async fn mark(tx: &mut PgTransaction<'_>, event: &Delivery, outcome: Outcome, reason: &str) -> sqlx::Result<()> {
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
    Ok(())
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
    mark(tx, event, outcome, reason).await?;
    let disposition = if outcome == Outcome::Extra { Disposition::Extra } else { Disposition::Held };
    let amounts = place(tx, payment, disposition, reason).await?;
    let books = positions::advance(tx, payment).await?;
    let event_id = match outcome {
        Outcome::Extra => event::payment_extra(payment),
        _ if [CAPTURED_MORE, EXTRA_CAPTURED_MORE, CAPTURED_LESS].contains(&reason) => {
            event::payment_held(payment, &format!("{reason}:{}", amounts.amount_minor))
        }
        _ => event::payment_held(payment, reason),
    };
    let topic = if outcome == Outcome::Extra { Topic::PaymentExtra } else { Topic::PaymentHeld };
    say(tx, (event_id, topic), order, reason, payment, &amounts, Some(&books), event.traceparent.as_deref()).await
}

/// Writes down that another order claims a payment whose money has its place. No money moves; the payment stands in for
/// nothing from now on, and a person decides.
pub(crate) async fn claim(tx: &mut PgTransaction<'_>, event: &Delivery, order: Uuid, payment: &PaymentKey) -> sqlx::Result<()> {
    let Fact::Payment { money: Some(Money { amount_minor, currency }), .. } = &event.fact else {
        return Ok(());
    };
    mark(tx, event, Outcome::Held, CLAIMED).await?;
    let amounts = sqlx::query_as!(
        Amounts,
        r#"WITH claim AS (INSERT INTO payment_claims (provider, account, payment_id, order_id, amount_minor, currency) VALUES ($1, $2, $3, $4, $5, $6)
            ON CONFLICT (provider, account, payment_id, order_id) DO NOTHING)
        UPDATE payments SET contested = true, updated_at = now() WHERE provider = $1 AND account = $2 AND payment_id = $3
        RETURNING amount_minor AS "amount_minor!", currency AS "currency!", settled_minor"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        order,
        amount_minor,
        currency.code(),
    )
    .fetch_one(&mut **tx)
    .await?;
    let event_id = event::payment_held(payment, &format!("{CLAIMED}:{order}")); // one for each claimant
    say(tx, (event_id, Topic::PaymentHeld), order, CLAIMED, payment, &amounts, None, event.traceparent.as_deref()).await
}

/// Says what became of a payment, with its order's next version: an extra payment is money of the order, too, and may stand in
/// for one that went back.
#[expect(clippy::too_many_arguments, reason = "what one event says")]
async fn say(
    tx: &mut PgTransaction<'_>,
    (event_id, topic): (Uuid, Topic),
    order: Uuid,
    reason: &str,
    payment: &PaymentKey,
    amounts: &Amounts,
    books: Option<&Books>,
    trace: Option<&str>,
) -> sqlx::Result<()> {
    let restated = orders::restate(tx, order).await?;
    let version = restated.version;
    let mut payload = json!({
        "order_id": order, "version": version, "reason": reason,
        "order_status": restated.status, "reference": restated.reference, "customer": restated.customer(),
        "payment": { "provider": payment.provider, "account": payment.account, "payment_id": payment.payment_id,
            "amount_minor": amounts.amount_minor, "currency": amounts.currency, "settled_minor": amounts.settled_minor },
    });
    if let Some(books) = books {
        payload["books"] = json!(books);
    }
    positions::announce(tx, &NewEvent { event_id, topic: topic.name(), order_id: order, version, payload, headers: headers(trace) }, books).await
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
        let payment = PaymentKey { provider: parsed(&row.provider)?, account: row.account, payment_id: row.payment_id };
        let amounts = Amounts { amount_minor: row.amount_minor, currency: row.currency, settled_minor: 0 };
        let books = positions::advance(tx, &payment).await?;
        say(tx, (event::payment_extra(&payment), Topic::PaymentExtra), order, "already_paid", &payment, &amounts, Some(&books), None).await?;
    }
    Ok(())
}

/// Says that more was captured than the order costs, when a payment that had been held for it pays by its right amount.
pub(crate) async fn surplus(tx: &mut PgTransaction<'_>, order: Uuid, payment: &PaymentKey, trace: Option<&str>) -> sqlx::Result<()> {
    let amounts = sqlx::query_as!(
        Amounts,
        r#"SELECT amount_minor AS "amount_minor!", currency AS "currency!", settled_minor FROM payments
        WHERE provider = $1 AND account = $2 AND payment_id = $3 AND disposition = 'settled' AND unallocated_minor > 0"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
    )
    .fetch_optional(&mut **tx)
    .await?;
    let Some(amounts) = amounts else { return Ok(()) };
    let books = positions::advance(tx, payment).await?;
    // Not the id of its growth while it was held: that was said of all of it.
    let event_id = event::payment_held(payment, &format!("{CAPTURED_MORE}:{}:paid", amounts.amount_minor));
    say(tx, (event_id, Topic::PaymentHeld), order, CAPTURED_MORE, payment, &amounts, Some(&books), trace).await
}
