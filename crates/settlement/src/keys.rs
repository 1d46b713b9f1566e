//! Idempotency keys: one mechanism for every call that moves money or makes an order.
//!
//! A key belongs to a scope (who calls what). The same key with the same request gets the stored answer; with another
//! request it is refused; while the first call runs it is told so. Key, work and answer commit together.

use sqlx::PgTransaction;

/// What a key says when a call begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The first call with this key: do the work, then [`complete_keys`] in the same transaction.
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

/// A key, and what its call means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAsk {
    /// Who calls what.
    pub scope: String,
    /// The caller's key.
    pub key: String,
    /// Hash of what the call means.
    pub request_hash: Vec<u8>,
}

fn columns(asks: &[&KeyAsk]) -> (Vec<String>, Vec<String>) {
    asks.iter().map(|ask| (ask.scope.clone(), ask.key.clone())).unzip()
}

/// Begins calls under their keys, each key once. Never waits for a running call.
///
/// # Errors
/// When the database fails.
pub async fn begin_keys(tx: &mut PgTransaction<'_>, asks: &[&KeyAsk]) -> sqlx::Result<Vec<Begun>> {
    let (scopes, keys) = columns(asks);
    let free = lock(tx, &scopes, &keys).await?;
    // In a statement of its own: it sees what a call that has just ended has stored.
    let known = sqlx::query!(
        r#"SELECT k.request_hash AS "request_hash?", k.response_status, k.response_body
        FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (scope, key, n) LEFT JOIN idempotency_keys k USING (scope, key) ORDER BY a.n"#,
        &scopes,
        &keys,
    )
    .fetch_all(&mut **tx)
    .await?;
    let begun = asks.iter().zip(free).zip(known).map(|((ask, free), known)| match (known.request_hash, known.response_status, known.response_body) {
        _ if !free => Begun::Running,
        (None, ..) => Begun::First,
        (Some(hash), ..) if hash != ask.request_hash => Begun::OtherRequest,
        (Some(_), Some(status), Some(body)) => Begun::Answered(Stored { status: u16::try_from(status).unwrap_or(500), body }),
        (Some(_), ..) => Begun::Running,
    });
    Ok(begun.collect())
}

/// Stores the answers of calls that [`begin_keys`] let begin.
///
/// # Errors
/// When the database fails.
pub async fn complete_keys(tx: &mut PgTransaction<'_>, answers: &[(&KeyAsk, &Stored)]) -> sqlx::Result<()> {
    if answers.is_empty() {
        return Ok(());
    }
    let (scopes, keys) = columns(&answers.iter().map(|(ask, _)| *ask).collect::<Vec<_>>());
    let hashes: Vec<Vec<u8>> = answers.iter().map(|(ask, _)| ask.request_hash.clone()).collect();
    let statuses: Vec<i16> = answers.iter().map(|(_, answer)| i16::try_from(answer.status).unwrap_or(500)).collect();
    let bodies: Vec<Vec<u8>> = answers.iter().map(|(_, answer)| answer.body.clone()).collect();
    sqlx::query!(
        "INSERT INTO idempotency_keys (scope, key, request_hash, status, response_status, response_body, completed_at)
         SELECT scope, key, request_hash, 'completed', response_status, response_body, now()
         FROM unnest($1::text[], $2::text[], $3::bytea[], $4::smallint[], $5::bytea[]) AS a (scope, key, request_hash, response_status, response_body)",
        &scopes,
        &keys,
        &hashes,
        &statuses,
        &bodies,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Completes a key that an earlier release left in progress.
pub(crate) async fn complete_stuck(tx: &mut PgTransaction<'_>, scope: &str, key: &str, answer: &Stored) -> sqlx::Result<()> {
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

/// Takes the keys' locks, which running calls hold; `false` where there is one.
pub(crate) async fn lock(tx: &mut PgTransaction<'_>, scopes: &[String], keys: &[String]) -> sqlx::Result<Vec<bool>> {
    sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock(hashtextextended(scope || chr(31) || key, 1)) AS "free!"
        FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS a (scope, key, n) ORDER BY n"#,
        scopes,
        keys,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Forgets a key whose call never did its work.
pub(crate) async fn clear(tx: &mut PgTransaction<'_>, scope: &str, key: &str) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM idempotency_keys WHERE scope = $1 AND key = $2 AND status = 'in_progress'", scope, key).execute(&mut **tx).await?;
    Ok(())
}
