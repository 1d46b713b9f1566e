//! Orders and their payments: made by the API, read by people.

use counterfoil_payments::event::{Customer, OrderData, PaymentData};
use counterfoil_payments::{Contact, Disposition, Money, OrderId, OrderKey, Reference};
use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::settle;

/// An order to make. Everything in it has been proven by the caller.
#[derive(Debug, Clone)]
pub struct NewOrder {
    /// The shop's name for it.
    pub reference: Reference,
    /// What is to be paid.
    pub money: Money,
    /// Who buys.
    pub customer: Customer,
    /// What is bought.
    pub lines: LineText,
}

/// The lines of an order as JSON.
pub type LineText = serde_json::Value;

/// Why an order was not made.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Its reference names another order.
    #[error("the reference {0:?} names another order already")]
    ReferenceTaken(String),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// An order as it is read.
#[derive(Debug, Clone, Serialize)]
pub struct Order {
    /// Our id.
    pub id: Uuid,
    /// The shop's name for it.
    pub reference: String,
    /// Where it stands.
    pub status: String,
    /// Grows with every change.
    pub version: i64,
    /// What is to be paid, in minor units.
    pub amount_minor: i64,
    /// Of this currency.
    pub currency: String,
    /// When it became paid, RFC 3339.
    pub paid_at: Option<String>,
    /// When it was made, RFC 3339.
    pub created_at: String,
}

/// A payment as it is read.
#[derive(Debug, Clone, Serialize)]
pub struct Payment {
    /// Who took the money.
    pub provider: String,
    /// The connected account, or empty.
    pub account: String,
    /// The provider's id.
    pub payment_id: String,
    /// Where it stands.
    pub status: String,
    /// What became of its money.
    pub disposition: String,
    /// Why it is held.
    pub held_reason: Option<String>,
    /// Minor units.
    pub amount_minor: Option<i64>,
    /// Their currency.
    pub currency: Option<String>,
}

/// Makes an order and settles, in the same transaction, the events that came before it.
///
/// # Errors
/// When its reference is taken, or the database fails.
pub async fn create(tx: &mut PgTransaction<'_>, new: &NewOrder) -> Result<Order, Refused> {
    let name = OrderKey::Reference(new.reference.clone()).waits_for();
    settle::lock_names(tx, std::slice::from_ref(&name)).await?;
    let customer = &new.customer;
    let made = sqlx::query_scalar!(
        "INSERT INTO orders (id, reference, amount_minor, currency, customer_email, customer_name, customer_phone, lines)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT ON CONSTRAINT orders_reference_unique DO NOTHING RETURNING id",
        Uuid::now_v7(),
        new.reference.as_str(),
        new.money.amount_minor,
        new.money.currency.code(),
        customer.email,
        customer.name,
        customer.phone,
        new.lines,
    )
    .fetch_optional(&mut **tx)
    .await?;
    let Some(id) = made else {
        return Err(Refused::ReferenceTaken(new.reference.as_str().to_owned()));
    };
    settle::settle_waiting(tx, &[name]).await?;
    find_id(tx, id).await?.ok_or(Refused::Database(sqlx::Error::RowNotFound))
}

/// Finds an order by id or reference.
///
/// # Errors
/// When the database fails.
pub async fn find(connection: &mut PgConnection, key: &OrderKey) -> sqlx::Result<Option<Order>> {
    match key {
        OrderKey::Id(OrderId(id)) => find_id(connection, *id).await,
        OrderKey::Reference(reference) => {
            let id = sqlx::query_scalar!("SELECT id FROM orders WHERE reference = $1", reference.as_str()).fetch_optional(&mut *connection).await?;
            match id {
                Some(id) => find_id(connection, id).await,
                None => Ok(None),
            }
        }
    }
}

/// Finds the order of a payment by the payment's id, whichever the provider.
///
/// # Errors
/// When the database fails.
pub async fn find_by_payment(connection: &mut PgConnection, payment_id: &str) -> sqlx::Result<Option<Order>> {
    let id = sqlx::query_scalar!("SELECT order_id FROM payments WHERE payment_id = $1 LIMIT 1", payment_id).fetch_optional(&mut *connection).await?;
    match id {
        Some(id) => find_id(connection, id).await,
        None => Ok(None),
    }
}

/// Finds an order by its id.
///
/// # Errors
/// When the database fails.
pub async fn find_id(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Order>> {
    sqlx::query_as!(
        Order,
        r#"SELECT id, reference, status, version, amount_minor, currency,
            to_char(paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS paid_at,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!"
        FROM orders WHERE id = $1"#,
        id,
    )
    .fetch_optional(connection)
    .await
}

/// The payments of an order, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn payments_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Vec<Payment>> {
    sqlx::query_as!(
        Payment,
        "SELECT provider, account, payment_id, status, disposition, held_reason, amount_minor, currency FROM payments WHERE order_id = $1 ORDER BY created_at, payment_id",
        order,
    )
    .fetch_all(connection)
    .await
}

/// Takes the order's next version, for an event that changes nothing else about it.
pub(crate) async fn next_version(tx: &mut PgTransaction<'_>, order: Uuid) -> sqlx::Result<i64> {
    sqlx::query_scalar!("UPDATE orders SET version = version + 1, updated_at = now() WHERE id = $1 RETURNING version", order).fetch_one(&mut **tx).await
}

/// Stores the contact of a paid order that had none. `None` when it had one, or is not paid.
pub(crate) async fn learn_contact(tx: &mut PgTransaction<'_>, order: Uuid, contact: &Contact) -> sqlx::Result<Option<OrderData>> {
    let row = sqlx::query!(
        r#"UPDATE orders SET customer_email = $2, customer_name = COALESCE(customer_name, $3), customer_phone = COALESCE(customer_phone, $4),
            version = version + 1, updated_at = now()
        WHERE id = $1 AND customer_email IS NULL AND status IN ('paid', 'partially_refunded', 'refunded')
        RETURNING reference, version, amount_minor, currency, customer_email, customer_name, customer_phone, lines,
            to_char(paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS "paid_at!",
            paid_provider AS "paid_provider!", paid_account AS "paid_account!", paid_payment_id AS "paid_payment_id!""#,
        order,
        contact.email,
        contact.name,
        contact.phone,
    )
    .fetch_optional(&mut **tx)
    .await?;
    row.map(|row| {
        let currency = row.currency.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        let provider = row.paid_provider.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(OrderData {
            order_id: OrderId(order),
            reference: row.reference,
            version: row.version,
            amount_minor: row.amount_minor,
            currency,
            customer: Customer { email: row.customer_email, name: row.customer_name, phone: row.customer_phone },
            lines: serde_json::from_value(row.lines).map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
            paid_at: row.paid_at,
            payment: PaymentData {
                provider,
                account: row.paid_account,
                payment_id: row.paid_payment_id,
                amount_minor: row.amount_minor,
                currency,
                before: Disposition::Settled,
            },
        })
    })
    .transpose()
}
