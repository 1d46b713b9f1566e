//! What the CRM gets: current state, under a key, to one host only.

use counterfoil_tests::{paid_event, until};
use serde_json::Value;
use uuid::Uuid;

use crate::support::Bench;

#[tokio::test]
async fn a_contact_is_upserted_by_a_stable_id_with_the_events_id_as_idempotency_key() {
    let bench = Bench::of("crm").await;
    let _consumer = bench.start();
    let (event, email) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    bench.done(&event).await;
    let seen = bench.crm.seen().remove(0);
    let head = seen.head.to_ascii_lowercase();
    assert!(head.contains(&format!("idempotency-key: {}", event["id"].as_str().unwrap())) && head.contains("authorization: bearer crm-token-canary"), "{head}");
    let contact: Value = serde_json::from_str(&seen.body).unwrap();
    let external_id = counterfoil_consumers::crm::external_id(&email.to_uppercase());
    assert_eq!((contact["external_id"].as_str(), contact["email"].as_str()), (Some(external_id.as_str()), Some(email.as_str())));
    assert_eq!((contact["orders_paid"].as_i64(), contact["spent_minor"]["EUR"].as_i64()), (Some(1), Some(1099)));
}

#[tokio::test]
async fn an_old_event_sends_the_state_as_it_is_now_so_stale_news_never_wins() {
    let bench = Bench::of("crm").await;
    let email = "one@example.com";
    let orders = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
    for order in orders {
        bench.insert_order(order, email).await;
    }
    let events: Vec<Value> = orders.iter().map(|order| paid_event(*order, email)).collect();
    let _replicas = [bench.start().ready().await, bench.start().ready().await];
    bench.stage.put_events("crm", &events).await;
    for event in &events {
        bench.done(event).await;
    }
    let sent: Vec<Value> = bench.crm.seen().iter().map(|seen| serde_json::from_str(&seen.body).unwrap()).collect();
    assert_eq!(sent.len(), 3, "one upsert an event");
    let key = |head: &str| head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("idempotency-key: ").map(str::to_owned)).unwrap();
    let mut keys: Vec<String> = bench.crm.seen().iter().map(|seen| key(&seen.head)).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3);
    assert!(sent.iter().all(|contact| contact["orders_paid"] == 3), "{sent:?}");
}

#[tokio::test]
async fn a_redirect_carries_the_token_to_no_other_host() {
    let bench = Bench::of("crm").await;
    let elsewhere = counterfoil_tests::CrmStub::start().await;
    bench.crm.next(&[format!("307 Temporary Redirect\r\nLocation: {}", elsewhere.url).as_str()]);
    let (event, _) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    let _consumer = bench.start();
    bench.done(&event).await;
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn one_contact_that_the_crm_refuses_is_dead_alone() {
    let bench = Bench::of("crm").await;
    let _consumer = bench.start().ready().await;
    bench.crm.next(&["422 Unprocessable Content"]);
    let (bad, _) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&bad)).await;
    until("it is dead", 15, 1, async || bench.stage.waiting(&bench.dead_queue()).await).await;
    let (good, _) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&good)).await;
    bench.done(&good).await;
}

#[tokio::test]
async fn hubspot_gets_a_batch_upsert_by_email() {
    let bench = Bench::of("crm").await;
    let base = bench.crm.url.trim_end_matches("/contacts").to_owned();
    let _consumer = bench.fleet().with("COUNTERFOIL_CRM_KIND", "hubspot").with("COUNTERFOIL_CRM_URL", base).consumer("crm");
    let (event, email) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    bench.done(&event).await;
    let seen = bench.crm.seen().remove(0);
    assert!(seen.head.starts_with("POST /crm/v3/objects/contacts/batch/upsert "), "{}", seen.head);
    let batch: Value = serde_json::from_str(&seen.body).unwrap();
    let input = &batch["inputs"][0];
    assert_eq!(
        (input["id"].as_str(), input["idProperty"].as_str(), input["properties"]["lastname"].as_str()),
        (Some(email.as_str()), Some("email"), Some("Example"))
    );
}

#[tokio::test]
async fn a_retry_of_the_same_state_carries_the_same_key_and_a_changed_state_another() {
    let bench = Bench::of("crm").await;
    bench.crm.next(&["500 Internal Server Error", "500 Internal Server Error"]);
    let (event, email) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    let consumer = bench.start();
    until("two attempts", 15, true, async || bench.crm.seen().len() >= 2).await;
    drop(consumer);
    bench.insert_order(Uuid::new_v4(), &email).await;
    bench.stage.execute("UPDATE processed_events SET lease_until = now() WHERE state = 'claimed'").await;
    let _consumer = bench.start();
    bench.done(&event).await;
    let seen = bench.crm.seen();
    let key = |nth: usize| seen[nth].head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("idempotency-key: ").map(str::to_owned)).unwrap();
    assert_eq!(key(0), key(1));
    let last = seen.len() - 1;
    assert_eq!(seen[last].body.contains("\"orders_paid\":2"), key(last) != key(0), "the key changes with what is sent");
}
