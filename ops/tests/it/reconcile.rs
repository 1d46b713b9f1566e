//! `counterfoil reconcile`.

use counterfoil_tests::simulator::Payment;
use counterfoil_tests::{Fleet, Simulator, Stage, stripe_event};
use serde_json::json;

#[tokio::test]
async fn reconcile_says_what_it_would_change_changes_it_for_real_and_finds_nothing_the_second_time() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let fleet = Fleet::on(&stage).with_simulator(&simulator);
    let (_ingest, shop) = fleet.ingest().await;
    let order = shop.order().await;
    shop.stripe(&stripe_event("payment_intent.processing", &order, "pi_1", &json!({}))).await;
    simulator.captured("stripe", "pi_1", &order, 1099);
    let (code, said) = fleet.counterfoil(&["reconcile", "--pending-for", "0s", "--dry-run"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stripe pi_1 is captured: applied") && said.contains("1 facts would change something"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 0);
    assert_eq!(stage.count("SELECT count(*) FROM provider_reads").await, 0, "a dry run leaves no trace");
    let (_, said) = fleet.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    assert!(said.contains("1 facts changed something"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 1);
    let (_, said) = fleet.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    assert!(said.contains("0 orders were asked about"), "{said}");
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await.1, "superseded", "the webhook comes after all");
    assert_eq!(stage.count("SELECT count(*) FROM outbox").await, 1);
}

#[tokio::test]
async fn a_reported_refund_whose_own_event_never_came_is_looked_up_and_a_session_leads_to_its_payment() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let fleet = Fleet::on(&stage).with_simulator(&simulator);
    let (_ingest, shop) = fleet.ingest().await;
    let order = shop.order().await;
    simulator.captured("stripe", "pi_1", &order, 1099);
    shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await;
    simulator.refund_by_hand("stripe", "pi_1", 99);
    shop.stripe(&stripe_event("charge.refunded", &order, "pi_1", &json!({ "amount_refunded": 99 }))).await;
    stage.execute("UPDATE payments SET updated_at = now() - interval '1 minute'").await;
    let by_session = shop.order().await;
    let session = Payment {
        provider: "stripe".into(),
        id: "pi_2".into(),
        amount: 1099,
        currency: "EUR".into(),
        order: Some(by_session.clone()),
        status: "captured".into(),
        session: Some("cs_2".into()),
        ..Payment::default()
    };
    simulator.put(session);
    shop.post(&by_session, "session", &json!({ "provider": "stripe", "id": "cs_2" }), None, true).await;
    let (code, said) = fleet.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("more was refunded than we know of"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'partially_refunded'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 1);
}

/// What a provider is read for is what moved: not its status, a session's price, or the id that the shop happened to tell of.
#[tokio::test]
async fn what_was_captured_is_read_from_the_payment_at_every_provider() {
    let (stage, simulator) = (Stage::with_schema().await, Simulator::start().await);
    let fleet = Fleet::on(&stage).with_simulator(&simulator);
    let (_ingest, shop) = fleet.ingest().await;
    let put = |provider: &str, id: &str, order: &str, amount: i64, status: &str, session: &str, authorised: i64, tip: i64| {
        let session = (!session.is_empty()).then(|| session.to_owned());
        simulator.put(Payment {
            provider: provider.into(),
            id: id.into(),
            amount,
            currency: "EUR".into(),
            order: Some(order.into()),
            status: status.into(),
            session,
            authorised,
            tip,
        });
    };
    let (never, part, link, rest) = (shop.order().await, shop.order().await, shop.order().await, shop.order().await);
    // Authorised at Razorpay, given back before it was captured: its status says refunded.
    put("razorpay", "pay_1", &never, 1099, "voided", "order_1", 0, 0);
    shop.post(&never, "session", &json!({ "provider": "razorpay", "id": "order_1" }), None, true).await;
    // 500 of 1099 captured; the session says paid, and its price.
    put("stripe", "pi_1", &part, 500, "captured", "cs_1", 1099, 0);
    shop.post(&part, "session", &json!({ "provider": "stripe", "id": "cs_1" }), None, true).await;
    // Paid by a payment link of Square, with a tip: the shop knows the link's order.
    put("square", "sq_1", &link, 1099, "captured", "sqo_1", 0, 200);
    shop.post(&link, "session", &json!({ "provider": "square", "id": "sqo_1" }), None, true).await;
    // 2000 authorised, 1099 captured, and the rest is listed as a refund.
    put("stripe", "pi_2", &rest, 1099, "captured", "cs_2", 2000, 0);
    shop.post(&rest, "session", &json!({ "provider": "stripe", "id": "cs_2" }), None, true).await;
    simulator.refund_by_hand("stripe", "pi_2", 901);
    let (code, said) = fleet.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    assert_eq!(code, Some(0), "{said}");
    shop.stripe(&stripe_event("charge.refunded", &rest, "pi_2", &json!({ "amount": 2000, "amount_refunded": 902 }))).await;
    stage.execute("UPDATE payments SET updated_at = now() - interval '1 minute'; UPDATE provider_reads SET next_read_at = now()").await;
    let (_, again) = fleet.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    let of = async |order: &str| {
        let text = format!(
            "SELECT o.status || ' ' || COALESCE(string_agg(p.status || ' ' || p.amount_minor || ' ' || p.settled_minor || ' ' || p.tip_minor, ','), '') FROM orders o LEFT JOIN payments p ON p.order_id = o.id WHERE o.id = '{order}' GROUP BY o.status"
        );
        sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(text)).fetch_one(&stage.pool()).await.unwrap()
    };
    assert_eq!(of(&never).await, "pending_payment cancelled 1099 0 0", "{said}");
    assert_eq!(of(&part).await, "pending_payment captured 500 0 0", "{said}");
    assert_eq!(of(&link).await, "paid captured 1299 1099 200", "{said}");
    assert_eq!(of(&rest).await, "paid captured 1099 1099 0", "{said}{again}");
    assert_eq!(stage.count("SELECT count(*) FROM refunds").await, 0, "{said}{again}");
    assert_eq!(shop.refund(&rest, 1099, "k").await.0, 201, "all that was captured can go back");
}

#[tokio::test]
async fn a_provider_that_is_away_or_not_configured_is_said_and_put_off() {
    let stage = Stage::with_schema().await;
    let away = Fleet::on(&stage).with("COUNTERFOIL_STRIPE_API_KEY", "sk").with("COUNTERFOIL_STRIPE_API_URL", "http://127.0.0.1:9");
    let (_ingest, shop) = away.ingest().await;
    let order = shop.order().await;
    shop.stripe(&stripe_event("payment_intent.processing", &order, "pi_1", &json!({}))).await;
    let (code, said) = away.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    assert!(code == Some(0) && said.contains("stripe cannot be reached"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM provider_reads WHERE last_error LIKE 'stripe cannot%' AND next_read_at > now()").await, 1);
    let (code, said) = Fleet::on(&stage).counterfoil(&["reconcile", "--order", &order, "--dry-run"]).await;
    assert!(code == Some(1) && said.contains("COUNTERFOIL_STRIPE_API_KEY"), "{said}");
    let other = Fleet::on(&stage).with("COUNTERFOIL_SQUARE_API_KEY", "k");
    let (_, said) = other.counterfoil(&["reconcile", "--order", &order, "--dry-run"]).await;
    assert!(said.contains("COUNTERFOIL_STRIPE_API_KEY is not set"), "{said}");
    let bare = shop.order().await;
    let (_, said) = away.counterfoil(&["reconcile", "--order", &bare, "--dry-run"]).await;
    assert!(said.contains("nothing to ask with"), "{said}");
    let (code, said) = away.counterfoil(&["reconcile", "--order", "nothing"]).await;
    assert!(code == Some(1) && said.contains("nothing"), "{said}");
}
