//! Every state in which money or a customer waits is listed, counted, shown, alerted and told; docs/attention.md has the table.

use counterfoil_tests::fleet::free_port;
use counterfoil_tests::stage::root;
use counterfoil_tests::{CrmStub, Fleet, Stage, until};
use serde_json::Value;

/// Each kind once, as settlement leaves it.
const SEED: &str = "
    INSERT INTO orders (id, reference, status, amount_minor, currency, paid_provider, paid_account, paid_payment_id, paid_at) VALUES
        ('00000000-0000-7000-8000-000000000001', 'A-1', 'paid', 1099, 'EUR', 'stripe', '', 'pi_1', now() - interval '2 days'),
        ('00000000-0000-7000-8000-000000000002', 'A-2', 'pending_payment', 1099, 'EUR', NULL, NULL, NULL, NULL),
        ('00000000-0000-7000-8000-000000000003', 'A-3', 'paid', 500, 'EUR', 'stripe', '', 'pi_3', now() - interval '2 days');
    INSERT INTO payments (provider, payment_id, order_id, status, disposition, held_reason, amount_minor, currency, settled_minor, booked_captured_minor, booked_settled_minor, booked_refunded_minor, contested) VALUES
        ('stripe', 'pi_1', '00000000-0000-7000-8000-000000000001', 'captured', 'settled', NULL, 1099, 'EUR', 1099, 1099, 1099, 1200, true),
        ('stripe', 'pi_extra', '00000000-0000-7000-8000-000000000001', 'captured', 'extra', 'already_paid', 1099, 'EUR', 0, 1099, 0, 0, false),
        ('stripe', 'pi_held', '00000000-0000-7000-8000-000000000002', 'captured', 'held', 'amount_differs', 5, 'EUR', 0, 5, 0, 0, false),
        ('stripe', 'cs_coupon', '00000000-0000-7000-8000-000000000002', 'captured', 'held', 'amount_differs', 0, 'EUR', 0, 0, 0, 0, false),
        ('stripe', 'pi_3', '00000000-0000-7000-8000-000000000003', 'captured', 'settled', NULL, 500, 'EUR', 500, 500, 500, 0, false);
    INSERT INTO payment_claims (provider, account, payment_id, order_id, amount_minor, currency) VALUES ('stripe', '', 'pi_1', '00000000-0000-7000-8000-000000000002', 1099, 'EUR');
    INSERT INTO refunds (id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, provider_key, foreign_currency, created_at, updated_at) VALUES
        ('00000000-0000-7000-8000-00000000000a', '00000000-0000-7000-8000-000000000001', 'stripe', '', 'pi_1', 're_1', 'api', 'failed', 99, 'EUR', 'k1', false, now() - interval '9 days', now()),
        ('00000000-0000-7000-8000-00000000000b', '00000000-0000-7000-8000-000000000001', 'stripe', '', 'pi_1', 're_2', 'provider', 'succeeded', 900, 'JPY', 'k2', true, now(), now());
    INSERT INTO disputes (provider, account, dispute_id, order_id, payment_id, status, amount_minor, currency) VALUES ('stripe', '', 'dp_1', '00000000-0000-7000-8000-000000000001', 'pi_1', 'opened', 99, 'EUR');
    INSERT INTO draws (id, reference, name) VALUES ('00000000-0000-7000-8000-0000000000d1', 'D', 'Draw');
    UPDATE orders SET lines = '[{\"description\": \"Ticket\", \"quantity\": 1, \"amount_minor\": 500, \"draw\": \"00000000-0000-7000-8000-0000000000d1\"}]' WHERE reference = 'A-3';
    INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at, owed) VALUES (gen_random_uuid(), '00000000-0000-7000-8000-000000000003', 0, '00000000-0000-7000-8000-0000000000d1', 1, 'lost', now(), true);
    INSERT INTO idempotency_keys (scope, key, request_hash, status, created_at) VALUES ('shop', 'k', '', 'in_progress', now() - interval '2 minutes');
    INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome, reason, waits_for, last_error, fact, payment_id, unplaced_minor, unplaced_currency, changed, received_at) VALUES
        ('stripe', 'evt_waiting', 't', '', 0, 'waiting', NULL, 'order:nobody', NULL, '{\"fact\": {\"payment\": {\"money\": {\"amount_minor\": 7, \"currency\": \"EUR\"}}}}', 'pi_w', NULL, NULL, 0, now() - interval '2 hours'),
        ('stripe', 'evt_unplaced', 't', '', 0, 'ignored', 'it names no order', NULL, NULL, '{\"fact\": {\"payment\": {}}}', 'pi_u', 8, 'EUR', 0, now() - interval '2 days'),
        ('stripe', 'evt_failed', 't', '', 0, 'failed', NULL, NULL, 'SQLSTATE 22000', NULL, NULL, NULL, NULL, 0, now()),
        ('stripe', 'evt_unreadable', 't', '', 0, 'unreadable', 'no amount', NULL, NULL, NULL, NULL, NULL, NULL, 0, now()),
        ('stripe', 'evt_changed', 't', '', 0, 'applied', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, now())";

/// The kinds and alerts of docs/attention.md's table.
fn table() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("docs/attention.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>()).map(|cells| (cells[1].trim_matches('`').to_owned(), cells[4].to_owned())).collect()
}

async fn page(base: &str) -> String {
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let signed_in = client
        .post(format!("{base}/sign-in"))
        .body("secret=operator-token-canary-0123456789&next=%2F")
        .header("Content-Type", "application/x-www-form-urlencoded")
        .send()
        .await
        .unwrap();
    let cookie = signed_in.headers().get("set-cookie").expect("signed in").to_str().unwrap().split(';').next().unwrap().to_owned();
    client.get(format!("{base}/attention")).header("Cookie", cookie).send().await.unwrap().text().await.unwrap()
}

/// The rule of an alert.
fn rule(alert: &str) -> String {
    let rules = std::fs::read_to_string(root().join("deploy/alerts/counterfoil.rules.yml")).unwrap();
    let at = rules.find(&format!("- alert: {alert}\n")).unwrap_or_else(|| panic!("{alert} is no alert"));
    rules[at..].lines().nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn every_kind_of_waiting_is_listed_counted_shown_alerted_and_told() {
    let (stage, slack) = (Stage::new().await, CrmStub::start().await);
    stage.execute(SEED).await;
    let listen = format!("127.0.0.1:{}", free_port());
    let fleet = Fleet::on(&stage)
        .with("COUNTERFOIL_NOTIFY_SLACK_URL", slack.url.clone())
        .with("COUNTERFOIL_KEY_STUCK_S", "3600")
        .with("COUNTERFOIL_CONSOLE_LISTEN", &listen)
        .with("COUNTERFOIL_CONSOLE_TOKENS", "ann:operator:operator-token-canary-0123456789");
    let console = fleet.run_long("console").ready().await;
    let housekeep = fleet.housekeep().ready().await;
    let table = table();
    assert_eq!(i64::try_from(table.len()), Ok(stage.count("SELECT count(DISTINCT kind) FROM attention_entries").await), "the table has the view's kinds");
    let (_, listed) = fleet.counterfoil(&["attention"]).await;
    let (code, status) = fleet.counterfoil(&["status", "--json"]).await;
    assert_eq!(code, Some(1), "a person is needed");
    let status: Value = serde_json::from_str(status.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let shown = page(&format!("http://{listen}")).await;
    until("slack was told", 30, true, async || !slack.seen().is_empty()).await;
    let told = slack.seen().iter().map(|seen| seen.body.clone()).collect::<String>();
    for (kind, alert) in &table {
        assert!(listed.lines().any(|line| line.split_whitespace().nth(1) == Some(kind)), "{kind} is not listed: {listed}");
        let counted = status["attention"].as_array().unwrap().iter().find(|waiting| waiting["kind"] == **kind);
        assert!(counted.is_some_and(|waiting| waiting["count"].as_i64() >= Some(1)), "{kind} is not counted: {status}");
        let needed = status["needs"].as_array().unwrap().iter().any(|need| need.as_str().unwrap().contains(&format!("× {kind}:")));
        assert!(needed, "{kind} needs nobody: {}", status["needs"]);
        assert!(shown.contains(&format!("<td>{kind}</td>")), "{kind} is not on the page");
        let gauge = format!("counterfoil_attention{{kind=\"{kind}\"}}");
        until(&format!("{gauge} is above 0"), 30, true, async || {
            housekeep.metrics().await.lines().any(|line| line.strip_prefix(&gauge).is_some_and(|value| value.trim() != "0"))
        })
        .await;
        assert!(rule(alert).contains(kind.as_str()), "{alert} does not look at {kind}");
        assert!(told.contains(&format!("× {kind}")), "nobody was told of {kind}: {told}");
    }
    drop(console);
}

/// A decision closes an entry as long as it says what it said, is recorded, and can be taken back.
#[tokio::test]
async fn a_decision_closes_an_entry_until_it_changes_or_is_undone() {
    let stage = Stage::new().await;
    stage.execute(SEED).await;
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_PERSON", "ann");
    let listed = async |subject: &str| fleet.counterfoil(&["attention"]).await.1.contains(&format!("[{subject}]"));
    let subjects: Vec<String> = sqlx::query_scalar("SELECT subject FROM attention_entries ORDER BY 1").fetch_all(&stage.pool()).await.unwrap();
    assert_eq!(fleet.counterfoil(&["attention", "decide", "refund:nobody", "--reason", "x"]).await.0, Some(3), "there is no such entry");
    for subject in &subjects {
        assert!(listed(subject).await, "{subject}");
        let (code, said) = fleet.counterfoil(&["attention", "decide", subject, "--reason", "settled in cash"]).await;
        assert_eq!(code, Some(0), "{subject}: {said}");
        assert!(!listed(subject).await, "{subject}");
    }
    let refund = "refund:00000000-0000-7000-8000-00000000000a";
    assert!(fleet.counterfoil(&["attention", "decisions"]).await.1.contains(&format!("{refund}  ann: settled in cash")));
    assert_eq!(fleet.counterfoil(&["attention", "undo", refund, "--reason", "it was not"]).await.0, Some(0));
    assert!(listed(refund).await);
    // More money waits than was decided about.
    assert!(!listed("money:stripe::pi_held").await);
    stage.execute("UPDATE payments SET amount_minor = 6, booked_captured_minor = 6 WHERE payment_id = 'pi_held'").await;
    assert!(listed("money:stripe::pi_held").await);
    let recorded = i64::try_from(subjects.len()).unwrap();
    assert_eq!(stage.count("SELECT count(*) FROM actions WHERE action = 'decide' AND outcome = 'closed' AND person = 'ann'").await, recorded);
}
