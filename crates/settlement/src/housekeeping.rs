//! Work that no message starts: each job a step that takes a few rows with `SKIP LOCKED` and says what it did.

use counterfoil_payments::{OrderKey, Provider};
use serde_json::json;
use sqlx::{PgConnection, PgTransaction};

use crate::delivery::Delivery;
use crate::keys::{self, Stored};
use crate::{aside, events, orders, refunds, settle};

/// Drives waiting events again whose order exists by now (made by plain SQL, say), or whose payment was captured in the
/// same instant as they came; and brings orders up to what another replica did in the instant in which they changed: payments
/// held when their order was paid, and statuses that count money which another order claims since. Returns how much there was.
///
/// # Errors
/// When the database fails.
pub async fn drive_waiting(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<usize> {
    let mut names = sqlx::query_scalar!(
        r#"WITH waiting AS (SELECT DISTINCT waits_for AS name FROM webhook_events WHERE outcome = 'waiting' AND waits_for LIKE 'order:%')
        SELECT w.name AS "name!" FROM waiting w WHERE EXISTS (SELECT FROM orders o WHERE o.reference = substr(w.name, 7))
            OR EXISTS (SELECT FROM orders o WHERE o.id = CASE WHEN substr(w.name, 7) ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN substr(w.name, 7)::uuid END)
        ORDER BY random() LIMIT $1"#,
        limit,
    )
    .fetch_all(&mut **tx)
    .await?;
    names.sort();
    settle::lock_names(tx, &names).await?;
    let mut driven = settle::settle_waiting(tx, &names).await?.len();
    for payment in events::awaited_payments(tx, limit).await? {
        driven += settle::settle_awaiting(tx, &payment).await?.len();
    }
    Ok(driven + misfits(tx, limit).await? + contested(tx, limit).await?)
}

async fn misfits(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<usize> {
    let orders = sqlx::query_scalar!(
        "SELECT o.id FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.disposition = 'held' AND p.held_reason IN ('amount_differs', 'currency_differs') AND p.unallocated_minor > 0
            AND o.status IN ('paid', 'partially_refunded', 'refunded') ORDER BY o.id LIMIT $1 FOR NO KEY UPDATE OF o SKIP LOCKED",
        limit
    );
    let orders = orders.fetch_all(&mut **tx).await?;
    for order in &orders {
        aside::now_extra(tx, *order).await?;
    }
    Ok(orders.len())
}

async fn contested(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<usize> {
    let orders = sqlx::query_scalar!(
        "SELECT o.id FROM orders o WHERE o.id IN (SELECT order_id FROM payments WHERE contested AND disposition <> 'settled')
            AND o.status IN ('paid', 'partially_refunded') AND o.amount_minor > COALESCE((SELECT sum(p.amount_minor - p.booked_refunded_minor) FROM payments p
                WHERE p.order_id = o.id AND p.status = 'captured' AND p.currency = o.currency AND (p.disposition = 'settled' OR NOT p.contested)), 0)
            AND o.updated_at > now() - interval '1 day' ORDER BY o.id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED",
        limit
    );
    let orders = orders.fetch_all(&mut **tx).await?;
    let mut changed = 0;
    for order in orders {
        let before = orders::find_id(&mut *tx, order).await?.map(|order| order.status);
        changed += usize::from(before != Some(orders::restate(tx, order).await?.status));
    }
    Ok(changed)
}

/// What waits for an order or a payment.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Events.
    pub events: i64,
    /// Age of the oldest.
    pub oldest_seconds: f64,
    /// Events older than the limit.
    pub overdue: i64,
}

/// Counts what waits.
///
/// # Errors
/// When the database fails.
pub async fn waiting(connection: &mut PgConnection, overdue_s: i64) -> sqlx::Result<Waiting> {
    sqlx::query_as!(
        Waiting,
        r#"SELECT count(*) AS "events!", COALESCE(extract(epoch FROM now() - min(received_at)), 0)::float8 AS "oldest_seconds!",
            count(*) FILTER (WHERE received_at < now() - make_interval(secs => $1::bigint::float8)) AS "overdue!"
        FROM webhook_events WHERE outcome = 'waiting'"#,
        overdue_s,
    )
    .fetch_one(connection)
    .await
}

/// An event that an earlier release stored and did not act on.
#[derive(Debug, Clone)]
pub struct Deferred {
    /// Who sent it.
    pub provider: Provider,
    /// Its account.
    pub account: String,
    /// Its id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// Its bytes, to be read again.
    pub body: Vec<u8>,
}

/// Takes a few of them.
///
/// # Errors
/// When the database fails.
pub async fn take_deferred(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<Vec<Deferred>> {
    let rows = sqlx::query!(
        "SELECT provider, account, event_id, event_type, body FROM webhook_events WHERE outcome = 'deferred' ORDER BY received_at LIMIT $1 FOR UPDATE SKIP LOCKED",
        limit
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let provider = row.provider.parse().ok()?;
            Some(Deferred { provider, account: row.account, event_id: row.event_id, event_type: row.event_type, body: row.body })
        })
        .collect())
}

/// Takes one stored event, to be driven again whatever became of it, unless its news is settled. `None` when there is nothing to do again.
///
/// # Errors
/// When the database fails.
pub async fn take_event(tx: &mut PgTransaction<'_>, provider: Provider, account: &str, event_id: &str) -> sqlx::Result<Option<Deferred>> {
    let row = sqlx::query!(
        "UPDATE webhook_events SET outcome = 'deferred', waits_for = NULL WHERE provider = $1 AND account = $2 AND event_id = $3
            AND outcome IN ('failed', 'unreadable', 'ignored', 'waiting', 'deferred') AND erased_at IS NULL RETURNING event_type, body",
        provider.name(),
        account,
        event_id,
    );
    let row = row.fetch_optional(&mut **tx).await?;
    Ok(row.map(|row| Deferred { provider, account: account.to_owned(), event_id: event_id.to_owned(), event_type: row.event_type, body: row.body }))
}

/// Settles a stored event again, as this release reads it. `false` when it could not be settled now.
///
/// # Errors
/// When the database fails.
pub async fn drive_again(tx: &mut PgTransaction<'_>, delivery: &Delivery) -> sqlx::Result<bool> {
    settle::drive_again(tx, delivery).await
}

/// Settles idempotency keys that a crash left in progress: looks whether the work happened, and completes the key with its
/// answer or clears it, so that the caller may try again. A call that still runs holds the key's lock and is left alone.
/// Returns (completed, cleared).
///
/// # Errors
/// When the database fails.
pub async fn settle_keys(tx: &mut PgTransaction<'_>, older_than_s: i64, limit: i64) -> sqlx::Result<(usize, usize)> {
    let stuck = sqlx::query!(
        "SELECT scope, key FROM idempotency_keys WHERE status = 'in_progress' AND created_at < now() - make_interval(secs => $1::bigint::float8)
         ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED",
        older_than_s,
        limit,
    )
    .fetch_all(&mut **tx)
    .await?;
    let (mut completed, mut cleared) = (0, 0);
    for row in stuck {
        if keys::lock(tx, std::slice::from_ref(&row.scope), std::slice::from_ref(&row.key)).await? != [true] {
            continue;
        }
        if let Some(body) = work_of(tx, &row.scope, &row.key).await? {
            keys::complete_stuck(tx, &row.scope, &row.key, &Stored { status: 201, body: body.to_string().into_bytes() }).await?;
            completed += 1;
        } else {
            keys::clear(tx, &row.scope, &row.key).await?;
            cleared += 1;
        }
    }
    Ok((completed, cleared))
}

/// What a call with this key made, as its answer would show it.
async fn work_of(tx: &mut PgTransaction<'_>, scope: &str, key: &str) -> sqlx::Result<Option<serde_json::Value>> {
    let refund = sqlx::query_scalar!("SELECT id FROM refunds WHERE made_by_scope = $1 AND made_by_key = $2", scope, key).fetch_optional(&mut **tx).await?;
    if let Some(id) = refund {
        return Ok(refunds::find(&mut *tx, id).await?.map(|refund| json!(refund)));
    }
    let order = sqlx::query_scalar!("SELECT id FROM orders WHERE made_by_scope = $1 AND made_by_key = $2", scope, key).fetch_optional(&mut **tx).await?;
    match order {
        Some(id) => Ok(orders::view(&mut *tx, &OrderKey::Id(counterfoil_payments::OrderId(id))).await?.map(|view| json!(view))),
        None => Ok(None),
    }
}

/// Removes old webhook events that are settled, at most `limit`. What waits, failed or was deferred stays, and so do captures that
/// count for no order and events whose copies say something else.
/// Order state, payments, refunds and disputes stay for good: they are what makes a redelivery of a removed event harmless.
///
/// # Errors
/// When the database fails.
pub async fn purge_events(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM webhook_events WHERE ctid = ANY (ARRAY(SELECT ctid FROM webhook_events WHERE received_at < now() - make_interval(secs => $1::bigint::float8)
            AND outcome NOT IN ('waiting', 'failed', 'deferred') AND unplaced_minor IS NULL AND changed = 0 ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// Removes old completed idempotency keys, at most `limit`. What a key made still carries it, so that even then the same
/// key makes no second refund or order.
///
/// # Errors
/// When the database fails.
pub async fn purge_keys(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM idempotency_keys WHERE (scope, key) IN (SELECT scope, key FROM idempotency_keys WHERE created_at < now() - make_interval(secs => $1::bigint::float8)
            AND status = 'completed' LIMIT $2 FOR UPDATE SKIP LOCKED)",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// Gives up on refunds and disputes whose payment has not come for `older_than_s` seconds: another product on the same
/// provider account has them; and, after an hour, on those whose payment ended without a capture: what went back was its
/// authorisation. Captured money that waits for its order is never given up.
///
/// # Errors
/// When the database fails.
pub async fn give_up_foreign(connection: &mut PgConnection, older_than_s: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "UPDATE webhook_events w SET outcome = 'ignored', waits_for = NULL, processed_at = now(),
            reason = CASE WHEN w.received_at < now() - make_interval(secs => $1::bigint::float8) THEN 'its payment never came' ELSE 'its payment ended without a capture' END
         WHERE w.outcome = 'waiting' AND w.waits_for LIKE 'payment:%' AND (w.received_at < now() - make_interval(secs => $1::bigint::float8)
            OR (w.received_at < now() - interval '1 hour' AND EXISTS (SELECT FROM payments p WHERE p.payment_id = w.payment_id AND p.provider = w.provider
                AND p.status IN ('cancelled', 'expired'))))",
        older_than_s,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// Takes up refunds again that were asked for and not sent: held for want of a key or for a dispute, or their message died.
/// Each gets a new event, an hour after the last, under the same refund and key.
///
/// # Errors
/// When the database fails.
pub async fn resume_refunds(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<usize> {
    let due = sqlx::query!(
        "UPDATE refunds SET resumptions = resumptions + 1, next_resumption_at = now() + interval '1 hour' WHERE id IN (
            SELECT id FROM refunds WHERE status = 'requested' AND created_at < now() - interval '10 minutes' AND next_resumption_at <= now()
            ORDER BY next_resumption_at LIMIT $1 FOR UPDATE SKIP LOCKED)
         RETURNING id, resumptions",
        limit,
    )
    .fetch_all(&mut **tx)
    .await?;
    for row in &due {
        refunds::ask_again(tx, row.id, row.resumptions).await?;
    }
    Ok(due.len())
}
