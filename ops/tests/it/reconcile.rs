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
    };
    simulator.put(session);
    shop.post(&by_session, "session", &json!({ "provider": "stripe", "id": "cs_2" }), None, true).await;
    let (code, said) = fleet.counterfoil(&["reconcile", "--pending-for", "0s"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("more was refunded than we know of"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'partially_refunded'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 1);
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
