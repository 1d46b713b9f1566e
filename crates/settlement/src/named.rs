//! From anything that somebody has in hand to the orders that it belongs to.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

/// The orders that `name` leads to: a payment, a checkout session, a refund (theirs or ours), a dispute, a provider's event or
/// any id that one names, an e-mail address, a customer's id. The newest first, twenty at the most.
///
/// Where the provider needs no account, the keys of the tables are asked; where it does, small indexes of those rows alone.
///
/// # Errors
/// When the database fails.
pub async fn orders_named(connection: &mut PgConnection, name: &str) -> sqlx::Result<Vec<Uuid>> {
    let id = Uuid::try_parse(name).ok();
    let providers: Vec<String> = counterfoil_payments::Provider::ALL.map(|provider| provider.name().to_owned()).to_vec();
    sqlx::query_scalar!(
        r#"WITH found AS (
            SELECT order_id FROM payments WHERE provider = ANY ($3) AND account = '' AND payment_id = $1
            UNION SELECT order_id FROM payments WHERE account <> '' AND payment_id = $1
            UNION SELECT id FROM orders WHERE session_id = $1
            UNION SELECT order_id FROM refunds WHERE provider = ANY ($3) AND account = '' AND provider_refund_id = $1
            UNION SELECT order_id FROM refunds WHERE account <> '' AND provider_refund_id = $1
            UNION SELECT order_id FROM refunds WHERE id = $2
            UNION SELECT order_id FROM disputes WHERE provider = ANY ($3) AND account = '' AND dispute_id = $1
            UNION SELECT order_id FROM disputes WHERE account <> '' AND dispute_id = $1
            UNION SELECT id FROM orders WHERE lower(customer_email) = lower($1)
            UNION SELECT id FROM orders WHERE customer_id = $1
            UNION SELECT p.order_id FROM (
                SELECT provider, payment_account, payment_id FROM webhook_events WHERE provider = ANY ($3) AND account = '' AND event_id = $1
                UNION SELECT provider, payment_account, payment_id FROM webhook_events WHERE account <> '' AND event_id = $1
                UNION SELECT provider, payment_account, payment_id FROM webhook_events WHERE provider_event_id = $1
                UNION SELECT provider, payment_account, payment_id FROM webhook_events WHERE ids @> ARRAY[$1]) w
                JOIN payments p ON p.payment_id = w.payment_id AND p.provider = w.provider AND (p.account = w.payment_account OR p.account = '' OR w.payment_account = '')
            UNION SELECT order_id FROM payment_claims WHERE payment_id = $1)
        SELECT o.id FROM found f JOIN orders o ON o.id = f.order_id ORDER BY o.created_at DESC, o.id LIMIT 20"#,
        name,
        id,
        &providers,
    )
    .fetch_all(connection)
    .await
}

/// The shop's references of these orders.
///
/// # Errors
/// When the database fails.
pub async fn references(connection: &mut PgConnection, orders: &[Uuid]) -> sqlx::Result<HashMap<Uuid, String>> {
    let rows = sqlx::query!("SELECT id, reference FROM orders WHERE id = ANY ($1)", orders).fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.reference)).collect())
}
