//! Publishing and topology against a real RabbitMQ.

use std::time::Duration;

use counterfoil_broker::lapin::BasicProperties;
use counterfoil_broker::lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_broker::topology::{self, CONSUMERS, EVENTS, rung_queue, rungs};
use counterfoil_broker::{Fate, Link, Outgoing, publish_window};
use counterfoil_tests::Stage;

fn message(correlation: i64, exchange: &str, key: &str) -> Outgoing {
    Outgoing {
        correlation,
        exchange: exchange.into(),
        routing_key: key.into(),
        body: vec![b'x'; 200],
        properties: BasicProperties::default().with_delivery_mode(2),
    }
}

/// lapin hands a returned message to whichever confirm completes next; judged by the confirm that carried it, several of
/// these would be wrong in each run.
#[tokio::test]
async fn a_return_attached_to_another_messages_confirm_is_matched_by_its_own_header() {
    let stage = Stage::new().await;
    let link = Link::connect(&stage.amqp_url, "test").await.unwrap();
    let channel = link.confirming_channel().await.unwrap();
    for round in 0..20_i64 {
        let window: Vec<Outgoing> =
            (0..250).map(|n| message(round * 250 + n, EVENTS, if (n + round) % 10 == 3 { "nobody.listens" } else { "order.paid" })).collect();
        let published = publish_window(&channel, &window, Duration::from_secs(10)).await;
        assert!(published.clean());
        for (message, fate) in window.iter().zip(published.fates) {
            let wanted = if message.routing_key == "order.paid" { Fate::Confirmed } else { Fate::Returned };
            assert_eq!(fate, wanted, "message {} to {}", message.correlation, message.routing_key);
        }
    }
    link.close().await;
}

#[tokio::test]
async fn a_full_queue_refuses_and_a_missing_exchange_leaves_the_window_undecided() {
    let stage = Stage::new().await;
    let link = Link::connect(&stage.amqp_url, "test").await.unwrap();
    let channel = link.confirming_channel().await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    channel.queue_declare("full".into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let published = publish_window(&channel, &[message(1, "", "full")], Duration::from_secs(5)).await;
    assert_eq!(published.fates, [Fate::Confirmed]);
    let published = publish_window(&channel, &[message(2, "", "full"), message(3, "", "counterfoil.email")], Duration::from_secs(5)).await;
    assert_eq!(published.fates, [Fate::Refused, Fate::Confirmed]);
    let published = publish_window(&channel, &[message(4, "no.such.exchange", "k")], Duration::from_secs(5)).await;
    assert_eq!((published.fates, published.closed.map(|(code, _)| code)), (vec![Fate::Unknown], Some(404)));
    link.close().await;
}

#[tokio::test]
async fn bringing_the_topology_again_changes_nothing_and_a_queue_with_other_arguments_is_named() {
    let stage = Stage::new().await;
    let link = Link::connect(&stage.amqp_url, "test").await.unwrap();
    topology::bring(&link.channel().await.unwrap(), &counterfoil_tests::stage::test_rungs()).await.unwrap();
    let other = rungs("60ms").unwrap().into_iter().map(|rung| counterfoil_broker::Rung { delay: Duration::from_secs(9), ..rung }).collect::<Vec<_>>();
    let refused = topology::bring(&link.channel().await.unwrap(), &other).await.unwrap_err().to_string();
    assert!(refused.contains(&rung_queue("email", "60ms")) && refused.contains("x-message-ttl") && refused.contains("counterfoil-migrate"), "{refused}");
    topology::verify(&link, topology::work_queues()).await.unwrap();
    let channel = link.channel().await.unwrap();
    channel.queue_delete("counterfoil.crm".into(), QueueDeleteOptions::default()).await.unwrap();
    let missing = topology::verify(&link, topology::work_queues()).await.unwrap_err().to_string();
    assert!(missing.contains("counterfoil.crm") && missing.contains("counterfoil-migrate"), "{missing}");
    link.close().await;
}

#[tokio::test]
async fn every_consumer_has_its_queue_bound_to_its_topics_and_nothing_else() {
    let stage = Stage::new().await;
    let link = Link::connect(&stage.amqp_url, "test").await.unwrap();
    let channel = link.confirming_channel().await.unwrap();
    for consumer in CONSUMERS {
        for topic in consumer.topics {
            assert_eq!(publish_window(&channel, &[message(1, EVENTS, topic)], Duration::from_secs(5)).await.fates, [Fate::Confirmed]);
        }
    }
    assert_eq!(publish_window(&channel, &[message(1, EVENTS, "order")], Duration::from_secs(5)).await.fates, [Fate::Returned]);
    channel.queue_bind("counterfoil.email".into(), EVENTS.into(), "order".into(), QueueBindOptions::default(), FieldTable::default()).await.unwrap();
    assert_eq!(publish_window(&channel, &[message(1, EVENTS, "order")], Duration::from_secs(5)).await.fates, [Fate::Confirmed]);
    link.close().await;
}
