//! Tickets follow the money: void when all of an order's went back, valid again when it came home. The newest version decides,
//! whatever the order in which events arrive.

use std::collections::BTreeMap;

use counterfoil_outbox::NewEvent;
use counterfoil_payments::event::{self, Body, Customer, TicketRange, TicketsData};
use counterfoil_payments::{Event, OrderId, OrderStatus, Topic};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::mint::said;

/// What an event says of an order's money.
#[derive(Debug, Clone)]
pub(crate) struct News {
    version: i64,
    status: String,
    reference: String,
    customer: Customer,
}

fn news(event: &Event) -> Option<News> {
    let (version, status, reference, customer) = match &event.body {
        Body::OrderRefunded(data) | Body::RefundFailed(data) => (data.version, data.order_status.clone(), &data.reference, &data.customer),
        Body::PaymentExtra(data) | Body::PaymentHeld(data) => (data.version, data.order_status.clone()?, &data.reference, &data.customer),
        Body::OrderPaid(_)
        | Body::OrderContactKnown(_)
        | Body::OrderDisputed(_)
        | Body::RefundRequested(_)
        | Body::TicketsIssued(_)
        | Body::TicketsVoided(_)
        | Body::TicketsUnavailable(_) => return None,
    };
    Some(News { version, status, reference: reference.clone().unwrap_or_default(), customer: customer.clone().unwrap_or_default() })
}

/// Writes down what events say of their orders' money, unless something newer was heard.
pub(crate) async fn learn(tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<BTreeMap<OrderId, News>> {
    let mut newest: BTreeMap<OrderId, News> = BTreeMap::new();
    for event in events {
        let Some(news) = news(event) else { continue };
        if newest.get(&event.order_id).is_none_or(|known| known.version < news.version) {
            newest.insert(event.order_id, news);
        }
    }
    if newest.is_empty() {
        return Ok(newest);
    }
    let orders: Vec<Uuid> = newest.keys().map(|order| order.0).collect();
    let versions: Vec<i64> = newest.values().map(|news| news.version).collect();
    let statuses: Vec<String> = newest.values().map(|news| news.status.clone()).collect();
    sqlx::query!(
        "INSERT INTO ticket_standings AS s (order_id, version, order_status) SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[])
         ON CONFLICT (order_id) DO UPDATE SET version = excluded.version, order_status = excluded.order_status WHERE s.version < excluded.version",
        &orders,
        &versions,
        &statuses,
    )
    .execute(&mut **tx)
    .await?;
    Ok(newest)
}

/// Brings the tickets of these orders to where their money stands, and says what changed.
pub(crate) async fn follow(tx: &mut PgTransaction<'_>, news: &BTreeMap<OrderId, News>) -> sqlx::Result<Vec<NewEvent>> {
    if news.is_empty() {
        return Ok(Vec::new());
    }
    let orders: Vec<Uuid> = news.keys().map(|order| order.0).collect();
    let changed = sqlx::query!(
        r#"WITH wanted AS (SELECT order_id, version, CASE WHEN order_status = $2 THEN 'void' ELSE 'valid' END AS status FROM ticket_standings WHERE order_id = ANY ($1))
        UPDATE tickets t SET status = w.status, voided_at = CASE WHEN w.status = 'void' THEN now() END FROM wanted w, draws d
        WHERE t.order_id = w.order_id AND t.status <> w.status AND d.id = t.draw_id
        RETURNING t.order_id, w.version, t.status, t.line, t.draw_id, d.reference AS draw, d.name, t.first_number, t.last_number"#,
        &orders,
        OrderStatus::Refunded.name(),
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut said_of: BTreeMap<(OrderId, i64, String), Vec<TicketRange>> = BTreeMap::new();
    for row in changed {
        said_of.entry((OrderId(row.order_id), row.version, row.status)).or_default().push(TicketRange {
            line: row.line,
            draw_id: row.draw_id,
            draw: row.draw,
            name: row.name,
            first_number: row.first_number,
            last_number: row.last_number,
        });
    }
    let events = said_of.into_iter().map(|((order, version, status), mut tickets)| {
        tickets.sort_by_key(|range| range.line);
        let who = news.get(&order);
        let (reference, customer) = who.map(|news| (news.reference.clone(), news.customer.clone())).unwrap_or_default();
        let data = TicketsData { order_id: order, version, reference, customer, tickets };
        let (event_id, topic) = if status == "void" {
            (event::tickets_voided(order, version), Topic::TicketsVoided)
        } else {
            (event::tickets_issued_again(order, &version.to_string()), Topic::TicketsIssued)
        };
        said(event_id, topic, order, version, &data)
    });
    events.collect()
}

/// The valid numbers of an order, by line.
pub(crate) async fn valid_ranges(tx: &mut PgTransaction<'_>, order: OrderId) -> sqlx::Result<Vec<TicketRange>> {
    sqlx::query_as!(
        TicketRange,
        "SELECT t.line, t.draw_id, d.reference AS draw, d.name, t.first_number, t.last_number
         FROM tickets t JOIN draws d ON d.id = t.draw_id WHERE t.order_id = $1 AND t.status = 'valid' ORDER BY t.line",
        order.0,
    )
    .fetch_all(&mut **tx)
    .await
}
