//! Settlement's statement: the one place that writes several tables at once.
//!
//! Rules it keeps, each shown by a test in `tests/it`:
//! - It opens with a materialised lock of the orders in id order, on which every other part depends; without that,
//!   data-modifying CTEs lock in the plan's order and deadlock. `NO KEY`, since `FOR UPDATE` deadlocks with the
//!   payments' foreign key; `SKIP LOCKED`, since this lane never waits for a row.
//! - What the lock returns is the row's newest version, so whether an order is payable is decided from it.
//! - The payment's row decides whose money it is: the upsert sets status and amounts by rank with CASE (a WHERE would
//!   drop the row from RETURNING) and never changes `order_id`; the orders' update joins the *returned* `order_id`.

use counterfoil_payments::{Fact, PaymentKey, event};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::rounds::Item;

/// What the statement did to one item of its round.
#[derive(Debug)]
pub(crate) struct Done {
    /// Whether the order exists at all.
    pub(crate) order_exists: bool,
    /// The order's status before, when its row could be locked.
    pub(crate) order_status: Option<String>,
    pub(crate) order_currency: Option<String>,
    pub(crate) order_without_email: Option<bool>,
    /// Whether the event is to be applied now: new, or waiting until now.
    pub(crate) fresh: Option<bool>,
    pub(crate) outcome: Option<String>,
    pub(crate) differs: Option<bool>,
    /// The payment's row afterwards.
    pub(crate) payment_order: Option<Uuid>,
    pub(crate) payment_status: Option<String>,
    pub(crate) payment_disposition: Option<String>,
    /// The order's status afterwards, when it changed.
    pub(crate) order_became: Option<String>,
}

#[derive(Default)]
struct Columns {
    n: Vec<i32>,
    provider: Vec<String>,
    account: Vec<String>,
    event_id: Vec<String>,
    provider_event_id: Vec<Option<String>>,
    event_type: Vec<String>,
    body: Vec<Vec<u8>>,
    secret_position: Vec<i32>,
    deliveries: Vec<i64>,
    differing_body: Vec<Option<Vec<u8>>>,
    remark: Vec<Option<String>>,
    order_id: Vec<Uuid>,
    payment_account: Vec<String>,
    payment_id: Vec<String>,
    payment_status: Vec<String>,
    amount_minor: Vec<Option<i64>>,
    currency: Vec<Option<String>>,
    email: Vec<Option<String>>,
    name: Vec<Option<String>>,
    phone: Vec<Option<String>>,
    paid_event_id: Vec<Uuid>,
    headers: Vec<serde_json::Value>,
}

impl Columns {
    fn push(&mut self, item: &Item<'_>, order: Uuid, payment: &PaymentKey) {
        let delivery = item.delivery;
        let Fact::Payment { news, money, contact, remark, .. } = &delivery.fact else {
            return;
        };
        self.n.push(i32::try_from(self.n.len()).expect("a batch is small"));
        self.provider.push(delivery.provider.name().to_owned());
        self.account.push(delivery.account.clone());
        self.event_id.push(delivery.event_id.clone());
        self.provider_event_id.push(delivery.provider_event_id.clone());
        self.event_type.push(delivery.event_type.clone());
        self.body.push(delivery.body.clone());
        self.secret_position.push(delivery.secret_position);
        self.deliveries.push(item.deliveries);
        self.differing_body.push(item.differing.map(<[u8]>::to_vec));
        self.remark.push(remark.clone());
        self.order_id.push(order);
        self.payment_account.push(payment.account.clone());
        self.payment_id.push(payment.payment_id.clone());
        self.payment_status.push(news.payment_status().name().to_owned());
        self.amount_minor.push(money.map(|money| money.amount_minor));
        self.currency.push(money.map(|money| money.currency.to_string()));
        self.email.push(contact.email.clone());
        self.name.push(contact.name.clone());
        self.phone.push(contact.phone.clone());
        self.paid_event_id.push(event::order_paid(counterfoil_payments::OrderId(order)));
        self.headers.push(headers(delivery.traceparent.as_deref()));
    }
}

/// The outbox headers that carry a trace context.
pub(crate) fn headers(traceparent: Option<&str>) -> serde_json::Value {
    traceparent.map_or_else(|| serde_json::json!({}), |value| serde_json::json!({ "traceparent": value }))
}

/// Settles one round. Each event, payment and order stands in it at most once.
pub(crate) async fn settle_round(tx: &mut PgTransaction<'_>, round: &[(&Item<'_>, Uuid, &PaymentKey)]) -> sqlx::Result<Vec<Done>> {
    let mut c = Columns::default();
    for (item, order, payment) in round {
        c.push(item, *order, payment);
    }
    sqlx::query_as!(
        Done,
        r#"WITH input AS MATERIALIZED (
            SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::bigint[],
                $10::bytea[], $11::text[], $12::uuid[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::text[], $18::text[], $19::text[],
                $20::text[], $21::uuid[], $22::jsonb[])
            AS i (n, provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
                differing_body, remark, order_id, payment_account, payment_id, payment_status, amount_minor, currency, email, name,
                phone, paid_event_id, headers)
        ), locked AS MATERIALIZED (
            SELECT id, status, amount_minor, currency, customer_email IS NULL AS without_email FROM orders
            WHERE id = ANY ($12::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        ), named AS MATERIALIZED (
            SELECT i.*, o.status AS order_status, o.currency AS order_currency, o.without_email,
                (i.payment_status = 'captured' AND o.status IN ('pending_payment', 'payment_pending', 'failed_final')
                 AND i.amount_minor = o.amount_minor AND i.currency = o.currency) AS pays
            FROM input i JOIN locked o ON o.id = i.order_id
        ), events AS (
            INSERT INTO webhook_events AS w (provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
                outcome, reason, processed_at, processed_in, differing, differing_body)
            SELECT provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
                'applied', remark, now(), pg_current_xact_id(), (differing_body IS NOT NULL)::integer, differing_body
            FROM named ORDER BY provider, account, event_id
            ON CONFLICT (provider, account, event_id) DO UPDATE SET
                deliveries = w.deliveries + excluded.deliveries,
                differing = w.differing + (excluded.deliveries > 0 AND w.body <> excluded.body)::integer,
                differing_body = CASE WHEN excluded.deliveries > 0 AND w.body <> excluded.body THEN excluded.body ELSE w.differing_body END,
                processed_at = CASE WHEN w.outcome IN ('waiting', 'failed') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN now() ELSE w.processed_at END,
                processed_in = CASE WHEN w.outcome IN ('waiting', 'failed') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN pg_current_xact_id() ELSE w.processed_in END,
                waits_for = CASE WHEN w.outcome = 'waiting' AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN NULL ELSE w.waits_for END,
                outcome = CASE WHEN w.outcome IN ('waiting', 'failed') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN 'applied' ELSE w.outcome END
            RETURNING provider, account, event_id, outcome, w.processed_in = pg_current_xact_id() AS fresh,
                w.deliveries > 1 AND w.differing_body IS NOT NULL AS differs
        ), paid AS (
            INSERT INTO payments AS p (provider, account, payment_id, order_id, status, disposition, amount_minor, currency)
            SELECT n.provider, n.payment_account, n.payment_id, n.order_id, n.payment_status,
                CASE WHEN n.pays THEN 'settled' ELSE 'none' END, n.amount_minor, n.currency
            FROM named n JOIN events e USING (provider, account, event_id) WHERE e.fresh
            ORDER BY n.provider, n.payment_account, n.payment_id
            ON CONFLICT (provider, account, payment_id) DO UPDATE SET
                status = CASE WHEN p.order_id = excluded.order_id AND payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.status ELSE p.status END,
                amount_minor = CASE WHEN p.order_id = excluded.order_id AND payment_rank(excluded.status) > payment_rank(p.status)
                    THEN COALESCE(excluded.amount_minor, p.amount_minor) ELSE p.amount_minor END,
                currency = CASE WHEN p.order_id = excluded.order_id AND payment_rank(excluded.status) > payment_rank(p.status)
                    THEN COALESCE(excluded.currency, p.currency) ELSE p.currency END,
                disposition = CASE WHEN p.order_id = excluded.order_id AND p.disposition = 'none' THEN excluded.disposition ELSE p.disposition END,
                updated_at = now()
            RETURNING provider, account, payment_id, order_id, status, disposition, amount_minor, currency
        ), updated AS (
            UPDATE orders o SET
                status = CASE WHEN n.pays THEN 'paid' ELSE 'payment_pending' END,
                version = o.version + 1,
                paid_provider = CASE WHEN n.pays THEN p.provider END,
                paid_account = CASE WHEN n.pays THEN p.account END,
                paid_payment_id = CASE WHEN n.pays THEN p.payment_id END,
                paid_at = CASE WHEN n.pays THEN now() END,
                customer_email = COALESCE(o.customer_email, n.email),
                customer_name = COALESCE(o.customer_name, n.name),
                customer_phone = COALESCE(o.customer_phone, n.phone),
                updated_at = now()
            FROM named n JOIN paid p ON p.provider = n.provider AND p.account = n.payment_account AND p.payment_id = n.payment_id
            WHERE o.id = n.order_id AND p.order_id = n.order_id AND (
                (n.pays AND p.disposition = 'settled' AND o.status IN ('pending_payment', 'payment_pending', 'failed_final')
                    AND o.amount_minor = p.amount_minor AND o.currency = p.currency)
                OR (n.payment_status IN ('pending', 'authorised') AND p.status = n.payment_status AND o.status = 'pending_payment'))
            RETURNING o.id, o.reference, o.status, o.version, o.amount_minor, o.currency, o.customer_email, o.customer_name, o.customer_phone, o.lines,
                o.paid_at, o.paid_provider, o.paid_account, o.paid_payment_id
        ), emitted AS (
            INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, headers)
            SELECT n.paid_event_id, 'order.paid', o.id, o.version, 'order.paid', jsonb_build_object(
                'order_id', o.id, 'reference', o.reference, 'version', o.version, 'amount_minor', o.amount_minor, 'currency', o.currency,
                'customer', jsonb_build_object('email', o.customer_email, 'name', o.customer_name, 'phone', o.customer_phone), 'lines', o.lines,
                'paid_at', to_char(o.paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                'payment', jsonb_build_object('provider', o.paid_provider, 'account', o.paid_account, 'payment_id', o.paid_payment_id,
                    'amount_minor', o.amount_minor, 'currency', o.currency, 'before', 'none')), n.headers
            FROM updated o JOIN named n ON n.order_id = o.id WHERE o.status = 'paid' ORDER BY n.n
            ON CONFLICT (event_id) WHERE exchange = 'counterfoil.events' DO NOTHING
        )
        SELECT CASE WHEN n.n IS NULL THEN EXISTS (SELECT FROM orders o WHERE o.id = i.order_id) ELSE true END AS "order_exists!",
            n.order_status AS "order_status?", n.order_currency AS "order_currency?",
            n.without_email AS "order_without_email?", e.fresh AS "fresh?", e.outcome AS "outcome?", e.differs AS "differs?",
            p.order_id AS "payment_order?", p.status AS "payment_status?", p.disposition AS "payment_disposition?", u.status AS "order_became?"
        FROM input i
        LEFT JOIN named n ON n.n = i.n
        LEFT JOIN events e ON e.provider = n.provider AND e.account = n.account AND e.event_id = n.event_id
        LEFT JOIN paid p ON p.provider = n.provider AND p.account = n.payment_account AND p.payment_id = n.payment_id
        LEFT JOIN updated u ON u.id = n.order_id
        ORDER BY i.n"#,
        &c.n, &c.provider, &c.account, &c.event_id, &c.provider_event_id as &[Option<String>], &c.event_type, &c.body, &c.secret_position, &c.deliveries,
        &c.differing_body as &[Option<Vec<u8>>], &c.remark as &[Option<String>], &c.order_id, &c.payment_account, &c.payment_id, &c.payment_status,
        &c.amount_minor as &[Option<i64>], &c.currency as &[Option<String>], &c.email as &[Option<String>], &c.name as &[Option<String>],
        &c.phone as &[Option<String>], &c.paid_event_id, &c.headers,
    )
    .fetch_all(&mut **tx)
    .await
}
