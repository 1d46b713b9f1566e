//! Minting: consecutive ranges, once for each line, whatever arrives how often and in which order.

use counterfoil_payments::{Event, RefundStatus};
use futures_util::future::join_all;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::support::{PRICE, Shop};

#[tokio::test]
async fn four_minters_at_once_give_out_consecutive_numbers_once_for_each_line() {
    let shop = Shop::open().await;
    let (hot, other) = (shop.draw(None).await, shop.draw(None).await);
    let mut random = StdRng::seed_from_u64(7);
    let (mut events, mut wanted) = (Vec::new(), 0);
    for nth in 0..200 {
        let quantity = random.random_range(1..9);
        wanted += quantity;
        let lines = if nth % 5 == 0 { vec![(&other, 1), (&hot, quantity)] } else { vec![(&hot, quantity)] };
        let order = shop.buy(&lines).await.unwrap();
        shop.pay(order).await;
        events.extend(shop.events(order).await);
    }
    let mut batches = Vec::new();
    for _ in 0..4 {
        events.shuffle(&mut random);
        // Every minter gets every event: a replay whose dedupe row is gone.
        batches.extend(events.chunks(23).map(|batch| {
            let mut batch: Vec<Event> = batch.to_vec();
            batch.sort_by_key(|event| event.id);
            batch
        }));
    }
    batches.shuffle(&mut random);
    let parts: Vec<_> = batches.chunks(batches.len().div_ceil(4)).collect();
    join_all(parts.into_iter().map(async |part| {
        for batch in part {
            shop.apply(batch).await;
        }
    }))
    .await;
    assert_eq!(shop.counters(&hot).await, (wanted, wanted));
    assert_eq!(shop.counters(&other).await, (40, 40));
    assert_eq!(shop.stage.count("SELECT count(*) FROM tickets").await, 240);
    let breaks = "SELECT count(*) FROM (SELECT first_number <> COALESCE(lag(last_number) OVER (PARTITION BY draw_id ORDER BY first_number), 0) + 1 AS broken FROM tickets) t WHERE broken";
    assert_eq!(shop.stage.count(breaks).await, 0, "consecutive from 1");
    assert_eq!(shop.stage.count("SELECT count(*) FROM outbox WHERE topic = 'tickets.issued'").await, 200, "each order is told once");
}

#[tokio::test]
async fn the_database_itself_refuses_a_number_twice_and_a_line_twice() {
    let shop = Shop::open().await;
    let (draw, other) = (shop.draw(None).await, shop.draw(None).await);
    shop.sold(&draw, 10).await;
    let spare = shop.buy(&[(&draw, 5), (&other, 5)]).await.unwrap();
    let insert = async |line: i32, draw: uuid::Uuid, first: i64, last: i64| {
        sqlx::query("INSERT INTO tickets (order_id, line, draw_id, draw_ordinal, first_number, last_number) SELECT $1, $2, id, ordinal, $4, $5 FROM draws WHERE id = $3")
            .bind(spare).bind(line).bind(draw).bind(first).bind(last).execute(&shop.pool).await
            .map_err(|error| error.as_database_error().and_then(|error| error.constraint()).unwrap_or_default().to_owned())
    };
    for (first, last) in [(10, 14), (1, 1), (5, 6), (0, 3), (-5, 20)] {
        let refused = insert(0, draw.id, first, last).await.unwrap_err();
        assert!(["tickets_never_overlap", "tickets_numbers_are_a_range"].contains(&refused.as_str()), "{refused}");
    }
    assert!(insert(1, other.id, 1, 10).await.is_ok(), "each draw has numbers of its own");
    assert!(insert(0, draw.id, 11, 15).await.is_ok(), "the next number is free");
    assert_eq!(insert(0, draw.id, 100, 105).await.unwrap_err(), "tickets_once_for_a_line");
}

#[tokio::test]
async fn a_full_refund_voids_the_range_says_so_and_its_numbers_are_never_given_out_again() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(20)).await;
    let order = shop.sold(&draw, 4).await;
    shop.refund(order, "re_part", 3 * PRICE, RefundStatus::Succeeded).await;
    shop.apply(&shop.events(order).await[1..]).await;
    assert_eq!(shop.tickets(order).await, [(1, 4, "valid".to_owned())], "some of the money went back");
    shop.refund(order, "re_rest", PRICE, RefundStatus::Succeeded).await;
    shop.apply(&shop.events(order).await[2..]).await;
    assert_eq!(shop.tickets(order).await, [(1, 4, "void".to_owned())]);
    let said = shop.said(order).await;
    assert_eq!(said.iter().map(|(topic, _)| topic.as_str()).collect::<Vec<_>>(), ["tickets.issued", "tickets.voided"]);
    assert_eq!((&said[1].1["customer"]["email"], &said[1].1["tickets"][0]["last_number"]), (&"ann@example.com".into(), &4.into()));
    assert_eq!(shop.counters(&draw).await, (4, 4), "a void place is not sold again");
    let next = shop.sold(&draw, 2).await;
    assert_eq!(shop.tickets(next).await, [(5, 6, "valid".to_owned())]);
}

#[tokio::test]
async fn payment_refund_and_failed_refund_in_any_order_of_arrival_end_alike() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for together in [false, true] {
            let order = shop.buy(&[(&draw, 2)]).await.unwrap();
            shop.pay(order).await;
            shop.refund(order, "re", 2 * PRICE, RefundStatus::Succeeded).await;
            let back = shop.buy(&[(&draw, 3)]).await.unwrap();
            shop.pay(back).await;
            shop.refund(back, "re", 3 * PRICE, RefundStatus::Succeeded).await;
            shop.refund(back, "re", 3 * PRICE, RefundStatus::Failed).await;
            let (gone, events) = (shop.events(order).await, shop.events(back).await);
            assert_eq!((gone.len(), events.len()), (2, 3));
            let arrived: Vec<Event> = [a, b, c].into_iter().flat_map(|nth| [gone.get(nth).cloned(), events.get(nth).cloned()]).flatten().collect();
            for batch in arrived.chunks(if together { 5 } else { 1 }) {
                shop.apply(batch).await;
            }
            assert_eq!(shop.tickets(order).await[0].2, "void", "{a}{b}{c}: the money went back");
            assert_eq!(shop.tickets(back).await[0].2, "valid", "{a}{b}{c}: the money came home");
            let last = shop.said(back).await.pop().unwrap();
            assert_eq!((last.0.as_str(), &last.1["tickets"][0]["first_number"]), ("tickets.issued", &shop.tickets(back).await[0].0.into()));
            let valid_said = shop.said(order).await.into_iter().filter(|(topic, _)| topic == "tickets.issued").count();
            let void_said = shop.said(order).await.into_iter().filter(|(topic, _)| topic == "tickets.voided").count();
            assert_eq!(valid_said, void_said, "who was told the numbers was told that they are void");
        }
    }
}

#[tokio::test]
async fn a_contact_that_becomes_known_later_gets_the_numbers_once_in_either_order() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    for turn in [[0, 1], [1, 0]] {
        for together in [false, true] {
            let order = shop.buy_for(&[(&draw, 2)], 900, None).await.unwrap();
            shop.pay(order).await;
            shop.news(order, counterfoil_payments::News::Captured, &format!("pi_{order}"), 2 * PRICE, Some("late@example.com")).await;
            let events = shop.events(order).await;
            assert_eq!(events.len(), 2, "order.paid without an address, order.contact_known");
            let arrived: Vec<Event> = turn.iter().map(|nth| events[*nth].clone()).collect();
            for batch in arrived.chunks(if together { 2 } else { 1 }) {
                shop.apply(batch).await;
            }
            let told = shop.said(order).await.into_iter().filter(|(_, data)| data["customer"]["email"] == "late@example.com").count();
            assert_eq!((told, shop.tickets(order).await.len()), (1, 1), "{turn:?} {together}");
        }
    }
}

#[tokio::test]
async fn a_refund_and_its_payment_handled_at_the_same_time_see_each_other() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    for paid_first in [true, false] {
        let order = shop.buy(&[(&draw, 2)]).await.unwrap();
        shop.pay(order).await;
        shop.refund(order, "re", 2 * PRICE, RefundStatus::Succeeded).await;
        let events = shop.events(order).await;
        let (first, second) = if paid_first { (&events[0], &events[1]) } else { (&events[1], &events[0]) };
        let mut under_way = shop.pool.begin().await.unwrap();
        counterfoil_tickets::apply(&mut under_way, &[first]).await.unwrap();
        let other = async {
            shop.apply(std::slice::from_ref(second)).await;
        };
        let release = async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
            counterfoil_tests::until("the other waits", 10, 1, async || shop.stage.count(waits).await).await;
            under_way.commit().await.unwrap();
        };
        tokio::join!(other, release);
        assert_eq!(shop.tickets(order).await[0].2, "void", "paid first: {paid_first}");
    }
}
