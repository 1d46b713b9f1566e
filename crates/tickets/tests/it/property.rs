//! The events of an order with tickets, in any order and any batches: the same tickets, standings and audit.
//!
//! `COUNTERFOIL_PROPERTY_HISTORIES` says how many; each has its own seed, from 0 up, which a failure names.

use counterfoil_payments::{Event, News, RefundStatus};
use counterfoil_tickets::audit::audit;
use counterfoil_tickets::{Draw, release_due};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::support::{PRICE, Shop};

/// What an order of two tickets lives through after it was paid.
#[derive(Debug, Clone, Copy)]
enum Then {
    Whole(RefundStatus),
    Part(RefundStatus),
    ComesHome,
    SecondPayment,
    PartsOfMore,
}

/// Where an order and its draw stand when everything was handled.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    tickets: Vec<(i64, i64, String)>,
    places: Vec<String>,
    standing: Vec<(i64, String)>,
    findings: Vec<String>,
    /// What the last letter about its tickets says: that they are there, or that they are not.
    told: Option<bool>,
}

async fn lived(shop: &Shop, order: Uuid, lives: &[Then], late_contact: bool) {
    shop.pay(order).await;
    for then in lives {
        match then {
            Then::Whole(status) => shop.refund(order, "whole", 2 * PRICE, *status).await,
            Then::Part(status) => shop.refund(order, "part", PRICE, *status).await,
            Then::ComesHome => shop.refund(order, "whole", 2 * PRICE, RefundStatus::Failed).await,
            Then::SecondPayment => shop.news(order, News::Captured, &format!("second_{order}"), 2 * PRICE, None).await,
            Then::PartsOfMore => shop.news(order, News::Captured, &format!("pi_{order}"), 3 * PRICE, None).await,
        }
    }
    if late_contact {
        shop.news(order, News::Captured, &format!("pi_{order}"), 2 * PRICE, Some("late@example.com")).await;
    }
}

async fn ends(shop: &Shop, draw: &Draw, order: Uuid) -> Ends {
    let standing = sqlx::query_as("SELECT version, order_status FROM ticket_standings WHERE order_id = $1").bind(order).fetch_all(&shop.pool).await.unwrap();
    let proof = audit(&mut shop.pool.acquire().await.unwrap(), draw.id, 0).await.unwrap().unwrap();
    let told = shop.said(order).await.pop();
    Ends {
        tickets: shop.tickets(order).await,
        places: shop.places(order).await.into_iter().map(|(status, _)| status).collect(),
        standing,
        findings: proof.findings.into_iter().map(|finding| finding.problem).collect(),
        told: told.map(|(topic, _)| topic == "tickets.issued"),
    }
}

/// One history, handled in the order in which it happened, or in any other: an order and a draw of its own each time.
async fn history(shop: &Shop, seed: u64, shuffled: Option<&mut StdRng>) -> Ends {
    let mut rng = StdRng::seed_from_u64(seed);
    let (lapses, sold_out, late_contact) = (rng.random_bool(0.6), rng.random_bool(0.3), rng.random_bool(0.3));
    let lives: &[Then] = [
        [].as_slice(),
        &[Then::Whole(RefundStatus::Succeeded)],
        &[Then::Whole(RefundStatus::Pending), Then::Whole(RefundStatus::Succeeded), Then::ComesHome],
        &[Then::Whole(RefundStatus::Succeeded), Then::SecondPayment],
        &[Then::SecondPayment, Then::Whole(RefundStatus::Succeeded), Then::ComesHome],
        &[Then::Part(RefundStatus::Succeeded), Then::PartsOfMore],
    ]
    .choose(&mut rng)
    .unwrap();
    let draw = shop.draw(Some(2)).await;
    let order = shop.buy_for(&[(&draw, 2)], 900, (!late_contact).then_some("ann@example.com")).await.unwrap();
    if lapses {
        shop.lapse(order).await;
        let mut tx = shop.pool.begin().await.unwrap();
        release_due(&mut tx, None, 100).await.unwrap();
        tx.commit().await.unwrap();
        if sold_out {
            shop.sold(&draw, 2).await;
        }
    }
    lived(shop, order, lives, late_contact).await;
    let mut events: Vec<Event> = shop.events(order).await;
    if let Some(rng) = shuffled {
        events.shuffle(rng);
        while !events.is_empty() {
            let rest = events.split_off(rng.random_range(1..=events.len()));
            events.sort_by_key(|event| event.id); // as the runner hands a batch over
            shop.apply(&events).await;
            events = rest;
        }
    } else {
        for event in &events {
            shop.apply(std::slice::from_ref(event)).await;
        }
    }
    ends(shop, &draw, order).await
}

#[tokio::test]
async fn each_order_of_arrival_of_an_orders_events_ends_in_the_same_tickets() {
    let histories = std::env::var("COUNTERFOIL_PROPERTY_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(60_u64);
    let shop = Shop::open().await;
    let mut rng = StdRng::seed_from_u64(7);
    for seed in 0..histories {
        let as_it_happened = history(&shop, seed, None).await;
        // Where no place was left the audit says so, as long as nobody has sent the money back.
        let lost = as_it_happened.places == ["lost"];
        assert!(as_it_happened.findings.iter().all(|finding| lost && finding.contains("its money has not gone back")), "seed {seed}: {as_it_happened:?}");
        for _ in 0..2 {
            let other = history(&shop, seed, Some(&mut rng)).await;
            assert_eq!(
                (&other.tickets, &other.places, &other.standing, &other.findings),
                (&as_it_happened.tickets, &as_it_happened.places, &as_it_happened.standing, &as_it_happened.findings),
                "seed {seed}"
            );
            let valid = other.tickets.iter().any(|(.., status)| status == "valid");
            assert_eq!(other.told.unwrap_or(valid), valid, "seed {seed}: the last letter says what the tickets are");
        }
    }
}
