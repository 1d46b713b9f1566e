//! Real relays: many at once, killed, started too early.

use std::collections::HashSet;

use counterfoil_tests::{Fleet, Proxy, Stage, until};

use crate::support::{rows, states};

async fn distinct(stage: &Stage, queue: &str) -> (usize, usize) {
    let taken = stage.take_all(queue).await;
    (taken.len(), taken.iter().map(|message| message.id.clone()).collect::<HashSet<_>>().len())
}

#[tokio::test]
async fn two_to_six_relays_over_ten_thousand_rows_bring_each_row_out_and_miss_none() {
    for relays in [2, 6] {
        let stage = Stage::new().await;
        let pool = stage.pool();
        rows(&pool, "payment.held", 10_000).await;
        let running: Vec<_> = (0..relays).map(|_| Fleet::on(&stage).relay()).collect();
        until("all are published", 60, (0, 0, 10_000), async || states(&pool).await).await;
        drop(running);
        assert_eq!(distinct(&stage, "counterfoil.ledger").await, (10_000, 10_000), "{relays} relays");
    }
}

#[tokio::test]
async fn a_relay_killed_between_confirm_and_commit_loses_nothing_and_its_repeats_carry_the_same_id() {
    for point in ["relay.confirmed", "relay.marked"] {
        let stage = Stage::new().await;
        let pool = stage.pool();
        rows(&pool, "payment.held", 100).await;
        let mut dying = Fleet::on(&stage).with("COUNTERFOIL_FAULT", point).relay();
        assert_eq!(dying.ended().await, None, "it was killed");
        assert_eq!(states(&pool).await, (100, 0, 0), "nothing is marked");
        let _healthy = Fleet::on(&stage).relay();
        until("all are published", 30, (0, 0, 100), async || states(&pool).await).await;
        let (messages, events) = distinct(&stage, "counterfoil.ledger").await;
        assert!(messages > 100, "{point}: {messages} messages");
        assert_eq!(events, 100, "{point}");
    }
}

#[tokio::test]
async fn a_relay_started_before_the_topology_claims_nothing_says_why_and_goes_on_once_migrate_has_run() {
    let stage = Stage::empty().await;
    let mut schema = counterfoil_migrate::connect(&stage.database_url).await.unwrap();
    counterfoil_migrate::migrate_schema(&mut schema).await.unwrap();
    let pool = stage.pool();
    rows(&pool, "order.paid", 5).await;
    let relay = Fleet::on(&stage).relay();
    until("it says why", 15, true, async || {
        relay.readyz().await.is_some_and(|(status, report)| status == 503 && report.contains("run counterfoil-migrate") && report.contains("does not exist"))
    })
    .await;
    assert_eq!(states(&pool).await, (5, 0, 0));
    assert_eq!(Fleet::on(&stage).migrate().ended().await, Some(0));
    until("all are published", 20, (0, 0, 5), async || states(&pool).await).await;
    for queue in ["counterfoil.email", "counterfoil.crm", "counterfoil.ledger"] {
        assert_eq!(stage.waiting(queue).await, 5, "{queue} got them all");
    }
}

#[tokio::test]
async fn a_deploy_in_the_wrong_order_loses_nothing_although_a_queue_is_missing_when_the_relay_starts() {
    let stage = Stage::new().await;
    let pool = stage.pool();
    // An older release's topology: one queue less, and its version recorded.
    let link = crate::support::link(&stage).await;
    link.channel().await.unwrap().queue_delete("counterfoil.crm".into(), Default::default()).await.unwrap();
    sqlx::query("UPDATE deployment SET topology_version = 0").execute(&pool).await.unwrap();
    let relay = Fleet::on(&stage).relay();
    rows(&pool, "order.paid", 50).await;
    until("not ready", 15, Some(503), async || relay.readyz().await.map(|(status, _)| status)).await;
    assert_eq!(Fleet::on(&stage).migrate().ended().await, Some(0));
    until("all are published", 20, (0, 0, 50), async || states(&pool).await).await;
    assert_eq!(stage.waiting("counterfoil.crm").await, 50);
}

#[tokio::test]
async fn a_notification_wakes_the_relay_and_a_listener_whose_connection_dies_comes_back() {
    let stage = Stage::new().await;
    let pool = stage.pool();
    let relay = Fleet::on(&stage).relay().ready().await;
    let wakes = async || {
        relay
            .metrics()
            .await
            .lines()
            .find_map(|line| line.strip_prefix("counterfoil_relay_wakes_total ").and_then(|count| count.parse::<u64>().ok()))
            .unwrap_or(0)
    };
    let call = async || sqlx::query("SELECT pg_notify('counterfoil_outbox', '')").execute(&pool).await.unwrap();
    until("it hears", 10, true, async || {
        call().await;
        wakes().await > 0
    })
    .await;
    sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%' AND datname = current_database()")
        .execute(&pool)
        .await
        .unwrap();
    let before = wakes().await;
    until("it hears again", 15, true, async || {
        call().await;
        wakes().await > before
    })
    .await;
    rows(&pool, "order.paid", 1).await;
    until("polling goes on all the time", 5, (0, 0, 1), async || states(&pool).await).await;
}

#[tokio::test]
async fn sigterm_commits_the_batch_in_hand_and_ends_with_0() {
    let stage = Stage::new().await;
    let pool = stage.pool();
    let mut relay = Fleet::on(&stage).relay().ready().await;
    rows(&pool, "payment.held", 3000).await;
    until("it has begun", 10, true, async || states(&pool).await.2 > 0).await;
    relay.signal("TERM");
    assert_eq!(relay.ended().await, Some(0));
    let (_, _, published) = states(&pool).await;
    let (messages, events) = distinct(&stage, "counterfoil.ledger").await;
    assert_eq!((messages, events), (usize::try_from(published).unwrap(), messages), "what went out is marked, and nothing went out twice");
}

#[tokio::test]
async fn a_database_that_falls_silent_without_closing_anything_is_noticed_and_everything_goes_on_by_itself() {
    let stage = Stage::new().await;
    let pool = stage.pool();
    let address = stage.database_url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let proxy = Proxy::start(&address).await;
    let through = stage.reached_at(stage.database_url.replace(&address, &proxy.address));
    let relay = Fleet::on(&through).with("COUNTERFOIL_RELAY_CONFIRM_DEADLINE_S", "2").relay().ready().await;
    proxy.silence(true);
    until("it is noticed", 30, true, async || relay.readyz().await.is_some_and(|(status, report)| status == 503 && report.contains("does not answer"))).await;
    until("the listener notices its own death", 30, true, async || relay.logged().contains("the listener connects anew")).await;
    rows(&pool, "order.paid", 20).await;
    proxy.silence(false); // what was swallowed stays swallowed: its connections are dead, and nobody closes them
    until("all are published", 60, (0, 0, 20), async || states(&pool).await).await;
    until("ready again", 30, Some(200), async || relay.readyz().await.map(|(status, _)| status)).await;
}
