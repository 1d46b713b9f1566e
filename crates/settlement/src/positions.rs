//! Where a payment's money stands, and the events that move it: each names where it stood and where it stands, so that the
//! books follow from the last position alone, in any order of arrival.

use counterfoil_outbox::{NewEvent, append};
use counterfoil_payments::{Books, Currency, PaymentKey, Position};
use sqlx::PgTransaction;

use crate::stored::parsed;

/// Brings a payment's announced position up to what its rows say: captures, refunds and disputes in its currency. Returns how
/// it moved; an event of the same transaction must say so ([`announce`]). Needs the order's lock.
pub(crate) async fn advance(tx: &mut PgTransaction<'_>, payment: &PaymentKey) -> sqlx::Result<Books> {
    let row = sqlx::query!(
        r#"WITH old AS MATERIALIZED (
            SELECT * FROM payments WHERE provider = $1 AND account = $2 AND payment_id = $3 FOR NO KEY UPDATE
        ), back AS (
            SELECT COALESCE(sum(r.amount_minor) FILTER (WHERE r.status = 'pending'), 0)::bigint AS pending,
                COALESCE(sum(r.amount_minor) FILTER (WHERE r.status = 'succeeded'), 0)::bigint AS refunded,
                COALESCE(sum(r.amount_minor) FILTER (WHERE r.provider_refund_id IS NOT NULL), 0)::bigint AS known
            FROM old JOIN refunds r ON r.provider = old.provider AND r.account = old.account AND r.payment_id = old.payment_id AND r.currency = old.currency
        ), away AS (
            SELECT COALESCE(sum(d.amount_minor) FILTER (WHERE d.status = 'opened'), 0)::bigint AS disputed,
                COALESCE(sum(d.amount_minor) FILTER (WHERE d.status = 'lost'), 0)::bigint AS charged_back
            FROM old JOIN disputes d ON d.provider = old.provider AND d.account = old.account AND d.payment_id = old.payment_id AND d.currency = old.currency
        )
        UPDATE payments p SET booked_captured_minor = CASE WHEN p.disposition = 'none' THEN 0 ELSE p.amount_minor END, booked_settled_minor = p.settled_minor,
            booked_tip_minor = CASE WHEN p.disposition = 'none' THEN 0 ELSE p.tip_minor END, booked_refund_pending_minor = back.pending,
            booked_refunded_minor = back.refunded, booked_disputed_minor = away.disputed, booked_charged_back_minor = away.charged_back,
            refunds_known_minor = back.known, updated_at = now()
        FROM old, back, away WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3
        RETURNING p.currency AS "currency!", old.booked_captured_minor AS was_captured, old.booked_settled_minor AS was_settled, old.booked_tip_minor AS was_tip,
            old.booked_refund_pending_minor AS was_pending, old.booked_refunded_minor AS was_refunded, old.booked_disputed_minor AS was_disputed,
            old.booked_charged_back_minor AS was_charged_back, p.booked_captured_minor AS captured, p.booked_settled_minor AS settled, p.booked_tip_minor AS tip,
            p.booked_refund_pending_minor AS pending, p.booked_refunded_minor AS refunded, p.booked_disputed_minor AS disputed, p.booked_charged_back_minor AS charged_back"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
    )
    .fetch_one(&mut **tx)
    .await?;
    let currency: Currency = parsed(&row.currency)?;
    let before = Position {
        captured_minor: row.was_captured,
        settled_minor: row.was_settled,
        tip_minor: row.was_tip,
        refund_pending_minor: row.was_pending,
        refunded_minor: row.was_refunded,
        disputed_minor: row.was_disputed,
        charged_back_minor: row.was_charged_back,
    };
    let after = Position {
        captured_minor: row.captured,
        settled_minor: row.settled,
        tip_minor: row.tip,
        refund_pending_minor: row.pending,
        refunded_minor: row.refunded,
        disputed_minor: row.disputed,
        charged_back_minor: row.charged_back,
    };
    Ok(Books { currency, before, after })
}

/// Appends the event that says how money moved.
///
/// # Errors
/// When the same event was said before although money moves by this one: two facts would share one id, and the books would
/// miss the second for good. Better that it fails and a person looks.
pub(crate) async fn announce(tx: &mut PgTransaction<'_>, event: &NewEvent, books: Option<&Books>) -> sqlx::Result<()> {
    let fresh = append(tx, event).await?;
    if !fresh && books.is_some_and(|books| !books.unchanged()) {
        return Err(sqlx::Error::Encode(format!("the event {} of {} was said before, and its money moves again", event.event_id, event.topic).into()));
    }
    Ok(())
}
