//! Guests who claim their orders later: tokens that are good once, and orders that become a customer's.
//!
//! The row is the authority; the signed text that carries its id is made and read by whoever answers the calls.

use counterfoil_payments::OrderKey;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::orders;

/// A token to make.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Random: nothing else is in the text that carries it.
    pub id: Uuid,
    /// Good for this customer alone; `None` for whoever the shop vouches for.
    pub meant_for: Option<String>,
    /// How long it is good, in seconds.
    pub expires_in_s: i64,
}

/// An order that is a customer's now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The order.
    pub order_id: Uuid,
    /// Whether this very call attached it; `false` for a repeat.
    pub fresh: bool,
}

/// Why a claim was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimRefused {
    /// No such order, or no such token.
    #[error("this token is not known here")]
    Unknown,
    /// Its time is over.
    #[error("this token has expired: ask the shop for a new one")]
    Expired,
    /// Used by somebody else, or meant for somebody else.
    #[error("this token is another customer's")]
    OtherCustomer,
    /// The order belongs to somebody else already.
    #[error("the order belongs to another customer already")]
    OrderTaken,
    /// The database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Makes a token for an order; when it expires, in Unix seconds and as RFC 3339. `None` when there is no such order.
///
/// # Errors
/// When the order is somebody else's already, or the database fails.
pub async fn issue_token(connection: &mut PgConnection, key: &OrderKey, new: &NewToken) -> Result<Option<(i64, String)>, ClaimRefused> {
    let Some(order) = orders::find(&mut *connection, key).await? else { return Ok(None) };
    if order.customer_id.is_some() && order.customer_id != new.meant_for {
        return Err(ClaimRefused::OrderTaken);
    }
    let row = sqlx::query!(
        r#"INSERT INTO claim_tokens (id, order_id, meant_for, expires_at) VALUES ($1, $2, $3, date_trunc('second', now()) + make_interval(secs => $4::bigint::float8))
        RETURNING extract(epoch FROM expires_at)::bigint AS "seconds!", to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS "text!""#,
        new.id,
        order.id,
        new.meant_for,
        new.expires_in_s,
    )
    .fetch_one(connection)
    .await?;
    Ok(Some((row.seconds, row.text)))
}

/// Attaches the token's order to a customer, once; the same customer again changes nothing.
///
/// # Errors
/// Why it is refused; roll back.
pub async fn claim(tx: &mut PgTransaction<'_>, token: Uuid, customer_id: &str) -> Result<Claimed, ClaimRefused> {
    let row = sqlx::query!(r#"SELECT order_id, meant_for, claimed_by, expires_at <= now() AS "expired!" FROM claim_tokens WHERE id = $1 FOR UPDATE"#, token)
        .fetch_optional(&mut **tx)
        .await?;
    let row = row.ok_or(ClaimRefused::Unknown)?;
    match (row.claimed_by.as_deref(), row.meant_for.as_deref()) {
        (Some(by), _) if by == customer_id => return Ok(Claimed { order_id: row.order_id, fresh: false }),
        (Some(_), _) => return Err(ClaimRefused::OtherCustomer),
        (None, Some(meant)) if meant != customer_id => return Err(ClaimRefused::OtherCustomer),
        (None, _) if row.expired => return Err(ClaimRefused::Expired),
        (None, _) => {}
    }
    sqlx::query!("UPDATE claim_tokens SET claimed_by = $2, claimed_at = now() WHERE id = $1", token, customer_id).execute(&mut **tx).await?;
    let attached = sqlx::query!(
        "UPDATE orders SET customer_id = $2, updated_at = now() WHERE id = $1 AND (customer_id IS NULL OR customer_id = $2)",
        row.order_id,
        customer_id
    );
    if attached.execute(&mut **tx).await?.rows_affected() == 0 {
        return Err(ClaimRefused::OrderTaken);
    }
    Ok(Claimed { order_id: row.order_id, fresh: true })
}

/// Removes tokens that expired long ago, at most `limit`; what they did stays on the order.
///
/// # Errors
/// When the database fails.
pub async fn purge_tokens(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM claim_tokens WHERE ctid = ANY (ARRAY(SELECT ctid FROM claim_tokens WHERE expires_at < now() - make_interval(secs => $1::bigint::float8)
            LIMIT $2 FOR UPDATE SKIP LOCKED))",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}
