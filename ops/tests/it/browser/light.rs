//! Bad light: other zones, the keyboard alone, narrow and dark and zoomed, without script, without a database.

use counterfoil_tests::{CrmStub, Fleet, SmtpStub, Stage, stripe_event, until};
use serde_json::{Value, json};

use super::page::{ADMIN, Look, OPERATOR, Page, SEED, VIEWER};

#[tokio::test]
async fn every_time_carries_its_zone_and_one_switch_changes_them_all() {
    for (zone, offset) in [("Asia/Kolkata", "GMT+5:30"), ("America/St_Johns", "GMT-")] {
        let stage = Stage::with_schema().await;
        stage.execute(SEED).await;
        let page = Page::on(Fleet::on(&stage), &Look { zone: Some(zone), ..Look::default() }).await;
        page.sign_in(VIEWER, "/dead?since_s=3600").await;
        let times = async || -> Vec<(String, String)> {
            serde_json::from_value(page.js("return Array.from(document.querySelectorAll('time:not(.ago)')).map(t => [t.dateTime, t.textContent])").await)
                .unwrap()
        };
        let utc = times().await;
        assert!(utc.len() > 50 && utc.iter().all(|(at, text)| at.ends_with('Z') && text.ends_with('Z') && at.replace('T', " ") == *text), "{:?}", utc[0]);
        page.client.find(fantoccini::Locator::Css("body")).await.unwrap().send_keys("u").await.unwrap();
        let local = times().await;
        assert!(local.iter().all(|(at, text)| at.ends_with('Z') && text.contains(offset)), "{:?}", local[0]);
        let again: Vec<String> = serde_json::from_value(page.js("return Array.from(document.querySelectorAll('time:not(.ago)')).map(t => { const text = t.textContent.replace(' GMT', ' GMT'); const at = new Date(text); return isNaN(at) ? text : at.toISOString().replace('.000', ''); })").await).unwrap();
        assert_eq!(again, utc.iter().map(|(at, _)| at.clone()).collect::<Vec<_>>(), "the same instants");
        page.client.refresh().await.unwrap();
        assert_eq!(times().await.len(), local.len(), "the same rows either way");
        assert!(times().await.iter().all(|(_, text)| text.contains(offset)), "the choice is kept");
        // Across a change of the clocks: the zone's own offset at that instant.
        stage.execute("UPDATE dead_letters SET died_at = '2026-07-01T12:00:00Z' WHERE id = 1").await;
        page.go("/dead/1").await;
        let summer = page.text().await;
        assert!(summer.contains(if zone == "Asia/Kolkata" { "2026-07-01 17:30:00 GMT+5:30" } else { "2026-07-01 09:30:00 GMT-2:30" }), "{summer}");
    }
}

#[tokio::test]
async fn a_whole_replay_goes_by_keyboard_and_nothing_serious_is_wrong_with_any_page_in_light_or_dark_or_narrow() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    let axe = std::fs::read_to_string(counterfoil_tests::stage::root().join(".local/axe/axe-4.10.3.js")).ok();
    page.sign_in(OPERATOR, "/dead?consumer=ledger").await;
    page.click("button[value=all]").await;
    page.says("10 dead letters, frozen").await;
    let plan = page.path().await;
    for scheme in ["light", "dark"] {
        page.devtools("Emulation.setEmulatedMedia", json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] })).await;
        for path in ["/", "/dead", "/dead/1", "/flow", "/replays", "/attention", "/audit", plan.as_str(), "/trail/nobody"] {
            page.go(path).await;
            if let Some(axe) = &axe {
                page.js(axe).await;
                let found = page.client.execute_async("const done = arguments[0]; axe.run().then(r => done(r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 120)).slice(0, 3).join(' | '))))", Vec::new()).await.unwrap();
                assert_eq!(found, json!([]), "{path} {scheme}");
            }
            // 360 pixels, and 640, which is 1280 at 200 %.
            for width in [360, 640] {
                page.devtools("Emulation.setDeviceMetricsOverride", json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false })).await;
                let overflow = page.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth").await;
                assert!(overflow.as_i64().unwrap() <= 0, "{path} at {width}: {overflow} pixels too wide");
            }
            page.devtools("Emulation.clearDeviceMetricsOverride", json!({})).await;
        }
    }
    // By keyboard alone: two rows ticked, a preview, a reason, go.
    page.go("/dead?consumer=ledger").await;
    let keys = async |keys: &str| page.client.active_element().await.unwrap().send_keys(keys).await.unwrap();
    keys("j").await;
    keys("x").await;
    keys("j").await;
    keys("x").await;
    assert!(
        page.js("return document.activeElement.tagName === 'TR' && document.activeElement.matches(':focus-visible')").await.as_bool().unwrap(),
        "focus is seen"
    );
    keys("r").await;
    page.says("2 dead letters, frozen").await;
    until("the reason is reached by Tab", 10, true, async || {
        keys("\u{e004}").await;
        page.js("return document.activeElement.name === 'reason' && document.activeElement.matches(':focus-visible')").await == true
    })
    .await;
    keys("by keyboard").await;
    keys("\u{e007}").await;
    page.says("Replay r_").await;
    assert_eq!(page.stage.count("SELECT count(*) FROM replays WHERE state = 'running' AND reason = 'by keyboard' AND started_by = 'otto'").await, 1);
    assert_eq!(page.stage.count("SELECT count(*) FROM dead_letters WHERE state = 'queued'").await, 2);
}

#[tokio::test]
async fn without_script_lists_and_details_read_and_without_a_database_numbers_are_old_and_nothing_can_be_pressed() {
    let stage = Stage::with_schema().await;
    stage.execute(SEED).await;
    {
        let page = Page::on(Fleet::on(&stage), &Look { no_script: true, ..Look::default() }).await;
        page.sign_in(OPERATOR, "/dead?consumer=email").await;
        let source = page.source().await;
        assert!(source.contains("60</strong> match") && source.contains("550 at RCPT TO"), "the list reads");
        page.go("/dead/200").await;
        assert!(page.source().await.contains("Will run"), "the detail reads");
        page.fill("form[action$='/discard'] input[name=reason]", "without script").await;
        page.click("form[action$='/discard'] button").await;
        page.wait("p.notice.good").await;
        assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'discarded'").await, 1);
    }
    let page = Page::on(Fleet::on(&stage), &Look::default()).await;
    page.sign_in(ADMIN, "/").await;
    page.says("249 dead letters need a decision").await;
    stage.refuse_connections(true).await;
    for path in ["/", "/dead", "/flow"] {
        page.go(path).await;
        page.says("Last known numbers").await;
        assert_eq!(page.js("return Array.from(document.querySelectorAll('main form[method=post] button')).filter(b => !b.disabled).length").await, 0, "{path}");
    }
    page.go("/").await;
    page.says("249 dead letters need a decision").await;
    assert_eq!(
        page.js("return document.querySelectorAll('.stale').length > 0 && document.querySelectorAll('.stale time[datetime]').length > 0").await,
        true,
        "grey, and with their time"
    );
    stage.refuse_connections(false).await;
    until("it is back", 30, false, async || {
        page.go("/").await;
        page.text().await.contains("Last known numbers")
    })
    .await;
    stage.execute("UPDATE dead_letters SET state = 'resolved', closed_at = now()").await;
    page.go("/dead").await;
    page.says("No dead letters.").await;
    page.go("/trail/pi_nobody").await;
    page.says("No payment, event, order or ticket has the id pi_nobody").await;
}

#[tokio::test]
async fn the_trail_folds_copies_names_what_is_missing_and_is_reached_from_every_id() {
    let (stage, crm, smtp) = (Stage::new().await, CrmStub::start().await, SmtpStub::start().await);
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_CRM_URL", crm.url.clone()).with("COUNTERFOIL_SMTP_URL", smtp.url.clone());
    let (_ingest, shop) = fleet.ingest().await;
    crm.next(&["404 Gone"]);
    let order = shop.order_named("T-14").await;
    let late = stripe_event("charge.succeeded", &order, "pi_14", &json!({}));
    let first = stripe_event("payment_intent.succeeded", &order, "pi_14", &json!({}));
    for event in [&first, &first, &late, &first] {
        shop.stripe(event).await;
    }
    shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_15", &json!({}))).await;
    let mut running = vec![fleet.relay(), fleet.consumer("dead-letters")];
    running.extend(["email", "crm", "ledger", "tickets", "refunds"].map(|name| fleet.consumer(name)));
    until("the CRM's is dead", 30, 1, async || stage.count("SELECT count(*) FROM dead_letters WHERE consumer = 'crm'").await).await;
    until("the others are done", 30, 3, async || {
        stage.count("SELECT count(*) FROM processed_events p JOIN outbox o ON o.event_id = p.event_id WHERE o.topic = 'order.paid' AND p.state = 'done'").await
    })
    .await;
    let page = Page::on(fleet, &Look::default()).await;
    page.sign_in(VIEWER, &format!("/trail/{order}")).await;
    let text = page.text().await;
    for part in ["payment_intent.succeeded × 3 deliveries, 1 event", "Another payment of 10.99 EUR is extra", "Outstanding: crm", "dead-lettered as d_1"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    page.client.set_window_size(768, 1024).await.unwrap();
    let narrow =
        "return Math.max(...Array.from(document.querySelectorAll('table.timeline a.id, table.timeline span.id')).map(id => id.getBoundingClientRect().height))";
    assert!(page.js(narrow).await.as_f64() < Some(60.0), "no id is squeezed into a column of a few letters");
    assert_eq!(page.js("return document.documentElement.scrollWidth <= window.innerWidth").await, true);
    page.client.set_window_size(1280, 900).await.unwrap();
    let lanes: Vec<String> = serde_json::from_value(page.js("return Array.from(document.querySelectorAll('table.timeline tbody tr')).filter(r => r.textContent.includes('order.paid')).map(r => r.querySelector('.lane').textContent)").await).unwrap();
    for lane in ["outbox", "email", "crm", "ledger", "tickets"] {
        assert!(lanes.contains(&lane.to_owned()), "{lane} in {lanes:?}");
    }
    assert_eq!(page.js("return Array.from(document.querySelectorAll('tr.missing .lane')).map(l => l.textContent).join()").await, "crm");
    let event: String = sqlx::query_scalar("SELECT event_id::text FROM outbox WHERE topic = 'order.paid'").fetch_one(&stage.pool()).await.unwrap();
    for id in ["T-14", "pi_14", "pi_15", first["id"].as_str().unwrap(), &event] {
        page.fill(".search input", &format!("{id}\u{e007}")).await;
        until(&format!("{id} leads there"), 15, true, async || {
            page.js("const h = document.querySelector('h1'); return !!h && h.textContent.startsWith('Order T-14')").await == true
                && page.path().await.contains(id.split(' ').next().unwrap())
        })
        .await;
    }
    let _: Value = page.js("return 1").await;
}
