//! What the statement left over: news that was older, money that does not fit, contacts that came late.

use counterfoil_outbox::{NewEvent, append};
use counterfoil_payments::{Contact, Disposition, Money, News, OrderId, OrderStatus, Topic, event};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::delivery::Delivery;
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
    /// Its money has its place with another order.
    Claimed,
    /// More of a payment was captured whose place is known.
    Grew,
    /// Less of it was captured than its checkout's price.
    Shrank,
}

/// Judges a fresh event that changed no order. `None` when it changed its payment as it should.
pub(crate) fn judge(news: News, order: Uuid, money: Option<Money>, done: &Done) -> Option<Leftover> {
    let same_order = done.payment_order == Some(order);
    let disposition = done.payment_disposition.as_deref().and_then(Disposition::read);
    match news {
        News::Captured if !same_order => Some(Leftover::Claimed),
        News::Captured => match disposition {
            Some(Disposition::None) | None => Some(misfit(money, done)),
            Some(Disposition::Settled | Disposition::Extra | Disposition::Held) if done.payment_grew == Some(true) => Some(Leftover::Grew),
            Some(Disposition::Settled | Disposition::Extra | Disposition::Held) if done.payment_shrank == Some(true) => Some(Leftover::Shrank),
            Some(Disposition::Settled | Disposition::Extra | Disposition::Held) => Some(Leftover::Superseded),
        },
        News::Authorised | News::Pending | News::Failed | News::Cancelled | News::Expired | News::FailedFinal => {
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

/// Stores a contact that an order lacks; when it is paid already, says so, once.
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
