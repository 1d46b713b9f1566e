//! Settlement's statement: the one place that writes several tables at once.
//!
//! Rules it keeps:
//! - It opens with a materialised lock of the orders in id order, on which every other part depends; without that,
//!   data-modifying CTEs lock in the plan's order and deadlock. `NO KEY`, since `FOR UPDATE` deadlocks with the
//!   payments' foreign key; `SKIP LOCKED`, since this lane never waits for a row.
//! - What the lock returns is the row's newest version, so whether an order is payable is decided from it.
//! - The payment's row decides whose money it is: the upsert sets status and amounts by rank with CASE (a WHERE would
//!   drop the row from RETURNING), and its order as well while no money binds it; the orders' update joins the *returned*
//!   `order_id`.

use counterfoil_payments::{Fact, News, PaymentKey, event};
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
    /// The payment's row afterwards. Its account may not be the one that the event states: one payment may be told of with the
    /// platform's own account and without.
    pub(crate) payment_account: Option<String>,
    pub(crate) payment_order: Option<Uuid>,
    pub(crate) payment_status: Option<String>,
    pub(crate) payment_disposition: Option<String>,
    /// Whether exactly what the order costs was captured at some time.
    pub(crate) payment_fits: Option<bool>,
    /// Whether more of it is captured than was announced.
    pub(crate) payment_grew: Option<bool>,
    /// Whether less of it is: a checkout's price was announced, and the payment says what it was.
    pub(crate) payment_shrank: Option<bool>,
    /// Whether the order became paid while other payments of it are held.
    pub(crate) others_held: Option<bool>,
    /// Whether refunds or disputes wait for this capture, or a capture without an order's name waits for this event.
    pub(crate) awaited: bool,
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
    is_final: Vec<bool>,
    made_at: Vec<Option<i64>>,
    late: Vec<bool>,
    tip_minor: Vec<i64>,
    meaning: Vec<Uuid>,
    changed: Vec<bool>,
    ids: Vec<Option<String>>,
    released_minor: Vec<i64>,
    by_price: Vec<bool>,
}

impl Columns {
    fn push(&mut self, item: &Item<'_>, order: Uuid, payment: &PaymentKey) {
        let delivery = item.delivery;
        let Fact::Payment { news, money, details, contact, remark, .. } = &delivery.fact else {
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
        self.is_final.push(*news == News::FailedFinal);
        self.made_at.push(delivery.made_at);
        self.late.push(delivery.late);
        self.tip_minor.push(details.tip_minor);
        self.released_minor.push(details.released_minor);
        self.by_price.push(details.by_price);
        self.meaning.push(delivery.fact.meaning());
        self.changed.push(item.changed);
        self.ids.push(joined(&delivery.ids));
    }
}

/// Ids as one text, which SQL takes apart: `unnest` knows no array of arrays. `None` for none.
pub(crate) fn joined(ids: &[String]) -> Option<String> {
    (!ids.is_empty()).then(|| ids.join("\u{1f}"))
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
    sqlx::query_file_as!(
        Done,
        "src/settle_round.sql",
        &c.n,
        &c.provider,
        &c.account,
        &c.event_id,
        &c.provider_event_id as &[Option<String>],
        &c.event_type,
        &c.body,
        &c.secret_position,
        &c.deliveries,
        &c.differing_body as &[Option<Vec<u8>>],
        &c.remark as &[Option<String>],
        &c.order_id,
        &c.payment_account,
        &c.payment_id,
        &c.payment_status,
        &c.amount_minor as &[Option<i64>],
        &c.currency as &[Option<String>],
        &c.email as &[Option<String>],
        &c.name as &[Option<String>],
        &c.phone as &[Option<String>],
        &c.paid_event_id,
        &c.headers,
        &c.is_final,
        &c.made_at as &[Option<i64>],
        &c.late,
        &c.tip_minor,
        &c.meaning,
        &c.changed,
        &c.ids as &[Option<String>],
        &c.released_minor,
        &c.by_price,
    )
    .fetch_all(&mut **tx)
    .await
}
