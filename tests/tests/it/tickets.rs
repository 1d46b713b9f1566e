//! Tickets through every process: buyers at once, payments in every way, kills in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_tests::fleet::TOKEN;
use counterfoil_tests::{Child, CrmStub, Fleet, Shop, Simulator, SmtpStub, Stage, stripe_event, until};
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::sleep;

const PRICE: i64 = 500;

fn tickets(reference: &str, quantity: i64) -> Value {
    json!({ "reference": reference, "amount_minor": PRICE * quantity, "currency": "EUR", "customer": { "email": format!("{reference}@example.com"), "name": "Ann Example" },
        "lines": [{ "description": "Tickets", "quantity": quantity, "amount_minor": PRICE * quantity, "draw": "D" }] })
}

async fn make_draw(shop: &Shop, capacity: Option<i64>) {
    let body = json!({ "reference": "D", "name": "Autumn draw", "capacity": capacity, "charity": "1/3" });
    assert_eq!(shop.client.post(format!("{}/draws", shop.base)).bearer_auth(TOKEN).json(&body).send().await.unwrap().status(), 201);
}

fn paid(kind: &str, order: &str, payment: &str, quantity: i64) -> Value {
    let amount = PRICE * quantity;
    stripe_event(kind, order, payment, &json!({ "amount": amount, "amount_received": amount, "amount_total": amount, "amount_captured": amount }))
}

struct Whole {
    stage: Stage,
    simulator: Simulator,
    smtp: SmtpStub,
    shops: Vec<Shop>,
    fleet: Fleet,
    processes: HashMap<String, Child>,
    _crm: CrmStub,
}

impl Whole {
    async fn with(ingests: usize, others: &[&str]) -> Self {
        let (stage, simulator, smtp, crm) = (Stage::new().await, Simulator::start().await, SmtpStub::start().await, CrmStub::start().await);
        let fleet = Fleet::on(&stage).with_simulator(&simulator).with("COUNTERFOIL_POLICY_LATE", "refund");
        let fleet = fleet.with("COUNTERFOIL_SMTP_URL", smtp.url.clone()).with("COUNTERFOIL_CRM_URL", crm.url.clone()).with("COUNTERFOIL_LOG", "warn");
        let (mut shops, mut processes) = (Vec::new(), HashMap::new());
        for nth in 0..ingests {
            let (ingest, shop) = fleet.ingest().await;
            processes.insert(format!("ingest-{nth}"), ingest);
            shops.push(shop);
        }
        simulator.send_webhooks(shops[0].webhooks());
        let mut whole = Self { stage, simulator, smtp, shops, fleet, processes, _crm: crm };
        for name in others {
            whole.start(name).await;
        }
        whole
    }

    /// Starts `relay-1`, `housekeep-1`, or a consumer such as `tickets-2`.
    async fn start(&mut self, name: &str) {
        let process = match name.split('-').next().unwrap() {
            "relay" => self.fleet.relay(),
            "housekeep" => self.fleet.housekeep(),
            consumer => self.fleet.consumer(consumer),
        };
        self.processes.insert(name.to_owned(), process.ready().await);
    }

    /// Every event is published, and done by every consumer that runs here and gets it.
    async fn quiet(&self, consumers: &[&str]) {
        for consumer in consumers {
            let topics = counterfoil_broker::topology::CONSUMERS.iter().find(|known| known.name == *consumer).unwrap().topics;
            let missing = async || {
                sqlx::query_scalar::<_, i64>("SELECT count(*) FROM outbox o WHERE topic = ANY ($1) AND NOT EXISTS (SELECT FROM processed_events p WHERE p.consumer = $2 AND p.event_id = o.event_id AND p.state = 'done')")
                    .bind(topics).bind(consumer).fetch_one(&self.stage.pool()).await.unwrap()
            };
            until(&format!("{consumer} has done everything"), 240, 0, missing).await;
        }
    }
}

/// What a buyer does.
#[derive(Debug, Clone, Copy)]
enum Way {
    Pays,
    FailsThenPays,
    FailsForGood,
    NeverPays,
    PaysTwice,
    PaysLate,
    PaysLateTwice,
    CancelsThenPays,
}

struct Buyer {
    nth: usize,
    way: Way,
    random: StdRng,
}

impl Buyer {
    fn new(nth: usize) -> Self {
        let mut random = StdRng::seed_from_u64(nth as u64);
        let way = match random.random_range(0..100) {
            0..50 => Way::Pays,
            50..60 => Way::FailsThenPays,
            60..66 => Way::FailsForGood,
            66..74 => Way::NeverPays,
            74..84 => Way::PaysTwice,
            84..90 => Way::PaysLate,
            90..94 => Way::PaysLateTwice,
            _ => Way::CancelsThenPays,
        };
        Self { nth, way, random }
    }

    fn reserve_for_s(&self) -> i64 {
        if matches!(self.way, Way::NeverPays | Way::PaysLate | Way::PaysLateTwice) { 1 } else { 600 }
    }

    /// Asks for a ticket until there is one or the draw is sold out for good.
    async fn order(&self, shop: &Shop, gate: &Semaphore) -> Option<String> {
        let mut body = tickets(&format!("b-{}", self.nth), 1);
        body["reserve_for_s"] = json!(self.reserve_for_s());
        for tries in 0..30 {
            let turn = gate.acquire().await.unwrap();
            let response = shop.post_order(&body, None).await;
            drop(turn);
            match response.status().as_u16() {
                201 => return Some(response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()),
                409 => {
                    let refused: Value = response.json().await.unwrap();
                    assert_eq!((&refused["reason"], &refused["left"]), (&json!("sold_out"), &json!(0)), "{refused}");
                }
                503 => {}
                status => panic!("{status}"),
            }
            sleep(Duration::from_millis(300 + 50 * tries)).await;
        }
        None
    }

    /// The events of one payment, in any order, some of them twice.
    fn events(&mut self, order: &str, payment: &str) -> Vec<Value> {
        let mut kinds = vec!["payment_intent.succeeded", "charge.succeeded", "checkout.session.completed"];
        kinds.shuffle(&mut self.random);
        kinds.truncate(self.random.random_range(1..4));
        let mut events: Vec<Value> = kinds.into_iter().map(|kind| paid(kind, order, payment, 1)).collect();
        if self.random.random_bool(0.5) {
            events.push(events[0].clone());
        }
        events.shuffle(&mut self.random);
        events
    }

    async fn pay(&mut self, whole: &Whole, order: &str, payment: &str, gate: &Semaphore) {
        whole.simulator.captured("stripe", payment, order, PRICE);
        for event in self.events(order, payment) {
            send(&whole.shops[self.random.random_range(0..whole.shops.len())], &event, gate).await;
        }
    }

    async fn act(mut self, whole: &Whole, gate: &Semaphore) {
        let shop = &whole.shops[self.nth % whole.shops.len()];
        sleep(Duration::from_millis(self.random.random_range(0..3000))).await;
        let Some(order) = self.order(shop, gate).await else { return };
        let (first, second) = (format!("pi_{}_1", self.nth), format!("pi_{}_2", self.nth));
        match self.way {
            Way::Pays => self.pay(whole, &order, &first, gate).await,
            Way::FailsThenPays => {
                send(shop, &stripe_event("payment_intent.payment_failed", &order, &first, &json!({ "amount": PRICE })), gate).await;
                self.pay(whole, &order, &second, gate).await;
            }
            Way::FailsForGood => {
                let turn = gate.acquire().await.unwrap();
                let data =
                    json!({ "order": order, "payment_id": first, "amount_minor": PRICE, "currency": "EUR", "status": "failed_final", "livemode": false });
                shop.standard(&format!("msg_{}", self.nth), data).await;
                drop(turn);
            }
            Way::NeverPays => {}
            Way::PaysTwice => {
                self.pay(whole, &order, &first, gate).await;
                self.pay(whole, &order, &second, gate).await;
            }
            Way::PaysLate => {
                sleep(Duration::from_millis(self.random.random_range(1000..5000))).await;
                self.pay(whole, &order, &first, gate).await;
            }
            Way::PaysLateTwice => {
                sleep(Duration::from_millis(self.random.random_range(1000..5000))).await;
                self.pay(whole, &order, &first, gate).await;
                self.pay(whole, &order, &second, gate).await;
            }
            Way::CancelsThenPays => {
                let turn = gate.acquire().await.unwrap();
                shop.post(&order, "cancel", &json!({}), None, true).await;
                drop(turn);
                self.pay(whole, &order, &first, gate).await;
            }
        }
    }
}

async fn send(shop: &Shop, event: &Value, gate: &Semaphore) {
    loop {
        let turn = gate.acquire().await.unwrap();
        let (status, _) = shop.stripe(event).await;
        drop(turn);
        match status {
            200 => return,
            0 | 503 => sleep(Duration::from_millis(200)).await,
            status => panic!("{status}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_buyers_of_a_thousand_tickets_get_a_ticket_or_their_money_and_nobody_both() {
    let others = ["relay-1", "relay-2", "tickets-1", "tickets-2", "refunds-1", "refunds-2", "ledger-1", "housekeep-1"];
    let whole = Arc::new(Whole::with(2, &others).await);
    make_draw(&whole.shops[0], Some(1000)).await;
    let gate = Arc::new(Semaphore::new(200));
    let buyers = (0..5000).map(|nth| {
        let (whole, gate) = (Arc::clone(&whole), Arc::clone(&gate));
        tokio::spawn(async move { Buyer::new(nth).act(&whole, &gate).await })
    });
    join_all(buyers).await.into_iter().for_each(|buyer| buyer.unwrap());
    whole.quiet(&["tickets", "refunds", "ledger"]).await;
    // Places that were given back after the last had stopped asking are sold to latecomers.
    let left = async || {
        whole.stage.count("SELECT capacity - reserved + COALESCE((SELECT sum(quantity) FROM reservations WHERE status = 'held' AND expires_at <= now()), 0)::bigint FROM draws").await
    };
    let mut nth = 5000;
    while left().await > 0 {
        Buyer { way: Way::Pays, ..Buyer::new(nth) }.act(&whole, &gate).await;
        nth += 1;
    }
    whole.quiet(&["tickets", "refunds", "ledger"]).await;
    until("every refund has succeeded", 120, 0, async || whole.stage.count("SELECT count(*) FROM refunds WHERE status <> 'succeeded'").await).await;
    whole.quiet(&["tickets", "refunds", "ledger"]).await;
    let count = async |query| whole.stage.count(query).await;
    assert_eq!(count("SELECT count(*) FROM tickets WHERE status = 'valid'").await, 1000);
    assert_eq!(count("SELECT count(*) FROM tickets").await, 1000, "none is void: extra and late money went back, not theirs");
    assert_eq!(count("SELECT count(DISTINCT first_number) FROM tickets WHERE first_number BETWEEN 1 AND 1000 AND last_number = first_number").await, 1000);
    let wrong = "WITH money AS (SELECT o.id, (SELECT COALESCE(sum(p.amount_minor), 0) FROM payments p WHERE p.order_id = o.id AND p.status = 'captured')
            - (SELECT COALESCE(sum(r.amount_minor), 0) FROM refunds r WHERE r.order_id = o.id AND r.status = 'succeeded') AS here FROM orders o)
        SELECT count(*) FROM money m WHERE m.here <> 500 * (SELECT count(*) FROM tickets t WHERE t.order_id = m.id AND t.status = 'valid')";
    assert_eq!(count(wrong).await, 0, "money for one ticket is here exactly where there is a ticket");
    for (what, query) in [
        ("late money took what was left", "SELECT count(*) FROM reservations r JOIN tickets t USING (order_id, line) WHERE r.updated_at > r.expires_at"),
        ("late money went back", "SELECT count(*) FROM refunds WHERE origin = 'sold_out'"),
        ("cancelled orders' money went back", "SELECT count(*) FROM refunds WHERE origin = 'late'"),
        ("second payments went back", "SELECT count(*) FROM refunds WHERE origin = 'extra'"),
        ("places were given back", "SELECT count(*) FROM reservations WHERE status = 'released'"),
    ] {
        assert!(count(query).await > 0, "{what}: this run shows nothing of it");
    }
    assert_eq!(count("SELECT count(*) FROM refunds").await, whole.simulator.refunds().len() as i64, "as many at the provider");
    let (code, said) = whole.fleet.counterfoil(&["draws", "audit", "D", "--settled-s", "0"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(whole.fleet.counterfoil(&["ledger", "check", "--settled-s", "0"]).await.0, Some(0));
}

#[tokio::test]
async fn four_identical_webhooks_at_the_same_instant_to_four_ingest_replicas_give_one_range() {
    let whole = Whole::with(4, &["relay-1", "tickets-1", "tickets-2"]).await;
    make_draw(&whole.shops[0], None).await;
    for nth in 0..20 {
        let made: Value = whole.shops[0].post_order(&tickets(&format!("A-{nth}"), 3), None).await.json().await.unwrap();
        let event = paid("payment_intent.succeeded", made["id"].as_str().unwrap(), &format!("pi_{nth}"), 3);
        let answers = join_all(whole.shops.iter().map(|shop| shop.stripe(&event))).await;
        // A machine that is busy with other tests may answer 503; a provider sends it again then.
        for (shop, _) in whole.shops.iter().zip(&answers).filter(|(_, (status, _))| *status != 200) {
            until("it is taken when sent again", 30, 200, async || shop.stripe(&event).await.0).await;
        }
    }
    whole.quiet(&["tickets"]).await;
    assert_eq!(whole.stage.count("SELECT count(*) FROM tickets").await, 20);
    assert_eq!(whole.stage.count("SELECT minted FROM draws").await, 60);
    assert!(whole.stage.count("SELECT sum(deliveries)::bigint FROM webhook_events").await >= 80);
}

#[tokio::test]
async fn tickets_consumers_and_relays_killed_again_and_again_mint_each_order_once() {
    let mut whole = Whole::with(1, &["relay-1", "tickets-1", "tickets-2"]).await;
    make_draw(&whole.shops[0], Some(400)).await;
    for nth in 0..200 {
        let made: Value = whole.shops[0].post_order(&tickets(&format!("A-{nth}"), 2), None).await.json().await.unwrap();
        whole.shops[0].stripe(&paid("charge.succeeded", made["id"].as_str().unwrap(), &format!("pi_{nth}"), 2)).await;
        if nth % 20 == 19 {
            let name = ["tickets-1", "relay-1", "tickets-2"][nth / 20 % 3];
            whole.processes.get_mut(name).unwrap().kill();
            whole.start(name).await;
        }
    }
    whole.quiet(&["tickets"]).await;
    assert_eq!(whole.stage.count("SELECT count(*) FROM tickets").await, 200);
    assert_eq!(whole.stage.count("SELECT minted FROM draws").await, 400);
    assert_eq!(whole.stage.count("SELECT count(*) FROM outbox WHERE topic = 'tickets.issued'").await, 200);
    assert_eq!(whole.fleet.counterfoil(&["draws", "audit", "D", "--settled-s", "0"]).await.0, Some(0));
}

#[tokio::test]
async fn the_numbers_are_mailed_a_failed_mail_mints_nothing_and_a_refund_says_that_they_are_void() {
    let whole = Whole::with(1, &["relay-1", "tickets-1", "email-1", "refunds-1", "ledger-1"]).await;
    make_draw(&whole.shops[0], None).await;
    let made: Value = whole.shops[0].post_order(&tickets("A-1", 3), None).await.json().await.unwrap();
    let order = made["id"].as_str().unwrap().to_owned();
    whole.simulator.captured("stripe", "pi_1", &order, 3 * PRICE);
    whole.shops[0].stripe(&paid("payment_intent.succeeded", &order, "pi_1", 3)).await;
    let mails = || whole.smtp.mails().into_iter().filter(|mail| mail.contains("A-1@example.com")).collect::<Vec<_>>();
    until("receipt and numbers are mailed", 30, 2, async || mails().len()).await;
    let numbers = mails().into_iter().find(|mail| mail.contains("Subject: Your tickets for order A-1")).unwrap();
    assert!(numbers.contains("Autumn draw: numbers 1 to 3") && numbers.contains(".tickets@shop.example>"), "{numbers}");
    assert_eq!(whole.shops[0].refund(&order, 3 * PRICE, "K").await.0, 201);
    until("that they are void is mailed", 30, true, async || mails().iter().any(|mail| mail.contains("Subject: Your tickets for order A-1 are void"))).await;
    until("all three are recorded", 10, 3, async || whole.stage.count("SELECT count(*) FROM receipts").await).await;
    let chain = "SELECT payment_status, webhook_outcome, order_status, reservation_status, ticket_status, notification_topic, notification_status FROM payment_chain WHERE ";
    let reservation: uuid::Uuid = sqlx::query_scalar("SELECT id FROM reservations").fetch_one(&whole.stage.pool()).await.unwrap();
    let event: uuid::Uuid = sqlx::query_scalar("SELECT event_id FROM outbox WHERE topic = 'tickets.issued'").fetch_one(&whole.stage.pool()).await.unwrap();
    let webhook: String =
        sqlx::query_scalar("SELECT event_id FROM webhook_events WHERE event_type = 'payment_intent.succeeded'").fetch_one(&whole.stage.pool()).await.unwrap();
    for start in [
        "payment_id = 'pi_1'".to_owned(),
        format!("webhook_event_id = '{webhook}'"),
        format!("order_id = '{order}'"),
        "reference = 'A-1'".into(),
        format!("reservation_id = '{reservation}'"),
        "draw_reference = 'D' AND 2 BETWEEN first_number AND last_number".into(),
        format!("notification_event_id = '{event}'"),
    ] {
        let query = format!("{chain}{start} AND notification_topic = 'tickets.issued' AND webhook_outcome = 'applied' LIMIT 1");
        let row: [String; 7] = sqlx::query_as::<_, (String, String, String, String, String, String, String)>(sqlx::AssertSqlSafe(query))
            .fetch_one(&whole.stage.pool())
            .await
            .map(<[String; 7]>::from)
            .unwrap();
        assert_eq!(row, ["captured", "applied", "refunded", "confirmed", "void", "tickets.issued", "done"], "from {start}");
    }
    whole.smtp_refuses_and_nothing_else_happens().await;
    whole.stage.execute("UPDATE draws SET capacity = reserved").await;
    whole.stage.execute("INSERT INTO orders (reference, amount_minor, currency, customer_email, lines) SELECT 'A-3', 500, 'EUR', 'A-3@example.com', jsonb_build_array(jsonb_build_object('description', 'Ticket', 'quantity', 1, 'amount_minor', 500, 'draw', id)) FROM draws").await;
    whole.shops[0].stripe(&paid("payment_intent.succeeded", "A-3", "pi_3", 1)).await;
    let told = || {
        whole.smtp.mails().into_iter().any(|mail| {
            mail.contains("A-3@example.com") && mail.contains("Subject: No tickets were left for order A-3") && mail.contains("1 ticket(s): 5.00 EUR")
        })
    };
    until("who got none is told", 30, true, async || told()).await;
}

impl Whole {
    /// An address that no server takes: its mail fails for good, its order and its tickets stay as they are.
    async fn smtp_refuses_and_nothing_else_happens(&self) {
        let mut body = tickets("A-2", 1);
        body["customer"]["email"] = json!("not mailable@@example.com".replace(' ', "."));
        let made: Value = self.shops[0].post_order(&body, None).await.json().await.unwrap();
        self.shops[0].stripe(&paid("payment_intent.succeeded", made["id"].as_str().unwrap(), "pi_2", 1)).await;
        let failed = "SELECT count(*) FROM processed_events p JOIN outbox o USING (event_id) WHERE p.consumer = 'email' AND p.state = 'failed' AND o.topic = 'tickets.issued'";
        until("its mail has failed", 30, 1, async || self.stage.count(failed).await).await;
        assert_eq!(
            self.stage
                .count(
                    "SELECT count(*) FROM tickets t JOIN orders o ON o.id = t.order_id WHERE o.reference = 'A-2' AND o.status = 'paid' AND t.status = 'valid'"
                )
                .await,
            1
        );
        assert_eq!(self.stage.count("SELECT minted FROM draws").await, 4);
    }
}
