//! Reservations: never more than there is, kept for a time, given back.

use counterfoil_payments::News;
use counterfoil_settlement::{cancel, expire};
use counterfoil_tickets::{Change, DrawRefused, Happening, ReservationStatus, Unreserved, change_draw, find_draw, release_due};
use futures_util::future::join_all;
use sqlx::AssertSqlSafe;

use crate::support::Shop;

#[tokio::test]
async fn a_draw_never_reserves_more_than_it_has_whoever_asks_at_once() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(100)).await;
    let wants: Vec<i64> = (0..120).map(|nth| 1 + nth % 4).collect();
    let lines: Vec<_> = wants.iter().map(|quantity| [(&draw, *quantity)]).collect();
    let bought = join_all(lines.iter().map(|line| shop.buy(line))).await;
    let sold: i64 = bought.iter().zip(&wants).filter(|(bought, _)| bought.is_ok()).map(|(_, quantity)| quantity).sum();
    assert_eq!(shop.counters(&draw).await, (sold, 0));
    assert_eq!(sold, 100, "small orders fill what is left");
    for refused in bought.iter().filter_map(|bought| bought.as_ref().err()) {
        assert!(matches!(refused, Unreserved::SoldOut { left, wanted, .. } if left < wanted), "{refused}");
    }
    let kept = shop.stage.count("SELECT COALESCE(sum(quantity), 0)::bigint FROM reservations WHERE status = 'held'").await;
    assert_eq!((kept, shop.stage.count("SELECT count(*) FROM orders").await), (100, bought.iter().filter(|bought| bought.is_ok()).count() as i64));
    let even_by_sql = sqlx::query("UPDATE draws SET reserved = reserved + 1").execute(&shop.pool).await.unwrap_err();
    assert_eq!(even_by_sql.as_database_error().unwrap().constraint(), Some("draws_are_never_oversold"));
}

#[tokio::test]
async fn an_order_of_two_draws_gets_all_or_nothing_and_opposite_orders_do_not_deadlock() {
    let shop = Shop::open().await;
    let (one, other) = (shop.draw(Some(60)).await, shop.draw(Some(40)).await);
    let (there, back) = ([(&one, 1), (&other, 1)], [(&other, 1), (&one, 1)]);
    let bought = join_all((0..80).map(|nth| if nth % 2 == 0 { shop.buy(&there) } else { shop.buy(&back) })).await;
    assert_eq!(bought.iter().filter(|bought| bought.is_ok()).count(), 40);
    assert_eq!((shop.counters(&one).await.0, shop.counters(&other).await.0), (40, 40), "what a refused order wanted of the other draw is free");
}

#[tokio::test]
async fn limits_and_times_are_kept_by_the_databases_clock() {
    let shop = Shop::open().await;
    let now = time::OffsetDateTime::now_utc();
    let limited = shop.draw_like(|draw| draw.order_limit = Some(4)).await;
    assert!(matches!(shop.buy(&[(&limited, 3), (&limited, 2)]).await, Err(Unreserved::OverLimit { limit: 4, wanted: 5, .. })), "over all lines of an order");
    assert!(shop.buy(&[(&limited, 4)]).await.is_ok());
    let early = shop.draw_like(|draw| draw.opens_at = Some(now + time::Duration::hours(1))).await;
    assert!(matches!(shop.buy(&[(&early, 1)]).await, Err(Unreserved::NotOpenYet { .. })));
    let late = shop.draw_like(|draw| draw.closes_at = Some(now - time::Duration::seconds(1))).await;
    assert!(matches!(shop.buy(&[(&late, 1)]).await, Err(Unreserved::Closed { .. })));
    assert_eq!((early.state.as_str(), late.state.as_str(), limited.state.as_str()), ("not_open_yet", "closed", "open"));
    assert_eq!(limited.available, None, "no limit");
}

#[tokio::test]
async fn a_place_whose_time_is_over_is_sold_to_the_next_who_asks_without_housekeeping() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(5)).await;
    let slow = shop.buy(&[(&draw, 5)]).await.unwrap();
    assert_eq!(shop.buy(&[(&draw, 1)]).await, Err(Unreserved::SoldOut { draw: draw.reference.clone(), left: 0, wanted: 1 }));
    shop.lapse(slow).await;
    let key = counterfoil_payments::OrderKey::read(&draw.reference).unwrap();
    let seen = find_draw(&mut shop.pool.acquire().await.unwrap(), &key).await.unwrap().unwrap();
    assert_eq!((seen.available, seen.state.as_str()), (Some(5), "open"), "who looks sees them as free");
    assert!(shop.buy(&[(&draw, 3)]).await.is_ok());
    assert_eq!(shop.counters(&draw).await, (3, 0));
    assert_eq!(shop.places(slow).await, [("released".to_owned(), Some("expired".to_owned()))]);
}

#[tokio::test]
async fn expiry_cancellation_and_final_failure_give_places_back_whoever_ends_the_order() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(40)).await;
    let mut orders = Vec::new();
    for _ in 0..4 {
        orders.push(shop.buy(&[(&draw, 10)]).await.unwrap());
    }
    let [cancelled, expired, failed, by_sql] = orders[..] else { unreachable!() };
    let mut tx = shop.pool.begin().await.unwrap();
    cancel(&mut tx, &counterfoil_payments::OrderKey::Id(counterfoil_payments::OrderId(cancelled))).await.unwrap();
    tx.commit().await.unwrap();
    shop.stage.execute(&format!("UPDATE orders SET expires_at = now() - interval '1 s' WHERE id = '{expired}'")).await;
    let mut tx = shop.pool.begin().await.unwrap();
    assert_eq!(expire(&mut tx, 10).await.unwrap(), [expired]);
    tx.commit().await.unwrap();
    shop.news(failed, News::FailedFinal, "pi_failed", 5000, None).await;
    shop.stage.execute(&format!("UPDATE orders SET status = 'cancelled', version = version + 1 WHERE id = '{by_sql}'")).await;
    let mut tx = shop.pool.begin().await.unwrap();
    assert_eq!(release_due(&mut tx, None, 100).await.unwrap(), 4);
    tx.commit().await.unwrap();
    assert_eq!(shop.counters(&draw).await, (0, 0));
    for (order, reason) in [(cancelled, "cancelled"), (expired, "expired"), (failed, "failed_final"), (by_sql, "cancelled")] {
        assert_eq!(shop.places(order).await, [("released".to_owned(), Some(reason.to_owned()))]);
    }
}

#[tokio::test]
async fn a_final_failure_followed_by_a_capture_keeps_its_places() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(10)).await;
    let order = shop.buy(&[(&draw, 10)]).await.unwrap();
    shop.news(order, News::FailedFinal, "pi_failed", 5000, None).await;
    shop.pay(order).await;
    assert_eq!(shop.places(order).await, [("confirmed".to_owned(), None)]);
    let mut tx = shop.pool.begin().await.unwrap();
    assert_eq!(release_due(&mut tx, None, 100).await.unwrap(), 0, "what is paid for is not given back, however late it is");
}

#[tokio::test]
async fn sql_moves_a_reservation_exactly_as_the_table_says() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    for from in ReservationStatus::ALL {
        for to in ReservationStatus::ALL.into_iter().filter(|to| *to != from) {
            let order = shop.buy(&[(&draw, 1)]).await.unwrap();
            let set = |status: ReservationStatus| format!("UPDATE reservations SET status = '{}' WHERE order_id = '{order}'", status.name());
            let way: &[ReservationStatus] = match from {
                ReservationStatus::Held => &[],
                ReservationStatus::Lost => &[ReservationStatus::Released, ReservationStatus::Lost],
                ReservationStatus::Confirmed | ReservationStatus::Released => &[from],
            };
            for step in way {
                sqlx::query(AssertSqlSafe(set(*step))).execute(&shop.pool).await.unwrap();
            }
            let moved = sqlx::query(AssertSqlSafe(set(to))).execute(&shop.pool).await.is_ok();
            let allowed = Happening::ALL.into_iter().any(|what| from.after(what) == Some(to));
            assert_eq!(moved, allowed, "{from:?} to {to:?}");
        }
    }
}

#[tokio::test]
async fn a_capacity_can_rise_and_never_falls_below_what_is_reserved() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(5)).await;
    let order = shop.buy(&[(&draw, 5)]).await.unwrap();
    let key = counterfoil_payments::OrderKey::read(&draw.reference).unwrap();
    let change = async |capacity| {
        let mut tx = shop.pool.begin().await.unwrap();
        let changed = change_draw(&mut tx, &key, &Change { capacity: Some(capacity), ..Change::default() }).await;
        if changed.is_ok() {
            tx.commit().await.unwrap();
        }
        changed.map(|draw| draw.unwrap().available)
    };
    assert!(matches!(change(Some(4)).await, Err(DrawRefused::BelowReserved)));
    assert_eq!(change(Some(6)).await.unwrap(), Some(1));
    assert_eq!(change(None).await.unwrap(), None);
    shop.lapse(order).await;
    assert_eq!(change(Some(0)).await.unwrap(), Some(0), "places whose time is over are free");
}
