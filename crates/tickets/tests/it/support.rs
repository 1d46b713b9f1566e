//! Shops, payments and deliveries in few words.

use counterfoil_payments::event::{Customer, Line};
use counterfoil_payments::{Contact, DisputeStatus, Event, Fact, Money, News, OrderId, OrderKey, PaymentKey, Provider, RefundStatus};
use counterfoil_settlement::{Delivery, NewOrder, begin_orders, insert_orders, settle, settle_early};
use counterfoil_tests::Stage;
use counterfoil_tickets::{Draw, NewDraw, Unreserved, Wanted, apply, create_draw, hold, reserve};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

/// What one ticket costs here, in minor units of EUR.
pub(crate) const PRICE: i64 = 500;

pub(crate) struct Shop {
    pub(crate) stage: Stage,
    pub(crate) pool: PgPool,
}

pub(crate) fn payment(id: &str) -> PaymentKey {
    PaymentKey { provider: Provider::Stripe, account: String::new(), payment_id: id.into() }
}

fn says(fact: Fact) -> Delivery {
    let event_id = format!("evt_{}", Uuid::new_v4().simple());
    Delivery {
        provider: Provider::Stripe,
        account: String::new(),
        body: event_id.clone().into_bytes(),
        event_id,
        provider_event_id: None,
        event_type: "test".into(),
        secret_position: 0,
        made_at: None,
        late: false,
        ids: Vec::new(),
        fact,
        traceparent: None,
    }
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let stage = Stage::with_schema().await;
        Self { pool: stage.pool(), stage }
    }

    pub(crate) async fn draw(&self, capacity: Option<i64>) -> Draw {
        self.draw_like(|draw| draw.capacity = capacity).await
    }

    pub(crate) async fn draw_like(&self, change: impl FnOnce(&mut NewDraw)) -> Draw {
        let reference = format!("draw-{}", Uuid::new_v4()).parse().unwrap();
        let mut new = NewDraw { reference, name: "Autumn draw".into(), capacity: None, order_limit: None, opens_at: None, closes_at: None, charity: (1, 5) };
        change(&mut new);
        create_draw(&mut self.pool.acquire().await.unwrap(), &new).await.unwrap()
    }

    /// Makes an order of so many tickets of each draw, as ingest does: its id, or why not.
    pub(crate) async fn buy(&self, wanted: &[(&Draw, i64)]) -> Result<Uuid, Unreserved> {
        self.buy_for(wanted, 900, Some("ann@example.com")).await
    }

    pub(crate) async fn buy_for(&self, wanted: &[(&Draw, i64)], seconds: i64, email: Option<&str>) -> Result<Uuid, Unreserved> {
        let id = Uuid::now_v7();
        let lines: Vec<Line> = wanted
            .iter()
            .map(|(draw, quantity)| Line { description: "Tickets".into(), quantity: *quantity, amount_minor: quantity * PRICE, draw: Some(draw.id) })
            .collect();
        let total = lines.iter().map(|line| line.amount_minor).sum();
        let new = NewOrder {
            id,
            reference: format!("ref-{id}").parse().unwrap(),
            money: Money::new(total, "EUR".parse().unwrap()),
            customer: Customer { email: email.map(str::to_owned), name: Some("Ann".into()), phone: None },
            customer_id: None,
            lines: json!(lines),
            expires_in_s: None,
            session: None,
            made_by: None,
        };
        let wants: Vec<Wanted> =
            wanted.iter().zip(0..).map(|((draw, quantity), line)| Wanted { line, draw: OrderKey::Id(OrderId(draw.id)), quantity: *quantity }).collect();
        let mut tx = self.pool.begin().await.unwrap();
        assert!(begin_orders(&mut tx, &[&new]).await.unwrap()[0].is_none());
        let draws = reserve(&mut tx, &[&wants]).await.unwrap().remove(0)?;
        let made = insert_orders(&mut tx, &[&new]).await.unwrap();
        let places: Vec<_> = wants.iter().zip(draws).map(|(want, draw)| (id, want.line, draw, want.quantity)).collect();
        hold(&mut tx, &places, &vec![seconds; places.len()]).await.unwrap();
        settle_early(&mut tx, made, false).await.unwrap();
        tx.commit().await.unwrap();
        Ok(id)
    }

    async fn settle(&self, fact: Fact) {
        let mut tx = self.pool.begin().await.unwrap();
        settle(&mut tx, &[says(fact)]).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(crate) async fn news(&self, order: Uuid, news: News, id: &str, amount_minor: i64, email: Option<&str>) {
        let contact = Contact { email: email.map(str::to_owned), ..Contact::default() };
        let money = Some(Money::new(amount_minor, "EUR".parse().unwrap()));
        self.settle(Fact::Payment {
            news,
            payment: payment(id),
            order: Some(OrderKey::Id(OrderId(order))),
            money,
            details: Default::default(),
            contact,
            remark: None,
        })
        .await;
    }

    /// The order's payment is captured.
    pub(crate) async fn pay(&self, order: Uuid) {
        let amount: i64 = sqlx::query_scalar("SELECT amount_minor FROM orders WHERE id = $1").bind(order).fetch_one(&self.pool).await.unwrap();
        self.news(order, News::Captured, &format!("pi_{order}"), amount, None).await;
    }

    /// So much of it went back, or failed to.
    pub(crate) async fn refund(&self, order: Uuid, refund: &str, amount_minor: i64, status: RefundStatus) {
        let money = Money::new(amount_minor, "EUR".parse().unwrap());
        let refund_id = format!("{refund}_{order}");
        self.settle(Fact::Refund { payment: payment(&format!("pi_{order}")), refund_id, status, money, ours: None, may_be_release: false }).await;
    }

    /// A bank took so much of it for good.
    pub(crate) async fn dispute(&self, order: Uuid, amount_minor: i64) {
        let money = Money::new(amount_minor, "EUR".parse().unwrap());
        let (payment, dispute_id) = (payment(&format!("pi_{order}")), format!("dp_{order}"));
        self.settle(Fact::Dispute { payment, dispute_id, status: DisputeStatus::Lost, money, reason: None }).await;
    }

    /// The events of an order that the tickets consumer gets, oldest first.
    pub(crate) async fn events(&self, order: Uuid) -> Vec<Event> {
        let rows: Vec<(Uuid, String, Value)> = sqlx::query_as(
            "SELECT event_id, topic, payload FROM outbox WHERE order_id = $1 AND topic IN ('order.paid', 'order.contact_known', 'order.refunded', 'refund.failed', 'payment.extra', 'payment.held') ORDER BY id",
        )
        .bind(order)
        .fetch_all(&self.pool)
        .await
        .unwrap();
        rows.into_iter()
            .map(|(id, topic, data)| {
                let event = json!({ "specversion": "1.0", "id": id, "source": "/counterfoil", "type": topic, "subject": order, "time": "2026-11-29T10:00:00Z",
                    "dataschema": format!("urn:counterfoil:{topic}/1"), "data": data });
                Event::read(event.to_string().as_bytes()).unwrap()
            })
            .collect()
    }

    pub(crate) async fn apply(&self, events: &[Event]) {
        let mut tx = self.pool.begin().await.unwrap();
        apply(&mut tx, &events.iter().collect::<Vec<_>>()).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// The order is bought, paid and minted.
    pub(crate) async fn sold(&self, draw: &Draw, quantity: i64) -> Uuid {
        let order = self.buy(&[(draw, quantity)]).await.unwrap();
        self.pay(order).await;
        self.apply(&self.events(order).await).await;
        order
    }

    /// (first, last, status) of the order's tickets, by line.
    pub(crate) async fn tickets(&self, order: Uuid) -> Vec<(i64, i64, String)> {
        sqlx::query_as("SELECT first_number, last_number, status FROM tickets WHERE order_id = $1 ORDER BY line")
            .bind(order)
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    /// (status, reason) of the order's reservations, by line.
    pub(crate) async fn places(&self, order: Uuid) -> Vec<(String, Option<String>)> {
        sqlx::query_as("SELECT status, reason FROM reservations WHERE order_id = $1 ORDER BY line").bind(order).fetch_all(&self.pool).await.unwrap()
    }

    /// What was said about an order's tickets: topics and data, oldest first.
    pub(crate) async fn said(&self, order: Uuid) -> Vec<(String, Value)> {
        sqlx::query_as("SELECT topic, payload FROM outbox WHERE order_id = $1 AND topic LIKE 'tickets.%' ORDER BY id")
            .bind(order)
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    /// (reserved, minted) of a draw.
    pub(crate) async fn counters(&self, draw: &Draw) -> (i64, i64) {
        sqlx::query_as("SELECT reserved, minted FROM draws WHERE id = $1").bind(draw.id).fetch_one(&self.pool).await.unwrap()
    }

    /// The time of an order's places is over.
    pub(crate) async fn lapse(&self, order: Uuid) {
        self.stage.execute(&format!("UPDATE reservations SET expires_at = now() - interval '1 second' WHERE order_id = '{order}'")).await;
    }
}
