//! Deliveries and orders in few words.

use counterfoil_payments::event::Customer;
use counterfoil_payments::{Contact, DisputeStatus, Fact, Money, News, OrderId, OrderKey, PaymentDetails, PaymentKey, Provider, RefundStatus};
use counterfoil_settlement::{
    Begun, Delivery, KeyAsk, NewOrder, Order, Outcome, PaymentName, Verdict, begin_keys, begin_orders, housekeeping, insert_orders, settle, settle_early,
    settle_or_wait,
};
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

pub(crate) fn key(payment: &str) -> PaymentKey {
    PaymentKey { provider: Provider::Stripe, account: String::new(), payment_id: payment.into() }
}

/// That payment, for a refund.
pub(crate) fn named(payment: &str) -> Option<PaymentName> {
    Some(PaymentName::from(&key(payment)))
}

pub(crate) fn delivery(news: News, order: Option<OrderKey>, payment: &str, amount_minor: i64, currency: &str) -> Delivery {
    let event_id = format!("evt_{}", Uuid::new_v4().simple());
    Delivery {
        provider: Provider::Stripe,
        account: String::new(),
        body: event_id.clone().into_bytes(),
        event_id,
        provider_event_id: None,
        event_type: format!("{news:?}"),
        secret_position: 0,
        made_at: None,
        late: false,
        ids: Vec::new(),
        fact: Fact::Payment {
            news,
            payment: key(payment),
            order,
            money: Some(Money::new(amount_minor, currency.parse().unwrap())),
            details: PaymentDetails::default(),
            contact: Contact::default(),
            remark: None,
        },
        traceparent: None,
    }
}

/// News of 10.99 EUR for an order.
pub(crate) fn news(news: News, order: Uuid, payment: &str) -> Delivery {
    delivery(news, Some(OrderKey::Id(OrderId(order))), payment, 1099, "EUR")
}

pub(crate) fn new_order(reference: &str) -> NewOrder {
    NewOrder {
        id: Uuid::now_v7(),
        customer_id: None,
        reference: reference.parse().unwrap(),
        money: Money::new(1099, "EUR".parse().unwrap()),
        customer: Customer { email: Some("ann@example.com".into()), name: Some("Ann".into()), phone: None },
        lines: json!([]),
        expires_in_s: None,
        session: None,
        made_by: None,
    }
}

/// Makes one order, as the API does.
pub(crate) async fn create(tx: &mut PgTransaction<'_>, new: &NewOrder) -> Order {
    assert!(begin_orders(tx, &[new]).await.unwrap().iter().all(Option::is_none));
    let made = insert_orders(tx, &[new]).await.unwrap();
    settle_early(tx, made, new.session.is_some()).await.unwrap().remove(0).order
}

/// Begins one keyed call.
pub(crate) async fn begin_key(tx: &mut PgTransaction<'_>, ask: &KeyAsk) -> Begun {
    begin_keys(tx, &[ask]).await.unwrap().remove(0)
}

/// A key and what its call means.
pub(crate) fn ask(scope: &str, key: &str, hash: &[u8]) -> KeyAsk {
    KeyAsk { scope: scope.into(), key: key.into(), request_hash: hash.to_vec() }
}

/// An event that says this, whatever it is about.
pub(crate) fn says(fact: Fact) -> Delivery {
    Delivery { fact, ..news(News::Pending, Uuid::nil(), "-") }
}

/// News of one refund of a payment, in EUR.
pub(crate) fn refund(payment: &str, id: &str, status: RefundStatus, amount_minor: i64) -> Delivery {
    says(Fact::Refund {
        payment: key(payment),
        refund_id: id.into(),
        status,
        money: Money::new(amount_minor, "EUR".parse().unwrap()),
        ours: None,
        may_be_release: false,
    })
}

/// News of one dispute of a payment, in EUR.
pub(crate) fn dispute(payment: &str, id: &str, status: DisputeStatus, amount_minor: i64) -> Delivery {
    says(Fact::Dispute { payment: key(payment), dispute_id: id.into(), status, money: Money::new(amount_minor, "EUR".parse().unwrap()), reason: None })
}

/// Makes an order of 10.99 EUR.
pub(crate) async fn order(pool: &PgPool) -> Uuid {
    let mut tx = pool.begin().await.unwrap();
    let made = create(&mut tx, &new_order(&format!("ref-{}", Uuid::new_v4()))).await;
    tx.commit().await.unwrap();
    made.id
}

/// Settles a batch as ingest's fast lane does.
pub(crate) async fn settled(pool: &PgPool, batch: &[Delivery]) -> Vec<Verdict> {
    let mut tx = pool.begin().await.unwrap();
    let verdicts = settle(&mut tx, batch).await.unwrap();
    tx.commit().await.unwrap();
    verdicts
}

/// Settles one as the slow lane does, when its order does not exist.
pub(crate) async fn settled_or_waiting(pool: &PgPool, delivery: &Delivery) -> Verdict {
    let mut tx = pool.begin().await.unwrap();
    let verdict = settle_or_wait(&mut tx, std::slice::from_ref(delivery)).await.unwrap().remove(0);
    tx.commit().await.unwrap();
    verdict
}

pub(crate) fn outcome(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Settled(settled) => settled.outcome,
        Verdict::Locked(_) | Verdict::NoOrder(_) => panic!("not settled: {verdict:?}"),
    }
}

pub(crate) async fn outcomes(pool: &PgPool, batch: &[Delivery]) -> Vec<Outcome> {
    settled(pool, batch).await.iter().map(outcome).collect()
}

pub(crate) async fn status(pool: &PgPool, order: Uuid) -> String {
    sqlx::query_scalar("SELECT status FROM orders WHERE id = $1").bind(order).fetch_one(pool).await.unwrap()
}

/// The topics of an order's outbox rows, in order.
pub(crate) async fn topics(pool: &PgPool, order: Uuid) -> Vec<String> {
    sqlx::query_scalar("SELECT topic FROM outbox WHERE order_id = $1 ORDER BY id").bind(order).fetch_all(pool).await.unwrap()
}

pub(crate) async fn disposition(pool: &PgPool, payment: &str) -> (String, String) {
    sqlx::query_as("SELECT status, disposition FROM payments WHERE payment_id = $1").bind(payment).fetch_one(pool).await.unwrap()
}

/// Books every event of the outbox that is not booked yet, as the ledger consumer does.
pub(crate) async fn book(pool: &PgPool) {
    let rows: Vec<(Uuid, String, Option<Uuid>, serde_json::Value)> =
        sqlx::query_as("SELECT event_id, topic, order_id, payload FROM outbox WHERE published_at IS NULL ORDER BY id").fetch_all(pool).await.unwrap();
    let events: Vec<counterfoil_payments::Event> = rows
        .iter()
        .map(|(id, topic, order, data)| {
            let event = json!({ "specversion": "1.0", "id": id, "source": "/counterfoil", "type": topic, "subject": order, "time": "2026-11-29T10:00:00Z",
                "dataschema": format!("urn:counterfoil:{topic}/1"), "data": data });
            counterfoil_payments::Event::read(event.to_string().as_bytes()).unwrap()
        })
        .collect();
    let mut tx = pool.begin().await.unwrap();
    counterfoil_ledger::post(&mut tx, &events.iter().collect::<Vec<_>>()).await.unwrap();
    sqlx::query("UPDATE outbox SET published_at = now() WHERE published_at IS NULL").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}

/// Orders whose books differ from their payments.
pub(crate) async fn differing(pool: &PgPool) -> usize {
    counterfoil_ledger::check::differences(&mut pool.acquire().await.unwrap(), 0, 1000).await.unwrap().len()
}

/// Settles what comes after its order was made, in batches cut at random; then what waited in the same instant.
pub(crate) async fn settle_in_batches(pool: &PgPool, mut left: &[Delivery], rng: &mut StdRng) {
    while !left.is_empty() {
        let (batch, rest) = left.split_at(rng.random_range(1..=left.len()));
        let mut tx = pool.begin().await.unwrap();
        let verdicts = settle(&mut tx, batch).await.unwrap();
        assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Settled(_))), "{verdicts:?}");
        tx.commit().await.unwrap();
        left = rest;
    }
    let mut tx = pool.begin().await.unwrap();
    housekeeping::drive_waiting(&mut tx, 1000).await.unwrap();
    tx.commit().await.unwrap();
}
