//! A consumer under test: its process, its outside, and how its effects are counted.

use counterfoil_tests::{Child, CrmStub, Fleet, Simulator, SmtpStub, Stage, event, paid_event};
use serde_json::{Value, json};
use uuid::Uuid;

/// The consumers that the conformance suite runs.
pub(crate) const CONSUMERS: [&str; 5] = ["email", "crm", "ledger", "refunds", "tickets"];

/// A `refund.requested` event.
pub(crate) fn refund_event(order: Uuid, id: Uuid, provider: &str) -> Value {
    let data = json!({ "order_id": order, "version": 3, "order_status": "paid",
        "refund": { "id": id, "provider_refund_id": null, "origin": "api", "status": "requested", "before": "requested", "amount_minor": 1099, "currency": "EUR", "reason": null },
        "payment": { "provider": provider, "account": "", "payment_id": format!("pi_{order}") } });
    event("refund.requested", order, &data)
}

pub(crate) struct Bench {
    pub(crate) stage: Stage,
    pub(crate) name: &'static str,
    pub(crate) smtp: SmtpStub,
    pub(crate) crm: CrmStub,
    pub(crate) simulator: Simulator,
}

impl Bench {
    pub(crate) async fn of(name: &'static str) -> Self {
        Self { stage: Stage::new().await, name, smtp: SmtpStub::start().await, crm: CrmStub::start().await, simulator: Simulator::start().await }
    }

    pub(crate) fn fleet(&self) -> Fleet {
        let fleet = Fleet::on(&self.stage).with("COUNTERFOIL_SMTP_URL", self.smtp.url.clone());
        fleet.with("COUNTERFOIL_CRM_URL", self.crm.url.clone()).with("COUNTERFOIL_CRM_TOKEN", "crm-token-canary").with_simulator(&self.simulator)
    }

    pub(crate) fn start(&self) -> Child {
        self.fleet().consumer(self.name)
    }

    /// Dies at a named point the first time that it comes there.
    pub(crate) fn start_dying_at(&self, point: &str) -> Child {
        self.fleet().with("COUNTERFOIL_FAULT", point).consumer(self.name)
    }

    /// A paid order, in the database, too; its event, and the address that its customer has.
    pub(crate) async fn paid(&self) -> (Value, String) {
        let order = Uuid::new_v4();
        let email = format!("{order}@example.com");
        self.insert_order(order, &email).await;
        if self.name == "tickets" {
            return (self.paid_tickets(order, &email).await, email);
        }
        if self.name == "refunds" {
            let id = self.insert_refund("stripe", order, 1099).await;
            return (refund_event(order, id, "stripe"), email);
        }
        (paid_event(order, &email), email)
    }

    /// The event of a paid order of three tickets, whose place is confirmed.
    async fn paid_tickets(&self, order: Uuid, email: &str) -> Value {
        let draw: Uuid = sqlx::query_scalar("WITH made AS (INSERT INTO draws (reference, name, reserved) VALUES ('draw', 'Draw', 0) ON CONFLICT DO NOTHING), more AS (UPDATE draws SET reserved = reserved + 3) SELECT id FROM draws WHERE reference = 'draw'")
            .fetch_optional(&self.stage.pool())
            .await
            .unwrap()
            .unwrap_or_default();
        if draw.is_nil() {
            return Box::pin(self.paid_tickets(order, email)).await; // the draw was made just now
        }
        sqlx::query(
            "INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at) VALUES (gen_random_uuid(), $1, 0, $2, 3, 'confirmed', now())",
        )
        .bind(order)
        .bind(draw)
        .execute(&self.stage.pool())
        .await
        .unwrap();
        let mut event = paid_event(order, email);
        event["data"]["lines"] = json!([{ "description": "Tickets", "quantity": 3, "amount_minor": 1099, "draw": draw }]);
        event
    }

    /// A captured payment of an order, here and at its provider, and a refund of it that was asked for.
    pub(crate) async fn insert_refund(&self, provider: &str, order: Uuid, amount_minor: i64) -> Uuid {
        let payment = format!("pi_{order}");
        self.simulator.captured(provider, &payment, &order.to_string(), 1099);
        sqlx::query("INSERT INTO payments (provider, payment_id, order_id, status, disposition, settled_minor, amount_minor, currency, booked_captured_minor, booked_settled_minor) VALUES ($1, $2, $3, 'captured', 'settled', 1099, 1099, 'EUR', 1099, 1099) ON CONFLICT DO NOTHING")
            .bind(provider).bind(&payment).bind(order).execute(&self.stage.pool()).await.unwrap();
        let id = Uuid::new_v4();
        sqlx::query("INSERT INTO refunds (id, order_id, provider, account, payment_id, origin, status, amount_minor, currency, provider_key) VALUES ($1, $2, $3, '', $4, 'api', 'requested', $5, 'EUR', $6)")
            .bind(id).bind(order).bind(provider).bind(&payment).bind(amount_minor).bind(format!("refund:{id}")).execute(&self.stage.pool()).await.unwrap();
        id
    }

    pub(crate) async fn insert_order(&self, order: Uuid, email: &str) {
        sqlx::query(
            "INSERT INTO orders (id, reference, amount_minor, currency, customer_email, customer_name, status, version, paid_provider, paid_account, paid_payment_id, paid_at)
             VALUES ($1, $2, 1099, 'EUR', $3, 'Ann Example', 'paid', 2, 'stripe', '', $2, now())",
        )
        .bind(order)
        .bind(format!("ref-{order}"))
        .bind(email)
        .execute(&self.stage.pool())
        .await
        .unwrap();
    }

    /// Effects of an event at the outside, or in the books.
    pub(crate) async fn effects(&self, event: &Value, email: &str) -> usize {
        match self.name {
            "refunds" => {
                let mark = event["data"]["refund"]["id"].as_str().unwrap();
                self.simulator.refunds().iter().filter(|refund| refund.mark == mark).count()
            }
            "tickets" => {
                let order: Uuid = event["subject"].as_str().unwrap().parse().unwrap();
                let ranges: i64 =
                    sqlx::query_scalar("SELECT count(*) FROM tickets WHERE order_id = $1").bind(order).fetch_one(&self.stage.pool()).await.unwrap();
                let told: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE order_id = $1 AND topic = 'tickets.issued'")
                    .bind(order)
                    .fetch_one(&self.stage.pool())
                    .await
                    .unwrap();
                assert_eq!(ranges, told, "numbers and the event that tells them commit together");
                usize::try_from(ranges).unwrap()
            }
            "email" => self.smtp.mails_to(email),
            "crm" => self.crm.seen().iter().filter(|seen| seen.body.contains(email) && seen.head.contains(event["id"].as_str().unwrap())).count(),
            _ => {
                let id: Uuid = event["id"].as_str().unwrap().parse().unwrap();
                let count: i64 =
                    sqlx::query_scalar("SELECT count(*) FROM ledger_entries WHERE source_event_id = $1").bind(id).fetch_one(&self.stage.pool()).await.unwrap();
                usize::try_from(count).unwrap()
            }
        }
    }

    /// The dedupe row's state.
    pub(crate) async fn state(&self, event: &Value) -> String {
        let id: Uuid = event["id"].as_str().unwrap().parse().unwrap();
        let state: Option<String> = sqlx::query_scalar("SELECT state FROM processed_events WHERE consumer = $1 AND event_id = $2")
            .bind(self.name)
            .bind(id)
            .fetch_optional(&self.stage.pool())
            .await
            .unwrap();
        state.unwrap_or_default()
    }

    pub(crate) async fn done(&self, event: &Value) {
        let what = format!("{} is done with {}", self.name, event["id"]);
        counterfoil_tests::until(&what, 60, "done".to_owned(), async || self.state(event).await).await;
    }

    pub(crate) fn dead_queue(&self) -> String {
        format!("counterfoil.{}.dead", self.name)
    }

    /// Nothing waits in the work queue, on a rung, or in a consumer's hands.
    pub(crate) async fn drained(&self) {
        let queue = format!("counterfoil.{}", self.name);
        counterfoil_tests::until("the queue and its rungs are empty", 40, 0, async || {
            let mut waiting = self.stage.waiting(&queue).await;
            for rung in ["60ms", "120ms", "240ms"] {
                waiting += self.stage.waiting(&format!("{queue}.retry.{rung}")).await;
            }
            waiting
        })
        .await;
    }
}
