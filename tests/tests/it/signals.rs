//! Alerts, runbook, dashboard: every rule has its tests and its section, every expression is evaluated against a live scrape.

use std::process::{Command, Stdio};

use counterfoil_tests::fleet::free_port;
use counterfoil_tests::stage::root;
use counterfoil_tests::{CrmStub, Fleet, SmtpStub, Stage, stripe_event, until};
use serde_json::{Value, json};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn promtool(arguments: &[&str]) {
    let out = Command::new("promtool")
        .args(arguments)
        .current_dir(root().join("deploy/alerts"))
        .output()
        .expect("promtool is missing: deploy/local/services signals brings it");
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}

/// The value behind `key:` of each line that has one.
fn values(text: &str, key: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix(key))
        .map(|value| value.trim().trim_matches('\'').replace("''", "'"))
        .collect()
}

fn alerts() -> Vec<String> {
    values(&read("deploy/alerts/counterfoil.rules.yml"), "alert:")
}

/// The expressions of the alerts and of the dashboard.
fn expressions() -> Vec<String> {
    let mut all = values(&read("deploy/alerts/counterfoil.rules.yml"), "expr:");
    let board: Value = serde_json::from_str(&read("deploy/grafana/counterfoil.json")).unwrap();
    let targets = board["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    all.extend(targets.map(|target| target["expr"].as_str().unwrap().to_owned()));
    all
}

#[test]
fn every_alert_is_sound_and_fires_and_does_not_fire_and_does_as_it_should_without_data() {
    promtool(&["check", "rules", "counterfoil.rules.yml"]);
    promtool(&["test", "rules", "counterfoil.tests.yml"]);
    let tests = read("deploy/alerts/counterfoil.tests.yml");
    for alert in alerts().iter().filter(|alert| *alert != "Watchdog") {
        for case in ["fires", "does not fire"] {
            assert!(tests.contains(&format!("name: {alert} {case}\n")), "{alert} has no test that it {case}");
        }
        assert!(
            tests.contains(&format!("name: {alert} does not fire without data")) || tests.contains(&format!("name: {alert} fires without data")),
            "{alert} without data"
        );
    }
}

#[test]
fn every_alert_has_its_section_in_the_runbook_with_three_commands_that_exist() {
    let runbook = read("deploy/runbook.md");
    let help = Command::new(root().join("target/debug/counterfoil")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for alert in alerts() {
        let section = runbook.split("\n## ").find(|section| section.lines().next() == Some(&alert)).unwrap_or_else(|| panic!("{alert} has no section"));
        for part in ["**For customers:**", "**Money at risk:**", "**Over when:**", "**Not:**", "1. `", "2. `", "3. `"] {
            assert!(section.contains(part), "{alert} lacks {part}");
        }
        for command in section.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("counterfoil ")) {
            let name = command.split_whitespace().next().unwrap();
            assert!(help.contains(&format!("\n  {name}")), "{alert} names counterfoil {name}, which is no command");
        }
    }
}

#[tokio::test]
async fn every_expression_of_alerts_and_dashboard_is_evaluated_against_a_live_scrape_and_every_metric_in_them_is_there() {
    let stage = Stage::new().await;
    let (crm, smtp) = (CrmStub::start().await, SmtpStub::start().await);
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_CRM_URL", crm.url.clone()).with("COUNTERFOIL_SMTP_URL", smtp.url.clone());
    let (ingest, shop) = fleet.ingest().await;
    let mut processes = vec![ingest, fleet.relay().ready().await, fleet.housekeep().ready().await];
    for name in ["email", "crm", "ledger", "tickets", "refunds", "dead-letters"] {
        processes.push(fleet.consumer(name).ready().await);
    }
    // One of each: a payment, a signature that is wrong, a CRM that is down once, books that differ.
    crm.next(&["503 Busy\r\nRetry-After: 1"]);
    let order = shop.order().await;
    shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await;
    let refused = shop.client.post(format!("{}/webhooks/stripe", shop.base)).header("Stripe-Signature", "t=1,v1=00").body("{}").send().await.unwrap();
    assert_eq!(refused.status(), 401);
    stage.execute("INSERT INTO orders (id, reference, amount_minor, currency, status, paid_provider, paid_account, paid_payment_id, paid_at, updated_at) VALUES ('00000000-0000-7000-8000-0000000000aa', 'odd', 5, 'EUR', 'paid', 'stripe', '', 'pi_odd', now(), now() - interval '1 hour');
        INSERT INTO payments (provider, payment_id, order_id, status, disposition, settled_minor, amount_minor, currency) VALUES ('stripe', 'pi_odd', '00000000-0000-7000-8000-0000000000aa', 'captured', 'settled', 5, 5, 'EUR')").await;
    until("effects are done", 30, 4, async || stage.count("SELECT count(*) FROM processed_events WHERE state = 'done'").await).await;
    let folder = std::env::temp_dir().join(format!("counterfoil-prometheus-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&folder).unwrap();
    let targets: Vec<String> = processes.iter().map(|process| format!("'127.0.0.1:{}'", process.admin)).collect();
    let rules = root().join("deploy/alerts/counterfoil.rules.yml");
    let configuration = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s, external_labels: {{ console: 'http://console' }} }}\nrule_files: ['{}']\nscrape_configs: [{{ job_name: counterfoil, static_configs: [{{ targets: [{}] }}] }}]\n",
        rules.display(),
        targets.join(", ")
    );
    std::fs::write(folder.join("prometheus.yml"), configuration).unwrap();
    let port = free_port();
    let listen = format!("--web.listen-address=127.0.0.1:{port}");
    let mut prometheus = Command::new("prometheus")
        .args([&listen, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error"])
        .current_dir(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus is missing: deploy/local/services signals brings it");
    let base = format!("http://127.0.0.1:{port}");
    let ask = async |expression: &str| -> Value {
        let answer = shop.client.get(reqwest::Url::parse_with_params(&format!("{base}/api/v1/query"), [("query", expression)]).unwrap()).send().await;
        match answer {
            Ok(answer) => answer.json().await.unwrap_or_default(),
            Err(_) => Value::Null,
        }
    };
    until("all processes are scraped", 60, json!(processes.len().to_string()), async || ask("sum(up)").await["data"]["result"][0]["value"][1].clone()).await;
    let mut metrics: Vec<String> = Vec::new();
    for expression in expressions() {
        let answer = ask(&expression).await;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let names = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("counterfoil_"));
        metrics.extend(names.map(str::to_owned));
    }
    metrics.sort();
    metrics.dedup();
    assert!(metrics.len() > 30);
    for metric in metrics {
        until(&format!("{metric} is there"), 30, true, async || ask(&format!("count({metric})")).await["data"]["result"][0]["value"][1].is_string()).await;
    }
    // The books differ, and Prometheus says so by the rule's own words, while it waits for its time.
    until("LedgerDisagrees is pending", 30, true, async || {
        let answer: Value = shop.client.get(format!("{base}/api/v1/alerts")).send().await.unwrap().json().await.unwrap();
        answer["data"]["alerts"]
            .as_array()
            .unwrap()
            .iter()
            .any(|alert| alert["labels"]["alertname"] == "LedgerDisagrees" && alert["labels"]["currency"] == "EUR")
    })
    .await;
    let _ = prometheus.kill();
    let _ = prometheus.wait();
    let _ = std::fs::remove_dir_all(&folder);
}

#[tokio::test]
async fn what_needs_a_person_reaches_one_by_slack_and_by_mail_once_and_says_when_it_is_over() {
    let stage = Stage::new().await;
    let (slack, smtp) = (CrmStub::start().await, SmtpStub::start().await);
    let fleet = Fleet::on(&stage)
        .with("COUNTERFOIL_NOTIFY_SLACK_URL", slack.url.clone())
        .with("COUNTERFOIL_NOTIFY_EMAIL", "oncall@shop.example")
        .with("COUNTERFOIL_SMTP_URL", smtp.url.clone())
        .with("COUNTERFOIL_CONSOLE_URL", "https://console.example");
    slack.next(&["500 Down", "500 Down"]); // one channel that is down makes the other say nothing twice
    stage.execute("INSERT INTO dead_letters (consumer, event_id, identity, body, kind, error, first_failed_at, died_at) SELECT 'ledger', e, e::text, '{}', 'transient', 'x', now(), now() FROM (SELECT gen_random_uuid() AS e FROM generate_series(1, 3)) s;
        INSERT INTO outbox (event_id, topic, routing_key, payload, parked_at, deferrals) VALUES (gen_random_uuid(), 'order.paid', 'order.paid', '{}', now(), 3)").await;
    let _both = [fleet.housekeep().ready().await, fleet.housekeep().ready().await];
    until("both were told", 30, true, async || slack.seen().len() >= 3 && !smtp.mails().is_empty()).await;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await; // four more looks of two processes
    assert_eq!((slack.seen().len(), smtp.mails().len()), (3, 1), "two refusals and one success; one mail");
    let said = slack.seen()[2].body.clone();
    for part in ["ledger: 3 dead letters need a decision", "https://console.example/dead?consumer=ledger&state=open", "1 outbox row is parked"] {
        assert!(said.contains(part) && smtp.mails()[0].replace("=\n", "").replace("=3D", "=").contains(part), "{part} in {said} and {}", smtp.mails()[0]);
    }
    stage.execute("UPDATE dead_letters SET state = 'discarded', closed_at = now()").await;
    until("it is over", 20, true, async || slack.seen().last().unwrap().body.contains("over: dead:ledger")).await;
    until("the metric says so", 10, true, async || {
        let (one, two) = tokio::join!(_both[0].metrics(), _both[1].metrics());
        (one + &two).contains("counterfoil_notifications_total{channel=\"slack\",outcome=\"sent\"}")
    })
    .await;
}
