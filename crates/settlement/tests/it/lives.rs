//! Lives of payments, told in each provider's own words, in any order: the states and the books are those of the life.
//!
//! A life is what happened to the money; the words are what the provider sends about it. `COUNTERFOIL_PROPERTY_HISTORIES` says
//! how many; each has its own seed, from 0 up, which a failure names.

use std::collections::BTreeMap;

use counterfoil_payments::{Contact, Fact};
use counterfoil_providers::{Adapter, Mode, Razorpay, Secret, Square, Standard, Stripe};
use counterfoil_settlement::Delivery;
use counterfoil_tests::Stage;
use http::HeaderMap;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{book, create, differing, new_order, settle_in_batches, settled_or_waiting};

const PRICE: i64 = 1099;

/// What became of one payment's money, in minor units.
#[derive(Debug, Clone, Default)]
struct Life {
    authorised: i64,
    /// 0: given back before it was ever captured.
    captured: i64,
    tip: i64,
    /// Refunds in the dashboard: how much, and whether each came home again.
    refunds: Vec<(i64, bool)>,
    /// How a dispute of so much ended: `won`, `lost`, `withdrawn`, or `open` for one that has not.
    dispute: Option<(i64, &'static str)>,
}

fn life(rng: &mut StdRng, tips: bool) -> Life {
    let (authorised, captured) = *[(PRICE, PRICE), (PRICE, PRICE), (2000, PRICE), (PRICE, 0), (PRICE, 500), (2000, 2000)].choose(rng).unwrap();
    let tip = if tips && captured == PRICE && rng.random_bool(0.3) { 200 } else { 0 };
    let mut life = Life { authorised: authorised + tip, captured: if captured > 0 { captured + tip } else { 0 }, tip, ..Life::default() };
    let mut left = life.captured;
    for _ in 0..rng.random_range(0..3) {
        let amount = if rng.random_bool(0.3) { left } else { rng.random_range(0..=left) };
        // Not as much as was released: which of the two is which, no provider's words tell.
        if amount > 0 && amount != life.authorised - life.captured {
            life.refunds.push((amount, rng.random_bool(0.3)));
            left -= amount;
        }
    }
    if life.captured > 0 && rng.random_bool(0.3) {
        life.dispute = Some((rng.random_range(1..=life.captured), ["won", "lost", "withdrawn", "open"].choose(rng).unwrap()));
    }
    life
}

/// A provider's language: every event that it sends about a life.
trait Tongue {
    fn name(&self) -> &'static str;
    fn adapter(&self) -> Box<dyn Adapter>;
    /// Whether it knows payments without a capture, captures of a part, and tips.
    fn knows(&self, life: &Life) -> bool;
    fn tells(&self, order: &str, payment: &str, life: &Life) -> Vec<Value>;
}

/// `until_2025`: of an API version before 2025-03-31, when what was released was told of as a refund.
struct StripeWords {
    until_2025: bool,
}

impl StripeWords {
    fn event(&self, kind: &str, object: Value) -> Value {
        let version = if self.until_2025 { "2024-06-20" } else { "2026-07-29.dahlia" };
        json!({ "id": format!("evt_{}", Uuid::new_v4().simple()), "object": "event", "api_version": version, "type": kind, "livemode": false, "data": { "object": object } })
    }
}

impl Tongue for StripeWords {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn adapter(&self) -> Box<dyn Adapter> {
        Box::new(Stripe::new(&[Secret::new("s").unwrap()]))
    }

    fn knows(&self, life: &Life) -> bool {
        life.tip == 0
    }

    fn tells(&self, order: &str, payment: &str, life: &Life) -> Vec<Value> {
        let released = if self.until_2025 { life.authorised - life.captured } else { 0 };
        let charge = |captured: i64, back: i64| {
            json!({ "id": format!("ch_{payment}"), "object": "charge", "payment_intent": payment, "currency": "eur", "amount": life.authorised,
            "captured": captured > 0, "amount_captured": captured, "amount_refunded": back, "metadata": { "order_id": order } })
        };
        let intent = |status: &str, received: i64| {
            json!({ "id": payment, "object": "payment_intent", "amount": life.authorised, "amount_received": received, "currency": "eur",
            "status": status, "metadata": { "order_id": order } })
        };
        let refund = |id: &str, amount: i64, status: &str| json!({ "id": id, "object": "refund", "payment_intent": payment, "amount": amount, "currency": "eur", "status": status, "metadata": {} });
        let mut told =
            vec![self.event("charge.succeeded", charge(0, 0)), self.event("payment_intent.amount_capturable_updated", intent("requires_capture", 0))];
        if life.captured == 0 {
            told.push(self.event("payment_intent.canceled", intent("canceled", 0)));
            if self.until_2025 {
                told.push(self.event("charge.refunded", charge(0, life.authorised)));
                told.push(self.event("charge.refund.updated", refund(&format!("re_{payment}_void"), life.authorised, "succeeded")));
            }
            return told;
        }
        told.push(self.event("charge.captured", charge(life.captured, released)));
        told.push(self.event("payment_intent.succeeded", intent("succeeded", life.captured)));
        if released > 0 {
            told.push(self.event("charge.refunded", charge(life.captured, released)));
            told.push(self.event("charge.refund.updated", refund(&format!("re_{payment}_rest"), released, "succeeded")));
        }
        let mut back = released;
        for (nth, (amount, home)) in life.refunds.iter().enumerate() {
            let id = format!("re_{payment}_{nth}");
            back += amount;
            told.push(self.event("charge.refunded", charge(life.captured, back)));
            told.extend(["pending", "succeeded"].map(|status| self.event("refund.updated", refund(&id, *amount, status))));
            if *home {
                told.push(self.event("refund.failed", refund(&id, *amount, "failed")));
            }
        }
        if let Some((amount, end)) = life.dispute {
            let dispute = |status: &str| json!({ "id": format!("dp_{payment}"), "object": "dispute", "payment_intent": payment, "amount": amount, "currency": "eur", "status": status });
            told.extend(["needs_response", "under_review"].map(|status| self.event("charge.dispute.updated", dispute(status))));
            let end = if end == "withdrawn" { "prevented" } else { end };
            if end != "open" {
                told.push(self.event("charge.dispute.closed", dispute(end)));
            }
        }
        told
    }
}

struct RazorpayWords;

impl Tongue for RazorpayWords {
    fn name(&self) -> &'static str {
        "razorpay"
    }

    fn adapter(&self) -> Box<dyn Adapter> {
        Box::new(Razorpay::new(&[Secret::new("s").unwrap()]))
    }

    fn knows(&self, life: &Life) -> bool {
        life.tip == 0 && (life.captured == 0 || life.captured == life.authorised)
    }

    fn tells(&self, order: &str, payment: &str, life: &Life) -> Vec<Value> {
        let event = |kind: &str, payload: Value| json!({ "entity": "event", "event": kind, "created_at": 1_764_500_000, "payload": payload });
        let entity = |status: &str, back: i64| {
            json!({ "entity": { "id": payment, "entity": "payment", "amount": life.authorised, "currency": "EUR", "status": status,
            "captured": life.captured > 0, "amount_refunded": back, "notes": { "order_id": order } } })
        };
        let refund = |id: &str, amount: i64, status: &str| json!({ "entity": { "id": id, "entity": "refund", "payment_id": payment, "amount": amount, "currency": "EUR", "status": status, "notes": [] } });
        let mut held = entity("authorized", 0);
        held["entity"]["captured"] = json!(false);
        let mut told = vec![event("payment.authorized", json!({ "payment": held }))];
        if life.captured == 0 {
            let back =
                json!({ "payment": entity("refunded", life.authorised), "refund": refund(&format!("rfnd_{payment}_void"), life.authorised, "processed") });
            told.push(event("refund.created", back.clone()));
            told.push(event("refund.processed", back));
            return told;
        }
        told.push(event("payment.captured", json!({ "payment": entity("captured", 0) })));
        told.push(event(
            "order.paid",
            json!({ "payment": entity("captured", 0), "order": { "entity": { "id": format!("order_{payment}"), "receipt": order, "notes": [] } } }),
        ));
        for (nth, (amount, home)) in life.refunds.iter().enumerate() {
            let id = format!("rfnd_{payment}_{nth}");
            let says = |status: &str| json!({ "payment": entity("captured", *amount), "refund": refund(&id, *amount, status) });
            told.push(event("refund.created", says("pending")));
            told.push(event("refund.processed", says("processed")));
            if *home {
                told.push(event("refund.failed", says("failed")));
            }
        }
        if let Some((amount, end)) = life.dispute {
            let dispute = |status: &str| {
                json!({ "dispute": { "entity": { "id": format!("disp_{payment}"), "payment_id": payment, "amount": amount, "amount_deducted": 0, "currency": "EUR",
                "phase": "chargeback", "status": status } } })
            };
            told.push(event("payment.dispute.created", dispute("open")));
            told.push(event("payment.dispute.under_review", dispute("under_review")));
            let end = if end == "withdrawn" { "closed" } else { end };
            if end != "open" {
                told.push(event(&format!("payment.dispute.{end}"), dispute(end)));
            }
        }
        told
    }
}

struct SquareWords;

impl Tongue for SquareWords {
    fn name(&self) -> &'static str {
        "square"
    }

    fn adapter(&self) -> Box<dyn Adapter> {
        Box::new(Square::new(&[Secret::new("s").unwrap()], "https://x.example").unwrap())
    }

    fn knows(&self, life: &Life) -> bool {
        (life.captured == 0 || life.captured == life.authorised) && life.dispute.is_none_or(|(_, end)| end != "withdrawn")
    }

    fn tells(&self, order: &str, payment: &str, life: &Life) -> Vec<Value> {
        let money = |amount: i64| json!({ "amount": amount, "currency": "EUR" });
        let event = |kind: &str, what: &str, object: Value| json!({ "event_id": Uuid::new_v4(), "type": kind, "data": { "object": { what: object } } });
        let pay = |status: &str| {
            event(
                "payment.updated",
                "payment",
                json!({ "id": payment, "status": status, "reference_id": order,
            "amount_money": money(life.authorised - life.tip), "tip_money": money(life.tip), "total_money": money(life.authorised) }),
            )
        };
        let mut told = vec![pay("APPROVED"), pay(if life.captured == 0 { "CANCELED" } else { "COMPLETED" })];
        for (nth, (amount, home)) in life.refunds.iter().enumerate() {
            let says = |status: &str| {
                event(
                    "refund.updated",
                    "refund",
                    json!({ "id": format!("rf_{payment}_{nth}"), "payment_id": payment, "status": status, "amount_money": money(*amount) }),
                )
            };
            told.extend(["PENDING", "COMPLETED"].map(says));
            if *home {
                told.push(says("FAILED"));
            }
        }
        if let Some((amount, end)) = life.dispute {
            let says = |state: &str| {
                event(
                    "dispute.state.updated",
                    "dispute",
                    json!({ "id": format!("dp_{payment}"), "state": state, "disputed_payment": { "payment_id": payment }, "amount_money": money(amount) }),
                )
            };
            told.extend(["INQUIRY_EVIDENCE_REQUIRED", "EVIDENCE_REQUIRED", "PROCESSING"].map(says));
            if end != "open" {
                told.push(says(&end.to_uppercase()));
            }
        }
        told
    }
}

struct StandardWords;

impl Tongue for StandardWords {
    fn name(&self) -> &'static str {
        "standard"
    }

    fn adapter(&self) -> Box<dyn Adapter> {
        Box::new(Standard::new(&[Secret::new("whsec_c2VjcmV0c2VjcmV0c2VjcmV0").unwrap()]).unwrap())
    }

    fn knows(&self, life: &Life) -> bool {
        life.tip == 0 && (life.captured == 0 || life.captured == life.authorised) && life.dispute.is_none_or(|(_, end)| end != "withdrawn")
    }

    fn tells(&self, order: &str, payment: &str, life: &Life) -> Vec<Value> {
        let says = |status: &str, amount: i64, more: &str| {
            json!({ "type": "payment", "id": Uuid::new_v4(), "data": { "order": order, "payment_id": payment, "amount_minor": amount, "currency": "EUR",
            "status": status, "livemode": false, "refund_id": format!("r_{payment}_{more}"), "dispute_id": format!("d_{payment}") } })
        };
        let mut told = vec![says("authorised", life.authorised, ""), says(if life.captured == 0 { "cancelled" } else { "captured" }, life.authorised, "")];
        for (nth, (amount, home)) in life.refunds.iter().enumerate() {
            told.extend(["refund_pending", "refunded"].map(|status| says(status, *amount, &nth.to_string())));
            if *home {
                told.push(says("refund_failed", *amount, &nth.to_string()));
            }
        }
        if let Some((amount, end)) = life.dispute {
            told.push(says("disputed", amount, ""));
            if end != "open" {
                told.push(says(&format!("dispute_{end}"), amount, ""));
            }
        }
        told
    }
}

fn delivery(adapter: &dyn Adapter, event: &Value) -> Delivery {
    let body = event.to_string().into_bytes();
    let reading = adapter.read(&HeaderMap::new(), &body, Mode::Test);
    assert!(!matches!(reading.fact, Fact::Unreadable { .. } | Fact::Unsupported { .. }), "{event}: {:?}", reading.fact);
    Delivery {
        provider: adapter.provider(),
        account: reading.account,
        event_id: reading.event_id,
        provider_event_id: None,
        event_type: reading.event_type,
        body,
        secret_position: 0,
        made_at: None,
        late: false,
        ids: reading.ids,
        fact: without_contact(reading.fact),
        traceparent: None,
    }
}

fn without_contact(mut fact: Fact) -> Fact {
    if let Fact::Payment { contact, .. } = &mut fact {
        *contact = Contact::default();
    }
    fact
}

/// What every account stands at, of lives of which `payer` paid the order.
fn books(provider: &str, lives: &BTreeMap<String, Life>, payer: Option<&str>) -> BTreeMap<String, i64> {
    let mut books = BTreeMap::new();
    for (payment, life) in lives.iter().filter(|(_, life)| life.captured > 0) {
        let settled = if payer == Some(payment) { PRICE } else { 0 };
        let back: i64 = life.refunds.iter().filter(|(_, home)| !home).map(|(amount, _)| amount).sum();
        let (away, lost) = match life.dispute {
            Some((amount, "open")) => (amount, 0),
            Some((amount, "lost")) => (0, amount),
            _ => (0, 0),
        };
        let free = life.captured - life.tip - settled;
        let back_free = back.min(free);
        let lost_free = lost.min(free - back_free);
        for (account, minor) in [
            (format!("assets:receivable:{provider}"), life.captured - back - away - lost),
            ("income:sales".into(), -settled),
            ("income:tips".into(), -life.tip),
            ("liabilities:unallocated".into(), back_free + lost_free - free),
            ("income:refunds".into(), back - back_free),
            (format!("assets:disputed:{provider}"), away),
            ("expenses:chargebacks".into(), lost - lost_free),
        ] {
            *books.entry(account).or_default() += minor;
        }
    }
    books.retain(|_, minor| *minor != 0);
    books
}

/// Delivers in a random order, with copies, in batches of random size, the order being made at a random moment.
async fn lived(pool: &PgPool, rng: &mut StdRng, reference: &str, told: &[Delivery]) -> Uuid {
    let mut arriving: Vec<Delivery> = told.iter().flat_map(|event| vec![event.clone(); rng.random_range(1..3)]).collect();
    arriving.shuffle(rng);
    let (before, after) = arriving.split_at(rng.random_range(0..=arriving.len()));
    for delivery in before {
        settled_or_waiting(pool, delivery).await;
    }
    let mut tx = pool.begin().await.unwrap();
    let order = create(&mut tx, &new_order(reference)).await.id;
    tx.commit().await.unwrap();
    settle_in_batches(pool, after, rng).await;
    order
}

async fn check(pool: &PgPool, order: Uuid, provider: &str, lives: &BTreeMap<String, Life>, what: &str) {
    let (status, payer): (String, Option<String>) =
        sqlx::query_as("SELECT status, paid_payment_id FROM orders WHERE id = $1").bind(order).fetch_one(pool).await.unwrap();
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "SELECT l.account, sum(l.amount_minor)::bigint FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id WHERE e.order_id = $1 GROUP BY 1 HAVING sum(l.amount_minor) <> 0",
    )
    .bind(order)
    .fetch_all(pool)
    .await
    .unwrap();
    assert_eq!(rows.into_iter().collect::<BTreeMap<_, _>>(), books(provider, lives, payer.as_deref()), "{what}: the books");
    let fits = |life: &Life| life.captured - life.tip == PRICE;
    assert_eq!(payer.is_some(), lives.values().any(fits), "{what}: it is paid by what was captured for it, and by nothing else");
    assert!(payer.as_deref().is_none_or(|payer| fits(&lives[payer])), "{what}: {payer:?} paid");
    let here: i64 = lives.values().map(|life| life.captured - life.refunds.iter().filter(|(_, home)| !home).map(|(amount, _)| amount).sum::<i64>()).sum();
    let wanted = match here {
        _ if payer.is_none() => "payment_pending",
        here if here >= PRICE => "paid",
        1.. => "partially_refunded",
        _ => "refunded",
    };
    assert_eq!(status, wanted, "{what}");
    let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM attention_entries WHERE kind IN ('waiting', 'unplaced', 'overpaid') AND what LIKE $1")
        .bind(format!("%{}%", lives.keys().next().unwrap().split_once('x').unwrap().0))
        .fetch_one(pool)
        .await
        .unwrap();
    let disputed_and_back = lives.values().any(|life| life.dispute.is_some());
    assert!(waiting == 0 || disputed_and_back, "{what}: nothing waits of money that never moved");
}

#[tokio::test]
async fn lives_of_payments_end_alike_in_every_providers_words() {
    let histories = std::env::var("COUNTERFOIL_PROPERTY_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(80_u64);
    let pool = Stage::with_schema().await.pool();
    let tongues: [Box<dyn Tongue>; 5] = [
        Box::new(StripeWords { until_2025: true }),
        Box::new(StripeWords { until_2025: false }),
        Box::new(RazorpayWords),
        Box::new(SquareWords),
        Box::new(StandardWords),
    ];
    for seed in 0..histories {
        for (nth, tongue) in tongues.iter().enumerate() {
            let mut rng = StdRng::seed_from_u64(seed);
            let reference = format!("life-{seed}-{nth}");
            let adapter = tongue.adapter();
            let mut lives = BTreeMap::new();
            for payment in 0..rng.random_range(1..3) {
                let life = life(&mut rng, tongue.name() == "square");
                if tongue.knows(&life) {
                    lives.insert(format!("p{seed}t{nth}x{payment}"), life);
                }
            }
            if lives.is_empty() {
                continue;
            }
            let told: Vec<Delivery> = lives
                .iter()
                .flat_map(|(payment, life)| tongue.tells(&reference, payment, life))
                .enumerate()
                .map(|(nth, event)| {
                    let mut delivery = delivery(adapter.as_ref(), &event);
                    if tongue.name() == "standard" {
                        delivery.event_id = format!("msg_{reference}_{nth}"); // it is in a header
                    }
                    delivery
                })
                .collect();
            let order = lived(&pool, &mut rng, &reference, &told).await;
            book(&pool).await;
            check(&pool, order, tongue.name(), &lives, &format!("seed {seed}, {nth} {}: {lives:#?}", tongue.name())).await;
        }
    }
    assert_eq!(differing(&pool).await, 0);
}
