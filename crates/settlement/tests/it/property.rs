//! Random histories of an order, in any order of arrival, against a small model: a fold over the facts sorted by meaning.
//!
//! `COUNTERFOIL_PROPERTY_HISTORIES` says how many; each has its own seed, from 0 up, which a failure names.

use std::collections::BTreeMap;

use counterfoil_payments::{Contact, DisputeStatus, Fact, Money, News, OrderKey, RefundStatus};
use counterfoil_settlement::{Delivery, Verdict, housekeeping, settle};
use counterfoil_tests::Stage;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{book, create, delivery, differing, dispute, key, new_order, refund, says, settled_or_waiting};

const PRICE: i64 = 1000;

/// What is said about one payment, its refunds and its disputes.
fn said_of_payment(rng: &mut StdRng, order: &OrderKey, payment: &str) -> Vec<Delivery> {
    let mut facts = Vec::new();
    let news = |what, amount, currency: &str| delivery(what, Some(order.clone()), payment, amount, currency);
    for what in [News::Pending, News::Authorised, News::Failed, News::Expired, News::Cancelled, News::FailedFinal] {
        if rng.random_bool(0.2) {
            facts.push(news(what, PRICE, "EUR"));
        }
    }
    let (currency, parts): (&str, &[i64]) = *[
        ("EUR", [].as_slice()),
        ("EUR", &[PRICE]),
        ("EUR", &[PRICE]),
        ("EUR", &[400, PRICE]),
        ("EUR", &[300, 700]),
        ("EUR", &[PRICE, 1200]),
        ("EUR", &[1200]),
        ("USD", &[PRICE]),
    ]
    .choose(rng)
    .unwrap();
    facts.extend(parts.iter().map(|amount| news(News::Captured, *amount, currency)));
    if currency == "USD" {
        return facts;
    }
    // What may go back is bounded by what was captured, as it is at every provider. A payment that never was captured, too,
    // may have refunds here: they wait for ever.
    let mut left = parts.last().copied().unwrap_or(500);
    for n in 0..rng.random_range(0..3) {
        let amount = if rng.random_bool(0.4) { left } else { rng.random_range(0..=left) };
        if amount == 0 {
            continue;
        }
        let id = format!("re_{payment}_{n}");
        let statuses: &[RefundStatus] = [
            [RefundStatus::Succeeded].as_slice(),
            &[RefundStatus::Pending],
            &[RefundStatus::Pending, RefundStatus::Succeeded],
            &[RefundStatus::Pending, RefundStatus::Failed],
            &[RefundStatus::Pending, RefundStatus::Succeeded, RefundStatus::Failed],
        ]
        .choose(rng)
        .unwrap();
        facts.extend(statuses.iter().map(|status| refund(payment, &id, *status, amount)));
        if rng.random_bool(0.3) {
            facts.push(says(Fact::RefundsReported { payment: key(payment), total: Money::new(amount, "EUR".parse().unwrap()) }));
        }
        left -= amount;
    }
    for n in 0..rng.random_range(0..3) {
        let id = format!("dp_{payment}_{n}");
        let mut statuses = vec![DisputeStatus::Inquiry, DisputeStatus::Closed, DisputeStatus::Opened, DisputeStatus::Lost, DisputeStatus::Won];
        statuses.truncate(rng.random_range(1..=5));
        // Each says another amount: that of the latest by meaning stays.
        facts.extend(statuses.into_iter().zip([70, 80, 90, 100, 110]).map(|(status, amount)| dispute(payment, &id, status, amount)));
    }
    facts
}

fn with_contact(mut delivery: Delivery) -> Delivery {
    if let Fact::Payment { contact, .. } = &mut delivery.fact {
        *contact = Contact { email: Some("late@example.com".into()), ..Contact::default() };
    }
    delivery
}

/// What must come of the facts, however they arrive.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    status: String,
    /// Status and captured amount by payment.
    payments: BTreeMap<String, (String, i64)>,
    refunds: BTreeMap<String, String>,
    disputes: BTreeMap<String, String>,
    paid_events: i64,
    settled_minor: i64,
    /// Captured payments that are settled, extra and held, and how often `payment.extra` was said.
    places: [i64; 4],
    receivable_minor: BTreeMap<String, i64>,
    sales_minor: i64,
    receipt_has_an_address: bool,
    waiting: i64,
}

fn payment_rank(news: News) -> (i32, &'static str) {
    match news {
        News::Pending => (1, "pending"),
        News::Authorised => (2, "authorised"),
        News::Failed | News::FailedFinal => (3, "failed"),
        News::Expired => (4, "expired"),
        News::Cancelled => (5, "cancelled"),
        News::Captured => (6, "captured"),
    }
}

fn refund_order(status: RefundStatus) -> i32 {
    match status {
        RefundStatus::Requested => 0,
        RefundStatus::Pending => 1,
        RefundStatus::Succeeded => 2,
        RefundStatus::Failed => 3,
    }
}

fn dispute_order(status: DisputeStatus) -> i32 {
    match status {
        DisputeStatus::Inquiry => 0,
        DisputeStatus::Closed => 1,
        DisputeStatus::Opened => 2,
        DisputeStatus::Lost => 3,
        DisputeStatus::Won => 4,
    }
}

fn order_status(paid: bool, standing: i64, failed_final: bool, pending: bool) -> &'static str {
    match (paid, standing) {
        (true, standing) if standing >= PRICE => "paid",
        (true, standing) if standing > 0 => "partially_refunded",
        (true, _) => "refunded",
        (false, _) if failed_final => "failed_final",
        (false, _) if pending => "payment_pending",
        (false, _) => "pending_payment",
    }
}

/// The model: sorts the facts by meaning and folds them once. It shares no code with settlement.
fn expected(facts: &[Delivery]) -> Outcome {
    let mut ranks: BTreeMap<String, (i32, &str)> = BTreeMap::new();
    let mut captured: BTreeMap<String, Money> = BTreeMap::new();
    let (mut refunds, mut disputes) = (BTreeMap::new(), BTreeMap::new());
    let (mut paid, mut pending, mut failed_final, mut contact) = (false, false, false, false);
    for fact in facts.iter().map(|delivery| &delivery.fact) {
        match fact {
            Fact::Payment { news, payment, money, contact: who, .. } => {
                let rank = ranks.entry(payment.payment_id.clone()).or_insert((0, ""));
                *rank = (*rank).max(payment_rank(*news));
                pending |= matches!(news, News::Pending | News::Authorised);
                failed_final |= *news == News::FailedFinal;
                contact |= who.email.is_some();
                if *news == News::Captured {
                    let money = money.unwrap();
                    paid |= money.amount_minor == PRICE && money.currency.code() == "EUR";
                    let known = captured.entry(payment.payment_id.clone()).or_insert(money);
                    known.amount_minor = known.amount_minor.max(money.amount_minor);
                }
            }
            Fact::Refund { payment, refund_id, status, money, .. } => {
                let known = refunds.entry(refund_id.clone()).or_insert((payment.payment_id.clone(), *status, money.amount_minor));
                known.1 = *[known.1, *status].iter().max_by_key(|status| refund_order(**status)).unwrap();
            }
            Fact::Dispute { payment, dispute_id, status, money, .. } => {
                let known = disputes.entry(dispute_id.clone()).or_insert((payment.payment_id.clone(), *status, money.amount_minor));
                if dispute_order(*status) > dispute_order(known.1) {
                    (known.1, known.2) = (*status, money.amount_minor);
                }
            }
            Fact::RefundsReported { .. } => {} // it prompts a look-up, no more
            _ => unreachable!(),
        }
    }
    let waiting = facts.iter().filter(|delivery| match &delivery.fact {
        Fact::Refund { payment, .. } | Fact::RefundsReported { payment, .. } | Fact::Dispute { payment, .. } => !captured.contains_key(&payment.payment_id),
        _ => false,
    });
    let waiting = i64::try_from(waiting.count()).unwrap();
    refunds.retain(|_, (payment, ..)| captured.contains_key(payment));
    disputes.retain(|_, (payment, ..)| captured.contains_key(payment));
    let count = i64::try_from(captured.len()).unwrap();
    let euros: i64 = captured.values().filter(|money| money.currency.code() == "EUR").map(|money| money.amount_minor).sum();
    let back: i64 = refunds.values().filter(|(_, status, _)| *status == RefundStatus::Succeeded).map(|(.., amount)| *amount).sum();
    let away: i64 = disputes.values().filter(|(_, status, _)| matches!(status, DisputeStatus::Opened | DisputeStatus::Lost)).map(|(.., amount)| *amount).sum();
    let status = order_status(paid, euros - back, failed_final, pending);
    let mut receivable_minor = BTreeMap::from([("EUR".to_owned(), euros - back - away)]);
    for money in captured.values().filter(|money| money.currency.code() != "EUR") {
        *receivable_minor.entry(money.currency.to_string()).or_default() += money.amount_minor;
    }
    receivable_minor.retain(|_, minor| *minor != 0);
    let amount_of = |payment: &String| captured.get(payment).map_or(PRICE, |money| money.amount_minor);
    Outcome {
        status: status.into(),
        payments: ranks.iter().map(|(payment, (_, status))| (payment.clone(), ((*status).to_owned(), amount_of(payment)))).collect(),
        refunds: refunds.into_iter().map(|(id, (_, status, _))| (id, status.name().to_owned())).collect(),
        disputes: disputes.into_iter().map(|(id, (_, status, _))| (id, status.name().to_owned())).collect(),
        paid_events: i64::from(paid),
        settled_minor: if paid { PRICE } else { 0 },
        places: if paid { [1, count - 1, 0, count - 1] } else { [0, 0, count, 0] },
        receivable_minor,
        sales_minor: if paid { -PRICE } else { 0 },
        receipt_has_an_address: paid && contact,
        waiting,
    }
}

/// What did come of them.
async fn found(pool: &PgPool, order: Uuid, suffix: &str) -> Outcome {
    let like = format!("%{suffix}%");
    let pairs = async |text: &'static str| -> BTreeMap<String, String> {
        let rows: Vec<(String, String)> = sqlx::query_as(text).bind(order).fetch_all(pool).await.unwrap();
        rows.into_iter().collect()
    };
    let number = async |text: &'static str| -> i64 { sqlx::query_scalar(text).bind(order).fetch_one(pool).await.unwrap() };
    let payments: Vec<(String, String, i64)> =
        sqlx::query_as("SELECT payment_id, status, COALESCE(amount_minor, 0) FROM payments WHERE order_id = $1").bind(order).fetch_all(pool).await.unwrap();
    let receivable: Vec<(String, i64)> = sqlx::query_as(
        "SELECT l.currency, sum(l.amount_minor)::bigint FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id
         WHERE e.order_id = $1 AND l.account = 'assets:receivable:stripe' GROUP BY 1 HAVING sum(l.amount_minor) <> 0",
    )
    .bind(order)
    .fetch_all(pool)
    .await
    .unwrap();
    Outcome {
        status: sqlx::query_scalar("SELECT status FROM orders WHERE id = $1").bind(order).fetch_one(pool).await.unwrap(),
        payments: payments.into_iter().map(|(id, status, amount)| (id, (status, amount))).collect(),
        refunds: pairs("SELECT provider_refund_id, status FROM refunds WHERE order_id = $1").await,
        disputes: pairs("SELECT dispute_id, status FROM disputes WHERE order_id = $1").await,
        paid_events: number("SELECT count(*) FROM outbox WHERE order_id = $1 AND topic = 'order.paid'").await,
        settled_minor: number("SELECT COALESCE(sum(settled_minor), 0)::bigint FROM payments WHERE order_id = $1").await,
        places: [
            number("SELECT count(*) FROM payments WHERE order_id = $1 AND disposition = 'settled'").await,
            number("SELECT count(*) FROM payments WHERE order_id = $1 AND disposition = 'extra'").await,
            number("SELECT count(*) FROM payments WHERE order_id = $1 AND disposition = 'held'").await,
            number("SELECT count(*) FROM outbox WHERE order_id = $1 AND topic = 'payment.extra'").await,
        ],
        receivable_minor: receivable.into_iter().collect(),
        sales_minor: number("SELECT COALESCE(sum(l.amount_minor), 0)::bigint FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id WHERE e.order_id = $1 AND l.account = 'income:sales'").await,
        // Once: with the receipt, or after it, never both.
        receipt_has_an_address: 1 == number("SELECT count(*) FROM outbox WHERE order_id = $1 AND (topic = 'order.contact_known' OR (topic = 'order.paid' AND payload #>> '{customer,email}' IS NOT NULL))").await,
        waiting: sqlx::query_scalar("SELECT count(*) FROM webhook_events WHERE outcome = 'waiting' AND waits_for LIKE $1").bind(like).fetch_one(pool).await.unwrap(),
    }
}

/// Delivers the facts in a random order, with copies, in batches of random size, the order being made at a random moment.
async fn live(pool: &PgPool, rng: &mut StdRng, reference: &str, facts: &[Delivery]) -> Uuid {
    let mut arriving: Vec<Delivery> = facts.to_vec();
    for fact in facts {
        for _ in 0..rng.random_range(0..3) {
            arriving.push(fact.clone());
        }
    }
    arriving.shuffle(rng);
    let made_after = rng.random_range(0..=arriving.len());
    let (before, after) = arriving.split_at(made_after);
    for delivery in before {
        settled_or_waiting(pool, delivery).await;
    }
    let mut tx = pool.begin().await.unwrap();
    let mut new = new_order(reference);
    new.money.amount_minor = PRICE;
    new.customer.email = None;
    let order = create(&mut tx, &new).await.id;
    tx.commit().await.unwrap();
    let mut after = after;
    while !after.is_empty() {
        let (batch, rest) = after.split_at(rng.random_range(1..=after.len()));
        let mut tx = pool.begin().await.unwrap();
        let verdicts = settle(&mut tx, batch).await.unwrap();
        assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Settled(_))), "{verdicts:?}");
        tx.commit().await.unwrap();
        after = rest;
    }
    let mut tx = pool.begin().await.unwrap();
    housekeeping::drive_waiting(&mut tx, 1000).await.unwrap();
    tx.commit().await.unwrap();
    order
}

#[tokio::test]
async fn any_permutation_of_an_orders_events_with_duplicates_mixed_in_ends_in_the_state_that_their_meaning_gives() {
    let histories = std::env::var("COUNTERFOIL_PROPERTY_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(120_u64);
    let pool = Stage::with_schema().await.pool();
    for seed in 0..histories {
        let mut rng = StdRng::seed_from_u64(seed);
        let reference = format!("seed-{seed}");
        let order_key = OrderKey::read(&reference).unwrap();
        let mut facts = Vec::new();
        for n in 0..rng.random_range(1..4) {
            facts.extend(said_of_payment(&mut rng, &order_key, &format!("pi_{seed}x_{n}")));
        }
        facts = facts.into_iter().map(|delivery| if rng.random_bool(0.2) { with_contact(delivery) } else { delivery }).collect();
        let order = live(&pool, &mut rng, &reference, &facts).await;
        book(&pool).await;
        assert_eq!(found(&pool, order, &format!("pi_{seed}x_")).await, expected(&facts), "seed {seed}: {facts:#?}");
    }
    assert_eq!(differing(&pool).await, 0, "captured − refunded − charged back is what the books say, for every order");
    let unbalanced: i64 = sqlx::query_scalar("SELECT count(*) FROM (SELECT currency FROM ledger_lines GROUP BY currency HAVING sum(amount_minor) <> 0) c")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(unbalanced, 0);
}
