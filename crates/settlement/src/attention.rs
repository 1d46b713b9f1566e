//! What on-call should look at: money without a place, events without an order, refunds and keys that wait for a person.

use sqlx::PgConnection;
use time::OffsetDateTime;

/// One thing that waits for a person, or for something else to happen.
#[derive(Debug, Clone)]
pub struct Attention {
    /// `waiting`, `held`, `extra`, `claimed`, `refund`, `overpaid`, `unfulfilled`, `key`, `failed` or `disputed`.
    pub kind: String,
    /// What it is: a payment, an event, a refund, a key.
    pub what: String,
    /// The order, where there is one; else the name that it waits for.
    pub order_name: Option<String>,
    /// Minor units at stake.
    pub amount_minor: Option<i64>,
    /// Their currency.
    pub currency: Option<String>,
    /// Why it waits.
    pub why: String,
    /// Since when.
    pub since: OffsetDateTime,
}

/// Reads the list, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn attention(connection: &mut PgConnection, limit: i64) -> sqlx::Result<Vec<Attention>> {
    sqlx::query_as!(
        Attention,
        r#"WITH list AS (
            SELECT 'waiting' AS kind, provider || ' ' || event_type || ' ' || event_id AS what, waits_for AS order_name,
                (COALESCE(fact #> '{fact,payment,money}', fact #> '{fact,refund,money}', fact #> '{fact,dispute,money}') ->> 'amount_minor')::bigint AS amount_minor,
                COALESCE(fact #> '{fact,payment,money}', fact #> '{fact,refund,money}', fact #> '{fact,dispute,money}') ->> 'currency' AS currency,
                'nothing here has this name yet' AS why, received_at AS since
            FROM webhook_events WHERE outcome = 'waiting'
            UNION ALL
            SELECT p.disposition, p.provider || ' ' || p.payment_id, o.reference,
                p.amount_minor - COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id
                    AND r.status = 'succeeded'), 0)::bigint, p.currency, COALESCE(p.held_reason, '') || COALESCE(': ' || p.hold_note, ''), p.created_at
            FROM payments p JOIN orders o ON o.id = p.order_id
            WHERE p.disposition IN ('extra', 'held') AND p.amount_minor > COALESCE((SELECT sum(r.amount_minor) FROM refunds r
                WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id AND r.status = 'succeeded'), 0)
            UNION ALL
            SELECT 'held', p.provider || ' ' || p.payment_id, o.reference, p.amount_minor - p.settled_minor, p.currency, 'more was captured than the order costs', p.updated_at
            FROM payments p JOIN orders o ON o.id = p.order_id
            WHERE p.disposition = 'settled' AND p.amount_minor - p.settled_minor > COALESCE((SELECT sum(r.amount_minor) FROM refunds r
                WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id AND r.status = 'succeeded' AND r.source = 'unallocated'), 0)
            UNION ALL
            SELECT 'refund', r.provider || ' ' || r.payment_id || ' refund ' || r.id, o.reference, r.amount_minor, r.currency,
                CASE WHEN r.status = 'failed' THEN 'failed: ' || COALESCE(r.last_error, 'the provider says so') ELSE COALESCE(r.held_reason, r.status || ' since') END, r.created_at
            FROM refunds r JOIN orders o ON o.id = r.order_id
            WHERE (r.status IN ('requested', 'pending') AND (r.held_reason IS NOT NULL OR r.created_at < now() - interval '1 hour'))
               OR (r.status = 'failed' AND r.updated_at > now() - interval '30 days' AND NOT EXISTS (SELECT FROM refunds again
                    WHERE again.provider = r.provider AND again.account = r.account AND again.payment_id = r.payment_id AND again.amount_minor >= r.amount_minor
                      AND again.created_at > r.created_at AND again.status <> 'failed'))
            UNION ALL
            SELECT 'claimed', provider || ' ' || event_type || ' ' || event_id, NULL, NULL, NULL, 'its payment belongs to another order: see the trail', received_at
            FROM webhook_events WHERE reason = 'claimed_by_other_order' AND received_at > now() - interval '30 days'
            UNION ALL
            SELECT 'overpaid', p.provider || ' ' || p.payment_id, o.reference, m.back - p.amount_minor, p.currency, 'more went back, or was charged back, than was captured', p.updated_at
            FROM payments p JOIN orders o ON o.id = p.order_id CROSS JOIN LATERAL (SELECT
                COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id AND r.status = 'succeeded'), 0)::bigint
                + COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.provider = p.provider AND d.account = p.account AND d.payment_id = p.payment_id AND d.status IN ('opened', 'lost')), 0)::bigint AS back) m
            WHERE p.status = 'captured' AND m.back > p.amount_minor
              AND (p.provider, p.account, p.payment_id) IN (SELECT provider, account, payment_id FROM refunds UNION SELECT provider, account, payment_id FROM disputes)
            UNION ALL
            SELECT 'unfulfilled', 'tickets of ' || reference, reference, minor, currency,
                'paid for, and there are no tickets for it: its place was sold to others', since FROM unfulfilled_orders
            UNION ALL
            SELECT 'key', scope || ' ' || key, NULL, NULL, NULL, 'in progress since', created_at FROM idempotency_keys
            WHERE status = 'in_progress' AND created_at < now() - interval '1 minute'
            UNION ALL
            SELECT 'failed', provider || ' ' || event_type || ' ' || event_id, NULL, NULL, NULL, COALESCE(last_error, ''), received_at
            FROM webhook_events WHERE outcome = 'failed'
            UNION ALL
            SELECT 'disputed', d.provider || ' ' || d.dispute_id, o.reference, d.amount_minor, d.currency, d.status || COALESCE(': ' || d.reason, ''), d.created_at
            FROM disputes d JOIN orders o ON o.id = d.order_id WHERE d.status IN ('inquiry', 'opened')
        )
        SELECT kind AS "kind!", what AS "what!", order_name, amount_minor, currency, why AS "why!", since AS "since!" FROM list ORDER BY since LIMIT $1"#,
        limit,
    )
    .fetch_all(connection)
    .await
}
