//! An order is paid by money that was held for it: the right amount was captured, though other figures came first, and not all
//! of it went back since.

use counterfoil_outbox::NewEvent;
use counterfoil_payments::event::{Customer, OrderData, PaymentData};
use counterfoil_payments::{OrderId, PaymentKey, Topic, event};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::statement::headers;
use crate::stored::parsed;
use crate::{aside, orders, positions};

/// Pays an unpaid order by a payment of its own that is held for its amount, if exactly the order's amount was captured at
/// some time and something of it is still here: not sent back, about to be, or charged back. What is gone makes it partially
/// refunded, as if it had gone after the payment. `false` when there is none. Needs the order's lock.
pub(crate) async fn pay_if_it_fits(tx: &mut PgTransaction<'_>, order: Uuid, trace: Option<&str>) -> sqlx::Result<bool> {
    let Some(payment) = fitting(tx, order).await? else { return Ok(false) };
    let paid = sqlx::query!(
        r#"WITH settled AS (
            UPDATE payments p SET disposition = 'settled', held_reason = NULL, settled_minor = o.amount_minor, updated_at = now()
            FROM orders o WHERE o.id = $1 AND p.provider = $2 AND p.account = $3 AND p.payment_id = $4 RETURNING p.amount_minor, p.settled_minor
        )
        UPDATE orders o SET status = 'paid', version = o.version + 1, paid_provider = $2, paid_account = $3, paid_payment_id = $4, paid_at = now(), updated_at = now()
        FROM settled WHERE o.id = $1
        RETURNING o.reference, o.version, o.amount_minor, o.currency, o.customer_email, o.customer_name, o.customer_phone, o.lines,
            to_char(o.paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS "paid_at!", settled.amount_minor AS "captured_minor!", settled.settled_minor"#,
        order,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
    )
    .fetch_one(&mut **tx)
    .await?;
    let books = positions::advance(tx, &payment).await?;
    let currency = parsed(&paid.currency)?;
    let data = OrderData {
        order_id: OrderId(order),
        reference: paid.reference,
        version: paid.version,
        amount_minor: paid.amount_minor,
        currency,
        customer: Customer { email: paid.customer_email, name: paid.customer_name, phone: paid.customer_phone },
        lines: serde_json::from_value(paid.lines).map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        paid_at: paid.paid_at,
        payment: PaymentData {
            provider: payment.provider,
            account: payment.account.clone(),
            payment_id: payment.payment_id.clone(),
            amount_minor: paid.captured_minor,
            currency,
            settled_minor: paid.settled_minor,
        },
        books: Some(books),
    };
    let payload = serde_json::to_value(&data).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    let event_id = event::order_paid(OrderId(order));
    let said = NewEvent { event_id, topic: Topic::OrderPaid.name(), order_id: order, version: paid.version, payload, headers: headers(trace) };
    positions::announce(tx, &said, Some(&books)).await?;
    if books.after.refunded_minor > 0 {
        orders::restate(tx, order).await?;
    }
    aside::surplus(tx, order, &payment, trace).await?;
    aside::now_extra(tx, order).await?;
    Ok(true)
}

/// The payment that may pay, the oldest first.
async fn fitting(tx: &mut PgTransaction<'_>, order: Uuid) -> sqlx::Result<Option<PaymentKey>> {
    let row = sqlx::query!(
        "SELECT p.provider, p.account, p.payment_id FROM orders o JOIN payments p ON p.order_id = o.id
         WHERE o.id = $1 AND o.status IN ('pending_payment', 'payment_pending', 'failed_final') AND p.currency = o.currency AND p.fits AND NOT p.contested
           AND p.disposition = 'held' AND p.held_reason = 'amount_differs'
           AND p.amount_minor - p.booked_charged_back_minor - COALESCE((SELECT sum(r.amount_minor) FROM refunds r
                WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id AND r.currency = p.currency AND r.status <> 'failed'), 0) > 0
         ORDER BY p.created_at, p.payment_id LIMIT 1",
        order,
    )
    .fetch_optional(&mut **tx)
    .await?;
    row.map(|row| Ok(PaymentKey { provider: parsed(&row.provider)?, account: row.account, payment_id: row.payment_id })).transpose()
}
