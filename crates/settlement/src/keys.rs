//! Idempotency keys: one mechanism for every call that moves money or makes an order.
//!
//! A key belongs to a scope (who calls what). The same key with the same request gets the stored answer; with another
//! request it is refused; while the first call runs it is told so.

use sqlx::PgTransaction;

/// What a key says when a call begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The first call with this key: do the work, then [`complete_key`] in the same transaction.
    First,
    /// Done before: give this answer again.
    Answered(Stored),
    /// The key was used with another request.
    OtherRequest,
    /// A call with this key is running.
    Running,
}

/// An answer as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// HTTP status.
    pub status: u16,
    /// Body bytes.
    pub body: Vec<u8>,
}

/// Begins a call under `key`. Never waits for a running one.
///
/// # Errors
/// When the database fails.
pub async fn begin_key(tx: &mut PgTransaction<'_>, scope: &str, key: &str, request_hash: &[u8]) -> sqlx::Result<Begun> {
    if !lock(tx, scope, key).await? {
        return Ok(Begun::Running);
    }
    let known = sqlx::query!("SELECT request_hash, status, response_status, response_body FROM idempotency_keys WHERE scope = $1 AND key = $2", scope, key)
        .fetch_optional(&mut **tx)
        .await?;
    let Some(row) = known else {
        sqlx::query!("INSERT INTO idempotency_keys (scope, key, request_hash, status) VALUES ($1, $2, $3, 'in_progress')", scope, key, request_hash)
            .execute(&mut **tx)
            .await?;
        return Ok(Begun::First);
    };
    if row.request_hash != request_hash {
        return Ok(Begun::OtherRequest);
    }
    match (row.response_status, row.response_body) {
        (Some(status), Some(body)) => Ok(Begun::Answered(Stored { status: u16::try_from(status).unwrap_or(500), body })),
        _ => Ok(Begun::Running),
    }
}

/// Stores the answer of a call.
///
/// # Errors
/// When the database fails.
pub async fn complete_key(tx: &mut PgTransaction<'_>, scope: &str, key: &str, answer: &Stored) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE idempotency_keys SET status = 'completed', response_status = $3, response_body = $4, completed_at = now() WHERE scope = $1 AND key = $2",
        scope,
        key,
        i16::try_from(answer.status).unwrap_or(500),
        answer.body,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Takes the key's lock, which a running call holds; `false` when there is one.
pub(crate) async fn lock(tx: &mut PgTransaction<'_>, scope: &str, key: &str) -> sqlx::Result<bool> {
    let lock = sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock(hashtextextended($1 || chr(31) || $2, 1)) AS "free!""#, scope, key);
    lock.fetch_one(&mut **tx).await
}

/// Forgets a key whose call never did its work.
pub(crate) async fn clear(tx: &mut PgTransaction<'_>, scope: &str, key: &str) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM idempotency_keys WHERE scope = $1 AND key = $2 AND status = 'in_progress'", scope, key).execute(&mut **tx).await?;
    Ok(())
}
