//! The books: double entry, append-only. Debits are positive, credits negative; each entry sums to zero per currency.
//!
//! Each payment is booked once, by the first event that moves its money; what became of it before is said by the
//! event's own data, so that nothing depends on the order in which events arrive:
//!
//! | event | before | debit | credit |
//! |---|---|---|---|
//! | `order.paid` | none | `assets:receivable:<provider>` | `income:sales` |
//! | `order.paid` | held, extra | `liabilities:unallocated` | `income:sales` |
//! | `payment.held`, `payment.extra` | none | `assets:receivable:<provider>` | `liabilities:unallocated` |
//! | `payment.held`, `payment.extra` | anything else | booked already | |

#![warn(clippy::float_arithmetic)] // money is integers

use counterfoil_payments::event::{Body, PaymentData};
use counterfoil_payments::{Disposition, Event};
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

/// The account of money that belongs to no order.
pub const UNALLOCATED: &str = "liabilities:unallocated";

/// The account of what was sold.
pub const SALES: &str = "income:sales";

/// An entry of two lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The account that gets it.
    pub debit: String,
    /// The account that gives it.
    pub credit: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// Of this currency.
    pub currency: String,
}

/// The entry of an event, or `None` when its money is booked already.
#[must_use]
pub fn entry(event: &Event) -> Option<(Entry, &PaymentData)> {
    let (payment, credit) = match &event.body {
        Body::OrderPaid(order) => (&order.payment, SALES),
        Body::PaymentExtra(aside) | Body::PaymentHeld(aside) => (&aside.payment, UNALLOCATED),
        Body::OrderContactKnown(_) => return None,
    };
    let receivable = format!("assets:receivable:{}", payment.provider);
    let debit = match (&event.body, payment.before) {
        (_, Disposition::None) => receivable,
        (Body::OrderPaid(_), Disposition::Held | Disposition::Extra) => UNALLOCATED.to_owned(),
        (Body::OrderPaid(_), Disposition::Settled) => return None,
        (Body::PaymentExtra(_) | Body::PaymentHeld(_) | Body::OrderContactKnown(_), Disposition::Held | Disposition::Extra | Disposition::Settled) => {
            return None;
        }
    };
    let entry = Entry { debit, credit: credit.to_owned(), amount_minor: payment.amount_minor, currency: payment.currency.to_string() };
    Some((entry, payment))
}

/// Posts the entries of events, in one statement. An event that has its entry posts nothing more.
///
/// # Errors
/// When the database refuses, a constraint of the books among the reasons.
pub async fn post(tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<()> {
    let (mut ids, mut orders, mut providers, mut accounts, mut payments) = (vec![], vec![], vec![], vec![], vec![]);
    let (mut topics, mut times, mut debits, mut credits, mut amounts, mut currencies) = (vec![], vec![], vec![], vec![], vec![], vec![]);
    for event in events {
        let Some((entry, payment)) = entry(event) else { continue };
        ids.push(event.id);
        orders.push(event.order_id.0);
        providers.push(payment.provider.name().to_owned());
        accounts.push(payment.account.clone());
        payments.push(payment.payment_id.clone());
        topics.push(event.topic().name().to_owned());
        times.push(event.time.clone());
        debits.push(entry.debit);
        credits.push(entry.credit);
        amounts.push(entry.amount_minor);
        currencies.push(entry.currency);
    }
    sqlx::query!(
        "WITH input AS (
            SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::text[])
            AS i (event_id, order_id, provider, account, payment_id, topic, occurred_at, debit, credit, amount_minor, currency)
        ), entries AS (
            INSERT INTO ledger_entries (source_event_id, order_id, payment_provider, payment_account, payment_id, topic, occurred_at)
            SELECT event_id, order_id, provider, account, payment_id, topic, occurred_at::timestamptz FROM input ORDER BY event_id
            ON CONFLICT ON CONSTRAINT ledger_entries_source_event_unique DO NOTHING
            RETURNING id, source_event_id
        )
        INSERT INTO ledger_lines (entry_id, account, amount_minor, currency)
        SELECT e.id, l.account, l.amount_minor, i.currency FROM entries e JOIN input i ON i.event_id = e.source_event_id
        CROSS JOIN LATERAL (VALUES (i.debit, i.amount_minor), (i.credit, -i.amount_minor)) AS l (account, amount_minor)",
        &ids, &orders, &providers, &accounts, &payments, &topics, &times, &debits, &credits, &amounts, &currencies,
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
    /// The account.
    pub account: String,
    /// Minor units; debits positive.
    pub amount_minor: i64,
    /// Their currency.
    pub currency: String,
}

/// The lines of an order, in order.
///
/// # Errors
/// When the database fails.
pub async fn of_order(connection: &mut PgConnection, order_id: Uuid) -> sqlx::Result<Vec<Booked>> {
    sqlx::query_as!(
        Booked,
        "SELECT e.source_event_id, l.account, l.amount_minor, l.currency FROM ledger_entries e JOIN ledger_lines l ON l.entry_id = e.id
         WHERE e.order_id = $1 ORDER BY e.id, l.amount_minor DESC",
        order_id
    )
    .fetch_all(connection)
    .await
}
