//! Records past events of a provider without announcing what was settled before Counterfoil knew of it.

use counterfoil_outbox::Appended;
use counterfoil_payments::{Books, Fact, PaymentKey, Position, Topic};
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::delivery::{Delivery, Outcome, Settled, Verdict};
use crate::events;
use crate::settle::settle;

/// What became of one past event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backfilled {
    /// It is recorded.
    Recorded {
        /// What is stored about it.
        outcome: Outcome,
        /// The order that it marked as paid.
        paid: Option<Uuid>,
    },
    /// It was recorded before.
    Known,
    /// Its order or payment is not here: it is not recorded, so that it counts once that is here.
    Nowhere,
    /// Its order's row is locked by somebody: try it again.
    Locked,
}

/// Which of these events are stored already, by account and event id.
///
/// # Errors
/// When the database fails.
pub async fn known_events(connection: &mut PgConnection, provider: &str, events: &[(String, String)]) -> sqlx::Result<Vec<(String, String)>> {
    let (accounts, ids): (Vec<String>, Vec<String>) = events.iter().cloned().unzip();
    let rows = sqlx::query!(
        "SELECT w.account, w.event_id FROM webhook_events w JOIN unnest($2::text[], $3::text[]) AS k (account, event_id) USING (account, event_id) WHERE w.provider = $1",
        provider,
        &accounts,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.account, row.event_id)).collect())
}

/// Records a batch of past events by the same settlement as live ones, and takes back what it would announce: captures are
/// marked as recorded by backfill, their outbox rows as not to be sent, and they stay out of the books. Refunds and disputes
/// of payments that live in our books are announced as usual. An event whose order is not here is not recorded.
///
/// # Errors
/// When the database fails.
pub async fn backfill(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<Vec<Backfilled>> {
    let verdicts = settle(tx, batch).await?;
    for (delivery, verdict) in batch.iter().zip(&verdicts) {
        if matches!(verdict, Verdict::Settled(Settled { outcome: Outcome::Waiting, duplicate: false, .. })) {
            events::forget(tx, delivery).await?; // its capture is older than what is recorded here
        }
    }
    keep_quiet(tx, batch).await?;
    Ok(verdicts
        .into_iter()
        .map(|verdict| match verdict {
            Verdict::Settled(Settled { outcome: Outcome::Waiting, .. }) | Verdict::NoOrder(_) => Backfilled::Nowhere,
            Verdict::Settled(Settled { duplicate: true, .. }) => Backfilled::Known,
            Verdict::Settled(Settled { outcome, paid, .. }) => Backfilled::Recorded { outcome, paid },
            Verdict::Locked(_) => Backfilled::Locked,
        })
        .collect())
}

/// Takes back what the transaction would announce about payments whose first booking it was, and writes down how much of each
/// is therefore not in the books.
async fn keep_quiet(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<()> {
    let appended = counterfoil_outbox::appended(tx).await?;
    let mut withheld = Vec::new();
    for event in &appended {
        let field = |name: &str| event.payload["payment"][name].as_str().unwrap_or_default().to_owned();
        let books: Option<Books> = serde_json::from_value(event.payload["books"].clone()).ok();
        let first = books.is_some_and(|books| books.before == Position::default() && books.after.captured_minor > 0);
        let quiet = books.map_or(0, |books| receivable(&books.after) - receivable(&books.before));
        let marked = sqlx::query!(
            "UPDATE payments SET backfilled = true, quiet_minor = quiet_minor + $5
             WHERE provider = $1 AND account = $2 AND payment_id = $3 AND (backfilled OR $4)",
            field("provider"),
            field("account"),
            field("payment_id"),
            first,
            quiet,
        );
        if marked.execute(&mut **tx).await?.rows_affected() == 1 {
            withheld.push(event.event_id);
        }
    }
    // Whoever paid for tickets gets their numbers all the same.
    let with_tickets = |event: &&Appended| event.payload["lines"].as_array().is_some_and(|lines| lines.iter().any(|line| line.get("draw").is_some()));
    let tickets: Vec<Uuid> = appended
        .iter()
        .filter(|event| event.topic == Topic::OrderPaid.name() && withheld.contains(&event.event_id))
        .filter(with_tickets)
        .map(|event| event.event_id)
        .collect();
    counterfoil_outbox::send_to(tx, &tickets, "counterfoil.tickets").await?;
    counterfoil_outbox::withhold(tx, &withheld, "recorded by backfill: not sent").await?;
    paid_then(tx, batch).await
}

/// What of a payment stands at its provider.
fn receivable(at: &Position) -> i64 {
    at.captured_minor - at.refunded_minor - at.disputed_minor - at.charged_back_minor
}

/// Orders that this transaction has paid were paid when their event was made.
async fn paid_then(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<()> {
    let captures = batch.iter().filter_map(|delivery| match &delivery.fact {
        Fact::Payment { payment, .. } => Some((payment, delivery.made_at?)),
        Fact::Unsupported { .. }
        | Fact::Refund { .. }
        | Fact::RefundsReported { .. }
        | Fact::Dispute { .. }
        | Fact::Ignored { .. }
        | Fact::Unreadable { .. } => None,
    });
    let (keys, made): (Vec<&PaymentKey>, Vec<i64>) = captures.unzip();
    sqlx::query!(
        "UPDATE orders o SET paid_at = to_timestamp(k.made_at::float8) FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS k (provider, account, payment_id, made_at)
         WHERE o.paid_provider = k.provider AND (o.paid_account = k.account OR '' IN (o.paid_account, k.account)) AND o.paid_payment_id = k.payment_id AND o.paid_at = now()",
        &keys.iter().map(|key| key.provider.name().to_owned()).collect::<Vec<_>>(),
        &keys.iter().map(|key| key.account.clone()).collect::<Vec<_>>(),
        &keys.iter().map(|key| key.payment_id.clone()).collect::<Vec<_>>(),
        &made,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
