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

#[tokio::test]
async fn a_database_of_the_first_release_with_money_in_it_is_brought_to_this_one_and_its_rows_stay_right() {
    let stage = Stage::empty().await;
    stage.execute(include_str!("../../sql/0001_fleet.sql")).await;
    stage
        .execute(
            "INSERT INTO orders (id, reference, status, amount_minor, currency, paid_provider, paid_account, paid_payment_id, paid_at)
                VALUES ('00000000-0000-7000-8000-000000000001', 'A-1', 'paid', 1099, 'EUR', 'stripe', '', 'pi_1', now());
             INSERT INTO payments (provider, payment_id, order_id, status, disposition, held_reason, amount_minor, currency) VALUES
                ('stripe', 'pi_1', '00000000-0000-7000-8000-000000000001', 'captured', 'settled', NULL, 1099, 'EUR'),
                ('stripe', 'pi_2', '00000000-0000-7000-8000-000000000001', 'captured', 'extra', 'already_paid', 1099, 'EUR'),
                ('stripe', 'pi_3', '00000000-0000-7000-8000-000000000001', 'captured', 'held', 'amount_differs', 5, 'EUR'),
                ('stripe', 'pi_4', '00000000-0000-7000-8000-000000000001', 'cancelled', 'none', NULL, NULL, NULL);
             INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome) VALUES ('stripe', 'evt_1', 'refund.created', '{}', 0, 'deferred');",
        )
        .await;
    stage.execute(include_str!("../../sql/0002_money_back.sql")).await;
    assert_eq!(stage.count("SELECT settled_minor FROM payments WHERE payment_id = 'pi_1'").await, 1099);
    assert_eq!(stage.count("SELECT sum(settled_minor)::bigint FROM payments").await, 1099);
    // A process of the first release goes on while this one comes up: what it writes is still taken.
    stage
        .execute(
            "INSERT INTO orders (id, reference, amount_minor, currency) VALUES ('00000000-0000-7000-8000-000000000002', 'A-2', 5, 'EUR');
             INSERT INTO payments (provider, payment_id, order_id, status, disposition, amount_minor, currency)
                VALUES ('stripe', 'pi_5', '00000000-0000-7000-8000-000000000002', 'captured', 'settled', 5, 'EUR');
             UPDATE orders SET status = 'paid', version = version + 1, paid_provider = 'stripe', paid_account = '', paid_payment_id = 'pi_5', paid_at = now() WHERE reference = 'A-2'",
        )
        .await;
    assert_eq!(stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await, 2);
}
