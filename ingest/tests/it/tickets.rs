//! Draws, orders with tickets, and guests who claim their orders, over HTTP.

use counterfoil_tests::fleet::TOKEN;
use counterfoil_tests::{Fleet, Shop, Stage, stripe_event};
use futures_util::future::join_all;
use serde_json::{Value, json};

async fn call(shop: &Shop, method: &str, path: &str, body: &Value, bearer: Option<&str>) -> (u16, Value) {
    let request = shop.client.request(method.parse().unwrap(), format!("{}{path}", shop.base)).json(body);
    let request = if let Some(token) = bearer { request.bearer_auth(token) } else { request };
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

async fn post(shop: &Shop, path: &str, body: Value) -> (u16, Value) {
    call(shop, "POST", path, &body, Some(TOKEN)).await
}

fn tickets(reference: &str, draw: &str, quantity: i64) -> Value {
    json!({ "reference": reference, "amount_minor": 500 * quantity, "currency": "EUR", "customer": { "email": "ann@example.com", "name": "Ann" },
        "lines": [{ "description": "Tickets", "quantity": quantity, "amount_minor": 500 * quantity, "draw": draw }] })
}

#[tokio::test]
async fn a_draw_is_made_changed_and_its_availability_read_by_anybody() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let body = json!({ "reference": "D-1", "name": "Autumn draw", "capacity": 10, "order_limit": 6, "charity": "1/3" });
    let (status, made) = post(&shop, "/draws", body.clone()).await;
    assert_eq!((status, &made["available"], &made["state"]), (201, &json!(10), &json!("open")));
    assert_eq!(post(&shop, "/draws", body.clone()).await.0, 409, "its reference is taken");
    assert_eq!(call(&shop, "POST", "/draws", &body, None).await.0, 401);
    assert_eq!(post(&shop, "/draws", json!({ "name": "x", "capacity": -1 })).await.0, 422);
    assert_eq!(shop.post_order(&tickets("A-1", "D-1", 4), None).await.status(), 201);
    for name in ["D-1", made["id"].as_str().unwrap()] {
        let (status, seen) = call(&shop, "GET", &format!("/draws/{name}"), &json!({}), None).await;
        assert_eq!((status, &seen["available"], &seen["capacity"]), (200, &json!(6), &json!(10)));
    }
    assert_eq!(call(&shop, "GET", "/draws/D-2", &json!({}), None).await.0, 404);
    assert_eq!(call(&shop, "PATCH", "/draws/D-1", &json!({ "capacity": 3 }), Some(TOKEN)).await.0, 409, "four are reserved");
    let (status, changed) = call(&shop, "PATCH", "/draws/D-1", &json!({ "capacity": null, "closes_at": "2020-01-01T00:00:00Z" }), Some(TOKEN)).await;
    assert_eq!((status, &changed["available"], &changed["state"]), (200, &Value::Null, &json!("closed")));
    let late = shop.post_order(&tickets("A-2", "D-1", 1), None).await;
    let status = late.status();
    let late: Value = late.json().await.unwrap();
    assert_eq!((status.as_u16(), &late["reason"]), (409, &json!("closed")), "{late}");
}

#[tokio::test]
async fn a_sold_out_request_hears_what_is_left_and_makes_nothing() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw", "capacity": 5, "order_limit": 4 })).await;
    let made: Value = shop.post_order(&tickets("A-1", "D", 3), None).await.json().await.unwrap();
    assert_eq!((&made["reservations"][0]["status"], &made["reservations"][0]["quantity"]), (&json!("held"), &json!(3)));
    let refused = shop.post_order(&tickets("A-2", "D", 3), Some("key")).await;
    assert_eq!(refused.status(), 409);
    let refused: Value = refused.json().await.unwrap();
    assert_eq!((&refused["left"], &refused["reason"], &refused["draw"]), (&json!(2), &json!("sold_out"), &json!("D")), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("only 2 tickets of D are left"));
    assert_eq!(shop.post_order(&tickets("A-3", "D", 5), None).await.status(), 422, "over the limit of one order");
    assert_eq!(shop.post_order(&tickets("A-3", "E", 1), None).await.status(), 422, "no such draw");
    let mut null = tickets("A-3", "D", 1);
    null["lines"][0]["draw"] = Value::Null;
    assert_eq!(shop.post_order(&null, None).await.status(), 422, "a draw that is named names one");
    let mut wrong = tickets("A-3", "D", 1);
    wrong["amount_minor"] = json!(1);
    assert_eq!(shop.post_order(&wrong, None).await.status(), 422, "lines and amount differ");
    assert_eq!(stage.count("SELECT count(*) FROM orders").await, 1);
    assert_eq!(shop.post_order(&tickets("A-2", "D", 2), Some("key")).await.status(), 201, "a refused call has not used its key");
    assert_eq!(stage.count("SELECT reserved FROM draws").await, 5);
}

#[tokio::test]
async fn five_hundred_orders_at_once_on_two_replicas_share_commits_and_never_oversell() {
    let stage = Stage::with_schema().await;
    let fleet = Fleet::on(&stage);
    let ((ingest, shop), (_other, second)) = (fleet.ingest().await, fleet.ingest().await);
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw", "capacity": 300 })).await;
    let answers = join_all((0..500).map(async |nth| {
        let shop = if nth % 2 == 0 { &shop } else { &second };
        shop.post_order(&tickets(&format!("A-{nth}"), "D", 1), None).await.status().as_u16()
    }))
    .await;
    let made = answers.iter().filter(|status| **status == 201).count();
    assert_eq!((made, answers.iter().filter(|status| **status == 409).count()), (300, 200), "{answers:?}");
    assert_eq!(stage.count("SELECT count(*) FROM orders").await, 300);
    assert_eq!(stage.count("SELECT sum(quantity)::bigint FROM reservations WHERE status = 'held'").await, 300);
    let metrics = ingest.metrics().await;
    let number = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)).and_then(|rest| rest.trim().parse::<f64>().ok()).unwrap();
    let (orders, batches) = (number("counterfoil_checkout_batch_size_sum"), number("counterfoil_checkout_batch_size_count"));
    assert!(orders >= 250.0 && batches < orders / 2.0, "{orders} orders in {batches} commits");
}

#[tokio::test]
async fn the_same_key_or_reference_many_times_at_once_makes_one_order_and_reserves_once() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw", "capacity": 50 })).await;
    let body = tickets("K", "D", 2);
    let answers = join_all((0..40).map(|nth| shop.post_order(&body, (nth % 2 == 0).then_some("key")))).await;
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status().as_u16()).collect();
    assert!(statuses.iter().all(|status| [201, 409].contains(status)), "{statuses:?}");
    assert_eq!((stage.count("SELECT count(*) FROM orders").await, stage.count("SELECT reserved FROM draws").await), (1, 2));
    let mut other = body.clone();
    other["lines"][0]["draw"] = json!("E");
    let known = stage.count("SELECT count(*) FROM idempotency_keys").await;
    assert_eq!(shop.post_order(&other, Some("key")).await.status(), if known == 1 { 422 } else { 409 }, "another draw is another request");
}

#[tokio::test]
async fn cancelling_gives_the_places_back_at_once() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw", "capacity": 2 })).await;
    let made: Value = shop.post_order(&tickets("A", "D", 2), None).await.json().await.unwrap();
    let (status, cancelled) = shop.post(made["id"].as_str().unwrap(), "cancel", &json!({}), None, true).await;
    assert_eq!((status, &cancelled["reservations"][0]["status"], &cancelled["reservations"][0]["reason"]), (200, &json!("released"), &json!("cancelled")));
    assert_eq!(call(&shop, "GET", "/draws/D", &json!({}), None).await.1["available"], json!(2));
}

#[tokio::test]
async fn a_place_expires_by_the_databases_clock_while_its_order_stays_payable() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw", "capacity": 2 })).await;
    let mut body = tickets("A", "D", 2);
    body["reserve_for_s"] = json!(1);
    let made: Value = shop.post_order(&body, None).await.json().await.unwrap();
    counterfoil_tests::until("the places are free", 10, json!(2), async || call(&shop, "GET", "/draws/D", &json!({}), None).await.1["available"].clone()).await;
    assert_eq!(shop.post_order(&tickets("B", "D", 2), None).await.status(), 201);
    let read: Value = shop.read("A").await.json().await.unwrap();
    assert_eq!((&read["status"], &read["reservations"][0]["status"]), (&json!("pending_payment"), &json!("released")));
    let paid = stripe_event("payment_intent.succeeded", made["id"].as_str().unwrap(), "pi_A", &json!({ "amount": 1000, "amount_received": 1000 }));
    assert_eq!(shop.stripe(&paid).await, (200, "applied".to_owned()), "late money is taken; whoever mints looks for a place");
}

#[tokio::test]
async fn a_guests_contact_comes_from_the_verified_payload() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let guest = json!({ "reference": "G", "amount_minor": 1099, "currency": "EUR" });
    let made: Value = shop.post_order(&guest, None).await.json().await.unwrap();
    let details = json!({ "customer_details": { "email": "guest@example.com", "name": "Gwen Guest", "phone": "+49301234" } });
    shop.stripe(&stripe_event("checkout.session.completed", made["id"].as_str().unwrap(), "pi_G", &details)).await;
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE customer_email = 'guest@example.com' AND customer_name = 'Gwen Guest' AND customer_phone = '+49301234' AND customer_id IS NULL").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid' AND payload #>> '{customer,email}' = 'guest@example.com'").await, 1);
}

#[tokio::test]
async fn a_guest_claims_an_order_once_with_its_tickets_and_receipts_and_nobody_else_can() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw" })).await;
    let order: Value = shop.post_order(&tickets("A", "D", 2), None).await.json().await.unwrap();
    let (status, issued) = shop.post("A", "claim-token", &json!({}), None, true).await;
    let token = issued["token"].as_str().unwrap();
    let (_, second) = shop.post("A", "claim-token", &json!({}), None, true).await;
    assert_eq!(status, 200);
    assert!(!token.contains("ann") && !token.contains(order["id"].as_str().unwrap()), "nothing personal, not even the order");
    assert_eq!(shop.post("A", "claim-token", &json!({}), None, false).await.0, 401);
    let claim = async |token: &str, customer: &str| post(&shop, "/claims", json!({ "token": token, "customer_id": customer })).await;
    let mut altered = token.to_owned();
    altered.replace_range(8..9, if &altered[8..9] == "A" { "B" } else { "A" });
    assert_eq!(claim(&altered, "cus_eve").await.0, 400);
    assert_eq!(call(&shop, "POST", "/claims", &json!({ "token": token, "customer_id": "cus_eve" }), None).await.0, 401, "a stolen token alone is no use");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE customer_id IS NOT NULL").await, 0);
    let at_once = join_all((0..10).map(|_| claim(token, "cus_ann"))).await;
    assert!(at_once.iter().all(|(status, _)| *status == 200), "the same customer, as often as they like");
    assert_eq!((&at_once[0].1["order"]["customer_id"], &at_once[0].1["order"]["reservations"][0]["quantity"]), (&json!("cus_ann"), &json!(2)));
    let (status, refused) = claim(token, "cus_eve").await;
    assert_eq!(status, 403);
    assert!(!refused.to_string().contains("cus_ann"), "whose it is stays untold: {refused}");
    assert_eq!(claim(second["token"].as_str().unwrap(), "cus_eve").await.0, 409, "the order is somebody's");
    assert_eq!(shop.post("A", "claim-token", &json!({}), None, true).await.0, 409, "no token is made that could not work");
    let (_, meant) = shop.post("A", "claim-token", &json!({ "customer_id": "cus_ann" }), None, true).await;
    assert_eq!(claim(meant["token"].as_str().unwrap(), "cus_eve").await.0, 403);
    let (_, short) = shop.post("A", "claim-token", &json!({ "customer_id": "cus_ann", "expires_in_s": 1 }), None, true).await;
    counterfoil_tests::until("it has expired", 10, 1, async || stage.count("SELECT count(*) FROM claim_tokens WHERE expires_at <= now()").await).await;
    assert_eq!(claim(short["token"].as_str().unwrap(), "cus_ann").await.0, 410);
    assert_eq!(claim(token, "cus_ann").await.0, 200, "a repeat");
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE customer_id = 'cus_ann'").await, 1);
}

#[tokio::test]
async fn two_customers_with_one_token_at_the_same_instant_one_gets_it() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    for nth in 0..10 {
        let reference = format!("A-{nth}");
        shop.order_named(&reference).await;
        let (_, issued) = shop.post(&reference, "claim-token", &json!({}), None, true).await;
        let claims = join_all(["cus_a", "cus_b"].map(|customer| post(&shop, "/claims", json!({ "token": issued["token"], "customer_id": customer })))).await;
        let mut statuses: Vec<u16> = claims.iter().map(|(status, _)| *status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 403]);
    }
}

#[tokio::test]
async fn tokens_outlive_a_rotation_and_not_the_removal_of_their_key() {
    let stage = Stage::with_schema().await;
    let (old, new) = ("old:0123456789abcdef0123456789abcdef", "new:fedcba9876543210fedcba9876543210");
    let (first, shop) = Fleet::on(&stage).with("COUNTERFOIL_CLAIM_KEYS", old).ingest().await;
    shop.order_named("A").await;
    let (_, issued) = shop.post("A", "claim-token", &json!({}), None, true).await;
    drop(first);
    for (list, status) in [(format!("{new},{old}"), 200), (new.to_owned(), 400)] {
        let (_ingest, shop) = Fleet::on(&stage).with("COUNTERFOIL_CLAIM_KEYS", list).ingest().await;
        assert_eq!(post(&shop, "/claims", json!({ "token": issued["token"], "customer_id": "cus_ann" })).await.0, status);
    }
}

#[tokio::test]
async fn a_process_killed_before_or_after_the_commit_of_its_orders_reserves_nothing_or_once_and_the_key_tells() {
    for (point, kept) in [("keyed.before_commit", 0), ("keyed.after_commit", 2)] {
        let stage = Stage::with_schema().await;
        stage.execute("INSERT INTO draws (reference, name, capacity) VALUES ('D', 'Draw', 5)").await;
        let (mut doomed, shop) = Fleet::on(&stage).with("COUNTERFOIL_FAULT", point).ingest().await;
        let body = tickets("A", "D", 2);
        let sent = shop.client.post(format!("{}/orders", shop.base)).bearer_auth(TOKEN).header("Idempotency-Key", "key").json(&body).send().await;
        assert!(sent.is_err(), "no answer");
        assert_eq!(doomed.ended().await, None);
        assert_eq!(stage.count("SELECT reserved FROM draws").await, kept, "{point}");
        let (_ingest, shop) = Fleet::on(&stage).ingest().await;
        assert_eq!(shop.post_order(&body, Some("key")).await.status(), 201);
        assert_eq!((stage.count("SELECT reserved FROM draws").await, stage.count("SELECT count(*) FROM orders").await), (2, 1), "{point}");
    }
}

#[tokio::test]
async fn a_payment_that_came_before_its_order_confirms_its_places_and_the_answer_says_so() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    post(&shop, "/draws", json!({ "reference": "D", "name": "Draw", "capacity": 2 })).await;
    let event = stripe_event("payment_intent.succeeded", "early", "pi_1", &json!({ "amount": 1000, "amount_received": 1000 }));
    assert_eq!(shop.stripe(&event).await.1, "waiting");
    let made: Value = shop.post_order(&tickets("early", "D", 2), None).await.json().await.unwrap();
    assert_eq!((&made["status"], &made["reservations"][0]["status"]), (&json!("paid"), &json!("confirmed")));
    let linked = "SELECT count(*) FROM payment_chain WHERE webhook_event_id = '";
    let id = event["id"].as_str().unwrap();
    let chain: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("{linked}{id}' AND reference = 'early'"))).fetch_one(&stage.pool()).await.unwrap();
    assert!(chain > 0, "an event that waited is part of the chain, too");
}
