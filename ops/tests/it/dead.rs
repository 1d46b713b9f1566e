//! Dead letters: planned, replayed, stopped, discarded; and what a queue lost.

use counterfoil_inbox::dead::Filter;
use counterfoil_ops::actions::{Actor, Role};
use counterfoil_ops::replays::{Risks, Wanted, confirm, step};
use counterfoil_tests::{CrmStub, Fleet, Stage, paid_event, stripe_event, until};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

/// A hundred days.
const HORIZON_S: i64 = 8_640_000;

fn actor(role: Role) -> Actor {
    Actor { person: "ann".into(), role, came_from: "test".into() }
}

fn wanted() -> Wanted {
    Wanted { reason: "token rotated".into(), rate_per_s: 100.0, one_first: false, stop_after: 5, risks: Risks::default(), confirmed: None }
}

/// A dead letter of the CRM, as the keeper would have kept it; its event.
async fn dead(pool: &PgPool, consumer: &str) -> Uuid {
    let order = Uuid::new_v4();
    let event = paid_event(order, "ann@example.com");
    let id: Uuid = serde_json::from_value(event["id"].clone()).unwrap();
    sqlx::query(
        "INSERT INTO dead_letters (consumer, event_id, identity, topic, order_id, version, amount_minor, currency, body, kind, error, first_failed_at, died_at)
         VALUES ($1, $2, $2::uuid::text, 'order.paid', $3, 2, 1099, 'EUR', $4, 'http_404', 'HTTP 404 from the CRM', now(), now())",
    )
    .bind(consumer)
    .bind(id)
    .bind(order)
    .bind(event.to_string().into_bytes())
    .execute(pool)
    .await
    .unwrap();
    id
}

async fn plan(pool: &PgPool, filter: &Filter) -> i64 {
    let mut tx = pool.begin().await.unwrap();
    let plan = counterfoil_inbox::replay::plan(&mut tx, filter, None, "ann", HORIZON_S).await.unwrap();
    tx.commit().await.unwrap();
    plan
}

fn crm() -> Filter {
    Filter { consumer: Some("crm".into()), ..Filter::default() }
}

async fn outbox(stage: &Stage) -> i64 {
    stage.count("SELECT count(*) FROM outbox WHERE exchange = '' AND routing_key = 'counterfoil.crm'").await
}

#[tokio::test]
async fn a_dead_letter_is_found_put_right_and_proven_right_from_the_command_line() {
    let (stage, crm) = (Stage::new().await, CrmStub::start().await);
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_CRM_URL", crm.url.clone());
    let (_ingest, shop) = fleet.ingest().await;
    crm.next(&["404 Gone"]);
    let order = shop.order_named("A-1042").await;
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({}))).await.1, "applied");
    let _others = [fleet.relay(), fleet.consumer("crm"), fleet.consumer("dead-letters").ready().await, fleet.housekeep().ready().await];
    until("it is dead", 30, 1, async || stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open'").await).await;
    let (code, list) = fleet.counterfoil(&["dead", "list", "--consumer", "crm", "--json"]).await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((code, &list["total"], &list["dead_letters"][0]["kind"]), (Some(0), &json!(1), &json!("http_404")));
    assert_eq!((&list["dead_letters"][0]["verdict"], &list["dead_letters"][0]["reference"]), (&json!("Will run"), &json!("A-1042")));
    let (_, list) = fleet.counterfoil(&["dead", "list"]).await;
    assert!(list.contains("order A-1042\n"), "{list}");
    let (code, said) = fleet.counterfoil(&["dead", "list", "--consumers", "crm"]).await;
    assert!(code == Some(64) && said.contains("--consumer") && !said.contains("configuration"), "{said}");
    let (_, shown) = fleet.counterfoil(&["dead-letters", "show", "d_1", "--payload"]).await;
    assert!(shown.contains("HTTP 404 from the CRM") && shown.contains("A-1042") && !shown.contains("@example.com") && !shown.contains("Ann"), "{shown}");
    assert_eq!(fleet.counterfoil(&["dead", "replay", "d_1"]).await.0, Some(4), "a replay needs a reason");
    assert_eq!(outbox(&stage).await, 0);
    let (code, said) = fleet.counterfoil(&["dead", "replay", "d_1", "--reason", "the contact exists now"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 done · 0 skipped · 0 came back · 0 left"), "{said}");
    assert_eq!(crm.seen().len(), 2);
    assert_eq!(crm.seen()[0].body, crm.seen()[1].body);
    let died: Vec<u8> = sqlx::query_scalar("SELECT body FROM dead_letters").fetch_one(&stage.pool()).await.unwrap();
    let sent: Vec<u8> = sqlx::query_scalar("SELECT body FROM outbox WHERE exchange = ''").fetch_one(&stage.pool()).await.unwrap();
    assert_eq!(died, sent, "a replay carries the bytes that died");
    assert_eq!(stage.count("SELECT count(*) FROM processed_events WHERE consumer = 'crm' AND state = 'done'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM actions WHERE action = 'replay' AND outcome = 'started' AND reason = 'the contact exists now'").await, 1);
    assert_eq!(fleet.counterfoil(&["dead", "show", "99"]).await.0, Some(3));
    assert_eq!(fleet.counterfoil(&["dead", "replay"]).await.0, Some(4), "a filter that chooses nothing is refused");
}

#[tokio::test]
async fn a_plan_is_frozen_confirmed_once_and_old_after_fifteen_minutes() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    for _ in 0..180 {
        dead(&pool, "crm").await;
    }
    let planned = plan(&pool, &crm()).await;
    for _ in 0..3 {
        dead(&pool, "crm").await;
    }
    assert_eq!(outbox(&stage).await, 0, "a plan writes only itself");
    assert!(
        confirm(&pool, &actor(Role::Operator), planned, &wanted(), HORIZON_S).await.unwrap_err().to_string().contains("180"),
        "more than 100 are confirmed by their number"
    );
    let wanted = Wanted { confirmed: Some(180), rate_per_s: 200.0, ..wanted() };
    let who = actor(Role::Operator);
    let (one, two) = tokio::join!(confirm(&pool, &who, planned, &wanted, HORIZON_S), confirm(&pool, &who, planned, &wanted, HORIZON_S));
    let started = [one.unwrap(), two.unwrap()];
    assert!(started.iter().any(|started| matches!(started, counterfoil_inbox::replay::Started::Running(180))), "{started:?}");
    assert!(started.iter().any(|started| matches!(started, counterfoil_inbox::replay::Started::Already { by, .. } if by == "ann")), "{started:?}");
    until("all are released", 30, 180, async || {
        let _ = tokio::join!(step(&pool, None, HORIZON_S), step(&pool, None, HORIZON_S));
        outbox(&stage).await
    })
    .await;
    assert_eq!(stage.count("SELECT count(DISTINCT event_id) FROM outbox WHERE exchange = ''").await, 180);
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open'").await, 3, "what arrived since is not included");
    let old = plan(&pool, &crm()).await;
    stage.execute("UPDATE replays SET planned_at = now() - interval '16 minutes' WHERE state = 'planned'").await;
    let refused = confirm(&pool, &actor(Role::Operator), old, &self::wanted(), HORIZON_S).await.unwrap();
    assert_eq!(refused, counterfoil_inbox::replay::Started::Old);
}

#[tokio::test]
async fn a_replay_says_beforehand_what_will_happen_and_does_only_that() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    let ids: Vec<Uuid> = [
        dead(&pool, "crm").await,
        dead(&pool, "crm").await,
        dead(&pool, "crm").await,
        dead(&pool, "crm").await,
        dead(&pool, "crm").await,
        dead(&pool, "crm").await,
    ]
    .to_vec();
    let fixtures = [
        "INSERT INTO processed_events (consumer, event_id, state, done_at) VALUES ('crm', $1, 'done', now())",
        "INSERT INTO processed_events (consumer, event_id, state, lease_until) VALUES ('crm', $1, 'claimed', now() - interval '1 minute')",
        "INSERT INTO processed_events (consumer, event_id, state) VALUES ('crm', $1, 'failed')",
        "UPDATE dead_letters SET first_failed_at = now() - interval '200 days' WHERE event_id = $1",
        "INSERT INTO processed_events (consumer, event_id, state, lease_until) VALUES ('crm', $1, 'claimed', now() + interval '1 minute')",
        "WITH newer AS (INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload) SELECT gen_random_uuid(), 'order.contact_known', order_id, 9, 'x', '{}' FROM dead_letters WHERE event_id = $1 RETURNING event_id)
         INSERT INTO processed_events (consumer, event_id, state, done_at) SELECT 'crm', event_id, 'done', now() FROM newer",
    ];
    for (id, sql) in ids.iter().zip(fixtures) {
        sqlx::query(sql).bind(id).execute(&pool).await.unwrap();
    }
    let planned = plan(&pool, &crm()).await;
    let lines = counterfoil_inbox::replay::plan_lines(&mut pool.acquire().await.unwrap(), planned).await.unwrap();
    let said: Vec<(&str, i64)> = lines.iter().map(|line| (line.verdict.name(), line.letters)).collect();
    assert_eq!(said, [("will_run", 1), ("done", 1), ("superseded", 1), ("unknown", 1), ("unsafe", 1), ("blocked", 1)]);
    let risky = Wanted { risks: Risks { unknown: true, unsafe_: true }, confirmed: Some(3), ..wanted() };
    assert!(confirm(&pool, &actor(Role::Operator), planned, &risky, HORIZON_S).await.is_err(), "what may happen twice needs an admin");
    assert!(confirm(&pool, &actor(Role::Viewer), planned, &wanted(), HORIZON_S).await.is_err());
    assert_eq!(stage.count("SELECT count(*) FROM actions WHERE outcome LIKE 'refused%'").await, 2, "the attempts are written down");
    confirm(&pool, &actor(Role::Operator), planned, &wanted(), HORIZON_S).await.unwrap();
    step(&pool, Some(planned), HORIZON_S).await.unwrap();
    let released: Vec<Uuid> = sqlx::query_scalar("SELECT event_id FROM outbox WHERE exchange = ''").fetch_all(&pool).await.unwrap();
    assert_eq!(released, [ids[2]], "only what will run");
}

#[tokio::test]
async fn one_goes_first_and_holds_the_rest_when_it_comes_back_and_a_rate_is_kept_until_somebody_stops_it() {
    let stage = Stage::with_schema().await;
    let pool = stage.pool();
    for _ in 0..60 {
        dead(&pool, "crm").await;
    }
    let run = plan(&pool, &crm()).await;
    confirm(&pool, &actor(Role::Operator), run, &Wanted { one_first: true, ..wanted() }, HORIZON_S).await.unwrap();
    for _ in 0..5 {
        step(&pool, Some(run), HORIZON_S).await.unwrap();
    }
    assert_eq!(outbox(&stage).await, 1, "one first");
    stage.execute("UPDATE dead_letters SET state = 'open', came_back = 1, error = 'HTTP 401 from the CRM' WHERE state = 'replaying'").await;
    step(&pool, Some(run), HORIZON_S).await.unwrap();
    assert_eq!(stage.count("SELECT count(*) FROM replays WHERE state = 'stopped' AND stopped_why = 'the first one came back'").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open'").await, 60, "the rest is open again");
    let run = plan(&pool, &crm()).await;
    confirm(&pool, &actor(Role::Operator), run, &Wanted { rate_per_s: 5.0, ..wanted() }, HORIZON_S).await.unwrap();
    stage.execute("UPDATE replays SET paced_from = now() - interval '10 minutes' WHERE state = 'running'").await;
    step(&pool, Some(run), HORIZON_S).await.unwrap();
    let released = outbox(&stage).await - 1;
    assert!((5..=6).contains(&released), "{released}: what was not used for ten minutes is not made up for at once");
    assert!(counterfoil_ops::replays::stop(&pool, &actor(Role::Operator), run, "enough").await.unwrap());
    step(&pool, None, HORIZON_S).await.unwrap();
    assert_eq!(outbox(&stage).await - 1, released, "none more after the stop");
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open'").await, 60 - released);
}

#[tokio::test]
async fn a_process_killed_while_it_releases_leaves_either_both_the_state_and_the_message_or_neither() {
    let stage = Stage::new().await;
    let pool = stage.pool();
    for _ in 0..20 {
        dead(&pool, "crm").await;
    }
    let run = plan(&pool, &crm()).await;
    confirm(&pool, &actor(Role::Operator), run, &wanted(), HORIZON_S).await.unwrap();
    let mut killed = Fleet::on(&stage).with("COUNTERFOIL_FAULT", "replay.before_commit").housekeep();
    assert_eq!(killed.ended().await, None);
    assert_eq!((outbox(&stage).await, stage.count("SELECT count(*) FROM dead_letters WHERE state = 'replaying'").await), (0, 0));
    let _housekeep = Fleet::on(&stage).housekeep().ready().await;
    until("all are released", 30, 20, async || outbox(&stage).await).await;
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'replaying' AND replay = 1").await, 20);
}

#[tokio::test]
async fn a_paused_consumer_takes_nothing_until_its_pause_ends_by_itself_and_says_so() {
    let (stage, crm) = (Stage::new().await, CrmStub::start().await);
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_CRM_URL", crm.url.clone());
    let _consumer = fleet.consumer("crm").ready().await;
    assert_eq!(fleet.counterfoil(&["consumer", "pause", "crm", "--for", "13h", "--reason", "x"]).await.0, Some(4));
    assert_eq!(fleet.counterfoil(&["consumer", "pause", "nobody", "--for", "5s", "--reason", "x"]).await.0, Some(4));
    assert_eq!(fleet.counterfoil(&["consumer", "pause", "crm", "--for", "6s", "--reason", "the CRM migrates"]).await.0, Some(0));
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await; // it looks every second
    let order = Uuid::new_v4();
    stage
        .execute(&format!("INSERT INTO orders (id, reference, amount_minor, currency, customer_email) VALUES ('{order}', 'A', 1, 'EUR', 'ann@example.com')"))
        .await;
    stage.put_events("crm", &[paid_event(order, "ann@example.com")]).await;
    let (_, status) = fleet.counterfoil(&["status"]).await;
    assert!(status.contains("Paused by a person until"), "{status}");
    assert!(crm.seen().is_empty(), "nothing is taken");
    until("it goes on by itself", 20, 1, async || crm.seen().len()).await;
}

#[tokio::test]
async fn a_queue_deleted_under_load_and_brought_back_loses_no_effect_and_doubles_none_in_the_database() {
    let (stage, crm) = (Stage::new().await, CrmStub::start().await);
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_CRM_URL", crm.url.clone()).with("COUNTERFOIL_LOST_AFTER_S", "2");
    let (_ingest, shop) = fleet.ingest().await;
    let _others = [fleet.relay(), fleet.consumer("ledger"), fleet.consumer("crm"), fleet.housekeep()];
    let pay = async |n: usize| {
        let order = shop.order_named(&format!("L-{n}")).await;
        assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &order, &format!("pi_{n}"), &json!({}))).await.1, "applied");
    };
    for n in 0..20 {
        pay(n).await;
    }
    stage.delete_queue("counterfoil.ledger").await;
    for n in 20..60 {
        pay(n).await;
    }
    until("the relay has sent them all", 30, 0, async || stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL").await).await;
    let booked = stage.count("SELECT count(*) FROM ledger_entries").await;
    assert!(booked < 60, "{booked}: some were lost");
    assert_eq!(fleet.migrate().ended().await, Some(0));
    for n in 60..80 {
        pay(n).await;
    }
    until("every payment is booked", 60, 80, async || stage.count("SELECT count(*) FROM ledger_entries").await).await;
    assert_eq!(stage.count("SELECT count(DISTINCT source_event_id) FROM ledger_entries").await, 80);
    assert_eq!(stage.count("SELECT count(*) FROM books_differences").await, 0);
    let found = stage.count("SELECT count(*) FROM lost_messages WHERE consumer = 'ledger'").await;
    assert!(found >= 60 - booked, "{found} were found lost");
    assert_eq!(stage.count("SELECT count(*) FROM lost_messages WHERE consumer = 'crm'").await, 0, "nobody else's are sent again");
    until("and settled", 20, 0, async || stage.count("SELECT count(*) FROM lost_messages WHERE consumer = 'ledger' AND settled_at IS NULL").await).await;
}
