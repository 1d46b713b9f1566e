//! The console's fifteen checks in a real headless browser; what is true is read by SQL, not from the page.

mod light;
mod page;
mod replay;

use counterfoil_tests::until;
use serde_json::Value;

use page::{ADMIN, OPERATOR, Page, SEED, VIEWER};

/// Every row of the tables that looking must not touch, as one text.
async fn everything(page: &Page) -> String {
    let mut all = String::new();
    for table in ["dead_letters", "processed_events", "outbox", "replays", "actions", "consumer_pauses"] {
        let query = format!("SELECT md5(COALESCE(string_agg(t::text, '|' ORDER BY t::text), '')) FROM {table} t");
        all += &sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(query)).fetch_one(&page.stage.pool()).await.unwrap();
    }
    all
}

#[tokio::test]
async fn looking_changes_nothing_and_every_state_of_a_list_is_its_address() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    let before = everything(&page).await;
    // An alert's link in a fresh session: after the sign-in, its section of the runbook, or the same list.
    page.sign_in(VIEWER, "/runbook/OutboxBehind").await;
    assert_eq!(page.path().await, "/runbook/OutboxBehind");
    page.says("begin there").await;
    page.go("/runbook/Nothing").await;
    page.says("has no section Nothing").await;
    page.go("/runbook").await;
    assert!(page.js("return document.querySelectorAll('main nav a').length").await.as_i64() > Some(20), "an index of its sections");
    let link = "/dead?consumer=crm&kind=http_404&state=open";
    page.sign_in(VIEWER, link).await;
    assert_eq!(page.path().await, link);
    let text = page.text().await;
    let count = page.stage.count("SELECT count(*) FROM dead_letters WHERE consumer = 'crm' AND kind = 'http_404' AND state = 'open'").await;
    for part in [format!("{count} match, 50 on this page"), "consumer = crm".into(), "kind = http_404".into(), "state = open".into()] {
        assert!(text.contains(&part), "{part} in {text}");
    }
    let ids = async || -> Vec<String> {
        serde_json::from_value(page.js("return Array.from(document.querySelectorAll('a.open')).map(a => a.textContent)").await).unwrap()
    };
    let shown = ids().await;
    let (_, listed) = page.fleet.counterfoil(&["dead", "list", "--consumer", "crm", "--kind", "http_404", "--state", "open", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let listed: Vec<String> = listed["dead_letters"].as_array().unwrap().iter().map(|letter| format!("d_{}", letter["id"])).collect();
    assert_eq!(shown, listed, "the page and the command show the same");
    page.go("/flow").await;
    page.client.back().await.unwrap();
    assert_eq!(ids().await, shown);
    page.client.refresh().await.unwrap();
    assert_eq!(ids().await, shown);
    for number in 2..=4 {
        page.go(&format!("{link}&page={number}")).await;
    }
    for id in 1..=30 {
        page.go(&format!("/dead/{id}")).await;
        page.wait("pre.payload").await;
    }
    for path in ["/", "/flow", "/replays", "/attention", "/audit", "/trail/nobody", "/dead?kind=none"] {
        page.go(path).await;
    }
    assert_eq!(everything(&page).await, before, "looking changes nothing");
    page.go("/dead?consumer=crm&kind=none").await;
    page.says("250 are open without this filter").await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
}

#[tokio::test]
async fn hostile_text_is_shown_as_it_is_and_nothing_is_asked_of_any_other_place() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    let hostile = r#"<script>window.pwned=1</script>"><img src=x onerror=window.pwned=1> javascript:alert(1) \u{202e}txt \u{1b}[31mred"#;
    sqlx::query(
        "UPDATE dead_letters SET error = $1, kind = $1, previous_error = $1, headers = jsonb_build_object($1, $1), closed_reason = $1,
            body = convert_to(jsonb_build_object('reference', $1::text, 'note', $1::text)::text, 'UTF8') WHERE id <= 3",
    )
    .bind(hostile)
    .execute(&page.stage.pool())
    .await
    .unwrap();
    sqlx::query("UPDATE dead_letters SET body = $1 WHERE id = 4")
        .bind(b"{\"a\":\"\\u0000\"} <script>window.pwned=1</script> \0\xff".to_vec())
        .execute(&page.stage.pool())
        .await
        .unwrap();
    sqlx::query("INSERT INTO orders (reference, amount_minor, currency) VALUES ($1, 1, 'EUR')")
        .bind(hostile.replace('\\', "/"))
        .execute(&page.stage.pool())
        .await
        .unwrap();
    sqlx::query("INSERT INTO actions (person, role, came_from, action, object, reason, outcome) VALUES ($1, 'admin', $1, $1, $1, $1, $1)")
        .bind(hostile)
        .execute(&page.stage.pool())
        .await
        .unwrap();
    sqlx::query("INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome, last_error) VALUES ('stripe', $1, $1, '', 0, 'failed', $1)")
        .bind(hostile)
        .execute(&page.stage.pool())
        .await
        .unwrap();
    page.stage.execute("UPDATE dead_letters SET order_id = (SELECT id FROM orders) WHERE id <= 3").await;
    page.sign_in(ADMIN, "/dead").await;
    let order: String = sqlx::query_scalar("SELECT id::text FROM orders").fetch_one(&page.stage.pool()).await.unwrap();
    for path in [
        "/dead",
        "/dead?sort=oldest",
        "/dead/1",
        "/dead/4",
        "/attention",
        "/audit",
        &format!("/trail/{order}"),
        "/dead?kind=%3Cscript%3Ewindow.pwned%3D1%3C%2Fscript%3E",
        "/search?q=%22%3E%3Cimg%20src%3Dx%3E",
        "/",
        "/replays/%3Cscript%3E",
    ] {
        page.go(path).await;
        assert_eq!(page.js("return typeof window.pwned").await, "undefined", "{path}");
        assert_eq!(page.js("return document.querySelectorAll('main script, main img').length").await, 0, "{path}");
        let elsewhere =
            page.js("return performance.getEntriesByType('resource').map(e => e.name).filter(name => !name.startsWith(location.origin)).length").await;
        assert_eq!(elsewhere, 0, "{path}");
    }
    page.go("/attention").await;
    assert!(page.text().await.contains("<script>window.pwned=1</script>"), "what waits is shown literally");
    page.go("/dead/1").await;
    assert!(page.text().await.contains("order <script>window.pwned=1</script>"), "it is shown literally, and so is the name of its order");
    page.fill("form[action$='/reveal'] input[name=reason]", "<script>window.pwned=1</script>").await;
    page.click("form[action$='/reveal'] button").await;
    page.says("Customer data is shown").await;
    assert_eq!(page.js("return typeof window.pwned").await, "undefined");
    assert_eq!(page.complaints().await, Vec::<String>::new(), "no policy was violated");
}

#[tokio::test]
async fn a_viewer_looks_an_operator_decides_an_admin_reveals_and_everything_is_written_down() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    page.stage.execute("UPDATE dead_letters SET first_failed_at = now() - interval '300 days' WHERE id = 5").await;
    let secrets = ["ann.secret", "Ann Secret", "15112345678"];
    page.sign_in(VIEWER, "/dead/1").await;
    for path in ["/", "/dead", "/dead/1", "/dead/5", "/flow", "/replays", "/attention", "/audit"] {
        page.go(path).await;
        let source = page.source().await;
        assert!(secrets.iter().all(|secret| !source.contains(secret)), "{path}");
        let enabled = page.js("return Array.from(document.querySelectorAll('main form[method=post] button')).filter(b => !b.disabled).length").await;
        assert_eq!(enabled, 0, "{path}");
    }
    // The same by hand, with the viewer's own token.
    let token = page.form_token().await;
    let before = page.stage.count("SELECT count(*) FROM actions").await;
    for (path, fields) in [
        ("/dead/1/discard", "reason=x"),
        ("/dead/replay", "id=1&reason=x"),
        ("/dead/1/reveal", "reason=x"),
        ("/dead/1/payload", "reason=x"),
        ("/flow/pause", "consumer=crm&minutes=5&reason=x"),
        ("/dead/plan", "choice=ticked&id=1"),
    ] {
        assert_eq!(page.post_by_hand(path, &format!("token={token}&{fields}")).await, 403, "{path}");
    }
    assert_eq!(page.stage.count("SELECT count(*) FROM dead_letters WHERE state <> 'open'").await, 0);
    assert_eq!(page.stage.count("SELECT count(*) FROM replays").await + page.stage.count("SELECT count(*) FROM consumer_pauses").await, 0);
    assert_eq!(
        page.stage.count("SELECT count(*) FROM actions WHERE person = 'vera' AND outcome LIKE 'refused%'").await - before,
        6,
        "the attempts are written down"
    );
    page.sign_in(OPERATOR, "/dead/1").await;
    assert_eq!(page.post_by_hand("/dead/1/discard", "reason=x").await, 403, "without the form's token");
    let foreign =
        reqwest::Client::new().post(format!("{}/dead/1/discard", page.base)).header("Origin", "https://evil.example").header("Cookie", cookie(&page).await);
    let token = page.form_token().await;
    assert_eq!(
        foreign.body(format!("token={token}&reason=x")).header("Content-Type", "application/x-www-form-urlencoded").send().await.unwrap().status(),
        403,
        "from another site"
    );
    page.fill("form[action$='/discard'] input[name=reason]", "made by hand").await;
    page.click("form[action$='/discard'] button").await;
    page.says("d_1 is discarded").await;
    page.go("/dead/5").await;
    page.says("Unsafe: its dedupe record is gone").await;
    assert_eq!(page.js("return document.querySelector('form[action$=\"/reveal\"] button').disabled").await, true);
    assert_eq!(
        page.post_by_hand("/dead/replay", &format!("token={}&id=5&risk=unsafe&reason=x", page.form_token().await)).await,
        403,
        "an operator takes no risk"
    );
    an_admin_reveals(&page).await;
    for (person, action, object, outcome) in [("otto", "discard", "d_1", "done"), ("ada", "reveal", "d_2", "shown")] {
        let found: i64 = sqlx::query_scalar("SELECT count(*) FROM actions WHERE person = $1 AND action = $2 AND object = $3 AND outcome = $4 AND reason <> ''")
            .bind(person)
            .bind(action)
            .bind(object)
            .bind(outcome)
            .fetch_one(&page.stage.pool())
            .await
            .unwrap();
        assert_eq!(found, 1, "{person} {action}");
    }
    page.go("/audit").await;
    let text = page.text().await;
    assert!(text.contains("made by hand") && text.contains("refused: a viewer may look"), "{text}");
}

async fn an_admin_reveals(page: &Page) {
    page.sign_in(ADMIN, "/dead/2").await;
    page.fill("form[action$='/reveal'] input[name=reason]", "the customer calls").await;
    page.click("form[action$='/reveal'] button").await;
    page.says("ann.secret@example.com").await;
    assert_eq!(page.js("return document.querySelector('meta[http-equiv=refresh]').content").await, "300;url=/dead/2", "it ends after five minutes");
    page.go("/dead/2").await;
    assert!(!page.source().await.contains("ann.secret"), "and on leaving");
}

async fn cookie(page: &Page) -> String {
    let cookies = page.client.get_all_cookies().await.unwrap();
    cookies.iter().map(|cookie| format!("{}={}", cookie.name(), cookie.value())).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn a_megabyte_in_one_line_is_shown_in_part_and_downloaded_whole() {
    let page = Page::alone().await;
    page.stage.execute(SEED).await;
    let body = format!("{{\"specversion\":\"1.0\",\"data\":\"{}\"}}", "x".repeat(1 << 20));
    sqlx::query("UPDATE dead_letters SET body = $1 WHERE id = 1").bind(body.as_bytes()).execute(&page.stage.pool()).await.unwrap();
    page.sign_in(ADMIN, "/dead/1").await;
    page.says("65536 of 1048").await;
    page.says(&format!("{} bytes are stored", body.len())).await;
    let ready = page.js("const t = performance.getEntriesByType('navigation')[0]; return t.domInteractive - t.responseEnd").await.as_f64().unwrap();
    assert!(ready < 1000.0, "{ready} ms");
    let script = "const done = arguments[0]; const form = new URLSearchParams({token: document.querySelector('input[name=token]').value, reason: 'a proof'});
        fetch('/dead/1/payload', {method: 'POST', body: form}).then(async r => { const bytes = await r.arrayBuffer();
            const hash = Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))).map(b => b.toString(16).padStart(2, '0')).join('');
            done([hash, r.headers.get('content-type'), r.headers.get('content-disposition'), r.headers.get('x-content-type-options')].join(' ')); })";
    let said = page.client.execute_async(script, Vec::new()).await.unwrap().as_str().unwrap().to_owned();
    let stored: String = sqlx::query_scalar("SELECT encode(sha256(body), 'hex') FROM dead_letters WHERE id = 1").fetch_one(&page.stage.pool()).await.unwrap();
    assert_eq!(said, format!("{stored} text/plain; charset=utf-8 attachment; filename=\"d_1.txt\" nosniff"));
    until("it is written down", 5, 1, async || page.stage.count("SELECT count(*) FROM actions WHERE reason = 'a proof'").await).await;
}
