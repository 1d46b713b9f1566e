//! `provider_reads`: when an order was last read from its provider, so that one worker reads it at a time and not too often.
//!
//! A claim pushes the order's next read into the future, further each time: that is the lease, the backoff and the limit.

use counterfoil_payments::PaymentKey;
use sqlx::PgConnection;
use uuid::Uuid;

/// What is worth reading from a provider about one order.
#[derive(Debug, Clone, Default)]
pub struct ReadPlan {
    /// The order.
    pub order_id: Uuid,
    /// Why, in words.
    pub why: String,
    /// Its attempts and payments in doubt.
    pub payments: Vec<PaymentKey>,
    /// The checkout session that the shop has opened.
    pub session: Option<PaymentKey>,
}

/// Claims one read of an order, unless it was read within the last `gap_s` seconds. Whoever gets `true` reads.
///
/// # Errors
/// When the database fails.
pub async fn claim_read(connection: &mut PgConnection, order: Uuid, gap_s: i64) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "INSERT INTO provider_reads AS r (order_id, read_at, next_read_at) VALUES ($1, now(), now() + interval '1 minute')
         ON CONFLICT (order_id) DO UPDATE SET read_at = now(), next_read_at = GREATEST(r.next_read_at, now() + interval '1 minute')
            WHERE r.read_at IS NULL OR r.read_at < now() - make_interval(secs => $2::bigint::float8)",
        order,
        gap_s,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Claims up to `limit` orders that are due to be read: pending longer than `pending_s` (and not for 30 days), with refunds whose outcome is open for
/// as long, or with a reported sum of refunds that is more than we know of; refunds first, then what was never read. Each is put off by a minute, then two, then four,
/// up to six hours.
///
/// # Errors
/// When the database fails.
pub async fn claim_due_reads(connection: &mut PgConnection, pending_s: i64, limit: i64) -> sqlx::Result<Vec<(Uuid, String)>> {
    let rows = sqlx::query!(
        r#"WITH due AS (
            SELECT o.id, 'pending' AS why, 1 AS class, o.created_at AS since FROM orders o
            WHERE o.status IN ('pending_payment', 'payment_pending', 'failed_final') AND o.created_at < now() - make_interval(secs => $1::bigint::float8)
              AND o.created_at > now() - interval '30 days'
              AND (o.session_id IS NOT NULL OR EXISTS (SELECT FROM payments p WHERE p.order_id = o.id))
            UNION ALL
            SELECT r.order_id, 'a refund is under way', 0, r.created_at FROM refunds r
            WHERE r.status IN ('requested', 'pending') AND (r.calls > 0 OR r.provider_refund_id IS NOT NULL)
              AND r.created_at < now() - make_interval(secs => $1::bigint::float8)
            UNION ALL
            SELECT p.order_id, 'more was refunded than we know of', 0, p.updated_at FROM payments p
            WHERE p.refunds_reported_minor > p.refunds_known_minor AND p.updated_at < now() - interval '10 seconds'
        ), chosen AS (
            SELECT d.id, min(d.why) AS why FROM due d LEFT JOIN provider_reads r ON r.order_id = d.id
            WHERE r.order_id IS NULL OR r.next_read_at <= now() GROUP BY d.id, r.next_read_at
            ORDER BY min(d.class), r.next_read_at NULLS FIRST, min(d.since) LIMIT $2
        ), claimed AS (
            INSERT INTO provider_reads AS r (order_id, read_at, reads, next_read_at) SELECT id, now(), 1, now() + interval '1 minute' FROM chosen ORDER BY id
            ON CONFLICT (order_id) DO UPDATE SET read_at = now(), reads = r.reads + 1,
                next_read_at = now() + LEAST(interval '1 minute' * power(2, LEAST(r.reads, 10)), interval '6 hours')
                WHERE r.next_read_at <= now()
            RETURNING order_id
        )
        SELECT c.id AS "id!", c.why AS "why!" FROM chosen c JOIN claimed ON claimed.order_id = c.id"#,
        pending_s,
        limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.why)).collect())
}

/// What to read of an order: payments that are not settled, payments with refunds that are not decided, and its session.
///
/// # Errors
/// When the database fails.
pub async fn plan_of(connection: &mut PgConnection, order: Uuid, why: &str) -> sqlx::Result<ReadPlan> {
    let rows = sqlx::query!(
        r#"SELECT p.provider AS "provider!", p.account AS "account!", p.payment_id AS "payment_id!", false AS "session!" FROM payments p
            WHERE p.order_id = $1 AND (p.status <> 'captured' OR p.refunds_reported_minor > 0 OR EXISTS (SELECT FROM refunds r
                WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id AND r.status IN ('requested', 'pending')))
        UNION ALL SELECT session_provider, session_account, session_id, true FROM orders WHERE id = $1 AND session_id IS NOT NULL"#,
        order,
    )
    .fetch_all(connection)
    .await?;
    let mut plan = ReadPlan { order_id: order, why: why.to_owned(), ..ReadPlan::default() };
    for row in rows {
        let Ok(provider) = row.provider.parse() else { continue };
        let key = PaymentKey { provider, account: row.account, payment_id: row.payment_id };
        if row.session {
            plan.session = Some(key);
        } else {
            plan.payments.push(key);
        }
    }
    Ok(plan)
}

/// Writes why an order could not be read.
///
/// # Errors
/// When the database fails.
pub async fn read_failed(connection: &mut PgConnection, order: Uuid, why: &str) -> sqlx::Result<()> {
    sqlx::query!("UPDATE provider_reads SET last_error = $2 WHERE order_id = $1", order, why).execute(connection).await?;
    Ok(())
}
