//! Random histories of an order, in any order of arrival, against a small model: a fold over the facts sorted by meaning.
//!
//! `COUNTERFOIL_PROPERTY_HISTORIES` says how many; each has its own seed, from 0 up, which a failure names.

use std::collections::{BTreeMap, BTreeSet};

use counterfoil_payments::{Contact, DisputeStatus, Fact, Money, News, OrderKey, RefundStatus};
use counterfoil_settlement::Delivery;
use counterfoil_tests::Stage;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{book, create, delivery, differing, dispute, key, new_order, refund, says, settle_in_batches, settled_or_waiting};

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
        let mut statuses = DisputeStatus::ALL.to_vec();
        statuses.truncate(rng.random_range(1..=statuses.len()));
        statuses.retain(|_| rng.random_bool(0.8));
        // Each says another amount: that of the latest by meaning stays.
        facts.extend(statuses.into_iter().zip([70, 80, 90, 95, 100, 110]).map(|(status, amount)| dispute(payment, &id, status, amount)));
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
    /// What every account of the books stands at, by currency.
    books: BTreeMap<(String, String), i64>,
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
        DisputeStatus::Withdrawn => 3,
        DisputeStatus::Lost => 4,
        DisputeStatus::Won => 5,
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

/// What one payment came to.
#[derive(Default)]
struct Sums {
    captured: i64,
    fits: bool,
    back: i64,
    pending: i64,
    away: i64,
    lost: i64,
}

impl Sums {
    /// What each account stands at, by the table of the ledger: what belongs to nobody goes back and is charged back first.
    fn balances(&self, settled: i64) -> [(&'static str, i64); 7] {
        let mut free = self.captured - settled;
        let mut from_free = |wanted: i64| {
            let taken = wanted.min(free);
            free -= taken;
            taken
        };
        let back = self.back + self.pending;
        let (back_free, lost_free) = (from_free(back), from_free(self.lost));
        [
            ("assets:receivable:stripe", self.captured - self.back - self.away - self.lost),
            ("income:sales", -settled),
            ("liabilities:unallocated", -free),
            ("income:refunds", back - back_free),
            ("liabilities:refunds_pending", -self.pending),
            ("expenses:chargebacks", self.lost - lost_free),
            ("assets:disputed:stripe", self.away),
        ]
    }
}

/// All facts of a history, sorted by meaning and folded once, whatever their order.
#[derive(Default)]
struct Told {
    /// Payment → rank and status of its furthest news.
    ranks: BTreeMap<String, (i32, &'static str)>,
    /// Payment → the highest figure.
    captured: BTreeMap<String, Money>,
    /// Payments of which some figure was what the order costs.
    fits: BTreeSet<String>,
    /// Id → payment, furthest status, amount.
    refunds: BTreeMap<String, (String, RefundStatus, i64)>,
    disputes: BTreeMap<String, (String, DisputeStatus, i64)>,
    /// Refunds and disputes of payments of which nothing was captured.
    waiting: i64,
    pending: bool,
    failed_final: bool,
    contact: bool,
}

impl Told {
    fn by(facts: &[Delivery]) -> Told {
        let mut told = Told::default();
        for delivery in facts {
            told.hear(&delivery.fact);
        }
        let waits = |fact: &Fact| match fact {
            Fact::Refund { payment, .. } | Fact::RefundsReported { payment, .. } | Fact::Dispute { payment, .. } => {
                !told.captured.contains_key(&payment.payment_id)
            }
            _ => false,
        };
        told.waiting = i64::try_from(facts.iter().filter(|delivery| waits(&delivery.fact)).count()).unwrap();
        told.refunds.retain(|_, (payment, ..)| told.captured.contains_key(payment));
        told.disputes.retain(|_, (payment, ..)| told.captured.contains_key(payment));
        told
    }

    fn hear(&mut self, fact: &Fact) {
        match fact {
            Fact::Payment { news, payment, money, contact: who, .. } => {
                let rank = self.ranks.entry(payment.payment_id.clone()).or_insert((0, ""));
                *rank = (*rank).max(payment_rank(*news));
                self.pending |= matches!(news, News::Pending | News::Authorised);
                self.failed_final |= *news == News::FailedFinal;
                self.contact |= who.email.is_some();
                if *news == News::Captured {
                    let money = money.unwrap();
                    if money.amount_minor == PRICE && money.currency.code() == "EUR" {
                        self.fits.insert(payment.payment_id.clone());
                    }
                    let known = self.captured.entry(payment.payment_id.clone()).or_insert(money);
                    known.amount_minor = known.amount_minor.max(money.amount_minor);
                }
            }
            Fact::Refund { payment, refund_id, status, money, .. } => {
                let known = self.refunds.entry(refund_id.clone()).or_insert((payment.payment_id.clone(), *status, money.amount_minor));
                known.1 = *[known.1, *status].iter().max_by_key(|status| refund_order(**status)).unwrap();
            }
            Fact::Dispute { payment, dispute_id, status, money, .. } => {
                let known = self.disputes.entry(dispute_id.clone()).or_insert((payment.payment_id.clone(), *status, money.amount_minor));
                if dispute_order(*status) > dispute_order(known.1) {
                    (known.1, known.2) = (*status, money.amount_minor);
                }
            }
            Fact::RefundsReported { .. } => {} // it prompts a look-up, no more
            _ => unreachable!(),
        }
    }

    /// Payment → what became of its euros.
    fn sums(&self) -> BTreeMap<String, Sums> {
        let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
        for (payment, money) in self.captured.iter().filter(|(_, money)| money.currency.code() == "EUR") {
            sums.insert(payment.clone(), Sums { captured: money.amount_minor, fits: self.fits.contains(payment), ..Sums::default() });
        }
        for (payment, status, amount) in self.refunds.values() {
            let sums = sums.get_mut(payment).unwrap();
            match status {
                RefundStatus::Succeeded => sums.back += amount,
                RefundStatus::Pending => sums.pending += amount,
                RefundStatus::Requested | RefundStatus::Failed => {}
            }
        }
        for (payment, status, amount) in self.disputes.values() {
            let sums = sums.get_mut(payment).unwrap();
            match status {
                DisputeStatus::Opened => sums.away += amount,
                DisputeStatus::Lost => sums.lost += amount,
                DisputeStatus::Inquiry | DisputeStatus::Closed | DisputeStatus::Withdrawn | DisputeStatus::Won => {}
            }
        }
        sums
    }

    fn books(&self, sums: &BTreeMap<String, Sums>, payer: Option<&str>) -> BTreeMap<(String, String), i64> {
        let mut books: BTreeMap<(String, String), i64> = BTreeMap::new();
        for (payment, sums) in sums {
            let settled = if payer == Some(payment.as_str()) { PRICE } else { 0 };
            for (account, minor) in sums.balances(settled) {
                *books.entry((account.into(), "EUR".into())).or_default() += minor;
            }
        }
        for money in self.captured.values().filter(|money| money.currency.code() != "EUR") {
            *books.entry(("assets:receivable:stripe".into(), money.currency.to_string())).or_default() += money.amount_minor;
            *books.entry(("liabilities:unallocated".into(), money.currency.to_string())).or_default() -= money.amount_minor;
        }
        books.retain(|_, minor| *minor != 0);
        books
    }
}

/// The model. It shares no code with settlement. Which of several payments that fit has paid follows from who came first,
/// and so does whether one whose money was going back meanwhile did: `payer` says what was found, and is held to what is
/// possible.
fn expected(facts: &[Delivery], payer: Option<&str>) -> Outcome {
    let told = Told::by(facts);
    let sums = told.sums();
    match payer {
        Some(payer) => assert!(sums[payer].fits, "{payer} paid, and never was what the order costs"),
        None => {
            assert!(sums.values().all(|sums| !sums.fits || sums.captured - sums.back - sums.pending - sums.lost <= 0), "nothing paid, and money for it is here")
        }
    }
    let paid = payer.is_some();
    let euros: i64 = sums.values().map(|sums| sums.captured - sums.back).sum();
    let count = i64::try_from(told.captured.len()).unwrap();
    let amount_of = |payment: &String| told.captured.get(payment).map_or(PRICE, |money| money.amount_minor);
    Outcome {
        status: order_status(paid, euros, told.failed_final, told.pending).into(),
        payments: told.ranks.iter().map(|(payment, (_, status))| (payment.clone(), ((*status).to_owned(), amount_of(payment)))).collect(),
        refunds: told.refunds.iter().map(|(id, (_, status, _))| (id.clone(), status.name().to_owned())).collect(),
        disputes: told.disputes.iter().map(|(id, (_, status, _))| (id.clone(), status.name().to_owned())).collect(),
        paid_events: i64::from(paid),
        settled_minor: if paid { PRICE } else { 0 },
        places: if paid { [1, count - 1, 0, count - 1] } else { [0, 0, count, 0] },
        books: told.books(&sums, payer),
        receipt_has_an_address: paid && told.contact,
        waiting: told.waiting,
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
    let books: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT l.account, l.currency, sum(l.amount_minor)::bigint FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id
         WHERE e.order_id = $1 GROUP BY 1, 2 HAVING sum(l.amount_minor) <> 0",
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
        books: books.into_iter().map(|(account, currency, minor)| ((account, currency), minor)).collect(),
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
    settle_in_batches(pool, after, rng).await;
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
        let payer: Option<String> = sqlx::query_scalar("SELECT paid_payment_id FROM orders WHERE id = $1").bind(order).fetch_one(&pool).await.unwrap();
        println!("seed {seed}");
        assert_eq!(found(&pool, order, &format!("pi_{seed}x_")).await, expected(&facts, payer.as_deref()), "seed {seed}: {facts:#?}");
    }
    assert_eq!(differing(&pool).await, 0, "captured − refunded − charged back is what the books say, for every order");
    let unbalanced: i64 = sqlx::query_scalar("SELECT count(*) FROM (SELECT currency FROM ledger_lines GROUP BY currency HAVING sum(amount_minor) <> 0) c")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(unbalanced, 0);
}
