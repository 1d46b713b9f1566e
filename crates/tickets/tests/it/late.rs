//! Money that comes after its place was given back: taken from what is left, else the refund path, never oversold.

use counterfoil_tickets::{Unreserved, release_due};
use serde_json::Value;
use uuid::Uuid;

use crate::support::{PRICE, Shop};

impl Shop {
    /// An order whose places were given back before its money came.
    async fn late(&self, wanted: &[(&counterfoil_tickets::Draw, i64)]) -> Uuid {
        let order = self.buy(wanted).await.unwrap();
        self.lapse(order).await;
        let mut tx = self.pool.begin().await.unwrap();
        assert_eq!(release_due(&mut tx, None, 100).await.unwrap(), i64::try_from(wanted.len()).unwrap());
        tx.commit().await.unwrap();
        order
    }
}

#[tokio::test]
async fn late_money_takes_what_is_left_and_nothing_where_nothing_is() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(10)).await;
    let (first, second) = (shop.late(&[(&draw, 4)]).await, shop.late(&[(&draw, 4)]).await);
    let quick = shop.buy(&[(&draw, 6)]).await.unwrap();
    shop.pay(first).await;
    shop.pay(second).await;
    shop.apply(&[shop.events(first).await, shop.events(second).await].concat()).await;
    shop.pay(quick).await;
    shop.apply(&shop.events(quick).await).await;
    assert_eq!(shop.places(first).await[0].0, "confirmed");
    assert_eq!(shop.tickets(first).await, [(1, 4, "valid".to_owned())], "four were left");
    assert_eq!((shop.places(second).await[0].0.as_str(), shop.tickets(second).await.len()), ("lost", 0));
    assert_eq!(shop.tickets(quick).await, [(5, 10, "valid".to_owned())]);
    assert_eq!(shop.counters(&draw).await, (10, 10));
    let said = shop.said(second).await;
    assert_eq!(said.len(), 1);
    assert_eq!(
        (said[0].0.as_str(), &said[0].1["amount_minor"], &said[0].1["lines"][0]["amount_minor"]),
        ("tickets.unavailable", &Value::Null, &(4 * PRICE).into())
    );
    shop.apply(&shop.events(second).await).await;
    assert_eq!(shop.said(second).await.len(), 1, "said once");
}

#[tokio::test]
async fn of_two_draws_the_one_that_is_left_is_minted_and_the_other_goes_back_alone() {
    let shop = Shop::open().await;
    let (gone, there) = (shop.draw(Some(2)).await, shop.draw(None).await);
    let order = shop.late(&[(&gone, 2), (&there, 3)]).await;
    shop.buy(&[(&gone, 2)]).await.unwrap();
    shop.pay(order).await;
    shop.apply(&shop.events(order).await).await;
    assert_eq!(shop.tickets(order).await, [(1, 3, "valid".to_owned())]);
    let said = shop.said(order).await;
    assert_eq!(said.iter().map(|(topic, _)| topic.as_str()).collect::<Vec<_>>(), ["tickets.issued", "tickets.unavailable"]);
    assert_eq!(said[1].1["amount_minor"], 2 * PRICE);
}

#[tokio::test]
async fn a_place_that_others_let_lapse_serves_late_money_too_and_a_closed_draw_gives_none() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(3)).await;
    let late = shop.late(&[(&draw, 3)]).await;
    let other = shop.buy(&[(&draw, 3)]).await.unwrap();
    shop.lapse(other).await;
    shop.pay(late).await;
    shop.apply(&shop.events(late).await).await;
    assert_eq!((shop.tickets(late).await.len(), shop.places(other).await[0].0.as_str()), (1, "released"));
    let closing = shop.draw(None).await;
    let held = shop.buy(&[(&closing, 1)]).await.unwrap();
    let late = shop.late(&[(&closing, 1)]).await;
    shop.stage.execute(&format!("UPDATE draws SET closes_at = now() WHERE id = '{}'", closing.id)).await;
    for order in [held, late] {
        shop.pay(order).await;
        shop.apply(&shop.events(order).await).await;
    }
    assert_eq!(shop.tickets(held).await.len(), 1, "reserved in time");
    assert_eq!(shop.tickets(late).await.len(), 0, "the draw is over");
    assert!(matches!(shop.buy(&[(&closing, 1)]).await, Err(Unreserved::Closed { .. })));
}

#[tokio::test]
async fn an_order_that_a_shop_wrote_by_sql_gets_a_place_when_it_is_paid() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(2)).await;
    let mut orders = Vec::new();
    for nth in 0..3 {
        let id = Uuid::now_v7();
        shop.stage
            .execute(&format!(
                "INSERT INTO orders (id, reference, amount_minor, currency, customer_email, lines) VALUES ('{id}', 'sql-{nth}', 500, 'EUR', 'a@b.example',
            jsonb_build_array(jsonb_build_object('description', 'Ticket', 'quantity', 1, 'amount_minor', 500, 'draw', '{}')))",
                draw.id
            ))
            .await;
        shop.pay(id).await;
        shop.apply(&shop.events(id).await).await;
        orders.push((shop.tickets(id).await.len(), shop.places(id).await[0].0.clone()));
    }
    assert_eq!(orders, [(1, "confirmed".to_owned()), (1, "confirmed".to_owned()), (0, "lost".to_owned())]);
}

#[tokio::test]
async fn with_a_discount_a_lost_line_is_worth_its_share_of_what_was_paid_and_the_audit_says_the_same() {
    let shop = Shop::open().await;
    let (gone, there) = (shop.draw(Some(2)).await, shop.draw(None).await);
    let order = shop.late(&[(&gone, 2), (&there, 1)]).await;
    shop.buy(&[(&gone, 2)]).await.unwrap();
    let discount = "lines || '[{\"description\": \"Friend\", \"quantity\": 1, \"amount_minor\": -600}]'";
    shop.stage.execute(&format!("UPDATE orders SET lines = {discount}, amount_minor = 900 WHERE id = '{order}'")).await;
    shop.pay(order).await;
    shop.apply(&shop.events(order).await).await;
    let said = shop.said(order).await;
    assert_eq!(said[1].1["amount_minor"], 600, "1000 of 1500, of which 900 were paid");
    shop.refund(order, "re", 600, counterfoil_payments::RefundStatus::Succeeded).await;
    shop.apply(&shop.events(order).await[1..]).await;
    for (draw, lost, net) in [(&gone, 600, 0), (&there, 0, 300)] {
        let audit = counterfoil_tickets::audit::audit(&mut shop.pool.acquire().await.unwrap(), draw.id, 0).await.unwrap().unwrap();
        assert!(audit.ok, "{audit:?}");
        assert_eq!((audit.proceeds[0].lost_minor, audit.proceeds[0].net_minor), (lost, net));
    }
}

#[tokio::test]
async fn an_order_by_sql_whose_ticket_line_is_unsound_is_refused_at_once() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await.id;
    let sound = format!(r#"{{"draw": "{draw}", "quantity": 2, "amount_minor": 5}}"#);
    let lines = [
        r#"{"draw": "autumn", "quantity": 1, "amount_minor": 5}"#.to_owned(),
        r#"{"draw": 7, "quantity": 1, "amount_minor": 5}"#.to_owned(),
        format!(r#"{{"draw": "{draw}", "amount_minor": 5}}"#),
        format!(r#"{{"draw": "{draw}", "quantity": 1.5, "amount_minor": 5}}"#),
        format!(r#"{{"draw": "{draw}", "quantity": 0, "amount_minor": 5}}"#),
        format!(r#"{{"draw": "{draw}", "quantity": 1, "amount_minor": -5}}"#),
        format!(r#"{{"draw": "{draw}", "quantity": "1", "amount_minor": 5}}"#),
    ];
    let insert = async |lines: String| {
        sqlx::query("INSERT INTO orders (reference, amount_minor, currency, lines) VALUES (gen_random_uuid()::text || '-x', 5, 'EUR', $1::jsonb)")
            .bind(lines)
            .execute(&shop.pool)
            .await
    };
    for line in lines {
        let refused = insert(format!("[{sound}, {line}]")).await.unwrap_err();
        assert_eq!(refused.as_database_error().and_then(|error| error.constraint()), Some("orders_ticket_lines_are_sound"), "{line}");
    }
    assert!(insert(format!("[{sound}]")).await.is_ok());
}

#[tokio::test]
async fn payments_and_the_release_of_their_places_in_the_same_instant_leave_each_order_with_tickets_or_lost_and_the_draw_right() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(60)).await;
    let mut orders = Vec::new();
    for _ in 0..30 {
        let order = shop.buy(&[(&draw, 2)]).await.unwrap();
        shop.lapse(order).await;
        orders.push(order);
    }
    let pay = futures_util::future::join_all(orders.iter().map(|order| shop.pay(*order)));
    let release = async {
        for _ in 0..30 {
            let mut tx = shop.pool.begin().await.unwrap();
            release_due(&mut tx, None, 1).await.unwrap();
            tx.commit().await.unwrap();
        }
    };
    let sell = futures_util::future::join_all((0..10).map(async |_| shop.buy(&[(&draw, 1)]).await.is_ok()));
    let (_, (), sold) = tokio::join!(pay, release, sell);
    let others = sold.iter().filter(|sold| **sold).count();
    let mut lost = 0;
    for order in orders {
        let before = shop.places(order).await[0].0.clone();
        shop.apply(&shop.events(order).await).await;
        let after = shop.places(order).await[0].0.clone();
        assert!(before != "confirmed" || after == "confirmed", "what is paid for in time stays");
        assert_eq!(shop.tickets(order).await.len(), usize::from(after == "confirmed"));
        lost += usize::from(after == "lost");
    }
    assert_eq!(shop.counters(&draw).await, (i64::try_from((30 - lost) * 2 + others).unwrap(), i64::try_from((30 - lost) * 2).unwrap()));
}

#[tokio::test]
async fn money_that_went_back_before_anybody_looked_for_a_place_is_treated_as_if_it_had_been_read_first() {
    let shop = Shop::open().await;
    let draw = shop.draw(Some(2)).await;
    let order = shop.late(&[(&draw, 2)]).await;
    shop.buy(&[(&draw, 2)]).await.unwrap();
    shop.pay(order).await;
    shop.refund(order, "re", 2 * PRICE, counterfoil_payments::RefundStatus::Succeeded).await;
    let events = shop.events(order).await;
    shop.apply(&events[1..]).await;
    shop.apply(&events[..1]).await;
    assert_eq!((shop.places(order).await[0].0.as_str(), shop.said(order).await[0].0.as_str()), ("lost", "tickets.unavailable"));
    let attention = async || counterfoil_settlement::attention(&mut shop.pool.acquire().await.unwrap(), 10).await.unwrap();
    assert!(attention().await.is_empty(), "its money is gone: nobody waits");
    shop.refund(order, "re", 2 * PRICE, counterfoil_payments::RefundStatus::Failed).await;
    shop.apply(&shop.events(order).await[2..]).await;
    shop.stage.execute("UPDATE orders SET updated_at = now() - interval '1 hour'").await;
    let listed = attention().await;
    assert!(listed.iter().any(|entry| entry.kind == "unfulfilled" && entry.amount_minor == Some(2 * PRICE)), "{listed:?}");
    let audit = counterfoil_tickets::audit::audit(&mut shop.pool.acquire().await.unwrap(), draw.id, 0).await.unwrap().unwrap();
    assert!(!audit.ok && audit.findings[0].problem.contains("its money has not gone back"), "{audit:?}");
}

#[tokio::test]
async fn a_line_whose_reservation_is_of_another_draw_is_to_blame_alone() {
    let shop = Shop::open().await;
    let (draw, other) = (shop.draw(None).await, shop.draw(None).await);
    let order = shop.buy(&[(&draw, 1)]).await.unwrap();
    shop.stage.execute(&format!("UPDATE orders SET lines = jsonb_set(lines, '{{0,draw}}', to_jsonb('{}'::text)) WHERE id = '{order}'", other.id)).await;
    shop.pay(order).await;
    let events = shop.events(order).await;
    let mut tx = shop.pool.begin().await.unwrap();
    let error = counterfoil_tickets::apply(&mut tx, &[&events[0]]).await.unwrap_err();
    assert_eq!(counterfoil_settlement::Failure::of(&error), counterfoil_settlement::Failure::Culprit, "{error}: no outage of the database");
}
