//! The trail of one order: every step with its time, and every effect that is missing.

use std::fmt;

use counterfoil_broker::topology::CONSUMERS;
use counterfoil_inbox::{Effect, effects};
use counterfoil_ledger::Booked;
use counterfoil_outbox::Published;
use counterfoil_payments::OrderKey;
use counterfoil_settlement::{Dispute, Order, Payment, Refund, Seen, deliveries_of_order, disputes_of, find, find_by_payment, payments_of, refunds_of};
use counterfoil_tickets::{Reservation, Ticket, reservations_of, tickets_of};
use sqlx::PgConnection;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

/// What happened to one order.
#[derive(Debug)]
pub struct Trail {
    order: Order,
    deliveries: Vec<Seen>,
    payments: Vec<Payment>,
    refunds: Vec<Refund>,
    disputes: Vec<Dispute>,
    reservations: Vec<Reservation>,
    tickets: Vec<Ticket>,
    published: Vec<Published>,
    effects: Vec<Effect>,
    booked: Vec<Booked>,
}

/// Reads the trail that `id` leads to: an order's id or reference, or a payment's id.
///
/// # Errors
/// When the database fails.
pub async fn trail(connection: &mut PgConnection, id: &str) -> sqlx::Result<Option<Trail>> {
    let by_key = match OrderKey::read(id) {
        Some(key) => find(connection, &key).await?,
        None => None,
    };
    let order = match by_key {
        Some(order) => Some(order),
        None => find_by_payment(connection, id).await?,
    };
    let Some(order) = order else { return Ok(None) };
    let deliveries = deliveries_of_order(connection, order.id).await?;
    let payments = payments_of(connection, order.id).await?;
    let refunds = refunds_of(connection, order.id).await?;
    let disputes = disputes_of(connection, order.id).await?;
    let reservations = reservations_of(connection, order.id).await?;
    let tickets = tickets_of(connection, order.id).await?;
    let published = counterfoil_outbox::of_order(connection, order.id).await?;
    let ids: Vec<Uuid> = published.iter().map(|event| event.event_id).collect();
    let effects = effects(connection, &ids).await?;
    let booked = counterfoil_ledger::of_order(connection, order.id).await?;
    Ok(Some(Trail { order, deliveries, payments, refunds, disputes, reservations, tickets, published, effects, booked }))
}

fn instant(at: OffsetDateTime) -> String {
    at.replace_nanosecond(at.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(at).format(&Rfc3339).unwrap_or_default()
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = &self.order;
        writeln!(f, "order    {}  {}  {} (version {})  {} {}", order.id, order.reference, order.status, order.version, order.amount_minor, order.currency)?;
        writeln!(f, "         made {}{}", order.created_at, order.paid_at.as_ref().map(|at| format!(", paid {at}")).unwrap_or_default())?;
        for seen in &self.deliveries {
            let times = if seen.deliveries == 1 { String::new() } else { format!(" × {} deliveries", seen.deliveries) };
            let late = if seen.late_deliveries == 0 { String::new() } else { format!(", {} of them late", seen.late_deliveries) };
            let why = seen.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            writeln!(f, "delivery {}  {} {} {}{times}{late}: {}{why}", seen.received_at, seen.provider, seen.event_type, seen.event_id, seen.outcome)?;
        }
        for payment in &self.payments {
            let amount = payment.amount_minor.map(|amount| format!("{amount} {}", payment.currency.as_deref().unwrap_or_default())).unwrap_or_default();
            let why = payment.held_reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            writeln!(f, "payment  {} {}  {}, {}{why}  {amount}", payment.provider, payment.payment_id, payment.status, payment.disposition)?;
        }
        for refund in &self.refunds {
            let theirs = refund.provider_refund_id.as_deref().unwrap_or("(not at the provider yet)");
            let why = refund.held_reason.as_ref().map(|why| format!(" (held: {why})")).unwrap_or_default();
            writeln!(
                f,
                "refund   {}  {} {theirs} of {}  {}, asked for by {}{why}  {} {}",
                refund.created_at, refund.provider, refund.payment_id, refund.status, refund.origin, refund.amount_minor, refund.currency
            )?;
        }
        for dispute in &self.disputes {
            writeln!(
                f,
                "dispute  {} {} of {}  {}  {} {}",
                dispute.provider, dispute.dispute_id, dispute.payment_id, dispute.status, dispute.amount_minor, dispute.currency
            )?;
        }
        for place in &self.reservations {
            let why = place.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            let until = if place.status == "held" { format!(" until {}", place.expires_at) } else { String::new() };
            writeln!(f, "place    {}  line {}: {} of draw {}  {}{until}{why}", place.id, place.line, place.quantity, place.draw_id, place.status)?;
        }
        for ticket in &self.tickets {
            let void = ticket.voided_at.as_ref().map(|at| format!(" since {at}")).unwrap_or_default();
            writeln!(
                f,
                "tickets  {}  line {}: {} to {} of draw {}  {}{void}",
                ticket.issued_at, ticket.line, ticket.first_number, ticket.last_number, ticket.draw_id, ticket.status
            )?;
        }
        for event in &self.published {
            self.fmt_event(f, event)?;
        }
        for line in &self.booked {
            writeln!(f, "books    {:<28} {:>12} {}", line.account, line.amount_minor, line.currency)?;
        }
        Ok(())
    }
}

impl Trail {
    fn fmt_event(&self, f: &mut fmt::Formatter<'_>, event: &Published) -> fmt::Result {
        let withheld = event.published_at.is_some() && event.last_error.is_some();
        if withheld {
            writeln!(f, "event    {}  {} {}  {}", instant(event.created_at), event.topic, event.event_id, event.last_error.as_deref().unwrap_or_default())?;
            return writeln!(f, "effect   not expected (backfill)");
        }
        let state = event
            .published_at
            .map_or_else(|| format!("not published: {}", event.last_error.as_deref().unwrap_or("waiting")), |at| format!("published {}", instant(at)));
        writeln!(f, "event    {}  {} {}  {state}", instant(event.created_at), event.topic, event.event_id)?;
        for consumer in CONSUMERS.iter().filter(|consumer| consumer.topics.contains(&event.topic.as_str())) {
            match self.effects.iter().find(|effect| effect.event_id == event.event_id && effect.consumer == consumer.name) {
                Some(effect) => {
                    let at = effect.done_at.as_deref().unwrap_or("(not yet)");
                    let more = effect.last_error.as_deref().or(effect.external_ref.as_deref()).unwrap_or_default();
                    writeln!(f, "effect   {at}  {:<7} {} after {} attempt(s)  {more}", consumer.name, effect.state, effect.attempts)?;
                }
                None => writeln!(f, "effect   (not yet)                 {:<7} waiting", consumer.name)?,
            }
        }
        Ok(())
    }
}
