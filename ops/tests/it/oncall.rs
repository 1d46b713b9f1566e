//! What on-call asks: the trail from anything, status, doctor, events, erasure; each by the command line alone.

use counterfoil_tests::{CrmStub, Fleet, Shop, SmtpStub, Stage, stripe_event, until};
use serde_json::{Value, json};

/// A fleet with everything in it, and one order of two tickets that is paid and whose effects are done, the CRM's excepted.
async fn paid(stage: &Stage) -> (Fleet, Shop, Vec<counterfoil_tests::Child>, CrmStub, SmtpStub) {
    let (crm, smtp) = (CrmStub::start().await, SmtpStub::start().await);
    let fleet = Fleet::on(stage).with("COUNTERFOIL_CRM_URL", crm.url.clone()).with("COUNTERFOIL_SMTP_URL", smtp.url.clone());
    let (ingest, shop) = fleet.ingest().await;
    stage.execute("INSERT INTO draws (reference, name, capacity) VALUES ('spring', 'Spring draw', 100)").await;
    crm.next(&["404 Gone"]);
    let body = json!({ "reference": "A-1042", "amount_minor": 1099, "currency": "EUR", "customer": { "email": "ann.secret@example.com", "name": "Ann Secret", "phone": "+4915112345678" },
        "lines": [{ "description": "Tickets", "quantity": 2, "amount_minor": 1099, "draw": "spring" }] });
    assert_eq!(shop.post_order(&body, None).await.status(), 201);
    let mut event = stripe_event("payment_intent.succeeded", "A-1042", "pi_1042", &json!({ "receipt_email": "ann.secret@example.com" }));
    event["id"] = json!("evt_1042");
    for _ in 0..3 {
        shop.stripe(&event).await;
    }
    let running = vec![
        ingest,
        fleet.relay().ready().await,
        fleet.consumer("email").ready().await,
        fleet.consumer("crm").ready().await,
        fleet.consumer("ledger").ready().await,
        fleet.consumer("tickets").ready().await,
        fleet.consumer("refunds").ready().await,
        fleet.consumer("dead-letters").ready().await,
        fleet.housekeep().ready().await,
    ];
    until("the CRM's is dead", 30, 1, async || stage.count("SELECT count(*) FROM dead_letters").await).await;
    until("tickets are mailed", 30, 2, async || stage.count("SELECT count(*) FROM receipts").await).await;
    until("it is booked", 30, 1, async || stage.count("SELECT count(*) FROM ledger_entries").await).await;
    (fleet, shop, running, crm, smtp)
}

async fn json_of(fleet: &Fleet, arguments: &[&str]) -> Value {
    let (_, said) = fleet.counterfoil(arguments).await;
    serde_json::from_str(said.lines().next().unwrap_or_default()).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"))
}

async fn text(stage: &Stage, query: &'static str) -> String {
    sqlx::query_scalar(query).fetch_one(&stage.pool()).await.unwrap()
}

#[tokio::test]
async fn anything_in_hand_leads_to_the_same_trail_missing_effects_included_even_when_the_outbox_is_past_retention() {
    let stage = Stage::new().await;
    let (fleet, ..) = paid(&stage).await;
    let order = text(&stage, "SELECT id::text FROM orders").await;
    let hands = [
        order.clone(),
        "A-1042".into(),
        "pi_1042".into(),
        "evt_1042".into(),
        text(&stage, "SELECT event_id::text FROM outbox WHERE topic = 'order.paid'").await,
        text(&stage, "SELECT id::text FROM reservations").await,
        "spring#2".into(),
        "2".into(),
        "ann.secret@example.com".into(),
        "d_1".into(),
    ];
    for hand in &hands {
        let trail = json_of(&fleet, &["trail", hand, "--json"]).await;
        assert_eq!(trail["order"]["id"], json!(order), "{hand}");
    }
    let (code, shown) = fleet.counterfoil(&["trail", "pi_1042"]).await;
    assert_eq!(code, Some(0));
    for part in [
        "× 3 deliveries, 1 event",
        "Receipt sent",
        "Outstanding: crm",
        "dead-lettered as d_1: HTTP 404 from the CRM",
        "assets:receivable:stripe",
        "1 to 2 of draw",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains("ann.secret") && !shown.contains("Ann Secret"), "{shown}");
    assert_eq!(fleet.counterfoil(&["trail", "nobody-knows-this"]).await.0, Some(3));
    // Past retention: the ids are derived from the facts, and what the events did is still there.
    let event = hands[4].clone();
    stage.execute("DELETE FROM outbox").await;
    for hand in [&order, &event] {
        let trail = json_of(&fleet, &["trail", hand, "--json"]).await;
        let lanes: Vec<&str> = trail["entries"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["what"].as_str().unwrap().contains("order.paid"))
            .filter_map(|entry| entry["lane"].as_str())
            .collect();
        for lane in ["outbox", "email", "ledger", "crm", "tickets"] {
            assert!(lanes.contains(&lane), "{lane} in {lanes:?}");
        }
    }
}

#[tokio::test]
async fn an_erased_customer_is_found_nowhere_and_the_books_are_whole_and_nothing_brings_them_back() {
    let stage = Stage::new().await;
    let (fleet, shop, _running, ..) = paid(&stage).await;
    let order = text(&stage, "SELECT id::text FROM orders").await;
    assert_eq!(fleet.counterfoil(&["erase", "--customer", "ann.secret@example.com"]).await.0, Some(4), "it needs a reason");
    let (code, said) = fleet.counterfoil(&["erase", "--customer", "Ann.Secret@example.com", "--dry-run"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("would erase: 1 orders"), "{said}");
    let (code, said) = fleet.counterfoil(&["erase", "--customer", "ann.secret@example.com", "--reason", "they asked"]).await;
    assert_eq!(code, Some(0), "{said}");
    // A provider's copy, and a shop that saves its stale row.
    let mut copy = stripe_event("payment_intent.succeeded", "A-1042", "pi_1042", &json!({ "receipt_email": "ann.secret@example.com" }));
    copy["id"] = json!("evt_1042");
    shop.stripe(&copy).await;
    stage.execute("UPDATE orders SET customer_email = 'ann.secret@example.com', customer_name = 'Ann Secret'").await;
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'")
            .fetch_all(&stage.pool())
            .await
            .unwrap();
    assert!(tables.len() > 25);
    for table in tables {
        for secret in ["ann.secret", "Ann Secret", "15112345678"] {
            // Bytes are compared as text, so that bodies are searched, too.
            let found = stage.count_in(&table, secret).await;
            assert_eq!(found, 0, "{secret} in {table}");
        }
    }
    assert_eq!(stage.count("SELECT count(*) FROM ledger_entries").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM books_differences").await, 0);
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid' AND amount_minor = 1099 AND reference = 'A-1042'").await, 1);
    assert_eq!(json_of(&fleet, &["trail", &order, "--json"]).await["order"]["status"], "paid");
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'discarded' AND closed_reason = 'the customer was erased'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM actions WHERE action = 'erase' AND reason = 'they asked' AND object = 'a customer'").await, 1);
}

#[tokio::test]
async fn status_says_in_a_sentence_and_by_its_exit_code_whether_a_person_is_needed_and_each_number_has_its_source() {
    let stage = Stage::new().await;
    let (fleet, _, mut running, ..) = paid(&stage).await;
    until("all processes have reported", 20, 9, async || stage.count("SELECT count(*) FROM replicas").await + 1).await; // the keeper does not
    let status = json_of(&fleet, &["status", "--json"]).await;
    assert_eq!(status["verdict"], "Money is moving. 1 dead letter needs a decision, 0 min old.");
    let crm = status["consumers"].as_array().unwrap().iter().find(|consumer| consumer["name"] == "crm").unwrap();
    assert_eq!((&crm["replicas"], &crm["dead"]["open"], &crm["queues"]["work"]), (&json!(1), &json!(1), &json!([0, 1])));
    assert_eq!(status["providers"][0]["deliveries"], 3);
    assert_eq!(fleet.counterfoil(&["status"]).await.0, Some(1));
    assert_eq!(fleet.counterfoil(&["dead", "discard", "d_1", "--reason", "the contact was made by hand"]).await.0, Some(0));
    let (code, said) = fleet.counterfoil(&["status"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nobody is needed"), "{said}");
    running.remove(3).kill();
    stage.execute("UPDATE replicas SET seen_at = now() - interval '1 minute' WHERE process = 'consumers crm'").await;
    let (code, said) = fleet.counterfoil(&["status"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("No process runs: start one"), "{said}");
    let mut away = Fleet::on(&stage);
    away.more = vec![];
    away.without = vec!["COUNTERFOIL_DATABASE_URL"];
    assert_eq!(
        away.counterfoil(&["--database-url", "postgres://nobody@127.0.0.1:1/none", "status"]).await.0,
        Some(5),
        "a database that is away has a code of its own"
    );
}

#[tokio::test]
async fn doctor_names_what_is_wrong_and_the_fix_and_ends_with_0_when_nothing_is() {
    let stage = Stage::new().await;
    let (fleet, _shop, _running, ..) = paid(&stage).await;
    until("tasks have run", 30, true, async || stage.count("SELECT count(*) FROM task_runs WHERE task IN ('keeper', 'lost', 'watch')").await == 3).await;
    let (code, said) = fleet.counterfoil(&["doctor"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().filter(|line| line.starts_with("ok")).count() >= 18, "{said}");
    // A binding is deleted: the event comes back, and the row says so.
    stage.unbind("counterfoil.refunds", "refund.requested").await;
    stage.execute("INSERT INTO outbox (event_id, topic, order_id, routing_key, payload) SELECT gen_random_uuid(), 'refund.requested', id, 'refund.requested', '{}' FROM orders").await;
    until("it is put off", 20, 1, async || stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL AND deferrals > 0").await).await;
    stage.execute("UPDATE outbox SET next_attempt_at = now() + interval '1 hour' WHERE published_at IS NULL").await; // so that it does not go out by itself meanwhile
    let (code, said) = fleet.counterfoil(&["doctor", "--check", "bindings"]).await;
    assert!(code == Some(1) && said.contains("1 row is unroutable, of refund.requested"), "{said}");
    let (code, said) = fleet.counterfoil(&["outbox", "list", "--unroutable", "--json"]).await;
    assert!(fleet.counterfoil(&["status"]).await.1.contains("1 outbox row does not go out"), "the sentence says so");
    assert_eq!((code, serde_json::from_str::<Value>(&said).unwrap()["rows"].as_array().unwrap().len()), (Some(0), 1));
    let id = text(&stage, "SELECT max(id)::text FROM outbox").await;
    assert_eq!(fleet.counterfoil(&["outbox", "release", &id]).await.0, Some(4), "it needs a reason");
    assert_eq!(fleet.migrate().ended().await, Some(0));
    assert_eq!(fleet.counterfoil(&["outbox", "release", &id, "--reason", "the binding is back"]).await.0, Some(0));
    let order = text(&stage, "SELECT id::text FROM orders").await;
    stage.execute("SET session_replication_role = replica; UPDATE actions SET at = at - interval '1 hour'").await;
    assert!(fleet.counterfoil(&["trail", &order]).await.1.contains("release: released (the binding is back)"), "the trail has what a person did to its row");
    until("it is out", 20, 0, async || stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL").await).await;
    // A transaction is forgotten, a queue has other arguments, a secret holds a blank.
    let mut forgotten = stage.pool().acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT 1").execute(&mut *forgotten).await.unwrap();
    stage.delete_queue("counterfoil.crm.retry.60ms").await;
    let (_, said) = fleet.counterfoil(&["doctor", "--check", "queues"]).await;
    assert!(said.contains("counterfoil.crm.retry") && said.contains("counterfoil-migrate"), "{said}");
    let blank = Fleet::on(&stage).with("COUNTERFOIL_STRIPE_SECRETS", "whsec_a, whsec_b");
    let (code, said) = blank.counterfoil(&["doctor", "--check", "secrets"]).await;
    assert!(code == Some(1) && said.contains("COUNTERFOIL_STRIPE_SECRETS holds a blank") && !said.contains("whsec_"), "{said}");
    let (code, said) = fleet.counterfoil(&["doctor", "--check", "nonsense"]).await;
    assert!(code == Some(3) && said.contains("transactions"), "{said}");
}

#[tokio::test]
async fn a_stored_event_is_shown_masked_and_driven_again_with_a_reason() {
    let stage = Stage::with_schema().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let mut event = stripe_event("payment_intent.succeeded", "B-1", "pi_b", &json!({ "receipt_email": "bob@example.com" }));
    event["id"] = json!("evt_b");
    assert_eq!(shop.stripe(&event).await.1, "waiting");
    shop.order_named("B-1").await;
    stage.execute("UPDATE webhook_events SET outcome = 'failed', waits_for = NULL, last_error = 'SQLSTATE XX000'; UPDATE orders SET status = 'pending_payment', paid_provider = NULL, paid_account = NULL, paid_payment_id = NULL, paid_at = NULL, version = version + 1 WHERE false").await;
    let (_, said) = fleet.counterfoil(&["events", "show", "evt_b", "--payload"]).await;
    assert!(said.contains("failed (SQLSTATE XX000)") && !said.contains("bob@"), "{said}");
    let (code, said) = fleet.counterfoil(&["events", "show", "evt_b", "--reveal", "--reason", "the customer calls"]).await;
    assert!(code == Some(0) && said.contains("bob@example.com"), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM actions WHERE action = 'reveal' AND object = 'event evt_b' AND reason = 'the customer calls'").await, 1);
    assert_eq!(fleet.counterfoil(&["events", "reprocess", "evt_b"]).await.0, Some(4));
    let (code, said) = fleet.counterfoil(&["events", "reprocess", "evt_b", "--reason", "mended"]).await;
    assert!(code == Some(0), "{said}");
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid'").await, 1, "once, whatever it was before");
    assert_eq!(fleet.counterfoil(&["events", "reprocess", "evt_b", "--reason", "again"]).await.0, Some(4), "its news is settled");
}

#[tokio::test]
async fn completions_manual_and_health_check_need_no_database_and_every_exit_code_is_documented() {
    let stage = Stage::with_schema().await;
    let mut alone = Fleet::on(&stage);
    alone.without = vec!["COUNTERFOIL_DATABASE_URL", "COUNTERFOIL_AMQP_URL"];
    for (arguments, part) in [
        (vec!["completions", "bash"], "complete -F"),
        (vec!["completions", "zsh"], "#compdef counterfoil"),
        (vec!["man"], ".TH counterfoil"),
        (vec!["--help"], "Exit codes:"),
    ] {
        let (code, said) = alone.counterfoil(&arguments).await;
        assert!(code == Some(0) && said.contains(part), "{arguments:?}: {said}");
    }
    let (code, said) = alone.counterfoil(&["status"]).await;
    assert!(code == Some(64) && said.contains("COUNTERFOIL_DATABASE_URL"), "{said}");
    assert_eq!(alone.counterfoil(&["--admin-listen", "127.0.0.1:1", "healthy"]).await.0, Some(1), "nobody is there");
    let housekeep = Fleet::on(&stage).housekeep().ready().await;
    let (code, said) = alone.counterfoil(&["--admin-listen", &format!("127.0.0.1:{}", housekeep.admin), "healthy"]).await;
    assert!(code == Some(0) && said.contains("\"database\":\"ok\""), "{said}");
    let link = Fleet::on(&stage).with("COUNTERFOIL_CONSOLE_URL", "https://console.example/");
    assert_eq!(link.counterfoil(&["link", "d_7"]).await.1.trim(), "https://console.example/dead/7");
}
