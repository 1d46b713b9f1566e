//! Replays by the page: the frozen set, confirmed twice, the rate and the stop, the outcome, the place in the list.

use counterfoil_tests::{CrmStub, Fleet, Stage, paid_event, until};
use serde_json::Value;
use uuid::Uuid;

use super::page::{ADMIN, Look, OPERATOR, Page, SEED};

async fn released(page: &Page) -> i64 {
    page.stage.count("SELECT count(*) FROM outbox WHERE exchange = ''").await
}

#[tokio::test]
async fn a_preview_is_a_frozen_set_and_confirming_it_twice_from_anywhere_is_one_replay() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    let _housekeep = page.fleet.housekeep().ready().await;
    page.sign_in(OPERATOR, "/dead?consumer=crm&kind=http_404&state=open").await;
    page.click("button[value=all]").await;
    page.says("180 dead letters, frozen").await;
    let plan = page.path().await;
    assert_eq!(released(&page).await, 0, "a preview changes nothing");
    page.stage.execute("INSERT INTO dead_letters (consumer, event_id, identity, topic, body, kind, error, first_failed_at, died_at)
        SELECT 'crm', e, e::text, 'order.paid', '{}', 'http_404', 'HTTP 404 from the CRM', now(), now() FROM (SELECT gen_random_uuid() AS e FROM generate_series(1, 3)) s").await;
    page.go(&plan).await;
    page.says("3 arrived since and are not included").await;
    // Two tabs, a double click, another person with the same link: all confirm.
    let token = page.form_token().await;
    let form = format!("token={token}&reason=rotated&rate=200&stop_after=5&confirm=180");
    let run = format!("{plan}/run");
    assert_eq!(page.post_by_hand(&run, &form.replace("confirm=180", "confirm=17")).await, 403, "more than a hundred are confirmed by their number");
    let (one, two) = tokio::join!(page.post_by_hand(&run, &form), page.post_by_hand(&run, &form));
    assert_eq!((one, two), (303, 303), "no error page for the second");
    page.sign_in(ADMIN, &plan).await;
    let token = page.form_token().await;
    assert_eq!(page.post_by_hand(&run, &form.replacen(form.split('&').next().unwrap(), &format!("token={token}"), 1)).await, 303);
    until("all are released", 30, 180, async || released(&page).await).await;
    assert_eq!(page.stage.count("SELECT count(DISTINCT event_id) FROM outbox WHERE exchange = ''").await, 180, "one row for each dead letter");
    page.go(&plan).await;
    page.says("by otto").await;
    page.says("3 arrived since the preview and were not included").await;
    assert_eq!(page.stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open' AND consumer = 'crm'").await, 3);
    // A plan that has grown old is refused, with a button for a fresh one.
    page.go("/dead?consumer=email").await;
    page.click("button[value=all]").await;
    page.says("60 dead letters, frozen").await;
    let old = page.path().await;
    page.stage.execute("UPDATE replays SET planned_at = now() - interval '16 minutes' WHERE state = 'planned'").await;
    let token = page.form_token().await;
    page.post_by_hand(&format!("{old}/run"), &format!("token={token}&reason=x&rate=10&confirm=60")).await;
    page.go(&old).await;
    page.says("older than 15 minutes").await;
    assert_eq!(released(&page).await, 180);
    page.click("main form button").await;
    page.says("60 dead letters, frozen").await;
    assert_ne!(page.path().await, old);
}

#[tokio::test]
async fn a_rate_is_kept_and_a_stop_takes_back_what_is_not_released() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    let _housekeep = page.fleet.housekeep().ready().await;
    page.sign_in(OPERATOR, "/dead?topic=order.paid").await;
    page.click("button[value=all]").await;
    page.says("250 dead letters, frozen").await;
    page.fill("input[name=reason]", "a trial").await;
    page.fill("input[name=rate]", "5").await;
    page.click("input[name=one_first]").await;
    page.fill("input[name=confirm]", "250").await;
    page.click("button.primary").await;
    page.says("Running").await;
    let begun: f64 =
        sqlx::query_scalar("SELECT extract(epoch FROM started_at)::float8 FROM replays WHERE state = 'running'").fetch_one(&page.stage.pool()).await.unwrap();
    until("twenty are released", 20, true, async || released(&page).await >= 20).await;
    let taken: f64 = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::float8").fetch_one(&page.stage.pool()).await.unwrap();
    let most = (taken - begun) * 5.0 + 2.0;
    let count = released(&page).await;
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let within = count as f64 <= most + 5.0;
    assert!(within, "{count} released, {most:.0} were due");
    let path = page.path().await;
    let token = page.form_token().await;
    page.post_by_hand(&format!("{path}/stop"), &format!("token={token}&reason=enough")).await;
    let stopped = released(&page).await;
    page.go(&path).await;
    page.says("Stopped").await;
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await; // longer than housekeeping's step
    assert_eq!(released(&page).await, stopped, "none more");
    assert_eq!(stopped + page.stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open'").await, 250);
    let left = page.stage.count("SELECT count(*) FROM replay_items WHERE outcome = 'left'").await;
    assert_eq!(left + stopped, 250);
}

/// Dead letters of the CRM whose orders are there.
async fn forty_two(stage: &Stage) {
    for n in 0..42 {
        let (order, id) = (Uuid::new_v4(), Uuid::new_v4());
        let mut event = paid_event(order, &format!("c{n}@example.com"));
        event["id"] = Value::String(id.to_string());
        stage
            .execute(&format!(
                "INSERT INTO orders (id, reference, amount_minor, currency, customer_email) VALUES ('{order}', 'C-{n}', 1, 'EUR', 'c{n}@example.com')"
            ))
            .await;
        sqlx::query("INSERT INTO dead_letters (consumer, event_id, identity, topic, order_id, version, body, kind, error, first_failed_at, died_at) VALUES ('crm', $1, $1::uuid::text, 'order.paid', $2, 2, $3, 'http_404', 'HTTP 404 from the CRM', now(), now() - $4 * interval '1 minute')")
            .bind(id)
            .bind(order)
            .bind(event.to_string().into_bytes())
            .bind(f64::from(n))
            .execute(&stage.pool())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn the_page_says_which_came_back_and_with_what_and_the_place_in_the_list_is_kept() {
    let (stage, crm) = (Stage::new().await, CrmStub::start().await);
    let page = Page::on(Fleet::on(&stage).with("COUNTERFOIL_CRM_URL", crm.url.clone()), &Look::default()).await;
    forty_two(&stage).await;
    page.stage.execute(SEED).await;
    page.stage.execute("DELETE FROM dead_letters WHERE consumer = 'crm' AND id > 42").await;
    crm.next(&["422 Unprocessable"]);
    let _running = [
        page.fleet.relay().ready().await,
        page.fleet.consumer("crm").ready().await,
        page.fleet.consumer("dead-letters").ready().await,
        page.fleet.housekeep().ready().await,
    ];
    page.sign_in(OPERATOR, "/dead?consumer=crm").await;
    page.click("button[value=all]").await;
    page.says("42 dead letters, frozen").await;
    page.fill("input[name=reason]", "the contacts are there now").await;
    page.fill("input[name=rate]", "100").await;
    page.click("input[name=one_first]").await;
    page.click("button.primary").await;
    page.says("41 done · 0 skipped · 1 came back · 0 left").await;
    let path = page.path().await;
    page.says("HTTP 422 from the CRM").await;
    page.says("HTTP 404 from the CRM").await;
    assert_eq!(crm.seen().len(), 42);
    // The list, the tile and the metrics agree.
    until("one is open", 10, 1, async || {
        page.stage.count("SELECT count(*) FROM dead_letters WHERE consumer = 'crm' AND state = 'open' AND came_back = 1").await
    })
    .await;
    page.go("/dead?consumer=crm").await;
    page.says("1 match").await;
    page.says("Came back (once)").await;
    page.go("/").await;
    page.says("http_422").await;
    until("the metrics agree", 10, true, async || _running[3].metrics().await.contains("counterfoil_dead_letters_open{consumer=\"crm\"} 1")).await;
    // Still there when the console has been started anew.
    let mut page = page;
    drop(page.console.take());
    page.console = Some(page.fleet.run_long("console").ready().await);
    page.go(&path).await;
    page.says("41 done · 0 skipped · 1 came back · 0 left").await;
    the_place_is_kept(&page).await;
}

/// Page two of a sorted list, one row replayed: the same page, and the next row in focus.
async fn the_place_is_kept(page: &Page) {
    let list = "/dead?consumer=email&state=open&sort=oldest&page=2";
    page.go(list).await;
    let rows: Vec<String> = serde_json::from_value(page.js("return Array.from(document.querySelectorAll('a.open')).map(a => a.textContent)").await).unwrap();
    assert_eq!(rows.len(), 10);
    assert_eq!(page.js("return document.querySelector('#all').getAttribute('aria-label')").await, "10 on this page");
    page.click("table.rows tbody tr:nth-child(3) a.open").await;
    page.fill("form[action='/dead/replay'] input[name=reason]", "the address was corrected").await;
    page.click("form[action='/dead/replay'] button").await;
    page.wait("p.notice.good").await;
    let back = page.path().await;
    assert!(back.starts_with(list) && back.ends_with(&format!("#{}", rows[3])), "{back}");
    assert_eq!(page.js("return document.activeElement.id").await, Value::String(rows[3].clone()), "focus is on the next row");
    // Pressed again from another tab: nothing twice.
    let token = page.form_token().await;
    let id = rows[2].trim_start_matches("d_");
    assert_eq!(page.post_by_hand("/dead/replay", &format!("token={token}&id={id}&reason=again")).await, 303);
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox o JOIN dead_letters d ON d.event_id = o.event_id WHERE d.id = $1 AND o.exchange = ''")
        .bind(id.parse::<i64>().unwrap())
        .fetch_one(&page.stage.pool())
        .await
        .unwrap();
    assert_eq!(count, 1);
}

#[tokio::test]
async fn a_preview_has_a_line_for_each_verdict_and_ticks_only_what_will_run() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    page.stage.execute("DELETE FROM dead_letters WHERE id > 5;
        INSERT INTO processed_events (consumer, event_id, state, done_at) SELECT consumer, event_id, 'done', now() FROM dead_letters WHERE id = 1;
        INSERT INTO processed_events (consumer, event_id, state, lease_until) SELECT consumer, event_id, 'claimed', now() - interval '1 minute' FROM dead_letters WHERE id = 2;
        UPDATE dead_letters SET first_failed_at = now() - interval '200 days' WHERE id = 4;
        WITH newer AS (INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, published_at) SELECT gen_random_uuid(), 'order.contact_known', order_id, 9, 'x', '{}', now() FROM dead_letters WHERE id = 5 RETURNING event_id)
        INSERT INTO processed_events (consumer, event_id, state, done_at) SELECT 'crm', event_id, 'done', now() FROM newer").await;
    page.sign_in(OPERATOR, "/dead?consumer=crm").await;
    page.click("button[value=all]").await;
    for line in [
        "Will run",
        "Will be skipped: already done",
        "Superseded by a newer version",
        "Outcome unknown: may happen twice, same key",
        "Unsafe: its dedupe record is gone",
    ] {
        page.says(line).await;
    }
    let ticks = page.js("return Array.from(document.querySelectorAll('form.plan tbody input')).map(box => [box.checked, box.disabled].join()).join(' ')").await;
    assert_eq!(ticks, "true,true false,true false,true false,true false,true", "an operator takes what will run, and nothing else");
    page.fill("input[name=reason]", "x").await;
    page.fill("input[name=confirm]", "1").await;
    page.click("button.primary").await;
    page.says("Replay r_1").await;
    counterfoil_ops::replays::step(&page.stage.pool(), None, 8_640_000).await.unwrap();
    assert_eq!(page.stage.count("SELECT count(*) FROM dead_letters d JOIN outbox o ON o.event_id = d.event_id AND o.exchange = '' WHERE d.id = 3").await, 1);
    assert_eq!(released(&page).await, 1);
}
