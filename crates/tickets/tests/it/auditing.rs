//! The audit adds up where it should, and fails loudly where something was tampered with.

use counterfoil_payments::RefundStatus;
use counterfoil_tickets::Draw;
use counterfoil_tickets::audit::{Audit, audit};
use counterfoil_tickets::release_due;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::support::{PRICE, Shop};

impl Shop {
    async fn audit(&self, draw: &Draw) -> Audit {
        audit(&mut self.pool.acquire().await.unwrap(), draw.id, 0).await.unwrap().unwrap()
    }

    /// A draw with everything in it: held, sold, void, refunded in part, released, lost and gone back.
    async fn lively(&self, seed: u64) -> (Draw, i64) {
        let draw = self.draw_like(|draw| (draw.capacity, draw.charity) = (Some(60), (1, 3))).await;
        let mut random = StdRng::seed_from_u64(seed);
        let (mut left, mut net) = (55, 0);
        while left > 8 {
            let quantity = random.random_range(1..6);
            let order = self.sold(&draw, quantity).await;
            left -= quantity;
            match random.random_range(0..4) {
                0 => self.refund(order, "re", quantity * PRICE, RefundStatus::Succeeded).await,
                1 => {
                    self.refund(order, "re", 1, RefundStatus::Succeeded).await;
                    net += quantity * PRICE - 1;
                }
                _ => net += quantity * PRICE,
            }
            self.apply(&self.events(order).await[1..]).await;
        }
        let late = self.buy(&[(&draw, left)]).await.unwrap();
        self.lapse(late).await;
        let mut tx = self.pool.begin().await.unwrap();
        release_due(&mut tx, None, 100).await.unwrap();
        tx.commit().await.unwrap();
        self.buy(&[(&draw, left)]).await.unwrap();
        self.buy(&[(&draw, 5)]).await.unwrap();
        self.pay(late).await;
        self.apply(&self.events(late).await).await;
        self.refund(late, "re", left * PRICE, RefundStatus::Succeeded).await;
        self.apply(&self.events(late).await[1..]).await;
        (draw, net)
    }
}

#[tokio::test]
async fn payments_orders_reservations_tickets_voids_and_the_share_for_charity_add_up_to_the_minor_unit() {
    let shop = Shop::open().await;
    for seed in 0..6 {
        let (draw, net) = shop.lively(seed).await;
        let audit = shop.audit(&draw).await;
        assert!(audit.ok, "seed {seed}: {audit:?}");
        let money = &audit.proceeds[0];
        assert_eq!((money.net_minor, money.charity_minor, money.house_minor), (net, net / 3, net - net / 3), "seed {seed}");
        assert_eq!(money.captured_minor, money.lines_minor, "every line of these orders is of this draw");
        assert_eq!(money.lines_minor, money.void_minor + money.refunded_minor + money.net_minor + money.lost_minor);
        assert!(money.void_minor > 0 && audit.checks.len() == 11);
    }
}

#[tokio::test]
async fn several_lines_second_payments_and_disputes_are_shared_rightly() {
    let shop = Shop::open().await;
    let (one, other) = (shop.draw(None).await, shop.draw(None).await);
    // 500 and 1000; 300 of it went back: 100 and 200.
    let order = shop.buy(&[(&one, 1), (&other, 2)]).await.unwrap();
    shop.pay(order).await;
    shop.refund(order, "re", 300, RefundStatus::Succeeded).await;
    // Paid twice; the first payment went back, and the second stands in.
    let twice = shop.buy(&[(&one, 1)]).await.unwrap();
    shop.pay(twice).await;
    shop.news(twice, counterfoil_payments::News::Captured, "pi_second", PRICE, None).await;
    shop.refund(twice, "re", PRICE, RefundStatus::Succeeded).await;
    // Charged back: its tickets are valid, and its money is not here.
    let gone = shop.buy(&[(&one, 1)]).await.unwrap();
    shop.pay(gone).await;
    shop.dispute(gone, PRICE).await;
    // Three lines of one draw under a discount that cannot be shared evenly: 33 each of 100.
    let odd = shop.draw(None).await;
    let three = shop.buy(&[(&odd, 1), (&odd, 1), (&odd, 1)]).await.unwrap();
    shop.stage.execute(&format!("UPDATE orders SET amount_minor = 100, lines = lines || '[{{\"description\": \"Friend\", \"quantity\": 1, \"amount_minor\": -1400}}]' WHERE id = '{three}'")).await;
    shop.pay(three).await;
    for order in [order, twice, gone, three] {
        shop.apply(&shop.events(order).await).await;
    }
    let (one, other, odd) = (shop.audit(&one).await, shop.audit(&other).await, shop.audit(&odd).await);
    assert!(one.ok && other.ok && odd.ok, "{one:?} {other:?} {odd:?}");
    assert_eq!(odd.proceeds[0].net_minor, 99, "never more than what was paid");
    assert_eq!((one.proceeds[0].net_minor, one.proceeds[0].refunded_minor), (400 + PRICE, 100 + PRICE));
    assert_eq!((other.proceeds[0].net_minor, other.proceeds[0].refunded_minor), (800, 200));
}

#[tokio::test]
async fn the_audit_fails_and_names_the_row_wherever_something_does_not_add_up() {
    let shop = Shop::open().await;
    let tampering = [
        "UPDATE draws SET reserved = reserved - 1",
        "UPDATE draws SET minted = minted - 1",
        "DELETE FROM tickets WHERE first_number = (SELECT min(first_number) FROM tickets)",
        "DELETE FROM tickets WHERE last_number = (SELECT max(last_number) FROM tickets)",
        "UPDATE tickets SET last_number = last_number - 1 WHERE (order_id, line) = (SELECT order_id, line FROM tickets WHERE last_number > first_number ORDER BY first_number LIMIT 1)",
        "UPDATE tickets SET status = 'void', voided_at = now() WHERE (order_id, line) = (SELECT order_id, line FROM tickets WHERE status = 'valid' LIMIT 1)",
        "UPDATE tickets SET status = 'valid', voided_at = NULL WHERE (order_id, line) = (SELECT order_id, line FROM tickets WHERE status = 'void' LIMIT 1)",
        "UPDATE payments SET settled_minor = settled_minor - 1 WHERE payment_id = (SELECT min(payment_id) FROM payments)",
        "UPDATE orders SET lines = jsonb_set(lines, '{0,quantity}', '77') WHERE id = (SELECT order_id FROM tickets LIMIT 1)",
        "UPDATE orders SET lines = '[]' WHERE id = (SELECT order_id FROM tickets LIMIT 1)",
        "DELETE FROM reservations WHERE (order_id, line) = (SELECT order_id, line FROM tickets LIMIT 1)",
        "UPDATE tickets SET draw_ordinal = 77 WHERE last_number = (SELECT max(last_number) FROM tickets)",
        "UPDATE orders SET status = 'refunded', version = version + 1 WHERE status = 'paid' AND id = (SELECT order_id FROM tickets JOIN orders o ON o.id = order_id WHERE o.status = 'paid' LIMIT 1)",
        "DELETE FROM refunds WHERE id = (SELECT r.id FROM refunds r JOIN orders o ON o.id = r.order_id WHERE o.status = 'partially_refunded' LIMIT 1)",
        "UPDATE payments SET currency = 'USD' WHERE payment_id = (SELECT min(payment_id) FROM payments)",
        "UPDATE refunds SET status = 'failed' WHERE order_id = (SELECT order_id FROM reservations WHERE status = 'lost')",
        "UPDATE orders SET lines = lines || (lines -> 0) WHERE id = (SELECT order_id FROM tickets WHERE status = 'valid' LIMIT 1)",
    ];
    for (nth, what) in tampering.iter().enumerate() {
        let fresh = Shop::open().await;
        let (draw, _) = fresh.lively(1).await;
        assert!(fresh.audit(&draw).await.ok);
        fresh.stage.execute(what).await;
        if what.starts_with("UPDATE refunds SET status") {
            // The money came home after all: the order counts as paid again, as settlement would say it.
            fresh
                .stage
                .execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = (SELECT order_id FROM reservations WHERE status = 'lost')")
                .await;
        }
        let audit = fresh.audit(&draw).await;
        assert!(!audit.ok && audit.checks.iter().any(|check| !check.ok), "{what} was not noticed: {audit:?}");
        assert!(nth < 2 || !audit.findings.is_empty() || audit.checks.iter().any(|check| !check.ok && check.what.contains("number")), "{what}: {audit:?}");
    }
    drop(shop);
}
