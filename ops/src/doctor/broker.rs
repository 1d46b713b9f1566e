//! The checks of RabbitMQ, over AMQP alone.

use std::time::Duration;

use counterfoil_broker::lapin::BasicProperties;
use counterfoil_broker::topology::mismatched;
use counterfoil_broker::{Fate, Link, Outgoing, publish_window_unless};
use counterfoil_chassis::replica::replicas;
use counterfoil_inbox::lost::{lost_lately, still_lost};
use counterfoil_outbox::stuck;
use sqlx::PgPool;

use super::{Finding, Health, unknown};
use crate::depths::depths;
use crate::facts::BrokerAt;
use crate::words::counted;

/// A queue that nobody has: what is sent to it comes back.
const NOWHERE: &str = "counterfoil.doctor.nowhere";

pub(super) async fn examine(pool: &PgPool, broker: Option<&BrokerAt>) -> Vec<Finding> {
    let bindings = bindings(pool).await.unwrap_or_else(|error| unknown("bindings", &error));
    let Some(at) = broker else {
        let unasked = |check| Finding::bad(check, Health::Unknown, "COUNTERFOIL_AMQP_URL is not set", "set it to have the broker asked");
        return vec![unasked("broker"), unasked("alarms"), unasked("queues"), unasked("arguments"), bindings];
    };
    let link = match Link::connect(&at.amqp_url, "counterfoil doctor").await {
        Ok(link) => link,
        Err(error) => {
            let fix = "COUNTERFOIL_AMQP_URL (the vhost / is written %2f), the network, and whether the broker runs; outbox rows wait meanwhile";
            return vec![Finding::bad("broker", Health::Fail, format!("{error:#}"), fix), bindings];
        }
    };
    let findings = vec![Finding::ok("broker", "can be reached"), alarms(&link).await, queues(pool, at).await, arguments(&link, at).await, bindings];
    link.close().await;
    findings
}

/// A broker in alarm stops reading from whoever publishes, and says so.
async fn alarms(link: &Link) -> Finding {
    let Ok(channel) = link.confirming_channel().await else {
        return Finding::bad("alarms", Health::Unknown, "no channel", "");
    };
    let probe = Outgoing { correlation: 1, exchange: String::new(), routing_key: NOWHERE.into(), body: Vec::new(), properties: BasicProperties::default() };
    let window = publish_window_unless(&channel, &[probe], Duration::from_secs(5), link.blocked_for(Duration::from_millis(300))).await;
    match (window.fates.first(), link.blocked()) {
        (_, true) => Finding::bad(
            "alarms",
            Health::Fail,
            "the broker has blocked publishers: a memory or disk alarm",
            "rabbitmq-diagnostics alarms; free memory or disk: the outbox holds everything meanwhile",
        ),
        (Some(Fate::Returned), _) => Finding::ok("alarms", "the broker takes messages"),
        (fate, _) => Finding::bad(
            "alarms",
            Health::Fail,
            format!("a probe was {}", fate.map_or("lost", |fate| fate.name())),
            "rabbitmq-diagnostics check_running, and the broker's log",
        ),
    }
}

async fn queues(pool: &PgPool, at: &BrokerAt) -> Finding {
    match depths(&at.amqp_url, &at.rungs).await {
        Err(error) => Finding::bad("queues", Health::Unknown, format!("{error:#}"), ""),
        Ok(all) => {
            let missing: Vec<String> = all.iter().flat_map(crate::depths::Depths::missing).collect();
            // One that runs and takes nothing is paused, or waits for its other side: that is not the queue's trouble.
            let running = match pool.acquire().await {
                Ok(mut connection) => replicas(&mut connection).await.unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            let idle: Vec<&str> = all
                .iter()
                .filter(|depths| matches!(depths.work, Some((ready, 0)) if ready > 0))
                .map(|depths| depths.consumer)
                .filter(|name| !running.iter().any(|replica| replica.process == format!("consumers {name}")))
                .collect();
            if !missing.is_empty() {
                return Finding::bad(
                    "queues",
                    Health::Fail,
                    format!("missing: {}", missing.join(", ")),
                    "counterfoil-migrate; what was lost is sent again by housekeeping",
                );
            }
            if !idle.is_empty() {
                return Finding::bad(
                    "queues",
                    Health::Fail,
                    format!("messages wait and nobody consumes: {}", idle.join(", ")),
                    format!("start counterfoil-consumers {}", idle[0]),
                );
            }
            Finding::ok("queues", format!("all queues of {} consumers exist", all.len()))
        }
    }
}

async fn arguments(link: &Link, at: &BrokerAt) -> Finding {
    match mismatched(link, &at.rungs).await {
        Err(error) => Finding::bad("arguments", Health::Unknown, format!("{error:#}"), ""),
        Ok(found) if found.is_empty() => Finding::ok("arguments", "queues have the arguments of this release"),
        Ok(found) => Finding::bad("arguments", Health::Fail, found.join("; "), "drain it, delete it while it is empty, run counterfoil-migrate"),
    }
}

/// Bindings cannot be asked over AMQP; what a missing one causes can.
async fn bindings(pool: &PgPool) -> sqlx::Result<Finding> {
    let mut connection = pool.acquire().await?;
    let unroutable = stuck(&mut connection, false, true, 1000).await?;
    let lost = still_lost(&mut connection).await?;
    let mut topics: Vec<&str> = unroutable.iter().map(|row| row.topic.as_str()).collect();
    topics.sort_unstable();
    topics.dedup();
    let fix =
        "counterfoil-migrate brings missing bindings; once it has run, the rows go out by themselves within a minute, or at once by counterfoil outbox release";
    if !topics.is_empty() {
        return Ok(Finding::bad(
            "bindings",
            Health::Fail,
            format!("{} unroutable, of {}", counted(unroutable.len(), "row is", "rows are"), topics.join(", ")),
            fix,
        ));
    }
    let lately = lost_lately(&mut connection, 900).await?;
    if lost == 0 && !lately.is_empty() {
        let found: Vec<String> =
            lately.iter().map(|(consumer, count, last)| format!("{consumer} lost {count}, the last found {}", crate::instant(*last))).collect();
        let fix = "counterfoil-migrate, unless you have run it since: a queue or a binding was missing. What was lost was sent again to its queue, and has had its effect";
        return Ok(Finding::bad("bindings", Health::Warn, format!("within the last quarter of an hour {}", found.join("; ")), fix));
    }
    if lost > 0 {
        return Ok(Finding::bad("bindings", Health::Fail, format!("{lost} messages did not reach a consumer, and were sent again to its queue"), fix));
    }
    Ok(Finding::ok("bindings", "nothing is unroutable, and nothing was lost"))
}
