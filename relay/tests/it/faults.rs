//! The broker restarted, blocked and strict, on services of their own.

use std::collections::HashSet;
use std::time::Duration;

use counterfoil_broker::Link;
use counterfoil_relay::{Drained, Drainer};
use counterfoil_tests::{Fleet, Services, Stage, until};

use crate::support::{drainer, link, rows, states, step};

/// One step as the supervisor paces it: a broker that meets frames of a channel which it has just closed may close the whole
/// connection, rarely; nothing was marked then, and the next connection does the step.
async fn step_supervised(drainer: &Drainer, stage: &Stage, link: &mut Link) -> Drained {
    for _ in 0..3 {
        match drainer.drain_once(link, &mut None).await {
            Ok(drained) => return drained,
            Err(_) => *link = self::link(stage).await,
        }
    }
    step(drainer, link).await
}

#[tokio::test]
async fn a_message_that_closes_the_channel_is_found_by_halving_and_parked_and_its_neighbours_go_out() {
    let services = Services::faulty();
    services.ctl(&["eval", "application:set_env(rabbit, max_message_size, 65536)."]);
    let stage = services.stage().await;
    let (pool, mut link) = (stage.pool(), link(&stage).await);
    rows(&pool, "order.paid", 64).await;
    sqlx::query("UPDATE outbox SET payload = to_jsonb(repeat('x', 70000)) WHERE id IN (9, 40)").execute(&pool).await.unwrap();
    let drainer = drainer(&pool, 256);
    assert_eq!(step_supervised(&drainer, &stage, &mut link).await, Drained { claimed: 64, confirmed: 62, faulty: 2, ..Drained::default() });
    for _ in 0..2 {
        sqlx::query("UPDATE outbox SET next_attempt_at = now()").execute(&pool).await.unwrap();
        step_supervised(&drainer, &stage, &mut link).await;
    }
    services.ctl(&["eval", "application:set_env(rabbit, max_message_size, 134217728)."]);
    assert_eq!(states(&pool).await, (0, 2, 62));
    let ids: HashSet<String> = stage.take_all("counterfoil.email").await.into_iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), 62);
}

#[tokio::test]
async fn a_broker_outage_under_full_pipelining_hangs_nothing_uses_no_attempt_and_loses_nothing() {
    let services = Services::faulty();
    let stage = services.stage().await;
    let pool = stage.pool();
    let _relays = [Fleet::on(&stage).relay().ready().await, Fleet::on(&stage).relay().ready().await];
    // Queues declared within a second of a kill may be damaged (Ra writes its name table lazily).
    tokio::time::sleep(Duration::from_secs(5)).await;
    for round in 1..=2 {
        rows(&pool, "payment.held", 8000).await;
        until("it is under way", 20, true, async || states(&pool).await.2 > (round - 1) * 8000).await;
        services.kill_broker();
        until("claims have ended", 20, 0, async || {
            stage.count("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()").await
        })
        .await;
        services.up();
        until("all are published", 60, (0, 0, round * 8000), async || states(&pool).await).await;
    }
    let (attempts, parked): (i64, i64) = sqlx::query_as("SELECT sum(attempts), count(parked_at) FROM outbox").fetch_one(&pool).await.unwrap();
    assert_eq!((attempts, parked), (0, 0));
    let ids: HashSet<String> = stage.take_all("counterfoil.ledger").await.into_iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), 16_000);
}

#[tokio::test]
async fn while_the_broker_blocks_no_transaction_is_open_and_afterwards_everything_goes_out() {
    let services = Services::faulty();
    let stage = services.stage().await;
    let pool = stage.pool();
    let relay = Fleet::on(&stage).relay().ready().await;
    services.ctl(&["set_vm_memory_high_watermark", "0.00001"]);
    // Both workers have a full batch in hand when it happens.
    rows(&pool, "payment.held", 1500).await;
    until("it says so", 30, true, async || relay.readyz().await.is_some_and(|(status, report)| status == 503 && report.contains("blocked"))).await;
    until("no transaction is open", 20, 0, async || {
        stage.count("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()").await
    })
    .await;
    services.ctl(&["set_vm_memory_high_watermark", "0.4"]);
    until("all are published", 40, (0, 0, 1500), async || states(&pool).await).await;
}
