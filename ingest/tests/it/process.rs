//! Start, stop, and what a log may hold.

use counterfoil_tests::{Child, Fleet, Stage, stripe_event};
use serde_json::json;

#[tokio::test]
async fn a_configuration_that_cannot_work_lists_every_problem_and_exits_with_64() {
    let settings = [
        ("COUNTERFOIL_LISTEN", "nowhere".to_owned()),
        ("COUNTERFOIL_STRIPE_SECRETS", "whsec_a, whsec_b".into()),
        ("COUNTERFOIL_SQUARE_SECRETS", "k".into()),
        ("COUNTERFOIL_API_TOKENS", "x".into()),
    ];
    let mut ingest = Child::start("counterfoil-ingest", &[], &settings);
    assert_eq!(ingest.ended().await, Some(64));
    let said = ingest.logged();
    for variable in ["DATABASE_URL", "LISTEN", "MODE", "API_TOKENS", "STRIPE_SECRETS", "SQUARE_SECRETS"] {
        assert!(said.contains(&format!("COUNTERFOIL_{variable}:")), "{variable} in {said}");
    }
    assert!(!said.contains("whsec_a"), "no secret is repeated: {said}");
}

#[tokio::test]
async fn a_secret_is_read_from_the_file_that_its_file_variable_names() {
    let stage = Stage::with_schema().await;
    let path = counterfoil_tests::stage::root().join(format!(".local/secret-{}", uuid::Uuid::new_v4()));
    std::fs::write(&path, format!("{}\n", counterfoil_tests::fleet::STRIPE_SECRET)).unwrap();
    let mut fleet = Fleet::on(&stage).with("COUNTERFOIL_STRIPE_SECRETS_FILE", path.to_str().unwrap());
    fleet.without.push("COUNTERFOIL_STRIPE_SECRETS");
    let (_ingest, shop) = fleet.ingest().await;
    assert_eq!(shop.stripe(&stripe_event("customer.created", "x", "pi", &json!({}))).await, (200, "ignored".into()));
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn sigterm_ends_with_0_and_without_tokens_the_order_api_is_off_and_says_so() {
    let stage = Stage::with_schema().await;
    let (mut ingest, shop) = Fleet::on(&stage).with("COUNTERFOIL_API_TOKENS", "").ingest().await;
    assert_eq!(shop.read("x").await.status(), 404);
    ingest.signal("TERM");
    assert_eq!(ingest.ended().await, Some(0));
    assert!(ingest.logged().contains("the order API is off"), "{}", ingest.logged());
}

#[tokio::test]
async fn no_secret_and_no_customer_data_is_in_the_log_at_any_level() {
    let stage = Stage::with_schema().await;
    let (ingest, shop) = Fleet::on(&stage).with("COUNTERFOIL_LOG", "trace").ingest().await;
    let order = json!({ "reference": "canary-ref", "amount_minor": 1099, "currency": "EUR", "customer": { "email": "canary@example.com", "name": "Canary Name", "phone": "+15550canary" } });
    assert_eq!(shop.post_order(&order, Some("canary-key")).await.status(), 201);
    let details = json!({ "customer_details": { "email": "canary@example.com", "name": "Canary Name" } });
    assert_eq!(shop.stripe(&stripe_event("checkout.session.completed", "canary-ref", "pi_1", &details)).await.0, 200);
    assert_eq!(shop.stripe_bytes(b"{\"name\":\"Canary Name\"".to_vec()).await.0, 200);
    let bad =
        shop.client.post(format!("{}/webhooks/stripe", shop.base)).header("Stripe-Signature", "t=1,v1=cafecanary").body("Canary Name").send().await.unwrap();
    assert_eq!(bad.status(), 401);
    let log = ingest.logged();
    assert!(log.contains("delivery settled"), "{log}");
    for canary in [
        "canary@example.com",
        "Canary Name",
        "15550canary",
        "cafecanary",
        counterfoil_tests::fleet::STRIPE_SECRET,
        "0123456789abcdef0123",
        "counterfoil:counterfoil@",
    ] {
        assert!(!log.contains(canary), "{canary} is in the log");
    }
}
