//! Makes orders, a batch in one transaction: look, insert, settle what came before. One order is a batch of one.

use std::collections::{HashMap, HashSet};

use counterfoil_payments::event::Customer;
use counterfoil_payments::{Money, OrderId, OrderKey, PaymentKey, Reference};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::orders::{self, Order, OrderView, Refused};
use crate::settle;

/// An order to make. Everything in it has been proven by the caller.
#[derive(Debug, Clone)]
pub struct NewOrder {
    /// Our id for it: a UUIDv7.
    pub id: Uuid,
    /// The shop's name for it.
    pub reference: Reference,
    /// What is to be paid.
    pub money: Money,
    /// Who buys.
    pub customer: Customer,
    /// The shop's customer that it belongs to; none: a guest's.
    pub customer_id: Option<String>,
    /// What is bought.
    pub lines: LineText,
    /// How long it may be paid, in seconds; `None` for ever.
    pub expires_in_s: Option<i64>,
    /// The checkout session that the shop has opened for it, as (provider, account, id).
    pub session: Option<PaymentKey>,
    /// The caller's idempotency key, scope first: how housekeeping finds out whether a call did its work.
    pub made_by: Option<(String, String)>,
}

/// The lines of an order as JSON.
pub type LineText = serde_json::Value;

fn names(orders: &[&NewOrder]) -> Vec<String> {
    let mut names: Vec<String> = orders.iter().map(|order| OrderKey::Reference(order.reference.clone()).waits_for()).collect();
    names.sort();
    names
}

/// Begins to make orders, no two of one reference or key: takes the locks of their references, so that no event of theirs is
/// stored as waiting meanwhile, and says which cannot be made.
///
/// # Errors
/// When the database fails.
pub async fn begin_orders(tx: &mut PgTransaction<'_>, orders: &[&NewOrder]) -> sqlx::Result<Vec<Option<Refused>>> {
    settle::lock_names(tx, &names(orders)).await?;
    let references: Vec<String> = orders.iter().map(|order| order.reference.as_str().to_owned()).collect();
    let (scopes, keys): (Vec<_>, Vec<_>) = orders.iter().map(|order| order.made_by.clone().unzip()).unzip();
    // A key that retention has forgotten is still on what it made. In a statement of its own, behind the locks. OFFSET 0 keeps it a look-up
    // for each: while `orders` is thought to be small, it would be read whole and hashed.
    let known = sqlx::query!(
        r#"SELECT EXISTS (SELECT FROM orders o WHERE o.reference = a.reference OFFSET 0) AS "taken!",
            EXISTS (SELECT FROM orders o WHERE o.made_by_key IS NOT NULL AND o.made_by_scope = a.scope AND o.made_by_key = a.key OFFSET 0) AS "used!"
        FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS a (reference, scope, key, n) ORDER BY a.n"#,
        &references,
        &scopes as &[Option<String>],
        &keys as &[Option<String>],
    )
    .fetch_all(&mut **tx)
    .await?;
    let refused = orders.iter().zip(known).map(|(order, known)| match (known.used, known.taken) {
        (true, _) => Some(Refused::KeyUsed),
        (_, true) => Some(Refused::ReferenceTaken(order.reference.as_str().to_owned())),
        (false, false) => None,
    });
    Ok(refused.collect())
}

/// Inserts orders that [`begin_orders`] let begin.
///
/// # Errors
/// When the database fails, or somebody else has inserted one of their references by SQL meanwhile: begin again.
pub async fn insert_orders(tx: &mut PgTransaction<'_>, new: &[&NewOrder]) -> sqlx::Result<Vec<Order>> {
    let text = |read: &dyn Fn(&NewOrder) -> String| new.iter().map(|order| read(order)).collect::<Vec<_>>();
    let option = |read: &dyn Fn(&NewOrder) -> Option<String>| new.iter().map(|order| read(order)).collect::<Vec<_>>();
    let ids: Vec<Uuid> = new.iter().map(|order| order.id).collect();
    let amounts: Vec<i64> = new.iter().map(|order| order.money.amount_minor).collect();
    let lines: Vec<LineText> = new.iter().map(|order| order.lines.clone()).collect();
    let seconds: Vec<Option<i64>> = new.iter().map(|order| order.expires_in_s).collect();
    let made = sqlx::query_as!(
        Order,
        r#"INSERT INTO orders (id, reference, amount_minor, currency, customer_email, customer_name, customer_phone, customer_id, lines, expires_at,
            session_provider, session_account, session_id, made_by_scope, made_by_key)
        SELECT id, reference, amount_minor, currency, email, name, phone, customer_id, lines, now() + make_interval(secs => seconds::float8),
            session_provider, session_account, session_id, scope, key
        FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::jsonb[], $10::bigint[],
            $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
        AS n (id, reference, amount_minor, currency, email, name, phone, customer_id, lines, seconds, session_provider, session_account, session_id, scope, key)
        RETURNING id, reference, status, version, amount_minor, currency, to_char(paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS paid_at,
            to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS expires_at,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!", customer_id"#,
        &ids,
        &text(&|order| order.reference.as_str().to_owned()),
        &amounts,
        &text(&|order| order.money.currency.code().to_owned()),
        &option(&|order| order.customer.email.clone()) as &[Option<String>],
        &option(&|order| order.customer.name.clone()) as &[Option<String>],
        &option(&|order| order.customer.phone.clone()) as &[Option<String>],
        &option(&|order| order.customer_id.clone()) as &[Option<String>],
        &lines,
        &seconds as &[Option<i64>],
        &option(&|order| order.session.as_ref().map(|session| session.provider.name().to_owned())) as &[Option<String>],
        &option(&|order| order.session.as_ref().map(|session| session.account.clone())) as &[Option<String>],
        &option(&|order| order.session.as_ref().map(|session| session.payment_id.clone())) as &[Option<String>],
        &option(&|order| order.made_by.clone().map(|(scope, _)| scope)) as &[Option<String>],
        &option(&|order| order.made_by.clone().map(|(_, key)| key)) as &[Option<String>],
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut by_id: HashMap<Uuid, Order> = made.into_iter().map(|order| (order.id, order)).collect();
    ids.iter().map(|id| by_id.remove(id).ok_or(sqlx::Error::RowNotFound)).collect()
}

/// Settles the events that came before these orders, which this transaction has inserted; each order as it is then. `sessions`
/// says that some were made with the checkout session that their shop has opened.
///
/// # Errors
/// When the database fails.
pub async fn settle_early(tx: &mut PgTransaction<'_>, made: Vec<Order>, sessions: bool) -> sqlx::Result<Vec<OrderView>> {
    let names: Vec<String> = made.iter().map(|order| format!("order:{}", order.reference)).collect();
    let waited: HashSet<String> = settle::settle_waiting(tx, &names).await?;
    let mut views = Vec::with_capacity(made.len());
    for (order, name) in made.into_iter().zip(&names) {
        let session = if sessions { orders::session_of(&mut *tx, order.id).await? } else { None };
        if let Some(session) = &session {
            orders::settle_checkout(tx, session).await?;
        }
        let again = if session.is_some() || waited.contains(name) { orders::view(&mut *tx, &OrderKey::Id(OrderId(order.id))).await? } else { None };
        views.push(again.unwrap_or(OrderView { order, payments: Vec::new(), refunds: Vec::new(), disputes: Vec::new() }));
    }
    Ok(views)
}
