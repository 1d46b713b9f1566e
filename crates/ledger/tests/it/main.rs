//! The books against a real PostgreSQL.

use counterfoil_ledger::post;
use counterfoil_payments::event::{Body, OrderData, PaymentData, PaymentEventData};
use counterfoil_payments::{Books, Event, OrderId, Position, Provider};
use counterfoil_tests::Stage;
use uuid::Uuid;

/// Of 10.99 EUR captured, what pays the order.
fn at(captured_minor: i64, settled_minor: i64) -> Position {
    Position { captured_minor, settled_minor, ..Position::default() }
}

fn books(before: Position, after: Position) -> Option<Books> {
    Some(Books { currency: "EUR".parse().unwrap(), before, after })
}

fn payment() -> PaymentData {
    let currency = "EUR".parse().unwrap();
    PaymentData { provider: Provider::Stripe, account: String::new(), payment_id: "pi_1".into(), amount_minor: 1099, currency, settled_minor: 0 }
}

fn event(body: Body) -> Event {
    Event { id: Uuid::new_v4(), order_id: OrderId(Uuid::nil()), time: "2026-11-29T10:00:00Z".into(), body }
}

fn paid(before: Position) -> Event {
    event(Body::OrderPaid(OrderData {
        order_id: OrderId(Uuid::nil()),
        reference: "r".into(),
        version: 2,
        amount_minor: 1099,
        currency: "EUR".parse().unwrap(),
        customer: Default::default(),
        lines: Vec::new(),
        paid_at: String::new(),
        payment: payment(),
        books: books(before, at(1099, 1099)),
    }))
}

fn aside(before: Position, after: Position) -> Event {
    event(Body::PaymentHeld(PaymentEventData {
        order_id: OrderId(Uuid::nil()),
        version: 2,
        reason: "already_paid".into(),
        payment: payment(),
        books: books(before, after),
        order_status: None,
        reference: None,
        customer: None,
    }))
}

async fn balances(stage: &Stage) -> Vec<(String, i64)> {
    sqlx::query_as("SELECT account, sum(amount_minor)::bigint FROM ledger_lines GROUP BY account ORDER BY account").fetch_all(&stage.pool()).await.unwrap()
}

async fn posted(stage: &Stage, events: &[&Event]) {
    let pool = stage.pool();
    let mut tx = pool.begin().await.unwrap();
    post(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn order_paid_debits_the_receivable_and_credits_sales_once_however_often_it_is_posted() {
    let stage = Stage::with_schema().await;
    let event = paid(at(0, 0));
    posted(&stage, &[&event]).await;
    posted(&stage, &[&event]).await;
    assert_eq!(balances(&stage).await, [("assets:receivable:stripe".to_owned(), 1099), ("income:sales".to_owned(), -1099)]);
    assert_eq!(stage.count("SELECT count(*) FROM ledger_entries").await, 1);
}

#[tokio::test]
async fn held_and_extra_money_is_unallocated_and_reclassified_never_booked_twice_in_any_order() {
    for held_first in [true, false] {
        let stage = Stage::with_schema().await;
        let (held, later) = (aside(at(0, 0), at(1099, 0)), paid(at(1099, 0)));
        let (first, second) = if held_first { (&held, &later) } else { (&later, &held) };
        posted(&stage, &[first]).await;
        posted(&stage, &[second]).await;
        posted(&stage, &[&aside(at(1099, 1099), at(1099, 1099))]).await;
        let wanted = [("assets:receivable:stripe".to_owned(), 1099), ("income:sales".to_owned(), -1099), ("liabilities:unallocated".to_owned(), 0)];
        assert_eq!(balances(&stage).await, wanted);
    }
}

#[tokio::test]
async fn each_step_of_a_payment_posts_what_the_table_says_and_all_of_them_its_last_position_in_any_order() {
    let whole = Position { captured_minor: 2200, settled_minor: 1099, tip_minor: 200, ..Position::default() };
    let steps = [
        Position::default(),
        Position { captured_minor: 1000, ..Position::default() },
        whole,
        Position { refund_pending_minor: 901, ..whole },
        Position { refunded_minor: 1000, ..whole },
        Position { refunded_minor: 1000, disputed_minor: 1200, ..whole },
        Position { refunded_minor: 1000, charged_back_minor: 1200, ..whole },
    ];
    let events: Vec<Event> = steps.windows(2).map(|pair| aside(pair[0], pair[1])).collect();
    let wanted = [
        ("assets:disputed:stripe", 0),
        ("assets:receivable:stripe", 0),
        ("expenses:chargebacks", 1200),
        ("income:refunds", 99), // 901 belonged to nobody and went first
        ("income:sales", -1099),
        ("income:tips", -200),
        ("liabilities:refunds_pending", 0),
        ("liabilities:unallocated", 0),
    ];
    for reversed in [false, true] {
        let stage = Stage::with_schema().await;
        let mut order: Vec<&Event> = events.iter().collect();
        if reversed {
            order.reverse();
        }
        for event in order {
            posted(&stage, &[event]).await;
        }
        assert_eq!(balances(&stage).await, wanted.map(|(account, minor)| (account.to_owned(), minor)));
    }
}

#[tokio::test]
async fn lines_that_do_not_sum_to_zero_and_entries_without_lines_are_refused_at_commit() {
    let pool = Stage::with_schema().await.pool();
    let entry = "INSERT INTO ledger_entries (source_event_id, order_id, payment_provider, payment_account, payment_id, topic, occurred_at)
        VALUES (gen_random_uuid(), gen_random_uuid(), 'stripe', '', 'pi', 'order.paid', now()) RETURNING id";
    for lines in ["", "VALUES ({}, 'a', 5, 'EUR'), ({}, 'b', -4, 'EUR')", "VALUES ({}, 'a', 5, 'EUR'), ({}, 'b', -5, 'USD')"] {
        let mut tx = pool.begin().await.unwrap();
        let id: i64 = sqlx::query_scalar(entry).fetch_one(&mut *tx).await.unwrap();
        if !lines.is_empty() {
            let lines = format!("INSERT INTO ledger_lines {}", lines.replace("{}", &id.to_string()));
            sqlx::raw_sql(sqlx::AssertSqlSafe(lines)).execute(&mut *tx).await.unwrap();
        }
        let refused = tx.commit().await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().constraint(), Some("ledger_entry_balances"), "{lines}");
    }
}

#[tokio::test]
async fn the_books_are_append_only_by_trigger_and_by_permission() {
    let stage = Stage::with_schema().await;
    posted(&stage, &[&paid(at(0, 0))]).await;
    for change in [
        "UPDATE ledger_lines SET amount_minor = 0",
        "DELETE FROM ledger_lines",
        "TRUNCATE ledger_lines",
        "UPDATE ledger_entries SET topic = 'x'",
        "DELETE FROM ledger_entries",
    ] {
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(change)).execute(&stage.pool()).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("42501"), "{change}");
    }
    let may: bool = sqlx::query_scalar(
        "SELECT bool_or(privilege_type IN ('UPDATE', 'DELETE', 'TRUNCATE')) FROM information_schema.table_privileges WHERE table_name LIKE 'ledger_%'",
    )
    .fetch_one(&stage.pool())
    .await
    .unwrap();
    assert!(!may);
}
