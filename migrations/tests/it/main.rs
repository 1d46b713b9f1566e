//! The deploy step: at once, killed half way, too old, and against a queue that differs.

use counterfoil_broker::lapin::options::QueueDeclareOptions;
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_broker::topology::{self, CONSUMERS};
use counterfoil_broker::{Link, TOPOLOGY_VERSION};
use counterfoil_chassis::postgres::{Deployment, SCHEMA_VERSION, deployment};
use counterfoil_migrate::{check, connect, migrate};
use counterfoil_payments::Topic;
use counterfoil_tests::{Fleet, Stage};
use futures_util::future::join_all;

const WHOLE: Deployment = Deployment { schema: SCHEMA_VERSION, topology: TOPOLOGY_VERSION };

async fn deployed(stage: &Stage) -> Deployment {
    deployment(&mut connect(&stage.database_url).await.unwrap()).await.unwrap()
}

#[tokio::test]
async fn five_started_at_once_on_an_empty_database_and_broker_all_succeed() {
    let stage = Stage::empty().await;
    let mut five: Vec<_> = (0..5).map(|_| Fleet::on(&stage).migrate()).collect();
    let ended = join_all(five.iter_mut().map(counterfoil_tests::Child::ended)).await;
    assert_eq!(ended, [Some(0); 5], "{}", five[0].logged());
    assert_eq!(deployed(&stage).await, WHOLE);
    check(&stage.target()).await.unwrap();
}

#[tokio::test]
async fn one_killed_half_way_holds_no_lock_and_the_next_completes_the_work() {
    for (point, topology) in [("migrate.schema", 0), ("migrate.topology", 0)] {
        let stage = Stage::empty().await;
        assert_eq!(Fleet::on(&stage).with("COUNTERFOIL_FAULT", point).migrate().ended().await, None, "it was killed");
        assert_eq!(deployed(&stage).await, Deployment { schema: SCHEMA_VERSION, topology }, "{point}");
        assert!(check(&stage.target()).await.is_err(), "a relay would not claim yet");
        assert_eq!(Fleet::on(&stage).migrate().ended().await, Some(0));
        assert_eq!(deployed(&stage).await, WHOLE);
    }
}

#[tokio::test]
async fn a_database_newer_than_the_release_is_refused_with_the_way_out() {
    let stage = Stage::empty().await;
    migrate(&stage.target()).await.unwrap();
    stage.execute("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', true, '', 0)").await;
    let refused = format!("{:#}", migrate(&stage.target()).await.unwrap_err());
    assert!(
        refused.contains("newer than this release") && refused.contains("9999") && refused.contains("counterfoil-migrate of the newer release"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_queue_whose_arguments_differ_is_refused_with_its_name_and_the_way_out() {
    let stage = Stage::empty().await;
    let link = Link::connect(&stage.amqp_url, "test").await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    link.channel().await.unwrap().queue_declare("counterfoil.ledger".into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let refused = format!("{:#}", migrate(&stage.target()).await.unwrap_err());
    assert!(refused.contains("counterfoil.ledger") && refused.contains("inequivalent arg") && refused.contains("delete_queue"), "{refused}");
    assert_eq!(deployed(&stage).await.topology, 0, "what is not there is not recorded");
}

#[test]
fn every_topic_has_a_consumer_and_no_consumer_has_a_topic_that_does_not_exist() {
    let topics: Vec<&str> = Topic::ALL.iter().map(|topic| topic.name()).collect();
    let consumed: Vec<&str> = CONSUMERS.iter().flat_map(|consumer| consumer.topics.iter().copied()).collect();
    for topic in &topics {
        assert!(consumed.contains(topic), "{topic} has no consumer");
    }
    for topic in consumed {
        assert!(topics.contains(&topic), "{topic} does not exist");
    }
    assert_eq!(topology::work_queues().count(), CONSUMERS.len());
}
