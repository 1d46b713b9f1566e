//! The keeper: from the `.dead` queues into `dead_letters`, once each, killed or not.

use counterfoil_tests::{Child, Fleet, Stage, paid_event, until};
use serde_json::json;
use uuid::Uuid;

const DEAD: &str = "counterfoil.email.dead";

fn keeper(stage: &Stage) -> Child {
    Fleet::on(stage).consumer("dead-letters")
}

fn events(n: usize) -> Vec<Vec<u8>> {
    (0..n).map(|_| paid_event(Uuid::new_v4(), "ann@example.com").to_string().into_bytes()).collect()
}

async fn kept(stage: &Stage) -> i64 {
    stage.count("SELECT count(*) FROM dead_letters").await
}

#[tokio::test]
async fn what_is_dead_lettered_is_kept_once_each_with_its_bytes_and_looking_takes_it_from_no_queue() {
    let stage = Stage::new().await;
    let bodies = events(250);
    stage.put(DEAD, &bodies).await;
    assert_eq!(stage.waiting(DEAD).await, 250, "while no keeper runs, the queue holds");
    let _keeper = keeper(&stage).ready().await;
    until("all are kept", 30, 250, async || kept(&stage).await).await;
    until("the queue is empty", 10, 0, async || stage.waiting(DEAD).await).await;
    let stored: Vec<Vec<u8>> = sqlx::query_scalar("SELECT body FROM dead_letters").fetch_all(&stage.pool()).await.unwrap();
    assert!(bodies.iter().all(|body| stored.contains(body)), "the bytes as they came");
    assert_eq!(
        stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open' AND consumer = 'email' AND topic = 'order.paid' AND amount_minor = 1099").await,
        250
    );
}

#[tokio::test]
async fn a_keeper_killed_before_its_commit_or_before_its_ack_loses_none_and_doubles_none() {
    for point in ["keeper.before_commit", "keeper.before_ack"] {
        let stage = Stage::new().await;
        stage.put(DEAD, &events(60)).await;
        let mut killed = Fleet::on(&stage).with("COUNTERFOIL_FAULT", point).consumer("dead-letters");
        assert_eq!(killed.ended().await, None, "{point}");
        let _keeper = keeper(&stage).ready().await;
        until("all are kept", 30, 60, async || kept(&stage).await).await;
        until("the queue is empty", 30, 0, async || stage.waiting(DEAD).await).await;
        assert_eq!(kept(&stage).await, 60);
    }
}

#[tokio::test]
async fn a_body_that_is_no_event_is_kept_as_it_is_and_cannot_be_replayed() {
    let stage = Stage::new().await;
    let bodies: Vec<Vec<u8>> =
        vec![b"not JSON".to_vec(), b"{\"a\":\"\\u0000\"}".to_vec(), vec![0, 255, 254], json!({ "specversion": "1.0" }).to_string().into_bytes()];
    stage.put(DEAD, &bodies).await;
    stage.put(DEAD, &bodies[..1]).await; // the same bytes again are the same dead letter
    let _keeper = keeper(&stage).ready().await;
    until("all are kept", 30, (4, 0), async || (kept(&stage).await, stage.waiting(DEAD).await)).await;
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE event_id IS NULL AND kind = 'not_an_event'").await, 4);
    let (code, said) = Fleet::on(&stage).counterfoil(&["dead", "replay", "1", "--reason", "try"]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("not an event of ours") && said.contains("discard"), "{said}");
    assert_eq!(Fleet::on(&stage).counterfoil(&["dead", "discard", "1", "--reason", "a probe of ours"]).await.0, Some(0));
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'discarded'").await, 1);
}

#[tokio::test]
async fn a_second_death_of_the_same_event_opens_its_row_again_and_a_copy_of_the_first_does_not() {
    let stage = Stage::new().await;
    let died = |at: &str| {
        let event = paid_event(Uuid::from_u128(7), "ann@example.com");
        let mut event = event;
        event["id"] = json!(Uuid::from_u128(8));
        (event.to_string().into_bytes(), at.to_owned())
    };
    let _keeper = keeper(&stage).ready().await;
    let send = async |at: &str| {
        let (body, at) = died(at);
        stage.put_with(DEAD, &body, &[("x-counterfoil-failed-at", &at), ("x-counterfoil-reason", "HTTP 404 from the CRM")]).await;
        until("it is taken", 20, 0, async || stage.waiting(DEAD).await).await;
    };
    send("2026-11-30T10:00:00Z").await;
    until("it is kept", 20, 1, async || kept(&stage).await).await;
    stage.execute("UPDATE dead_letters SET state = 'discarded', closed_at = now()").await;
    send("2026-11-30T10:00:00Z").await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(stage.count("SELECT count(*) FROM dead_letters WHERE state = 'discarded'").await, 1, "a copy of the same death");
    send("2026-11-30T10:05:00Z").await;
    until("it is open again", 20, 1, async || stage.count("SELECT count(*) FROM dead_letters WHERE state = 'open' AND kind = 'http_404'").await).await;
    assert_eq!(kept(&stage).await, 1);
}

#[tokio::test]
async fn a_message_that_crashes_its_consumer_is_kept_as_given_up_by_the_broker() {
    let stage = Stage::new().await;
    const DEAD: &str = "counterfoil.ledger.dead";
    stage.put_events("ledger", &[paid_event(Uuid::new_v4(), "ann@example.com")]).await;
    for _ in 0..30 {
        let mut crashing = Fleet::on(&stage).with("COUNTERFOIL_FAULT", "apply.before_commit").consumer("ledger");
        // It dies with the message in hand, until the broker gives the message up.
        until("it died, or the message is dead", 30, true, async || crashing.over() || stage.waiting(DEAD).await == 1).await;
        if stage.waiting(DEAD).await == 1 {
            break;
        }
    }
    let _keeper = keeper(&stage).ready().await;
    until("it is kept", 20, 1, async || stage.count("SELECT count(*) FROM dead_letters WHERE kind = 'crash' AND error LIKE 'the broker gave it up%'").await)
        .await;
}
