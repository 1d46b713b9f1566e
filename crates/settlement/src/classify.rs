//! What the statement left over: news that was older, money that does not fit, contacts that came late.

use counterfoil_outbox::{NewEvent, append};
use counterfoil_payments::{Contact, Disposition, Fact, Money, News, OrderId, OrderStatus, PaymentKey, Topic, event};
use serde_json::json;
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::delivery::{Delivery, Outcome};
use crate::orders;
use crate::statement::{Done, headers};

/// What an applied-but-not-quite event really was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Nothing new.
    Superseded,
    /// A second payment of a paid order.
    Extra,
    /// It does not fit, and why.
    Held(&'static str),
}

/// Judges a fresh event that changed no order. `None` when it changed its payment as it should.
pub(crate) fn judge(news: News, order: Uuid, money: Option<Money>, done: &Done) -> Option<Leftover> {
    let same_order = done.payment_order == Some(order);
    let disposition = done.payment_disposition.as_deref().and_then(Disposition::read);
    match news {
        News::Captured if !same_order => Some(Leftover::Held("claimed_by_other_order")),
        News::Captured => match disposition {
            Some(Disposition::None) | None => Some(misfit(money, done)),
            Some(Disposition::Settled | Disposition::Extra | Disposition::Held) => Some(Leftover::Superseded),
        },
        News::Authorised | News::Pending | News::Failed | News::Cancelled | News::Expired => {
            let took = same_order && done.payment_status.as_deref() == Some(news.payment_status().name());
            (!took).then_some(Leftover::Superseded)
        }
    }
}

/// Why captured money did not pay its order.
fn misfit(money: Option<Money>, done: &Done) -> Leftover {
    match done.order_status.as_deref().and_then(OrderStatus::read) {
        Some(paid) if paid.was_paid() => Leftover::Extra,
        Some(OrderStatus::Cancelled) => Leftover::Held("order_cancelled"),
        Some(OrderStatus::Expired) => Leftover::Held("order_expired"),
        _ => {
            let same_currency = done.order_currency.as_deref() == money.as_ref().map(|money| money.currency.code());
            Leftover::Held(if same_currency { "amount_differs" } else { "currency_differs" })
        }
    }
}

/// Corrects the events that only repeat what we knew.
pub(crate) async fn supersede(tx: &mut PgTransaction<'_>, events: &[&Delivery]) -> sqlx::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let providers: Vec<String> = events.iter().map(|event| event.provider.name().to_owned()).collect();
    let accounts: Vec<String> = events.iter().map(|event| event.account.clone()).collect();
    let ids: Vec<String> = events.iter().map(|event| event.event_id.clone()).collect();
    sqlx::query!(
        "UPDATE webhook_events w SET outcome = 'superseded' FROM unnest($1::text[], $2::text[], $3::text[]) AS e (provider, account, event_id)
         WHERE w.provider = e.provider AND w.account = e.account AND w.event_id = e.event_id",
        &providers,
        &accounts,
        &ids,
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
    // Money whose place is known already (it settled another order, say) keeps it.
    let before = sqlx::query_scalar!(
        r#"WITH old AS (SELECT disposition FROM payments WHERE provider = $1 AND account = $2 AND payment_id = $3 FOR NO KEY UPDATE)
           UPDATE payments p SET status = 'captured', amount_minor = CASE WHEN p.status = 'captured' THEN p.amount_minor ELSE $4 END,
               currency = CASE WHEN p.status = 'captured' THEN p.currency ELSE $5 END, updated_at = now(),
               disposition = CASE WHEN p.disposition = 'none' THEN $6 ELSE p.disposition END,
               held_reason = CASE WHEN p.disposition = 'none' THEN $7 ELSE p.held_reason END
           FROM old WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3 RETURNING old.disposition AS "before!""#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        money.amount_minor,
        money.currency.code(),
        disposition.name(),
        reason,
    )
    .fetch_one(&mut **tx)
    .await?;
    let version = orders::next_version(tx, order).await?;
    let (event_id, topic) = match outcome {
        Outcome::Extra => (event::payment_extra(payment), Topic::PaymentExtra),
        _ => (event::payment_held(payment, reason), Topic::PaymentHeld),
    };
    let payload = json!({
        "order_id": order, "version": version, "reason": reason,
        "payment": { "provider": payment.provider, "account": payment.account, "payment_id": payment.payment_id,
            "amount_minor": money.amount_minor, "currency": money.currency, "before": before },
    });
    append(tx, &NewEvent { event_id, topic: topic.name(), order_id: order, version, payload, headers: headers(event.traceparent.as_deref()) }).await?;
    Ok(())
}

/// Stores a contact that came after its order was paid without one, and says so, once.
pub(crate) async fn contact_known(tx: &mut PgTransaction<'_>, event: &Delivery, order: Uuid, contact: &Contact) -> sqlx::Result<()> {
    let Some(paid) = orders::learn_contact(tx, order, contact).await? else {
        return Ok(());
    };
    let id = event::order_contact_known(OrderId(order));
    let version = paid.version;
    let payload = serde_json::to_value(&paid).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    append(
        tx,
        &NewEvent { event_id: id, topic: Topic::OrderContactKnown.name(), order_id: order, version, payload, headers: headers(event.traceparent.as_deref()) },
    )
    .await?;
    Ok(())
}
