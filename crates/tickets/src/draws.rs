//! Draws: what can be bought, how much of it is left, and until when.

use counterfoil_payments::{OrderKey, Reference};
use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::reserve::release_due;

/// A draw to make. Everything in it has been proven by the caller.
#[derive(Debug, Clone)]
pub struct NewDraw {
    /// The shop's name for it.
    pub reference: Reference,
    /// Its name for people.
    pub name: String,
    /// Tickets at the most; `None` for no limit.
    pub capacity: Option<i64>,
    /// Tickets of one order at the most.
    pub order_limit: Option<i64>,
    /// Sold from then on.
    pub opens_at: Option<OffsetDateTime>,
    /// Sold until then.
    pub closes_at: Option<OffsetDateTime>,
    /// The share of what was paid that goes to charity, as a fraction.
    pub charity: (i64, i64),
}

/// What to change of a draw; `None` leaves it as it is.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Its name.
    pub name: Option<String>,
    /// Its capacity; `Some(None)` lifts the limit.
    pub capacity: Option<Option<i64>>,
    /// Tickets of one order.
    pub order_limit: Option<Option<i64>>,
    /// Sold from then on.
    pub opens_at: Option<Option<OffsetDateTime>>,
    /// Sold until then.
    pub closes_at: Option<Option<OffsetDateTime>>,
}

/// Why a draw was not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum DrawRefused {
    /// Its reference names another draw.
    #[error("the reference {0:?} names another draw already")]
    ReferenceTaken(String),
    /// More is reserved than that.
    #[error("more tickets are reserved or sold than this capacity")]
    BelowReserved,
    /// It would close before it opens.
    #[error("closes_at must be after opens_at")]
    Times,
    /// The database failed.
    #[error(transparent)]
    Database(sqlx::Error),
}

impl From<sqlx::Error> for DrawRefused {
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error().and_then(|error| error.constraint()) {
            Some("draws_are_never_oversold") => Self::BelowReserved,
            Some("draws_open_before_they_close") => Self::Times,
            _ => Self::Database(error),
        }
    }
}

/// A draw as it is read.
#[derive(Debug, Clone, Serialize)]
pub struct Draw {
    /// Our id.
    pub id: Uuid,
    /// The shop's name for it.
    pub reference: String,
    /// Its name for people.
    pub name: String,
    /// `open`, `not_open_yet`, `closed` or `sold_out`.
    pub state: String,
    /// Tickets at the most; null for no limit.
    pub capacity: Option<i64>,
    /// How many can be bought now; null for no limit. Places whose time is over count as free.
    pub available: Option<i64>,
    /// Tickets of one order at the most.
    pub order_limit: Option<i64>,
    /// Sold from then on, RFC 3339.
    pub opens_at: Option<String>,
    /// Sold until then, RFC 3339.
    pub closes_at: Option<String>,
    /// The share for charity, `numerator/denominator`.
    pub charity: String,
    /// The last number that was given out.
    pub minted: i64,
}

/// Makes a draw.
///
/// # Errors
/// When its reference is taken, or the database fails.
pub async fn create_draw(connection: &mut PgConnection, new: &NewDraw) -> Result<Draw, DrawRefused> {
    let id = Uuid::now_v7();
    let made = sqlx::query!(
        "INSERT INTO draws (id, reference, name, capacity, order_limit, opens_at, closes_at, charity_numerator, charity_denominator)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT ON CONSTRAINT draws_reference_unique DO NOTHING",
        id,
        new.reference.as_str(),
        new.name,
        new.capacity,
        new.order_limit,
        new.opens_at,
        new.closes_at,
        new.charity.0,
        new.charity.1,
    );
    if made.execute(&mut *connection).await?.rows_affected() == 0 {
        return Err(DrawRefused::ReferenceTaken(new.reference.as_str().to_owned()));
    }
    read(connection, id).await?.ok_or(DrawRefused::Database(sqlx::Error::RowNotFound))
}

/// Changes a draw. Its capacity never falls below what is reserved; places whose time is over are given back first.
///
/// # Errors
/// Why not. `None` when there is no such draw.
pub async fn change_draw(tx: &mut PgTransaction<'_>, key: &OrderKey, change: &Change) -> Result<Option<Draw>, DrawRefused> {
    let Some(draw) = find_draw(&mut *tx, key).await? else { return Ok(None) };
    if change.capacity.is_some() {
        release_due(tx, Some(&[draw.id]), i64::MAX).await?;
    }
    sqlx::query!(
        "UPDATE draws SET name = COALESCE($2, name), capacity = CASE WHEN $3 THEN $4 ELSE capacity END, order_limit = CASE WHEN $5 THEN $6 ELSE order_limit END,
            opens_at = CASE WHEN $7 THEN $8 ELSE opens_at END, closes_at = CASE WHEN $9 THEN $10 ELSE closes_at END, updated_at = now() WHERE id = $1",
        draw.id,
        change.name,
        change.capacity.is_some(),
        change.capacity.flatten(),
        change.order_limit.is_some(),
        change.order_limit.flatten(),
        change.opens_at.is_some(),
        change.opens_at.flatten(),
        change.closes_at.is_some(),
        change.closes_at.flatten(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(read(tx, draw.id).await?)
}

/// Finds a draw by id or reference.
///
/// # Errors
/// When the database fails.
pub async fn find_draw(connection: &mut PgConnection, key: &OrderKey) -> sqlx::Result<Option<Draw>> {
    let id = match key {
        OrderKey::Id(id) => Some(id.0),
        OrderKey::Reference(reference) => {
            sqlx::query_scalar!("SELECT id FROM draws WHERE reference = $1", reference.as_str()).fetch_optional(&mut *connection).await?
        }
    };
    match id {
        Some(id) => read(connection, id).await,
        None => Ok(None),
    }
}

async fn read(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Draw>> {
    sqlx::query_as!(
        Draw,
        r#"SELECT d.id, d.reference, d.name, d.capacity, f.available, d.order_limit, d.minted,
            CASE WHEN d.closes_at <= now() THEN 'closed' WHEN d.opens_at > now() THEN 'not_open_yet' WHEN f.available = 0 THEN 'sold_out' ELSE 'open' END AS "state!",
            d.charity_numerator || '/' || d.charity_denominator AS "charity!",
            to_char(d.opens_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS opens_at,
            to_char(d.closes_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS closes_at
        FROM draws d CROSS JOIN LATERAL (SELECT d.capacity - d.reserved + COALESCE((SELECT sum(r.quantity) FROM reservations r
            WHERE r.draw_id = d.id AND r.status = 'held' AND r.expires_at <= now()), 0)::bigint AS available) f
        WHERE d.id = $1"#,
        id,
    )
    .fetch_optional(connection)
    .await
}
