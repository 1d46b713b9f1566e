//! Settles news of refunds and disputes: one at a time, since they are rare, under the lock of their order.

use counterfoil_payments::{Fact, PaymentKey};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::delivery::{Outcome, Settled, Verdict};
use crate::events::{self, Note};
use crate::rounds::Item;
use crate::{classify, disputes, refunds};

/// A payment whose money was captured and has its place.
pub(crate) struct Captured {
    /// Its key as it is stored.
    pub(crate) payment: PaymentKey,
    pub(crate) order_id: Uuid,
    pub(crate) currency: String,
}

/// Finds a payment, if its money was captured. One that is told of with the platform's own account and without is one.
pub(crate) async fn captured(tx: &mut PgTransaction<'_>, payment: &PaymentKey) -> sqlx::Result<Option<Captured>> {
    let row = sqlx::query!(
        r#"SELECT account, order_id, currency AS "currency!" FROM payments
         WHERE payment_id = $3 AND provider = $1 AND (account = $2 OR account = '' OR $2 = '') AND status = 'captured' AND disposition <> 'none'
         ORDER BY account <> $2, account LIMIT 1"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
    );
    let row = row.fetch_optional(&mut **tx).await?;
    Ok(row.map(|row| Captured { payment: PaymentKey { account: row.account, ..payment.clone() }, order_id: row.order_id, currency: row.currency }))
}

/// Takes the order's lock without waiting. In a batch other orders are locked already, so waiting could deadlock.
async fn lock_if_free(tx: &mut PgTransaction<'_>, order: Uuid) -> sqlx::Result<bool> {
    let locked = sqlx::query_scalar!("SELECT id FROM orders WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED", order).fetch_optional(&mut **tx).await?;
    Ok(locked.is_some())
}

/// Settles one. What comes before its payment's capture waits for it; settlement of the capture drives it again.
pub(crate) async fn settle(tx: &mut PgTransaction<'_>, item: &Item<'_>) -> sqlx::Result<Verdict> {
    let delivery = item.delivery;
    let (Fact::Refund { payment, .. } | Fact::RefundsReported { payment, .. } | Fact::Dispute { payment, .. }) = &delivery.fact else {
        return Ok(Verdict::stored(Outcome::Ignored, false, false));
    };
    let Some(known) = captured(tx, payment).await? else {
        let note = Note { outcome: Outcome::Waiting, reason: None, waits_for: Some(payment.waits_for()) };
        return Ok(events::store(tx, &[(item, note)]).await?.remove(0));
    };
    if !lock_if_free(tx, known.order_id).await? {
        return Ok(Verdict::Locked(known.order_id));
    }
    let known = captured(tx, payment).await?.unwrap_or(known); // as it is under the lock
    let note = Note { outcome: Outcome::Applied, reason: None, waits_for: None };
    let stored = events::store(tx, &[(item, note)]).await?.remove(0);
    let Verdict::Settled(Settled { duplicate: false, differs, .. }) = stored else {
        return Ok(stored);
    };
    let trace = delivery.traceparent.as_deref();
    let payment = &known.payment;
    let changed = match &delivery.fact {
        Fact::Refund { refund_id, status, money, ours, may_be_release, .. } => {
            let news = refunds::News { payment, refund_id, status: *status, money: *money, ours: *ours, may_be_release: *may_be_release };
            refunds::learn(tx, &known, &news, trace).await?
        }
        Fact::RefundsReported { total, .. } => refunds::report(tx, payment, total).await?,
        Fact::Dispute { dispute_id, status, money, reason, .. } => {
            disputes::learn(tx, &known, &disputes::News { payment, dispute_id, status: *status, money: *money, reason: reason.as_deref() }, trace).await?
        }
        Fact::Payment { .. } | Fact::Unsupported { .. } | Fact::Ignored { .. } | Fact::Unreadable { .. } => false,
    };
    if changed {
        return Ok(Verdict::stored(Outcome::Applied, false, differs));
    }
    classify::supersede(tx, &[delivery]).await?;
    Ok(Verdict::stored(Outcome::Superseded, false, differs))
}
