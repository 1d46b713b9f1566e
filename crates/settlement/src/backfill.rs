//! Records past events of a provider without announcing what was settled before Counterfoil knew of it.

use counterfoil_payments::{Fact, PaymentKey};
use sqlx::{PgConnection, PgTransaction};

use crate::delivery::{Delivery, Outcome, Settled, Verdict};
use crate::events::{self, Note};
use crate::rounds;
use crate::settle::settle;

/// What became of one past event.
#[derive(Debug, Clone)]
pub struct Backfilled {
    /// What is stored about it.
    pub outcome: Outcome,
    /// Whether it was known before.
    pub known: bool,
    /// The order that it marked as paid.
    pub paid: Option<uuid::Uuid>,
    /// Its order's row is locked by somebody: try it again.
    pub locked: bool,
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
/// of payments that live in our books are announced as usual. An event whose order is not here is stored as ignored.
///
/// # Errors
/// When the database fails.
pub async fn backfill(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<Vec<Backfilled>> {
    let verdicts = settle(tx, batch).await?;
    let items = rounds::fold(batch);
    let nowhere: Vec<_> = items.iter().filter(|item| matches!(verdicts[item.positions[0]], Verdict::NoOrder(_))).collect();
    let note = || Note { outcome: Outcome::Ignored, reason: Some("recorded by backfill: no order of this name is here"), waits_for: None };
    events::store(tx, &nowhere.iter().map(|item| (*item, note())).collect::<Vec<_>>()).await?;
    let payments: Vec<(&PaymentKey, i64)> = batch.iter().filter_map(payment_of).collect();
    keep_quiet(tx, &payments).await?;
    Ok(verdicts
        .into_iter()
        .map(|verdict| match verdict {
            Verdict::Settled(Settled { outcome, duplicate, paid, .. }) => Backfilled { outcome, known: duplicate, paid, locked: false },
            Verdict::NoOrder(_) => Backfilled { outcome: Outcome::Ignored, known: false, paid: None, locked: false },
            Verdict::Locked(_) => Backfilled { outcome: Outcome::Waiting, known: false, paid: None, locked: true },
        })
        .collect())
}

fn payment_of(delivery: &Delivery) -> Option<(&PaymentKey, i64)> {
    match &delivery.fact {
        Fact::Payment { payment, .. } | Fact::Refund { payment, .. } | Fact::Dispute { payment, .. } => Some((payment, delivery.made_at.unwrap_or_default())),
        Fact::RefundsReported { .. } | Fact::Ignored { .. } | Fact::Unreadable { .. } => None,
    }
}

/// `now()` is the transaction's: rows with that time are this transaction's own.
async fn keep_quiet(tx: &mut PgTransaction<'_>, payments: &[(&PaymentKey, i64)]) -> sqlx::Result<()> {
    let column = |read: &dyn Fn(&PaymentKey) -> String| payments.iter().map(|(payment, _)| read(payment)).collect::<Vec<_>>();
    let (providers, accounts, ids) = (column(&|p| p.provider.name().to_owned()), column(&|p| p.account.clone()), column(&|p| p.payment_id.clone()));
    let made: Vec<i64> = payments.iter().map(|(_, made_at)| *made_at).collect();
    sqlx::query!(
        "UPDATE payments p SET backfilled = true FROM unnest($1::text[], $2::text[], $3::text[]) AS k (provider, account, payment_id)
         WHERE p.provider = k.provider AND p.account = k.account AND p.payment_id = k.payment_id
           AND p.updated_at = now() AND p.status = 'captured' AND p.before_disposition = 'none' AND p.before_minor = 0",
        &providers,
        &accounts,
        &ids,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "UPDATE orders o SET paid_at = to_timestamp(k.made_at::float8) FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS k (provider, account, payment_id, made_at)
         WHERE o.paid_provider = k.provider AND o.paid_account = k.account AND o.paid_payment_id = k.payment_id AND o.paid_at = now() AND k.made_at > 0",
        &providers,
        &accounts,
        &ids,
        &made,
    )
    .execute(&mut **tx)
    .await?;
    for (payment, _) in payments {
        sqlx::query!(
            "WITH old AS (SELECT provider, account, payment_id, order_id FROM payments WHERE provider = $1 AND account = $2 AND payment_id = $3 AND backfilled),
             money_back AS (UPDATE refunds r SET backfilled = true FROM old WHERE r.provider = old.provider AND r.account = old.account
                AND r.payment_id = old.payment_id AND r.created_at = now()),
             disputed AS (UPDATE disputes d SET backfilled = true FROM old WHERE d.provider = old.provider AND d.account = old.account
                AND d.payment_id = old.payment_id AND d.created_at = now())
             UPDATE outbox b SET published_at = now(), last_error = 'recorded by backfill: not sent'
             FROM old WHERE b.order_id = old.order_id AND b.created_at = now() AND b.published_at IS NULL
                AND b.payload -> 'payment' ->> 'payment_id' = old.payment_id AND b.payload -> 'payment' ->> 'provider' = old.provider",
            payment.provider.name(),
            payment.account,
            payment.payment_id,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}
