//! `counterfoil backfill`.

use std::time::{SystemTime, UNIX_EPOCH};

use counterfoil_tests::{Fleet, Stage, stripe_event};
use serde_json::{Value, json};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn at(mut event: Value, days_ago: u64) -> Value {
    event["created"] = json!(now() - days_ago * 86_400);
    event
}

fn file(name: &str, events: &[Value]) -> String {
    let folder = counterfoil_tests::stage::root().join(".local/test-log");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}-{}.jsonl", std::process::id()));
    std::fs::write(&path, events.iter().map(|event| format!("{event}\n")).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn backfill_marks_what_was_settled_before_announces_nothing_and_later_copies_are_known() {
    let stage = Stage::with_schema().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let (old, older, live) = (shop.order().await, shop.order().await, shop.order().await);
    shop.stripe(&stripe_event("payment_intent.succeeded", &live, "pi_live", &json!({}))).await;
    let refund = |of: &str| json!({ "id": format!("re_{of}"), "payment_intent": of, "amount": 99, "status": "succeeded", "metadata": {} });
    let captured = at(stripe_event("payment_intent.succeeded", &old, "pi_old", &json!({})), 20);
    let events = [
        captured.clone(),
        at(stripe_event("charge.succeeded", &old, "pi_old", &json!({})), 20),
        at(stripe_event("refund.created", &old, "pi_old", &refund("pi_old")), 10),
        at(stripe_event("payment_intent.succeeded", &older, "pi_older", &json!({})), 40),
        at(stripe_event("payment_intent.succeeded", "foreign", "pi_foreign", &json!({})), 5),
        at(stripe_event("refund.created", &live, "pi_live", &refund("pi_live")), 1),
        json!({ "not": "an event" }),
    ];
    let path = file("backfill", &events);
    let arguments = ["backfill", "--provider", "stripe", "--since", "30d", "--from", path.as_str()];
    let before = stage.count("SELECT count(*) FROM webhook_events").await;
    let (code, said) = fleet.counterfoil(&[&arguments[..], &["--dry-run"]].concat()).await;
    assert_eq!(code, Some(1), "one line cannot be read: {said}");
    assert!(said.contains("paid by stripe::pi_old, 10.99 EUR") && said.contains("nothing was changed") && said.contains("older than --since"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events").await, before);
    let (_, said) = fleet.counterfoil(&arguments).await;
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'partially_refunded'").await, 2, "the old one and the live one: {said}");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE paid_at < now() - interval '19 days'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'pending_payment'").await, 1, "older than --since");
    let sent: Vec<String> = sqlx::query_scalar("SELECT topic FROM outbox WHERE published_at IS NULL ORDER BY id").fetch_all(&stage.pool()).await.unwrap();
    assert_eq!(sent, ["order.paid", "order.refunded"], "of the live payment alone: no receipt goes out again");
    // Copies that the provider still sends are known, another type of the same payment is superseded.
    assert_eq!(shop.stripe(&captured).await.1, "duplicate");
    assert_eq!(shop.stripe(&stripe_event("checkout.session.completed", &old, "pi_old", &json!({}))).await.1, "superseded");
    assert_eq!(shop.stripe(&events[4]).await.1, "waiting", "its order is not here: it was not recorded");
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL").await, 2);
    let (_, said) = fleet.counterfoil(&arguments).await;
    assert!(said.contains("5  skipped: known already") && !said.contains("paid by"), "{said}");
    let (_, trail) = fleet.counterfoil(&["trail", &old]).await;
    assert!(trail.contains("recorded by backfill: not sent") && trail.contains("not expected (backfill)") && !trail.contains("waiting"), "{trail}");
}

#[tokio::test]
async fn backfilled_money_is_in_neither_sum_of_the_books_and_a_run_that_was_killed_goes_on() {
    let stage = Stage::new().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let mut events = Vec::new();
    for n in 0..200 {
        let order = shop.order().await;
        events.push(at(stripe_event("payment_intent.succeeded", &order, &format!("pi_{n}"), &json!({})), 3));
    }
    let (half, all) = (file("half", &events[..90]), file("all", &events));
    for path in [half, all] {
        let (code, said) = fleet.counterfoil(&["backfill", "--provider", "stripe", "--from", &path]).await;
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 200);
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL").await, 0);
    let (code, said) = fleet.counterfoil(&["ledger", "check", "--settled-s", "0"]).await;
    assert_eq!((code, said.contains("agree")), (Some(0), true), "{said}");
}

#[tokio::test]
async fn backfilled_money_that_moves_on_live_keeps_the_books_right_and_a_late_address_brings_no_receipt() {
    let stage = Stage::new().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let _fleet = (fleet.relay().ready().await, fleet.consumer("ledger").ready().await);
    stage.execute("INSERT INTO orders (reference, amount_minor, currency) VALUES ('old', 1099, 'EUR')").await;
    let refund = |id: &str, status: &str| json!({ "id": id, "payment_intent": "pi_old", "amount": 99, "status": status, "metadata": {} });
    let dispute = |status: &str| json!({ "id": "dp_1", "payment_intent": "pi_old", "amount": 7, "status": status, "metadata": {} });
    let events = [
        at(stripe_event("payment_intent.succeeded", "old", "pi_old", &json!({})), 9),
        at(stripe_event("refund.created", "old", "pi_old", &refund("re_1", "pending")), 8),
        at(stripe_event("refund.created", "old", "pi_old", &refund("re_2", "succeeded")), 8),
        at(stripe_event("charge.dispute.created", "old", "pi_old", &dispute("needs_response")), 8),
    ];
    let (code, said) = fleet.counterfoil(&["backfill", "--provider", "stripe", "--from", &file("moves-on", &events)]).await;
    assert_eq!(code, Some(0), "{said}");
    for (kind, object) in
        [("refund.updated", refund("re_1", "succeeded")), ("refund.failed", refund("re_2", "failed")), ("charge.dispute.closed", dispute("won"))]
    {
        assert_eq!(shop.stripe(&stripe_event(kind, "old", "pi_old", &object)).await.1, "applied");
    }
    counterfoil_tests::until("all is booked", 30, 3, async || stage.count("SELECT count(*) FROM ledger_entries").await).await;
    let (code, said) = fleet.counterfoil(&["ledger", "check", "--settled-s", "0"]).await;
    assert_eq!(code, Some(0), "{said}");
    let address = json!({ "customer_details": { "email": "late@example.com" } });
    shop.stripe(&stripe_event("checkout.session.completed", "old", "pi_old", &address)).await;
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE customer_email = 'late@example.com'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic IN ('order.paid', 'order.contact_known') AND last_error IS NULL").await, 0);
}

#[tokio::test]
async fn whoever_paid_for_tickets_before_a_backfill_gets_the_numbers_and_nothing_else_is_announced() {
    let stage = Stage::new().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    stage.execute("INSERT INTO draws (reference, name) VALUES ('D', 'Draw')").await;
    let body = json!({ "reference": "A", "amount_minor": 1099, "currency": "EUR", "customer": { "email": "ann@example.com", "name": "Ann" },
        "lines": [{ "description": "Tickets", "quantity": 2, "amount_minor": 1099, "draw": "D" }] });
    assert_eq!(shop.post_order(&body, None).await.status(), 201);
    let path = file("tickets", &[at(stripe_event("payment_intent.succeeded", "A", "pi_A", &json!({})), 3)]);
    let (code, said) = fleet.counterfoil(&["backfill", "--provider", "stripe", "--from", path.as_str()]).await;
    assert_eq!(code, Some(0), "{said}");
    let _processes = [fleet.relay().ready().await, fleet.consumer("tickets").ready().await, fleet.consumer("ledger").ready().await];
    counterfoil_tests::until("the numbers are given out", 20, 1, async || stage.count("SELECT count(*) FROM tickets").await).await;
    counterfoil_tests::until("they are told", 20, 0, async || stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL").await).await;
    assert_eq!(stage.waiting("counterfoil.email").await, 1, "the numbers alone, no receipt");
    assert_eq!(stage.count("SELECT count(*) FROM ledger_entries").await, 0);
}
