//! The books: double entry, append-only. Debits are positive, credits negative; each entry sums to zero per currency.
//!
//! What is posted for an event is the difference of two positions of one payment, both of which the event's own data name
//! ([`Books`]): where the payment's money stood before, and where it stands after. So the books
//! of a payment depend on its last position alone, not on the order in which events are read.
//!
//! With `unallocated = captured − settled − tip`, what belongs to nobody yet:
//!
//! | account | stands at |
//! |---|---|
//! | `assets:receivable:<provider>` | captured − refunded − disputed − charged back |
//! | `income:sales` | settled, as far as it was captured |
//! | `income:tips` | tip |
//! | `liabilities:unallocated` | unallocated, less what went back, is going back or was charged back: they take from it first |
//! | `income:refunds` | the rest of what went back or is going back |
//! | `liabilities:refunds_pending` | what is going back |
//! | `assets:disputed:<provider>` | disputed |
//! | `expenses:chargebacks` | the rest of what was charged back |
//!
//! A refund or dispute in another currency than its payment's is not booked: it waits for a person. A provider's fees are not
//! in its events and not in these books.

#![warn(clippy::float_arithmetic)] // money is integers

pub mod check;
pub mod export;

use std::collections::BTreeMap;

use counterfoil_payments::event::Body;
use counterfoil_payments::{Books, Currency, Event, PaymentKey, Position};
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// The account of money that belongs to no order.
pub const UNALLOCATED: &str = "liabilities:unallocated";

/// The account of what was sold.
pub const SALES: &str = "income:sales";

/// The account of tips.
pub const TIPS: &str = "income:tips";

/// The account of what of the sales went back.
pub const REFUNDS: &str = "income:refunds";

/// The account of refunds that the provider has taken on.
pub const REFUNDS_PENDING: &str = "liabilities:refunds_pending";

/// The account of what banks took for good.
pub const CHARGEBACKS: &str = "expenses:chargebacks";

fn receivable(payment: &PaymentKey) -> String {
    format!("assets:receivable:{}", payment.provider)
}

/// What an event posts: lines that sum to zero, of one currency, for one payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose money.
    pub payment: PaymentKey,
    /// Account and minor units; debits positive; none of them zero.
    pub lines: Vec<(String, i64)>,
    /// Their currency.
    pub currency: Currency,
}

/// What each account stands at for one payment, debits positive. They sum to zero, whatever the position.
fn balances(payment: &PaymentKey, at: &Position) -> [(String, i64); 8] {
    let unallocated = (at.captured_minor - at.settled_minor - at.tip_minor).max(0);
    let back = at.refunded_minor + at.refund_pending_minor;
    let back_unallocated = back.min(unallocated);
    let charged_unallocated = at.charged_back_minor.min(unallocated - back_unallocated);
    // What was settled beyond what was captured, by the price of a checkout, is no sale.
    let settled = at.captured_minor - at.tip_minor - unallocated;
    [
        (receivable(payment), at.captured_minor - at.refunded_minor - at.disputed_minor - at.charged_back_minor),
        (SALES.into(), -settled),
        (TIPS.into(), -at.tip_minor),
        (UNALLOCATED.into(), back_unallocated + charged_unallocated - unallocated),
        (REFUNDS.into(), back - back_unallocated),
        (REFUNDS_PENDING.into(), -at.refund_pending_minor),
        (format!("assets:disputed:{}", payment.provider), at.disputed_minor),
        (CHARGEBACKS.into(), at.charged_back_minor - charged_unallocated),
    ]
}

/// The entry of an event, or `None` when nothing moves by it.
#[must_use]
pub fn entry(event: &Event) -> Option<Entry> {
    let (payment, books) = match &event.body {
        Body::OrderPaid(order) => (order.payment.key(), order.books?),
        Body::PaymentExtra(data) | Body::PaymentHeld(data) => (data.payment.key(), data.books?),
        Body::OrderRefunded(data) | Body::RefundFailed(data) => (data.payment.clone(), data.books?),
        Body::OrderDisputed(data) => (data.payment.clone(), data.books?),
        Body::OrderContactKnown(_) | Body::RefundRequested(_) | Body::TicketsIssued(_) | Body::TicketsVoided(_) | Body::TicketsUnavailable(_) => return None,
    };
    let Books { currency, before, after } = books;
    let mut lines: BTreeMap<String, i64> = BTreeMap::new();
    for (sign, position) in [(1, after), (-1, before)] {
        for (account, minor) in balances(&payment, &position) {
            *lines.entry(account).or_default() += sign * minor;
        }
    }
    let mut lines: Vec<(String, i64)> = lines.into_iter().filter(|(_, amount)| *amount != 0).collect();
    lines.sort_by_key(|(_, amount)| std::cmp::Reverse(*amount));
    (!lines.is_empty()).then_some(Entry { payment, lines, currency })
}

/// Posts the entries of events, in one statement. An event that has its entry posts nothing more.
///
/// # Errors
/// When the database refuses, a constraint of the books among the reasons.
pub async fn post(tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<()> {
    let (mut ids, mut orders, mut providers, mut accounts, mut payments, mut topics, mut times) = (vec![], vec![], vec![], vec![], vec![], vec![], vec![]);
    let (mut line_of, mut names, mut amounts, mut currencies) = (vec![], vec![], vec![], vec![]);
    for event in events {
        let Some(entry) = entry(event) else { continue };
        for (account, amount) in entry.lines {
            line_of.push(event.id);
            names.push(account);
            amounts.push(amount);
            currencies.push(entry.currency.to_string());
        }
        ids.push(event.id);
        orders.push(event.order_id.0);
        providers.push(entry.payment.provider.name().to_owned());
        accounts.push(entry.payment.account);
        payments.push(entry.payment.payment_id);
        topics.push(event.topic().name().to_owned());
        times.push(event.time.clone());
    }
    sqlx::query!(
        "WITH input AS (
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
            AS i (event_id, order_id, provider, account, payment_id, topic, occurred_at)
        ), entries AS (
            INSERT INTO ledger_entries (source_event_id, order_id, payment_provider, payment_account, payment_id, topic, occurred_at)
            SELECT event_id, order_id, provider, account, payment_id, topic, occurred_at::timestamptz FROM input ORDER BY event_id
            ON CONFLICT ON CONSTRAINT ledger_entries_source_event_unique DO NOTHING
            RETURNING id, source_event_id
        )
        INSERT INTO ledger_lines (entry_id, account, amount_minor, currency)
        SELECT e.id, l.account, l.amount_minor, l.currency FROM entries e
        JOIN unnest($8::uuid[], $9::text[], $10::bigint[], $11::text[]) AS l (event_id, account, amount_minor, currency) ON l.event_id = e.source_event_id",
        &ids,
        &orders,
        &providers,
        &accounts,
        &payments,
        &topics,
        &times,
        &line_of,
        &names,
        &amounts,
        &currencies,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A line of an order's entries, as the trail shows it.
#[derive(Debug, Clone)]
pub struct Booked {
    /// The event that it came from.
    pub source_event_id: Uuid,
    /// That event's topic.
    pub topic: String,
    /// When it was booked, RFC 3339.
    pub recorded_at: String,
    /// The account.
    pub account: String,
    /// Minor units; debits positive.
    pub amount_minor: i64,
    /// Their currency.
    pub currency: String,
}

/// The order whose entry came from an event.
///
/// # Errors
/// When the database fails.
pub async fn order_of_event(connection: &mut PgConnection, event_id: Uuid) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!("SELECT order_id FROM ledger_entries WHERE source_event_id = $1", event_id).fetch_optional(connection).await
}

/// The lines of an order, in order.
///
/// # Errors
/// When the database fails.
pub async fn of_order(connection: &mut PgConnection, order_id: Uuid) -> sqlx::Result<Vec<Booked>> {
    sqlx::query_as!(
        Booked,
        r#"SELECT e.source_event_id, e.topic, to_char(e.recorded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "recorded_at!", l.account, l.amount_minor, l.currency FROM ledger_entries e JOIN ledger_lines l ON l.entry_id = e.id
         WHERE e.order_id = $1 ORDER BY e.id, l.amount_minor DESC"#,
        order_id
    )
    .fetch_all(connection)
    .await
}
