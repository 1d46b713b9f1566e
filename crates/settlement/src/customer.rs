//! What we know of a customer now, over all their orders.

use serde::Serialize;
use sqlx::PgConnection;

/// A customer's current state, as a CRM gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CustomerState {
    /// E-mail address in lower case.
    pub email: String,
    /// The name on the latest order that has one.
    pub name: Option<String>,
    /// The phone number on the latest order that has one.
    pub phone: Option<String>,
    /// Orders that were paid.
    pub orders_paid: i64,
    /// What they came to, in minor units, by currency.
    pub spent_minor: serde_json::Value,
    /// When the latest was paid, RFC 3339.
    pub last_paid_at: Option<String>,
}

/// Reads a customer's state; `None` when no order has this address.
///
/// # Errors
/// When the database fails.
pub async fn customer_state(connection: &mut PgConnection, email: &str) -> sqlx::Result<Option<CustomerState>> {
    let row = sqlx::query!(
        r#"WITH theirs AS (SELECT * FROM orders WHERE lower(customer_email) = lower($1)),
        spent AS (SELECT currency, sum(amount_minor)::bigint AS minor FROM theirs WHERE paid_at IS NOT NULL GROUP BY currency)
        SELECT count(*) AS "orders!", count(paid_at) AS "orders_paid!",
            (SELECT customer_name FROM theirs WHERE customer_name IS NOT NULL ORDER BY created_at DESC, id DESC LIMIT 1) AS name,
            (SELECT customer_phone FROM theirs WHERE customer_phone IS NOT NULL ORDER BY created_at DESC, id DESC LIMIT 1) AS phone,
            COALESCE((SELECT jsonb_object_agg(currency, minor) FROM spent), '{}') AS "spent!",
            to_char(max(paid_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS last_paid_at
        FROM theirs"#,
        email,
    )
    .fetch_one(connection)
    .await?;
    Ok((row.orders > 0).then_some(CustomerState {
        email: email.to_lowercase(),
        name: row.name,
        phone: row.phone,
        orders_paid: row.orders_paid,
        spent_minor: row.spent,
        last_paid_at: row.last_paid_at,
    }))
}
