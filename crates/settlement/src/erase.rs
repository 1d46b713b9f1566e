//! Erasing a customer: their data leaves orders and stored bodies; amounts, ids and states stay.

use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// What was erased, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Erased {
    /// Orders.
    pub orders: u64,
    /// Stored webhook events.
    pub events: u64,
    /// Stored answers.
    pub answers: u64,
    /// Claim tokens.
    pub tokens: u64,
}

/// The orders of a customer, by e-mail address or by the shop's customer id.
///
/// # Errors
/// When the database fails.
pub async fn orders_of_customer(connection: &mut PgConnection, customer: &str) -> sqlx::Result<Vec<(Uuid, Option<String>)>> {
    let rows = sqlx::query!("SELECT id, customer_email FROM orders WHERE lower(customer_email) = lower($1) OR customer_id = $1 ORDER BY created_at, id", customer);
    Ok(rows.fetch_all(connection).await?.into_iter().map(|row| (row.id, row.customer_email)).collect())
}

/// Erases the customer of these orders, whose addresses are `texts`, wherever settlement keeps it.
///
/// # Errors
/// When the database fails.
pub async fn erase_customer(tx: &mut PgTransaction<'_>, orders: &[Uuid], texts: &[String]) -> sqlx::Result<Erased> {
    let texts: Vec<Vec<u8>> = texts.iter().filter(|text| !text.is_empty()).map(|text| text.clone().into_bytes()).collect();
    let events = sqlx::query!(
        r#"UPDATE webhook_events w SET body = '{"erased":true}', differing_body = NULL, fact = w.fact #- '{fact,payment,contact,email}' #- '{fact,payment,contact,name}'
            #- '{fact,payment,contact,phone}', erased_at = now()
        WHERE w.erased_at IS NULL AND (
            (w.provider, w.payment_account, w.payment_id) IN (SELECT provider, account, payment_id FROM payments WHERE order_id = ANY ($1))
            OR EXISTS (SELECT FROM unnest($2::bytea[]) AS t (text) WHERE position(t.text IN w.body) > 0 OR position(t.text IN w.differing_body) > 0))"#,
        orders,
        &texts,
    );
    let events = events.execute(&mut **tx).await?.rows_affected();
    let answers = sqlx::query!(
        "UPDATE idempotency_keys SET response_body = '{}' WHERE EXISTS (SELECT FROM unnest($1::bytea[]) AS t (text) WHERE position(t.text IN response_body) > 0)",
        &texts
    );
    let answers = answers.execute(&mut **tx).await?.rows_affected();
    let tokens = sqlx::query!("UPDATE claim_tokens SET meant_for = NULL, claimed_by = CASE WHEN claimed_by IS NOT NULL THEN 'erased' END WHERE order_id = ANY ($1)", orders);
    let tokens = tokens.execute(&mut **tx).await?.rows_affected();
    let done = sqlx::query!(
        "UPDATE orders SET customer_email = NULL, customer_name = NULL, customer_phone = NULL, customer_id = NULL, erased_at = now(), updated_at = now()
         WHERE id = ANY ($1) AND erased_at IS NULL",
        orders
    );
    Ok(Erased { orders: done.execute(&mut **tx).await?.rows_affected(), events, answers, tokens })
}

/// Erases what providers have sent about erased orders since, at most `limit` events.
///
/// # Errors
/// When the database fails.
pub async fn erase_again(connection: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        r#"UPDATE webhook_events SET body = '{"erased":true}', differing_body = NULL, fact = NULL, erased_at = now() WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM orders o JOIN payments p ON p.order_id = o.id
            JOIN webhook_events w ON w.provider = p.provider AND w.payment_account = p.account AND w.payment_id = p.payment_id
            WHERE o.erased_at IS NOT NULL AND w.erased_at IS NULL AND w.outcome NOT IN ('waiting', 'failed', 'deferred') LIMIT $1 FOR UPDATE OF w SKIP LOCKED))"#,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}
