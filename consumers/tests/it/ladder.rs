//! Retries, dead letters and outages.

use std::time::Duration;

use counterfoil_tests::until;

use crate::support::Bench;

#[tokio::test]
async fn a_message_that_fails_for_ever_is_dead_after_exactly_its_attempts_with_its_reason() {
    let bench = Bench::of("crm").await;
    bench.crm.next(&["500 Internal Server Error"; 4]);
    let (event, _) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    let _consumer = bench.start();
    until("it is dead", 20, 1, async || bench.stage.waiting("counterfoil.crm.dead").await).await;
    assert_eq!(bench.crm.seen().len(), 4, "three rungs are four attempts, no more, no less");
    let dead = bench.stage.take_all("counterfoil.crm.dead").await.remove(0);
    assert_eq!((dead.header("x-counterfoil-attempt"), dead.header("x-counterfoil-kind")), ("4".into(), "transient".into()));
    assert_eq!(dead.header("x-counterfoil-reason"), "HTTP 500 from the CRM");
    assert!(!dead.header("x-counterfoil-first-failed-at").is_empty());
    assert_eq!(bench.state(&event).await, "failed");
    // A dead letter put back by on-call runs again under the same event id, its attempts counted anew.
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    bench.done(&event).await;
}

#[tokio::test]
async fn the_message_behind_a_failing_one_does_not_wait_for_it() {
    let bench = Bench::of("crm").await;
    let slow_rungs = "30s,60s";
    let target = counterfoil_migrate::Target { rungs: counterfoil_broker::topology::rungs(slow_rungs).unwrap(), ..bench.stage.target() };
    counterfoil_migrate::bring_topology(&target).await.unwrap();
    bench.crm.next(&["500 Internal Server Error"]);
    let ((bad, _), (good, email)) = (bench.paid().await, bench.paid().await);
    let _consumer = bench.fleet().with("COUNTERFOIL_CONCURRENCY", "1").with("COUNTERFOIL_RETRY_RUNGS", slow_rungs).consumer("crm");
    bench.stage.put_events("crm", &[bad.clone(), good.clone()]).await;
    bench.done(&good).await;
    assert_eq!((bench.effects(&good, &email).await, bench.state(&bad).await), (1, "failed".into()));
    assert_eq!(bench.stage.waiting("counterfoil.crm.retry.30s").await, 1, "it waits in the broker, not in a slot");
}

#[tokio::test]
async fn an_outage_uses_up_no_attempt_and_the_consumer_resumes_by_itself() {
    let bench = Bench::of("crm").await;
    bench.crm.next(&[
        "503 Busy\r\nRetry-After: 1",
        "401 Unauthorized",
        "429 Slow Down\r\nRetry-After: 1",
        "403 Forbidden",
        "301 Moved\r\nLocation: http://127.0.0.1:9/",
    ]);
    let mut events = Vec::new();
    for _ in 0..10 {
        events.push(bench.paid().await);
    }
    let bodies: Vec<_> = events.iter().map(|(event, _)| event.clone()).collect();
    bench.stage.put_events("crm", &bodies).await;
    let _consumer = bench.start();
    for (event, _) in &events {
        bench.done(event).await;
    }
    assert_eq!(bench.stage.waiting("counterfoil.crm.dead").await, 0);
    assert!(bench.crm.seen().len() <= 10 + 5 + 7, "the whole consumer slowed down: {} calls", bench.crm.seen().len());
}

#[tokio::test]
async fn the_other_side_being_away_altogether_is_an_outage() {
    let bench = Bench::of("email").await;
    let (event, email) = bench.paid().await;
    bench.stage.put_events("email", std::slice::from_ref(&event)).await;
    let nobody = bench.fleet().with("COUNTERFOIL_SMTP_URL", "smtp://127.0.0.1:9").consumer("email");
    until("it says so", 20, true, async || nobody.logged().contains("outage: nothing is taken")).await;
    drop(nobody);
    let _healthy = bench.start();
    bench.done(&event).await;
    assert_eq!((bench.effects(&event, &email).await, bench.stage.waiting("counterfoil.email.dead").await), (1, 0));
}

#[tokio::test]
async fn a_copy_that_does_not_land_leaves_its_original_in_the_queue() {
    let bench = Bench::of("crm").await;
    let link = counterfoil_broker::Link::connect(&bench.stage.amqp_url, "test").await.unwrap();
    let channel = link.channel().await.unwrap();
    let consumer = bench.start().ready().await;
    for rung in ["60ms", "120ms", "240ms"] {
        channel.queue_delete(format!("counterfoil.crm.retry.{rung}").as_str().into(), Default::default()).await.unwrap();
    }
    bench.crm.next(&["500 Internal Server Error"]);
    let (event, _) = bench.paid().await;
    bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
    until("the hand-over is refused", 20, true, async || consumer.logged().contains("its original stays in the queue")).await;
    until("the original is still there", 20, 1, async || bench.stage.waiting("counterfoil.crm").await).await;
    bench.stage.bring_topology().await;
    bench.done(&event).await;
}

#[tokio::test]
async fn a_slow_handler_delays_only_itself_and_its_lease_is_kept() {
    let bench = Bench::of("crm").await;
    bench.crm.slow(Duration::from_secs(12));
    let _replicas = [bench.start().ready().await, bench.start().ready().await];
    let (event, email) = bench.paid().await;
    bench.stage.put_events("crm", &[event.clone(), event.clone()]).await;
    // A lease lasts 30 s from the claim; one that ends later was prolonged.
    until("the lease is prolonged", 15, 1, async || {
        bench.stage.count("SELECT count(*) FROM processed_events WHERE lease_until > created_at + interval '35 seconds'").await
    })
    .await;
    bench.done(&event).await;
    bench.drained().await;
    assert_eq!(bench.effects(&event, &email).await, 1, "the second copy waited on a rung");
}

#[tokio::test]
async fn a_call_without_an_answer_at_the_shutdown_deadline_is_recorded_as_unknown_and_a_second_sigterm_ends_at_once() {
    for twice in [false, true] {
        let bench = Bench::of("crm").await;
        bench.crm.slow(Duration::from_secs(15));
        let (event, _) = bench.paid().await;
        bench.stage.put_events("crm", std::slice::from_ref(&event)).await;
        let mut consumer = bench.fleet().with("COUNTERFOIL_SHUTDOWN_DEADLINE_S", "5").consumer("crm").ready().await;
        until("the call is under way", 15, 1, async || bench.crm.seen().len()).await;
        consumer.signal("TERM");
        if twice {
            until("the first was heard", 5, true, async || consumer.logged().contains("stopping")).await;
            consumer.signal("TERM");
            assert_eq!(consumer.ended().await, Some(130));
        } else {
            assert_eq!(consumer.ended().await, Some(0));
            assert_eq!(bench.state(&event).await, "unknown");
        }
    }
}
