//! Orders and their payments: made by the API, read by people.

use counterfoil_payments::event::{Customer, OrderData, PaymentData};
use counterfoil_payments::{Contact, OrderId, OrderKey, OrderStatus, PaymentKey};
use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::disputes::{self, Dispute};
use crate::refunds::{self, Refund};
use crate::stored::parsed;
use crate::{events, settle};

/// Why an order was not made.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Its reference names another order.
    #[error("the reference {0:?} names another order already")]
    ReferenceTaken(String),
    /// The caller's key made another order before.
    #[error("this Idempotency-Key made another order before: take a new key")]
    KeyUsed,
    /// There is no such order.
    #[error("no order has this id or reference")]
    NoOrder,
    /// It is in a state that rules this out.
    #[error("the order is {0}")]
    Status(String),
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
    /// Until when it may be paid, RFC 3339.
    pub expires_at: Option<String>,
    /// When it was made, RFC 3339.
    pub created_at: String,
    /// The shop's customer that it belongs to; none: a guest's.
    pub customer_id: Option<String>,
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
    /// When it was first heard of, RFC 3339. For people; not in the API.
    #[serde(skip)]
    pub created_at: String,
}

impl Payment {
    /// Its key.
    ///
    /// # Errors
    /// When the row names a provider that this release does not know.
    pub fn key(&self) -> sqlx::Result<PaymentKey> {
        let provider = parsed(&self.provider)?;
        Ok(PaymentKey { provider, account: self.account.clone(), payment_id: self.payment_id.clone() })
    }
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

/// Finds an order by its id.
///
/// # Errors
/// When the database fails.
pub async fn find_id(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Order>> {
    sqlx::query_as!(
        Order,
        r#"SELECT id, reference, status, version, amount_minor, currency,
            to_char(paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS paid_at,
            to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS expires_at,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!", customer_id
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
        r#"SELECT provider, account, payment_id, status, disposition, held_reason, amount_minor, currency,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!" FROM payments p WHERE order_id = $1 ORDER BY p.created_at, payment_id"#,
        order,
    )
    .fetch_all(connection)
    .await
}

/// An order with all that belongs to it: the body of `GET /orders/{id}`.
#[derive(Debug, Clone, Serialize)]
pub struct OrderView {
    /// The order.
    #[serde(flatten)]
    pub order: Order,
    /// Its payments.
    pub payments: Vec<Payment>,
    /// Money that went back or is about to.
    pub refunds: Vec<Refund>,
    /// Customers' objections at their bank.
    pub disputes: Vec<Dispute>,
}

/// Reads an order with all that belongs to it.
///
/// # Errors
/// When the database fails.
pub async fn view(connection: &mut PgConnection, key: &OrderKey) -> sqlx::Result<Option<OrderView>> {
    let Some(order) = find(&mut *connection, key).await? else { return Ok(None) };
    let payments = payments_of(&mut *connection, order.id).await?;
    let refunds = refunds::refunds_of(&mut *connection, order.id).await?;
    let disputes = disputes::disputes_of(connection, order.id).await?;
    Ok(Some(OrderView { order, payments, refunds, disputes }))
}

/// Cancels an unpaid order; one that is cancelled already stays so.
///
/// # Errors
/// When there is no such order, or it is paid or expired.
pub async fn cancel(tx: &mut PgTransaction<'_>, key: &OrderKey) -> Result<OrderId, Refused> {
    let order = find(&mut *tx, key).await?.ok_or(Refused::NoOrder)?;
    let cancelled = sqlx::query!(
        "UPDATE orders SET status = 'cancelled', version = version + 1, updated_at = now()
         WHERE id = $1 AND status IN ('pending_payment', 'payment_pending', 'failed_final')",
        order.id,
    )
    .execute(&mut **tx)
    .await?;
    if cancelled.rows_affected() == 1 {
        return Ok(OrderId(order.id));
    }
    let now = find_id(&mut *tx, order.id).await?.ok_or(Refused::NoOrder)?;
    if now.status == OrderStatus::Cancelled.name() { Ok(OrderId(order.id)) } else { Err(Refused::Status(now.status)) }
}

/// Ends unpaid orders whose own deadline has passed by the database's clock; at most `limit`. Returns which.
///
/// # Errors
/// When the database fails.
pub async fn expire(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        "UPDATE orders SET status = 'expired', version = version + 1, updated_at = now() WHERE id IN (
            SELECT id FROM orders WHERE expires_at < now() AND status IN ('pending_payment', 'payment_pending', 'failed_final')
            ORDER BY id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) RETURNING id",
        limit
    )
    .fetch_all(&mut **tx)
    .await
}

/// The next orders after one, by id; at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn orders_after(connection: &mut PgConnection, after: Uuid, limit: i64) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar!("SELECT id FROM orders WHERE id > $1 ORDER BY id LIMIT $2", after, limit).fetch_all(connection).await
}

/// The checkout session that the shop has opened for an order; its provider is asked what became of it, and captures that came
/// of it before and named no order are settled now.
///
/// # Errors
/// When the database fails. `false` when there is no such order.
pub async fn set_session(tx: &mut PgTransaction<'_>, order: Uuid, session: &PaymentKey) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "UPDATE orders SET session_provider = $2, session_account = $3, session_id = $4, updated_at = now() WHERE id = $1",
        order,
        session.provider.name(),
        session.account,
        session.payment_id,
    )
    .execute(&mut **tx)
    .await?;
    settle_checkout(tx, session).await?;
    Ok(done.rows_affected() == 1)
}

/// Settles captures that named no order and came of this checkout.
pub(crate) async fn settle_checkout(tx: &mut PgTransaction<'_>, session: &PaymentKey) -> sqlx::Result<()> {
    for payment in events::unplaced_of_checkout(tx, session).await? {
        settle::settle_awaiting(tx, &payment).await?;
    }
    Ok(())
}

/// The checkout session of an order, if the shop has told us of one.
///
/// # Errors
/// When the database fails.
pub async fn session_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Option<PaymentKey>> {
    let row = sqlx::query!(
        r#"SELECT session_provider AS "provider!", session_account AS "account!", session_id AS "id!" FROM orders WHERE id = $1 AND session_id IS NOT NULL"#,
        order
    );
    let Some(row) = row.fetch_optional(connection).await? else { return Ok(None) };
    let provider = parsed(&row.provider)?;
    Ok(Some(PaymentKey { provider, account: row.account, payment_id: row.id }))
}

/// What an order is after its money changed, and whose it is: what events about its money say.
#[derive(Debug)]
pub(crate) struct Restated {
    pub(crate) status: String,
    pub(crate) version: i64,
    pub(crate) reference: String,
    customer_email: Option<String>,
    customer_name: Option<String>,
    customer_phone: Option<String>,
}

impl Restated {
    pub(crate) fn customer(&self) -> Customer {
        Customer { email: self.customer_email.clone(), name: self.customer_name.clone(), phone: self.customer_phone.clone() }
    }
}

/// Says anew what a paid order is, by the money that still stands: all that was captured for it in its currency, less what
/// went back; money that another order claims, too, counts only where it paid. Takes the order's next version. An order that
/// was never paid keeps its status. What went back is read off the payments' positions: call [`crate::positions::advance`] first.
pub(crate) async fn restate(tx: &mut PgTransaction<'_>, order: Uuid) -> sqlx::Result<Restated> {
    sqlx::query_as!(
        Restated,
        "WITH standing AS (
            SELECT COALESCE((SELECT sum(p.amount_minor - p.booked_refunded_minor) FROM payments p
                WHERE p.order_id = o.id AND p.status = 'captured' AND p.currency = o.currency AND (p.disposition = 'settled' OR NOT p.contested)), 0) AS minor
            FROM orders o WHERE o.id = $1)
        UPDATE orders o SET version = o.version + 1, updated_at = now(), status = CASE
            WHEN o.status NOT IN ('paid', 'partially_refunded', 'refunded') THEN o.status
            WHEN s.minor >= o.amount_minor THEN 'paid' WHEN s.minor > 0 THEN 'partially_refunded' ELSE 'refunded' END
        FROM standing s WHERE o.id = $1 RETURNING o.status, o.version, o.reference, o.customer_email, o.customer_name, o.customer_phone",
        order,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Stores the contact of an order that had none. `None` when it had one, or is not paid: then its receipt will find it.
pub(crate) async fn learn_contact(tx: &mut PgTransaction<'_>, order: Uuid, contact: &Contact) -> sqlx::Result<Option<OrderData>> {
    let row = sqlx::query!(
        r#"UPDATE orders SET customer_email = $2, customer_name = COALESCE(customer_name, $3), customer_phone = COALESCE(customer_phone, $4),
            version = version + 1, updated_at = now()
        WHERE id = $1 AND customer_email IS NULL
        RETURNING reference, version, amount_minor, currency, customer_email, customer_name, customer_phone, lines,
            to_char(paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS paid_at, paid_provider, paid_account, paid_payment_id,
            EXISTS (SELECT FROM payments p WHERE p.provider = paid_provider AND p.account = paid_account AND p.payment_id = paid_payment_id AND p.backfilled) AS "backfilled!""#,
        order,
        contact.email,
        contact.name,
        contact.phone,
    )
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row.filter(|row| !row.backfilled) else { return Ok(None) }; // no receipt for what was settled before
    let (Some(paid_at), Some(provider), Some(account), Some(payment_id)) = (row.paid_at, row.paid_provider, row.paid_account, row.paid_payment_id) else {
        return Ok(None);
    };
    let currency = parsed(&row.currency)?;
    let provider = parsed(&provider)?;
    Ok(Some(OrderData {
        order_id: OrderId(order),
        reference: row.reference,
        version: row.version,
        amount_minor: row.amount_minor,
        currency,
        customer: Customer { email: row.customer_email, name: row.customer_name, phone: row.customer_phone },
        lines: serde_json::from_value(row.lines).map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        paid_at,
        payment: PaymentData { provider, account, payment_id, amount_minor: row.amount_minor, currency, settled_minor: row.amount_minor },
        books: None,
    }))
}
