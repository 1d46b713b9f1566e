//! What every consumer passes, whatever its effects are.

use counterfoil_tests::{event, paid_data};
use serde_json::json;
use uuid::Uuid;

use crate::support::{Bench, CONSUMERS};

#[tokio::test]
async fn every_consumer_makes_one_effect_of_an_event_delivered_twice_and_of_one_replayed_later() {
    for name in CONSUMERS {
        let bench = Bench::of(name).await;
        let _consumer = bench.start();
        let (event, email) = bench.paid().await;
        bench.stage.put_events(name, &[event.clone(), event.clone()]).await;
        bench.done(&event).await;
        bench.stage.put_events(name, std::slice::from_ref(&event)).await;
        bench.drained().await;
        let (marker, _) = bench.paid().await;
        bench.stage.put_events(name, std::slice::from_ref(&marker)).await;
        bench.done(&marker).await;
        assert_eq!(bench.effects(&event, &email).await, 1, "{name}");
    }
}

#[tokio::test]
async fn every_consumer_makes_one_effect_of_an_event_that_two_replicas_get_at_the_same_time() {
    for name in CONSUMERS {
        let bench = Bench::of(name).await;
        bench.crm.slow(std::time::Duration::from_millis(100));
        let _replicas = [bench.start().ready().await, bench.start().ready().await];
        let mut events = Vec::new();
        for _ in 0..20 {
            events.push(bench.paid().await);
        }
        let twice: Vec<_> = events.iter().flat_map(|(event, _)| [event.clone(), event.clone(), event.clone()]).collect();
        bench.stage.put_events(name, &twice).await;
        for (event, email) in &events {
            bench.done(event).await;
            assert_eq!(bench.effects(event, email).await, 1, "{name}");
        }
    }
}

#[tokio::test]
async fn every_consumer_killed_before_its_effect_after_it_and_before_the_ack_ends_with_the_documented_number_of_effects() {
    for name in CONSUMERS {
        let inside = matches!(name, "ledger" | "tickets");
        // Before the effect nothing has happened; between effect and `done` the outside sees one recognisable repeat.
        let points = if inside {
            [("apply.before_commit", 1), ("ack.before", 1)].to_vec()
        } else {
            // A refund is looked for before it is sent again, so that not even the outside sees a second one.
            [("effect.before", 1), ("effect.after", if name == "refunds" { 1 } else { 2 }), ("ack.before", 1)].to_vec()
        };
        for (point, effects) in points {
            let bench = Bench::of(name).await;
            let (event, email) = bench.paid().await;
            bench.stage.put_events(name, std::slice::from_ref(&event)).await;
            assert_eq!(bench.start_dying_at(point).ended().await, None, "{name} was killed at {point}");
            // The dead replica's lease need not be waited for in a test.
            bench.stage.execute("UPDATE processed_events SET lease_until = now() WHERE state = 'claimed'").await;
            let _healthy = bench.start();
            bench.done(&event).await;
            bench.drained().await;
            assert_eq!(bench.effects(&event, &email).await, effects, "{name} killed at {point}");
            if name == "email" {
                let ids: std::collections::HashSet<String> = bench
                    .smtp
                    .mails()
                    .iter()
                    .flat_map(|mail| mail.lines().filter(|line| line.starts_with("Message-ID:")).map(str::to_owned).collect::<Vec<_>>())
                    .collect();
                assert_eq!(ids.len(), 1, "a repeat is recognisable");
            }
        }
    }
}

#[tokio::test]
async fn every_consumer_dead_letters_what_is_no_event_and_its_neighbours_are_unharmed() {
    for name in CONSUMERS {
        let bench = Bench::of(name).await;
        let (first, first_email) = bench.paid().await;
        let (last, last_email) = bench.paid().await;
        let order = Uuid::new_v4();
        let mut later_version = first.clone();
        later_version["dataschema"] = json!("urn:counterfoil:order.paid/2");
        let poison: Vec<Vec<u8>> = vec![
            b"not json".to_vec(),
            Vec::new(),
            b"{\"\xff".to_vec(),
            later_version.to_string().into_bytes(),
            event("order.exploded", order, &paid_data(order, "x@example.com")).to_string().into_bytes(),
            event("order.paid", order, &json!({ "order_id": order })).to_string().into_bytes(),
            vec![b'x'; 1 << 20],
        ];
        let mut bodies = vec![first.to_string().into_bytes()];
        bodies.extend(poison.iter().cloned());
        bodies.push(last.to_string().into_bytes());
        bench.stage.put(&format!("counterfoil.{name}"), &bodies).await;
        let _consumer = bench.start();
        bench.done(&first).await;
        bench.done(&last).await;
        bench.drained().await;
        assert_eq!((bench.effects(&first, &first_email).await, bench.effects(&last, &last_email).await), (1, 1), "{name}");
        let dead = bench.stage.take_all(&bench.dead_queue()).await;
        let mut bodies: Vec<_> = dead.iter().map(|message| message.body.clone()).collect();
        let mut wanted = poison;
        bodies.sort();
        wanted.sort();
        assert_eq!(bodies, wanted, "{name}: the dead letters are the poison, byte by byte");
        assert!(dead.iter().all(|message| message.header("x-counterfoil-kind") == "permanent" && !message.header("x-counterfoil-reason").is_empty()));
        assert!(dead.iter().all(|message| message.header("traceparent").starts_with("00-0af7651916cd43dd8448eb211c80319c-")), "the trace travels along");
    }
}

#[tokio::test]
async fn every_consumer_ends_with_0_at_sigterm_and_the_messages_it_had_not_begun_are_done_by_the_next() {
    for name in CONSUMERS {
        let bench = Bench::of(name).await;
        let mut consumer = bench.start().ready().await;
        let mut events = Vec::new();
        for _ in 0..40 {
            events.push(bench.paid().await);
        }
        let bodies: Vec<_> = events.iter().map(|(event, _)| event.clone()).collect();
        bench.stage.put_events(name, &bodies).await;
        consumer.signal("TERM");
        assert_eq!(consumer.ended().await, Some(0), "{name}");
        let _next = bench.start();
        for (event, email) in &events {
            bench.done(event).await;
            assert_eq!(bench.effects(event, email).await, 1, "{name}");
        }
    }
}
