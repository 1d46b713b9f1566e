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
    /// Events that are not settled: their bodies are needed, and nothing may be erased before.
    pub unsettled: i64,
}

/// The orders of a customer, by e-mail address or by the shop's customer id, and the addresses that they name.
///
/// # Errors
/// When the database fails.
pub async fn orders_of_customer(connection: &mut PgConnection, customer: &str) -> sqlx::Result<Vec<(Uuid, Option<String>)>> {
    let rows =
        sqlx::query!("SELECT id, customer_email FROM orders WHERE lower(customer_email) = lower($1) OR customer_id = $1 ORDER BY created_at, id", customer);
    Ok(rows.fetch_all(connection).await?.into_iter().map(|row| (row.id, row.customer_email)).collect())
}

/// Erases the customer of these orders, whose addresses are `emails`, wherever settlement keeps it: in events about the orders' payments,
/// and in those that name an address as a whole JSON string since a week before the first order was made.
///
/// # Errors
/// When the database fails.
pub async fn erase_customer(tx: &mut PgTransaction<'_>, orders: &[Uuid], emails: &[String]) -> sqlx::Result<Erased> {
    let quoted: Vec<Vec<u8>> = emails.iter().map(|email| format!("\"{email}\"").into_bytes()).collect();
    let theirs = sqlx::query!(
        r#"WITH since AS (SELECT min(created_at) - interval '7 days' AS at FROM orders WHERE id = ANY ($1))
        SELECT w.provider, w.account, w.event_id, w.outcome FROM payments p
            JOIN webhook_events w ON w.payment_id = p.payment_id AND w.provider = p.provider AND w.payment_account = p.account
            WHERE p.order_id = ANY ($1) AND w.erased_at IS NULL
        UNION SELECT w.provider, w.account, w.event_id, w.outcome FROM webhook_events w
            WHERE w.received_at > (SELECT at FROM since) AND w.erased_at IS NULL
              AND EXISTS (SELECT FROM unnest($2::bytea[]) AS t (text) WHERE position(t.text IN w.body) > 0 OR position(t.text IN w.differing_body) > 0)"#,
        orders,
        &quoted,
    )
    .fetch_all(&mut **tx)
    .await?;
    let unsettled = theirs.iter().filter(|row| matches!(row.outcome.as_deref(), Some("waiting" | "failed" | "deferred"))).count();
    if unsettled > 0 {
        return Ok(Erased { unsettled: i64::try_from(unsettled).unwrap_or(i64::MAX), ..Erased::default() });
    }
    let (mut providers, mut accounts, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for row in theirs {
        providers.extend(row.provider);
        accounts.extend(row.account);
        ids.extend(row.event_id);
    }
    let events = sqlx::query!(
        r#"UPDATE webhook_events w SET body = '{"erased":true}', differing_body = NULL, fact = NULL, erased_at = now()
        FROM unnest($1::text[], $2::text[], $3::text[]) AS e (provider, account, event_id)
        WHERE w.provider = e.provider AND w.account = e.account AND w.event_id = e.event_id"#,
        &providers,
        &accounts,
        &ids,
    );
    let events = events.execute(&mut **tx).await?.rows_affected();
    // What the API answered when it made these orders names the shop's customer, and nobody else.
    let answers = sqlx::query!(
        "UPDATE idempotency_keys k SET response_body = convert_to((convert_from(k.response_body, 'UTF8')::jsonb - 'customer_id')::text, 'UTF8')
         FROM orders o WHERE o.id = ANY ($1) AND k.scope = o.made_by_scope AND k.key = o.made_by_key AND k.response_body IS NOT NULL AND o.customer_id IS NOT NULL",
        orders
    );
    let answers = answers.execute(&mut **tx).await?.rows_affected();
    let tokens = sqlx::query!(
        "UPDATE claim_tokens SET meant_for = NULL, claimed_by = CASE WHEN claimed_by IS NOT NULL THEN 'erased' END WHERE order_id = ANY ($1)",
        orders
    );
    let tokens = tokens.execute(&mut **tx).await?.rows_affected();
    let done = sqlx::query!(
        "UPDATE orders SET customer_email = NULL, customer_name = NULL, customer_phone = NULL, customer_id = NULL, erased_at = now(), updated_at = now()
         WHERE id = ANY ($1) AND erased_at IS NULL",
        orders
    );
    Ok(Erased { orders: done.execute(&mut **tx).await?.rows_affected(), events, answers, tokens, unsettled: 0 })
}

/// Erases what providers have sent about erased orders since, at most `limit` events; orders that were erased in the last 90 days,
/// for no provider sends anything again after that.
///
/// # Errors
/// When the database fails.
pub async fn erase_again(connection: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        r#"UPDATE webhook_events SET body = '{"erased":true}', differing_body = NULL, fact = NULL, erased_at = now() WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM orders o JOIN payments p ON p.order_id = o.id
            JOIN webhook_events w ON w.payment_id = p.payment_id AND w.provider = p.provider AND w.payment_account = p.account
            WHERE o.erased_at > now() - interval '90 days' AND w.erased_at IS NULL AND w.outcome NOT IN ('waiting', 'failed', 'deferred') LIMIT $1 FOR UPDATE OF w SKIP LOCKED))"#,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// The orders that were erased within two days: messages that were on their way may still arrive.
///
/// # Errors
/// When the database fails.
pub async fn erased_lately(connection: &mut PgConnection) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!("SELECT id FROM orders WHERE erased_at > now() - interval '2 days'").fetch_all(connection).await
}
