//! Records past events of a provider without announcing what was settled before Counterfoil knew of it.

use counterfoil_outbox::Appended;
use counterfoil_payments::{Fact, PaymentKey, Topic};
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

/// Takes back what the transaction would announce about payments whose first booking it was, and marks what it recorded.
async fn keep_quiet(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<()> {
    let appended = counterfoil_outbox::appended(tx).await?;
    let named = |event: &Appended, field: &str| event.payload["payment"][field].as_str().unwrap_or_default().to_owned();
    let first: Vec<&Appended> = appended
        .iter()
        .filter(|event| [Topic::OrderPaid, Topic::PaymentExtra, Topic::PaymentHeld].iter().any(|topic| topic.name() == event.topic))
        .filter(|event| event.payload["payment"]["booked_minor"] == 0)
        .collect();
    let column = |field: &str| first.iter().map(|event| named(event, field)).collect::<Vec<_>>();
    let (providers, accounts, ids) = (column("provider"), column("account"), column("payment_id"));
    sqlx::query!(
        "UPDATE payments p SET backfilled = true, quiet_minor = p.amount_minor FROM unnest($1::text[], $2::text[], $3::text[]) AS k (provider, account, payment_id)
         WHERE p.provider = k.provider AND p.account = k.account AND p.payment_id = k.payment_id",
        &providers,
        &accounts,
        &ids,
    )
    .execute(&mut **tx)
    .await?;
    let mut withheld = Vec::new();
    for event in &appended {
        if mark_quiet(tx, [named(event, "provider"), named(event, "account"), named(event, "payment_id")]).await? {
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

/// Marks the refunds and disputes of a backfilled payment that this transaction has recorded: their rows carry its own
/// `now()`. `false` when the payment lives in our books.
async fn mark_quiet(tx: &mut PgTransaction<'_>, [provider, account, payment_id]: [String; 3]) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"WITH old AS (SELECT provider, account, payment_id FROM payments WHERE provider = $1 AND account = $2 AND payment_id = $3 AND backfilled),
        money_back AS (UPDATE refunds r SET quiet_minor = CASE WHEN r.status = 'succeeded' THEN -r.amount_minor ELSE 0 END FROM old WHERE r.provider = old.provider AND r.account = old.account
            AND r.payment_id = old.payment_id AND r.updated_at = now()),
        disputed AS (UPDATE disputes d SET quiet_minor = CASE WHEN d.status IN ('opened', 'lost') THEN -d.amount_minor ELSE 0 END FROM old WHERE d.provider = old.provider AND d.account = old.account
            AND d.payment_id = old.payment_id AND d.updated_at = now())
        SELECT EXISTS (SELECT FROM old) AS "quiet!""#,
        provider,
        account,
        payment_id,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Orders that this transaction has paid were paid when their event was made.
async fn paid_then(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<()> {
    let captures = batch.iter().filter_map(|delivery| match &delivery.fact {
        Fact::Payment { payment, .. } => Some((payment, delivery.made_at?)),
        Fact::Refund { .. } | Fact::RefundsReported { .. } | Fact::Dispute { .. } | Fact::Ignored { .. } | Fact::Unreadable { .. } => None,
    });
    let (keys, made): (Vec<&PaymentKey>, Vec<i64>) = captures.unzip();
    sqlx::query!(
        "UPDATE orders o SET paid_at = to_timestamp(k.made_at::float8) FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS k (provider, account, payment_id, made_at)
         WHERE o.paid_provider = k.provider AND o.paid_account = k.account AND o.paid_payment_id = k.payment_id AND o.paid_at = now()",
        &keys.iter().map(|key| key.provider.name().to_owned()).collect::<Vec<_>>(),
        &keys.iter().map(|key| key.account.clone()).collect::<Vec<_>>(),
        &keys.iter().map(|key| key.payment_id.clone()).collect::<Vec<_>>(),
        &made,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
