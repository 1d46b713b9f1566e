//! From whatever on-call has in hand to the order that it belongs to.

use counterfoil_inbox::dead;
use counterfoil_payments::OrderKey;
use counterfoil_settlement::{find, orders_named};
use counterfoil_tickets::orders_of_place;
use sqlx::PgConnection;
use uuid::Uuid;

/// The orders that `text` leads to, exact matches first: an order's id or reference; `d_91`; `<draw>#<number>`; one of our events; a
/// reservation; a payment, session, refund, dispute or event of a provider; an e-mail address or customer id.
///
/// # Errors
/// When the database fails.
pub async fn orders_of(connection: &mut PgConnection, text: &str) -> sqlx::Result<Vec<Uuid>> {
    let text = text.trim();
    if let Some(order) = match OrderKey::read(text) {
        Some(key) => find(&mut *connection, &key).await?,
        None => None,
    } {
        return Ok(vec![order.id]);
    }
    if let Some(letter) = text.strip_prefix("d_").and_then(|number| number.parse().ok()) {
        return Ok(dead::find(connection, letter).await?.and_then(|letter| letter.order_id).into_iter().collect());
    }
    if let Ok(id) = Uuid::try_parse(text) {
        let found = order_of_uuid(&mut *connection, id).await?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    if let Some((draw, number)) = text.rsplit_once('#').and_then(|(draw, number)| Some((draw, number.parse().ok()?))) {
        return orders_of_place(connection, None, Some(draw), Some(number)).await;
    }
    let named = orders_named(&mut *connection, text).await?;
    if !named.is_empty() {
        return Ok(named);
    }
    match text.parse() {
        Ok(number) => orders_of_place(connection, None, None, Some(number)).await,
        Err(_) => Ok(Vec::new()),
    }
}

/// By one of our events, by a reservation. The books and the dead letters remember events longer than the outbox does.
async fn order_of_uuid(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Vec<Uuid>> {
    let event = match counterfoil_outbox::of_event(&mut *connection, id).await? {
        Some(order) => Some(order),
        None => match counterfoil_ledger::order_of_event(&mut *connection, id).await? {
            Some(order) => Some(order),
            None => dead::order_of_event(&mut *connection, id).await?,
        },
    };
    match event {
        Some(order) => Ok(vec![order]),
        None => orders_of_place(connection, Some(id), None, None).await,
    }
}
