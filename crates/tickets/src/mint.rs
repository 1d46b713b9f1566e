//! Minting: paid order lines get their numbers, many orders in one transaction on one hot row.
//!
//! Rules it keeps:
//! - Whoever acts on an order takes its advisory lock first, in a statement of its own: a refund and its payment, handled by two
//!   replicas at once, see each other's rows.
//! - The draws' rows are counted up, and so locked, in the order of their ids; numbers follow from the row as it was then. Tickets and
//!   counter commit together, so there are no gaps; the exclusion constraint says that there are no overlaps.
//! - Its sessions plan once ([`SESSION`]) and by index: a plan made while `tickets` was empty would read all of it for every batch.
//! - A line whose place was given back before its money came takes what is left of a draw that is not closed; where nothing is left it
//!   is lost, and says so.

use std::collections::{BTreeMap, HashSet};

use counterfoil_outbox::{NewEvent, append_all};
use counterfoil_payments::event::{self, Body, OrderData, TicketRange, TicketsData, UnavailableData, UnavailableLine};
use counterfoil_payments::{Event, OrderId, Topic};
use serde::Serialize;
use serde_json::json;
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::reserve::release_due;
use crate::standings;

/// Reservations that are given back for one late payment, at the most.
const RELEASE_MAX: i64 = 1000;

/// Settings of a session that mints, beside those of all consumers: with plans made anew, or by size, a batch costs two to six times as
/// much. Nested loops alone keep the order in which the draws are locked.
pub const SESSION: [(&str, &str); 3] = [("plan_cache_mode", "force_generic_plan"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];

/// Follows events, sorted by id, none of which was followed before: mints for paid orders, voids what went back.
///
/// # Errors
/// When the database fails, or a line names a draw that is not here.
pub async fn apply(tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<()> {
    let mut orders: Vec<Uuid> = events.iter().map(|event| event.order_id.0).collect();
    orders.sort_unstable();
    orders.dedup();
    lock_orders(tx, &orders).await?;
    let news = standings::learn(tx, events).await?;
    let mut said = mint(tx, events).await?;
    said.extend(standings::follow(tx, &news).await?);
    append_all(tx, &said).await?;
    Ok(())
}

async fn lock_orders(tx: &mut PgTransaction<'_>, orders: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hash) FROM (SELECT hashtextextended(id::text, 2) AS hash FROM unnest($1::uuid[]) WITH ORDINALITY AS a (id, n) ORDER BY n OFFSET 0) AS sorted",
        orders
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// An event of a ticket crate's topic, ready for the outbox.
pub(crate) fn said<T: Serialize>(event_id: Uuid, topic: Topic, order: OrderId, version: i64, data: &T) -> sqlx::Result<NewEvent> {
    let payload = serde_json::to_value(data).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    Ok(NewEvent { event_id, topic: topic.name(), order_id: order.0, version, payload, headers: json!({}) })
}

/// A paid order: what its events say, and whether the contact became known with one of them.
struct Purchase<'a> {
    data: &'a OrderData,
    contact_known: bool,
    issued: Vec<TicketRange>,
    known: usize,
    lost: Vec<UnavailableLine>,
}

/// One of its lines that buys tickets.
#[derive(Debug, Clone)]
struct Line {
    order: OrderId,
    line: i32,
    draw: Uuid,
    quantity: i64,
    amount_minor: i64,
}

fn purchases<'a>(events: &[&'a Event]) -> BTreeMap<OrderId, Purchase<'a>> {
    let mut purchases: BTreeMap<OrderId, Purchase<'a>> = BTreeMap::new();
    for event in events {
        let (Body::OrderPaid(data) | Body::OrderContactKnown(data)) = &event.body else { continue };
        let contact_known = matches!(event.body, Body::OrderContactKnown(_));
        let purchase = purchases.entry(event.order_id).or_insert(Purchase { data, contact_known, issued: Vec::new(), known: 0, lost: Vec::new() });
        if contact_known {
            (purchase.data, purchase.contact_known) = (data, true);
        }
    }
    purchases.retain(|_, purchase| purchase.data.lines.iter().any(|line| line.draw.is_some()));
    purchases
}

fn lines(order: OrderId, data: &OrderData) -> impl Iterator<Item = Line> {
    data.lines
        .iter()
        .zip(0..)
        .filter_map(move |(line, nth)| Some(Line { order, line: nth, draw: line.draw?, quantity: line.quantity, amount_minor: line.amount_minor }))
}

async fn mint(tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<Vec<NewEvent>> {
    let mut purchases = purchases(events);
    let wanted: Vec<Line> = purchases.iter().flat_map(|(order, purchase)| lines(*order, purchase.data)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let missing = give_out(tx, &mut purchases, wanted).await?;
    let mut retaken = Vec::new();
    for line in missing {
        match retake(tx, &line).await? {
            Retaken::Placed => retaken.push(line),
            Retaken::SoldOut => {
                if let Some(purchase) = purchases.get_mut(&line.order) {
                    purchase.lost.push(UnavailableLine { line: line.line, draw_id: line.draw, quantity: line.quantity, amount_minor: line.amount_minor });
                }
            }
        }
    }
    if !retaken.is_empty() {
        let missing = give_out(tx, &mut purchases, retaken).await?;
        if let Some(line) = missing.first() {
            let why = format!("order {} line {}: its reservation is of another draw", line.order, line.line);
            return Err(sqlx::Error::Decode(why.into())); // this event is to blame, not the database
        }
    }
    announce(tx, purchases).await
}

/// Mints for lines that have their place; returns those that have none.
async fn give_out(tx: &mut PgTransaction<'_>, purchases: &mut BTreeMap<OrderId, Purchase<'_>>, wanted: Vec<Line>) -> sqlx::Result<Vec<Line>> {
    let numbers: Vec<i32> = (0..).take(wanted.len()).collect();
    let orders: Vec<Uuid> = wanted.iter().map(|line| line.order.0).collect();
    let lines: Vec<i32> = wanted.iter().map(|line| line.line).collect();
    let draws: Vec<Uuid> = wanted.iter().map(|line| line.draw).collect();
    let rows = sqlx::query_file!("src/mint.sql", &numbers, &orders, &lines, &draws).fetch_all(&mut **tx).await?;
    let mut missing = Vec::new();
    for (line, row) in wanted.into_iter().zip(rows) {
        let Some(purchase) = purchases.get_mut(&line.order) else { continue };
        match (row.first_number, row.last_number) {
            (Some(first_number), Some(last_number)) if row.status.as_deref() == Some("valid") => purchase.issued.push(TicketRange {
                line: line.line,
                draw_id: line.draw,
                draw: row.reference.unwrap_or_default(),
                name: row.name.unwrap_or_default(),
                first_number,
                last_number,
            }),
            (Some(_), _) => {} // void from the start: its money had gone back already
            (None, _) if row.known => purchase.known += 1,
            (None, _) => missing.push(line),
        }
    }
    Ok(missing)
}

/// What became of a line whose place was given back before its money came.
enum Retaken {
    /// It has a place.
    Placed,
    /// Others have it.
    SoldOut,
}

/// Takes a place for money that came late, if its draw has one.
async fn retake(tx: &mut PgTransaction<'_>, line: &Line) -> sqlx::Result<Retaken> {
    let known = sqlx::query_scalar!("SELECT status FROM reservations WHERE order_id = $1 AND line = $2", line.order.0, line.line);
    let known = known.fetch_optional(&mut **tx).await?;
    let placed = match known.as_deref() {
        Some("lost") => return Ok(Retaken::SoldOut),
        Some("held") => true, // the order was paid in a way that no trigger saw: its place is still counted
        Some("confirmed") => return Ok(Retaken::Placed),
        // Also where the money went back meanwhile: the numbers are void from the start, as if the payment had been read first.
        _ => take(tx, line).await? || (release_due(tx, Some(&[line.draw]), RELEASE_MAX).await? > 0 && take(tx, line).await?),
    };
    sqlx::query!(
        "INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at, owed) VALUES ($1, $2, $3, $4, $5, $6, now(), $6 = 'lost')
         ON CONFLICT ON CONSTRAINT reservations_one_for_a_line DO UPDATE SET status = excluded.status, owed = excluded.owed, reason = NULL, updated_at = now()",
        Uuid::now_v7(),
        line.order.0,
        line.line,
        line.draw,
        line.quantity,
        if placed { "confirmed" } else { "lost" },
    )
    .execute(&mut **tx)
    .await?;
    Ok(if placed { Retaken::Placed } else { Retaken::SoldOut })
}

async fn take(tx: &mut PgTransaction<'_>, line: &Line) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "UPDATE draws SET reserved = reserved + $2, updated_at = now()
         WHERE id = $1 AND (capacity IS NULL OR reserved + $2 <= capacity) AND (closes_at IS NULL OR closes_at > now())",
        line.draw,
        line.quantity
    );
    Ok(done.execute(&mut **tx).await?.rows_affected() == 1)
}

/// What is to be said of each purchase.
async fn announce(tx: &mut PgTransaction<'_>, purchases: BTreeMap<OrderId, Purchase<'_>>) -> sqlx::Result<Vec<NewEvent>> {
    let mut events = Vec::with_capacity(purchases.len());
    for (order, purchase) in purchases {
        let data = purchase.data;
        let tickets =
            |tickets| TicketsData { order_id: order, version: data.version, reference: data.reference.clone(), customer: data.customer.clone(), tickets };
        if !purchase.issued.is_empty() {
            events.push(said(event::tickets_issued(order), Topic::TicketsIssued, order, data.version, &tickets(purchase.issued))?);
        } else if purchase.known > 0 && purchase.contact_known {
            let valid = standings::valid_ranges(tx, order).await?;
            if !valid.is_empty() {
                events.push(said(event::tickets_issued_again(order, "contact"), Topic::TicketsIssued, order, data.version, &tickets(valid))?);
            }
        }
        if !purchase.lost.is_empty() {
            events.push(said(event::tickets_unavailable(order), Topic::TicketsUnavailable, order, data.version, &unavailable(data, purchase.lost)?)?);
        }
    }
    Ok(events)
}

fn unavailable(data: &OrderData, mut lost: Vec<UnavailableLine>) -> sqlx::Result<UnavailableData> {
    let whole = lost.iter().map(|line| line.line).collect::<HashSet<_>>().len() == data.lines.len();
    let prices: i128 = data.lines.iter().map(|line| i128::from(line.amount_minor.max(0))).sum();
    let mut sum = 0_i128;
    for line in &mut lost {
        line.amount_minor = worth(i128::from(data.amount_minor), prices, line.amount_minor);
        sum += i128::from(line.amount_minor);
    }
    let sum = i64::try_from(sum.min(i128::from(data.amount_minor))).map_err(|error| sqlx::Error::Encode(Box::new(error)))?;
    Ok(UnavailableData {
        order_id: data.order_id,
        version: data.version,
        reference: data.reference.clone(),
        customer: data.customer.clone(),
        payment: data.payment.key(),
        amount_minor: (!whole).then_some(sum),
        currency: data.currency,
        lines: lost,
    })
}

/// What a line is worth: its price, or, where other lines take something off, its share of what the order costs, rounded down.
/// `line_worth` in SQL.
fn worth(order_minor: i128, prices: i128, line_minor: i64) -> i64 {
    if prices <= order_minor {
        return line_minor;
    }
    let share = order_minor * i128::from(line_minor) / prices;
    i64::try_from(share).unwrap_or(line_minor).min(line_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_worth_its_price_or_its_share_where_a_discount_is_among_the_lines() {
        assert_eq!(worth(1500, 1500, 1000), 1000);
        assert_eq!((worth(900, 1500, 1000), worth(900, 1500, 500)), (600, 300));
        assert_eq!((worth(1000, 3000, 5), worth(0, 500, 500), worth(0, 0, 0)), (1, 0, 0));
        assert_eq!(worth(i128::from(i64::MAX), 2 * i128::from(i64::MAX), i64::MAX), i64::MAX / 2);
    }
}
