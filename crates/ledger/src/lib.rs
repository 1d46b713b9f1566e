//! The books: double entry, append-only. Debits are positive, credits negative; each entry sums to zero per currency.
//!
//! What is posted for an event is the difference of two positions: where its payment, refund or dispute stood before, and where
//! it stands after. Both are said by the event's own data, so that nothing depends on the order in which events arrive.
//!
//! | what | stands | position |
//! |---|---|---|
//! | payment | captured | `assets:receivable:<provider>` against `income:sales` for what pays the order, `liabilities:unallocated` for the rest |
//! | refund | pending | `income:refunds` (or `liabilities:unallocated`, if the money never paid its order) against `liabilities:refunds_pending` |
//! | refund | succeeded | the same against `assets:receivable:<provider>` |
//! | refund | requested, failed | none |
//! | dispute | opened | `assets:disputed:<provider>` against `assets:receivable:<provider>` |
//! | dispute | lost | `expenses:chargebacks` against `assets:receivable:<provider>` |
//! | dispute | inquiry, closed, won | none |
//!
//! So for each order and currency: captured − refunded − charged back = what stands in `assets:receivable`. A provider's fees
//! are not in its events and not in these books.

#![warn(clippy::float_arithmetic)] // money is integers

pub mod check;
pub mod export;

use std::collections::BTreeMap;

use counterfoil_payments::event::{Body, PaymentData, RefundData, RefundSource};
use counterfoil_payments::{Currency, Disposition, DisputeStatus, Event, PaymentKey, RefundStatus};
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// The account of money that belongs to no order.
pub const UNALLOCATED: &str = "liabilities:unallocated";

/// The account of what was sold.
pub const SALES: &str = "income:sales";

/// The account of what of it went back.
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

type Position = Vec<(String, i64)>;

fn payment_position(payment: &PaymentKey, captured: i64, settled: i64) -> Position {
    vec![(receivable(payment), captured), (SALES.into(), -settled), (UNALLOCATED.into(), settled.saturating_sub(captured))]
}

fn refund_position(payment: &PaymentKey, refund: &RefundData, status: RefundStatus) -> Position {
    let source = match refund.source {
        RefundSource::Sales => REFUNDS,
        RefundSource::Unallocated => UNALLOCATED,
    };
    let from = match status {
        RefundStatus::Requested | RefundStatus::Failed => return Vec::new(),
        RefundStatus::Pending => REFUNDS_PENDING.to_owned(),
        RefundStatus::Succeeded => receivable(payment),
    };
    vec![(source.into(), refund.amount_minor), (from, -refund.amount_minor)]
}

fn dispute_position(payment: &PaymentKey, amount_minor: i64, status: Option<DisputeStatus>) -> Position {
    let into = match status {
        None | Some(DisputeStatus::Inquiry | DisputeStatus::Closed | DisputeStatus::Won) => return Vec::new(),
        Some(DisputeStatus::Opened) => format!("assets:disputed:{}", payment.provider),
        Some(DisputeStatus::Lost) => CHARGEBACKS.to_owned(),
    };
    vec![(into, amount_minor), (receivable(payment), -amount_minor)]
}

/// Before and after of a payment. Events of the first release say less: all of a payment was booked at once.
fn payment_change(data: &PaymentData, pays: bool) -> (Position, Position) {
    let key = data.key();
    let (all_booked, all_settled) = match data.before {
        Disposition::None => (0, 0),
        Disposition::Settled => (data.amount_minor, data.amount_minor),
        Disposition::Extra | Disposition::Held => (data.amount_minor, 0),
    };
    let before = payment_position(&key, data.booked_minor.unwrap_or(all_booked), data.booked_settled_minor.unwrap_or(all_settled));
    let settled = data.settled_minor.unwrap_or(if pays { data.amount_minor } else { all_settled });
    (before, payment_position(&key, data.amount_minor, settled))
}

/// The entry of an event, or `None` when nothing moves by it.
#[must_use]
pub fn entry(event: &Event) -> Option<Entry> {
    let (payment, currency, (before, after)) = match &event.body {
        Body::OrderPaid(order) => (order.payment.key(), order.payment.currency, payment_change(&order.payment, true)),
        Body::PaymentExtra(aside) | Body::PaymentHeld(aside) => (aside.payment.key(), aside.payment.currency, payment_change(&aside.payment, false)),
        Body::OrderRefunded(data) | Body::RefundFailed(data) => {
            let position = |status| refund_position(&data.payment, &data.refund, status);
            (data.payment.clone(), data.refund.currency, (position(data.refund.before), position(data.refund.status)))
        }
        Body::OrderDisputed(data) => {
            let dispute = &data.dispute;
            let before = dispute_position(&data.payment, dispute.before_minor, dispute.before);
            (data.payment.clone(), dispute.currency, (before, dispute_position(&data.payment, dispute.amount_minor, Some(dispute.status))))
        }
        Body::OrderContactKnown(_) | Body::RefundRequested(_) | Body::TicketsIssued(_) | Body::TicketsVoided(_) | Body::TicketsUnavailable(_) => return None,
    };
    let mut lines: BTreeMap<String, i64> = BTreeMap::new();
    for (account, amount) in after.into_iter().chain(before.into_iter().map(|(account, amount)| (account, -amount))) {
        let line = lines.entry(account).or_default();
        *line = line.saturating_add(amount);
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
