//! Reservations: a place for each order line, made with the order, kept for a time, given back when that is over.

use std::collections::{BTreeMap, HashMap};

use counterfoil_payments::{OrderKey, Reference};
use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// Reservations of one draw that are given back in one go, at the most.
const RELEASE_MAX: i64 = 10_000;

/// Tickets that an order line wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The order's line, from 0.
    pub line: i32,
    /// Of which draw, by id or reference.
    pub draw: OrderKey,
    /// How many.
    pub quantity: i64,
}

/// Why an order's tickets were not reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreserved {
    /// No such draw.
    #[error("no draw has this id or reference")]
    NoDraw {
        /// The line that names it.
        line: i32,
    },
    /// It is not sold yet.
    #[error("{draw} is not open yet: it opens at {opens_at}")]
    NotOpenYet {
        /// The draw's reference.
        draw: String,
        /// RFC 3339.
        opens_at: String,
    },
    /// It is not sold any more.
    #[error("{draw} is closed: it closed at {closes_at}")]
    Closed {
        /// The draw's reference.
        draw: String,
        /// RFC 3339.
        closes_at: String,
    },
    /// More than one order may have.
    #[error("an order may have {limit} tickets of {draw} at the most, not {wanted}")]
    OverLimit {
        /// The draw's reference.
        draw: String,
        /// Tickets of one order at the most.
        limit: i64,
        /// What the order wants.
        wanted: i64,
    },
    /// Fewer are left.
    #[error("{}", if *left == 0 { format!("{draw} is sold out") } else { format!("only {left} tickets of {draw} are left, not {wanted}") })]
    SoldOut {
        /// The draw's reference.
        draw: String,
        /// What is left.
        left: i64,
        /// What the order wants.
        wanted: i64,
    },
}

/// A draw under lock.
struct Locked {
    id: Uuid,
    reference: String,
    capacity: Option<i64>,
    reserved: i64,
    order_limit: Option<i64>,
    not_open_yet: Option<String>,
    closed: Option<String>,
}

impl Locked {
    fn left(&self) -> Option<i64> {
        self.capacity.map(|capacity| capacity - self.reserved)
    }
}

/// Locks draws in the order of their ids.
async fn lock(tx: &mut PgTransaction<'_>, ids: &[Uuid], references: &[String]) -> sqlx::Result<Vec<Locked>> {
    sqlx::query_as!(
        Locked,
        r#"SELECT id, reference, capacity, reserved, order_limit,
            CASE WHEN opens_at > now() THEN to_char(opens_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END AS not_open_yet,
            CASE WHEN closes_at <= now() THEN to_char(closes_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END AS closed
        FROM draws WHERE id = ANY ($1) OR reference = ANY ($2) ORDER BY id FOR NO KEY UPDATE"#,
        ids,
        references,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The draws that a batch of orders names, as they stand under their locks.
struct Desk {
    draws: Vec<Locked>,
    taken: BTreeMap<Uuid, i64>,
}

impl Desk {
    fn find(&mut self, key: &OrderKey) -> Option<&mut Locked> {
        self.draws.iter_mut().find(|draw| match key {
            OrderKey::Id(id) => draw.id == id.0,
            OrderKey::Reference(reference) => draw.reference == reference.as_str(),
        })
    }

    /// Takes all that one order wants, or nothing; the draw of each line.
    fn take(&mut self, order: &[Wanted]) -> Result<Vec<Uuid>, Unreserved> {
        let mut lines = Vec::with_capacity(order.len());
        let mut sums: BTreeMap<Uuid, i64> = BTreeMap::new();
        for wanted in order {
            let draw = self.find(&wanted.draw).ok_or(Unreserved::NoDraw { line: wanted.line })?;
            let sum = sums.entry(draw.id).or_default();
            *sum = sum.saturating_add(wanted.quantity);
            allowed(draw, *sum)?;
            lines.push(draw.id);
        }
        for (id, sum) in sums {
            if let Some(draw) = self.draws.iter_mut().find(|draw| draw.id == id) {
                draw.reserved += sum;
            }
            *self.taken.entry(id).or_default() += sum;
        }
        Ok(lines)
    }
}

fn allowed(draw: &Locked, wanted: i64) -> Result<(), Unreserved> {
    let name = || draw.reference.clone();
    if let Some(opens_at) = draw.not_open_yet.clone() {
        return Err(Unreserved::NotOpenYet { draw: name(), opens_at });
    }
    if let Some(closes_at) = draw.closed.clone() {
        return Err(Unreserved::Closed { draw: name(), closes_at });
    }
    match (draw.order_limit, draw.left()) {
        (Some(limit), _) if wanted > limit => Err(Unreserved::OverLimit { draw: name(), limit, wanted }),
        (_, Some(left)) if wanted > left => Err(Unreserved::SoldOut { draw: name(), left, wanted }),
        (_, None) if draw.reserved.checked_add(wanted).is_none_or(|sum| sum >= 1 << 53) => Err(Unreserved::SoldOut { draw: name(), left: 0, wanted }),
        _ => Ok(()),
    }
}

/// Reserves the tickets of a batch of orders, first come first served: for each order all that it wants, or nothing and why.
/// Returns for each order the draws of its lines. Places whose time is over are given back first, where too few are left.
///
/// # Errors
/// When the database fails.
pub async fn reserve(tx: &mut PgTransaction<'_>, orders: &[&[Wanted]]) -> sqlx::Result<Vec<Result<Vec<Uuid>, Unreserved>>> {
    let (mut ids, mut references, mut asked) = (Vec::new(), Vec::new(), HashMap::<&OrderKey, i64>::new());
    for wanted in orders.iter().copied().flatten() {
        match &wanted.draw {
            OrderKey::Id(id) => ids.push(id.0),
            OrderKey::Reference(reference) => references.push(Reference::as_str(reference).to_owned()),
        }
        let sum = asked.entry(&wanted.draw).or_default();
        *sum = sum.saturating_add(wanted.quantity);
    }
    if asked.is_empty() {
        return Ok(orders.iter().map(|_| Ok(Vec::new())).collect());
    }
    let mut desk = Desk { draws: lock(tx, &ids, &references).await?, taken: BTreeMap::new() };
    let total = asked.values().fold(0_i64, |sum, quantity| sum.saturating_add(*quantity));
    let short: Vec<Uuid> = desk.draws.iter().filter(|draw| draw.left().is_some_and(|left| left < total)).map(|draw| draw.id).collect();
    if !short.is_empty() && release_due(tx, Some(&short), RELEASE_MAX).await? > 0 {
        desk.draws = lock(tx, &ids, &references).await?;
    }
    let reserved = orders.iter().map(|order| desk.take(order)).collect();
    add(tx, &desk.taken).await?;
    Ok(reserved)
}

/// The one conditional update: no draw ever reserves more than it has.
async fn add(tx: &mut PgTransaction<'_>, taken: &BTreeMap<Uuid, i64>) -> sqlx::Result<()> {
    if taken.is_empty() {
        return Ok(());
    }
    let (ids, quantities): (Vec<Uuid>, Vec<i64>) = taken.iter().unzip();
    let done = sqlx::query!(
        "UPDATE draws d SET reserved = d.reserved + w.quantity, updated_at = now() FROM unnest($1::uuid[], $2::bigint[]) AS w (id, quantity)
         WHERE d.id = w.id AND (d.capacity IS NULL OR d.reserved + w.quantity <= d.capacity)",
        &ids,
        &quantities,
    )
    .execute(&mut **tx)
    .await?;
    if done.rows_affected() != ids.len() as u64 {
        return Err(sqlx::Error::Protocol("a draw changed under its lock".into()));
    }
    Ok(())
}

/// Writes the reservations of orders that this transaction has inserted: (order, line, draw, quantity), kept for `seconds`.
///
/// # Errors
/// When the database fails.
pub async fn hold(tx: &mut PgTransaction<'_>, lines: &[(Uuid, i32, Uuid, i64)], seconds: &[i64]) -> sqlx::Result<Vec<Reservation>> {
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = lines.iter().map(|_| Uuid::now_v7()).collect();
    let orders: Vec<Uuid> = lines.iter().map(|line| line.0).collect();
    let numbers: Vec<i32> = lines.iter().map(|line| line.1).collect();
    let draws: Vec<Uuid> = lines.iter().map(|line| line.2).collect();
    let quantities: Vec<i64> = lines.iter().map(|line| line.3).collect();
    sqlx::query_as!(
        Reservation,
        r#"INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at)
        SELECT id, order_id, line, draw_id, quantity, 'held', now() + make_interval(secs => seconds::float8)
        FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::uuid[], $5::bigint[], $6::bigint[]) AS n (id, order_id, line, draw_id, quantity, seconds)
        RETURNING id, order_id, line, draw_id, quantity, status, reason, to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "expires_at!""#,
        &ids,
        &orders,
        &numbers,
        &draws,
        &quantities,
        seconds,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Gives back held places whose time is over by the database's clock, of these draws or of all, at most `limit` of each draw. Returns how
/// many reservations there were. What another transaction is busy with is left to it.
///
/// # Errors
/// When the database fails.
pub async fn release_due(tx: &mut PgTransaction<'_>, draws: Option<&[Uuid]>, limit: i64) -> sqlx::Result<i64> {
    // Draw by draw through the index: of a sold-out draw with many held places only those that are due are touched.
    let due = sqlx::query_scalar!(
        r#"SELECT r.id AS "id!" FROM draws d CROSS JOIN LATERAL (
            SELECT id FROM reservations WHERE draw_id = d.id AND status = 'held' AND expires_at <= now() ORDER BY expires_at LIMIT $2) r
        WHERE $1::uuid[] IS NULL OR d.id = ANY ($1)"#,
        draws,
        limit,
    );
    let due = due.fetch_all(&mut **tx).await?;
    give_back(tx, &due).await
}

/// Gives back the held places of an order that has ended, as [`release_due`] does.
///
/// # Errors
/// When the database fails.
pub async fn release_of(tx: &mut PgTransaction<'_>, order: Uuid) -> sqlx::Result<i64> {
    let held = sqlx::query_scalar!("SELECT id FROM reservations WHERE order_id = $1", order).fetch_all(&mut **tx).await?;
    give_back(tx, &held).await
}

/// Forgets lines without a place whose money went back: nobody waits for them any more. At most `limit`; returns how many.
///
/// # Errors
/// When the database fails.
pub async fn settle_owed(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "UPDATE reservations SET owed = false WHERE id IN (
            SELECT r.id FROM reservations r CROSS JOIN LATERAL (SELECT * FROM ticket_money t WHERE t.order_id = r.order_id OFFSET 0) m
            WHERE r.owed AND (r.status = 'confirmed' OR m.order_status NOT IN ('paid', 'partially_refunded') OR (r.status = 'lost' AND m.back_minor >= m.lost_minor))
            LIMIT $1 FOR UPDATE OF r SKIP LOCKED)",
        limit
    );
    Ok(done.execute(&mut **tx).await?.rows_affected())
}

async fn give_back(tx: &mut PgTransaction<'_>, reservations: &[Uuid]) -> sqlx::Result<i64> {
    if reservations.is_empty() {
        return Ok(0);
    }
    sqlx::query_scalar!(
        r#"WITH due AS MATERIALIZED (
            SELECT id, draw_id, quantity FROM reservations WHERE id = ANY ($1) AND status = 'held' AND expires_at <= now() FOR UPDATE SKIP LOCKED
        ), locked AS MATERIALIZED (
            SELECT id FROM draws WHERE id IN (SELECT draw_id FROM due) ORDER BY id FOR NO KEY UPDATE
        ), given_back AS (
            UPDATE draws d SET reserved = d.reserved - s.quantity, updated_at = now()
            FROM locked l JOIN (SELECT draw_id, sum(quantity)::bigint AS quantity FROM due GROUP BY draw_id) s ON s.draw_id = l.id WHERE d.id = l.id
        ), released AS (
            UPDATE reservations r SET status = 'released', reason = COALESCE(r.reason, 'expired'), updated_at = now() FROM due WHERE r.id = due.id
        )
        SELECT count(*) AS "count!" FROM due"#,
        reservations,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A reservation as it is read.
#[derive(Debug, Clone, Serialize)]
pub struct Reservation {
    /// Its id.
    pub id: Uuid,
    /// The order.
    #[serde(skip)]
    pub order_id: Uuid,
    /// The order's line, from 0.
    pub line: i32,
    /// The draw.
    pub draw_id: Uuid,
    /// Tickets.
    pub quantity: i64,
    /// `held`, `confirmed`, `released` or `lost`.
    pub status: String,
    /// Why it was released.
    pub reason: Option<String>,
    /// Until when it is held, RFC 3339.
    pub expires_at: String,
}

/// The reservations of an order, by line.
///
/// # Errors
/// When the database fails.
pub async fn reservations_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Vec<Reservation>> {
    sqlx::query_as!(
        Reservation,
        r#"SELECT id, order_id, line, draw_id, quantity, status, reason, to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "expires_at!"
        FROM reservations WHERE order_id = $1 ORDER BY line"#,
        order,
    )
    .fetch_all(connection)
    .await
}

/// A range of ticket numbers as it is read.
#[derive(Debug, Clone, Serialize)]
pub struct Ticket {
    /// The order's line, from 0.
    pub line: i32,
    /// The draw.
    pub draw_id: Uuid,
    /// The first number.
    pub first_number: i64,
    /// The last number, included.
    pub last_number: i64,
    /// `valid` or `void`.
    pub status: String,
    /// When the numbers were given out, RFC 3339.
    pub issued_at: String,
    /// When they became void, RFC 3339.
    pub voided_at: Option<String>,
}

/// The tickets of an order, by line.
///
/// # Errors
/// When the database fails.
pub async fn tickets_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Vec<Ticket>> {
    sqlx::query_as!(
        Ticket,
        r#"SELECT line, draw_id, first_number, last_number, status, to_char(issued_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "issued_at!",
            to_char(voided_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS voided_at
        FROM tickets WHERE order_id = $1 ORDER BY line"#,
        order,
    )
    .fetch_all(connection)
    .await
}

/// The orders that hold a place by this reservation, or a ticket of this number; in one draw alone, where `draw` names it.
///
/// # Errors
/// When the database fails.
pub async fn orders_of_place(connection: &mut PgConnection, reservation: Option<Uuid>, draw: Option<&str>, number: Option<i64>) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        r#"SELECT order_id AS "order_id!" FROM reservations WHERE id = $1
        UNION SELECT t.order_id FROM tickets t JOIN draws d ON d.id = t.draw_id
            WHERE $3::bigint BETWEEN t.first_number AND t.last_number AND ($2::text IS NULL OR d.reference = $2 OR d.id::text = $2) LIMIT 20"#,
        reservation,
        draw,
        number,
    )
    .fetch_all(connection)
    .await
}
