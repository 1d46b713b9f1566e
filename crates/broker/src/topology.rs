//! Exchange, queues, rungs and bindings: the one table consumer → topics, and how it is brought to a broker.
//!
//! Quorum queues throughout. A work queue's dead letters go to the terminal queue, never to a rung: broker-side cycle
//! detection would drop a crash-looping message silently. `x-delivery-limit` is always set, since its default and its
//! meaning differ between RabbitMQ 3.10, 4.0 and 4.3.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use tokio::time::timeout;

use crate::link::{Link, METHOD_DEADLINE, broker_error};

/// The exchange that all events go to: topic, durable, without an alternate, so that the unroutable comes back.
pub const EVENTS: &str = "counterfoil.events";

/// Grows with every change of this file's table; recorded in the database by `counterfoil-migrate`.
pub const TOPOLOGY_VERSION: i32 = 3;

/// Crashes of a consumer that one message may cause before the broker moves it to the dead letters.
const CRASHES_MAX: i64 = 20;

/// As good as no limit: looking at a dead letter counts as a delivery on RabbitMQ 4.0 to 4.2.
const NO_LIMIT: i64 = 1_000_000;

/// A consumer and the topics it gets.
#[derive(Debug, Clone, Copy)]
pub struct ConsumerTopics {
    /// The consumer's name; its queue is `counterfoil.<name>`.
    pub name: &'static str,
    /// Routing keys bound to its queue.
    pub topics: &'static [&'static str],
}

/// Who gets what.
pub const CONSUMERS: &[ConsumerTopics] = &[
    ConsumerTopics { name: "email", topics: &["order.paid", "order.contact_known", "tickets.issued", "tickets.voided", "tickets.unavailable"] },
    ConsumerTopics { name: "crm", topics: &["order.paid", "order.contact_known"] },
    ConsumerTopics { name: "ledger", topics: &["order.paid", "payment.extra", "payment.held", "order.refunded", "order.disputed", "refund.failed"] },
    ConsumerTopics { name: "refunds", topics: &["refund.requested", "payment.extra", "payment.held", "tickets.unavailable"] },
    ConsumerTopics { name: "tickets", topics: &["order.paid", "order.contact_known", "order.refunded", "refund.failed", "payment.extra", "payment.held"] },
];

/// A step of the retry ladder: a queue that holds a message for a time and gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rung {
    /// Its delay as configured, such as `15s`; the end of the queue's name.
    pub name: String,
    /// How long it holds a message.
    pub delay: Duration,
}

/// Reads a comma-separated ladder, shortest first: `5s,15s,1m`. A rung's name is its delay.
///
/// # Errors
/// Says which part is wrong.
pub fn rungs(list: &str) -> Result<Vec<Rung>, String> {
    let rungs: Vec<Rung> =
        list.split(',').map(|part| Ok(Rung { name: part.trim().to_owned(), delay: duration(part.trim())? })).collect::<Result<_, String>>()?;
    if rungs.windows(2).any(|pair| pair[0].delay >= pair[1].delay) {
        return Err("each rung must be longer than the one before".into());
    }
    Ok(rungs)
}

/// A span of time such as `500ms`, `5s`, `4m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| format!("{text:?} has no unit: write ms, s, m or h behind the number"))?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(format!("{text:?} has an unknown unit: write ms, s, m or h")),
    };
    milliseconds.filter(|ms| *ms > 0).map(Duration::from_millis).ok_or_else(|| format!("{text:?} is out of range"))
}

/// The work queue of a consumer.
#[must_use]
pub fn work_queue(consumer: &str) -> String {
    format!("counterfoil.{consumer}")
}

/// A rung of a consumer.
#[must_use]
pub fn rung_queue(consumer: &str, rung: &str) -> String {
    format!("counterfoil.{consumer}.retry.{rung}")
}

/// The terminal queue of a consumer.
#[must_use]
pub fn dead_queue(consumer: &str) -> String {
    format!("counterfoil.{consumer}.dead")
}

/// Why a topology could not be brought or is not there.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A queue exists with other arguments; they cannot be changed in place.
    #[error(
        "the queue or exchange {name} exists with other arguments: {broker}. Its arguments cannot be changed in place. \
             Stop its consumers, drain it, delete it while it is empty (rabbitmqctl delete_queue --if-empty --if-unused {name}), \
             and run counterfoil-migrate again"
    )]
    Differs {
        /// Which.
        name: String,
        /// What the broker says.
        broker: String,
    },
    /// A queue is missing.
    #[error("the queue {0} does not exist: run counterfoil-migrate")]
    Missing(String),
    /// The broker refused or did not answer.
    #[error("{what}: {why}")]
    Broker {
        /// What was attempted.
        what: String,
        /// Why it failed.
        why: String,
    },
}

fn quorum(more: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    for (name, value) in more {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Dead-lettering to a queue through the default exchange, at least once: it needs `reject-publish`, too.
fn dead_lettering_to<'a>(queue: &str, limit: i64) -> [(&'a str, AMQPValue); 5] {
    [
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(queue)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", AMQPValue::LongLongInt(limit)),
    ]
}

/// All queues of a consumer with their arguments, targets before those that lead to them.
fn queues(consumer: &str, rungs: &[Rung]) -> Vec<(String, FieldTable)> {
    let work = work_queue(consumer);
    let dead = dead_queue(consumer);
    let mut queues = vec![(dead.clone(), quorum(&[("x-delivery-limit", AMQPValue::LongLongInt(NO_LIMIT))]))];
    queues.push((work.clone(), quorum(&dead_lettering_to(&dead, CRASHES_MAX))));
    for rung in rungs {
        let mut arguments = dead_lettering_to(&work, NO_LIMIT).to_vec();
        let delay_ms = i64::try_from(rung.delay.as_millis()).unwrap_or(i64::MAX);
        arguments.push(("x-message-ttl", AMQPValue::LongLongInt(delay_ms)));
        queues.push((rung_queue(consumer, &rung.name), quorum(&arguments)));
    }
    queues
}

async fn within<T>(what: &str, step: impl Future<Output = lapin::Result<T>>) -> Result<T, (Option<u16>, TopologyError)> {
    let broker = |why: String| TopologyError::Broker { what: what.to_owned(), why };
    match timeout(METHOD_DEADLINE, step).await {
        Err(_) => Err((None, broker("the broker does not answer".into()))),
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => match broker_error(&error) {
            Some((406, text)) => Err((Some(406), TopologyError::Differs { name: what.rsplit(' ').next().unwrap_or(what).to_owned(), broker: text })),
            Some((code, text)) => Err((Some(code), broker(format!("{code} {text}")))),
            None => Err((None, broker(error.to_string()))),
        },
    }
}

/// Brings the topology; idempotent, only adds.
///
/// # Errors
/// When something exists with other arguments, or the broker fails.
pub async fn bring(channel: &Channel, rungs: &[Rung]) -> Result<(), TopologyError> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    within(&format!("declaring {EVENTS}"), channel.exchange_declare(EVENTS.into(), ExchangeKind::Topic, durable, FieldTable::default()))
        .await
        .map_err(|(_, error)| error)?;
    for consumer in CONSUMERS {
        for (name, arguments) in queues(consumer.name, rungs) {
            within(&format!("declaring {name}"), channel.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments))
                .await
                .map_err(|(_, error)| error)?;
        }
        let work = work_queue(consumer.name);
        for topic in consumer.topics {
            let bound = channel.queue_bind(work.as_str().into(), EVENTS.into(), (*topic).into(), QueueBindOptions::default(), FieldTable::default());
            within(&format!("binding {topic} to {work}"), bound).await.map_err(|(_, error)| error)?;
        }
    }
    Ok(())
}

/// Looks, on a channel of its own, whether every queue in `names` exists.
///
/// # Errors
/// Names the first that is missing.
pub async fn verify(link: &Link, names: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
    let channel = link.channel().await?;
    for name in names {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::durable() };
        match within(&format!("looking for {name}"), channel.queue_declare(name.as_str().into(), passive, FieldTable::default())).await {
            Ok(_) => {}
            Err((Some(404), _)) => return Err(TopologyError::Missing(name).into()),
            Err((_, error)) => return Err(error.into()),
        }
    }
    let _ = timeout(METHOD_DEADLINE, channel.close(200, "seen".into())).await;
    Ok(())
}

/// Queues that exist with other arguments than this release gives them, each with what the broker says. Declares nothing that is missing.
///
/// # Errors
/// When the broker fails.
pub async fn mismatched(link: &Link, rungs: &[Rung]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, arguments) in CONSUMERS.iter().flat_map(|consumer| queues(consumer.name, rungs)) {
        if verify(link, [name.clone()]).await.is_err() {
            continue;
        }
        // It is there, so that declaring it changes nothing; other arguments close the channel.
        let channel = link.channel().await?;
        match within(&format!("declaring {name}"), channel.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments)).await {
            Ok(_) => drop(timeout(METHOD_DEADLINE, channel.close(200, "seen".into())).await),
            Err((_, error)) => found.push(error.to_string()),
        }
    }
    Ok(found)
}

/// The work queues of all consumers: what must exist before anything is published.
pub fn work_queues() -> impl Iterator<Item = String> {
    CONSUMERS.iter().map(|consumer| work_queue(consumer.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_queue_never_dead_letters_to_a_rung() {
        for (name, arguments) in queues("email", &[Rung { name: "5s".into(), delay: Duration::from_secs(5) }]) {
            let target = arguments.inner().get("x-dead-letter-routing-key");
            match name.as_str() {
                "counterfoil.email" => assert_eq!(target, Some(&text("counterfoil.email.dead"))),
                "counterfoil.email.dead" => assert_eq!(target, None),
                _ => assert_eq!(target, Some(&text("counterfoil.email"))),
            }
            assert!(arguments.inner().contains_key("x-delivery-limit"));
        }
    }

    #[test]
    fn durations_carry_their_unit() {
        assert_eq!(duration("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "5", "s", "0s", "1d", "-1s", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_ladder_rises() {
        assert_eq!(rungs("5s, 15s,1m").unwrap().iter().map(|rung| rung.delay.as_secs()).collect::<Vec<_>>(), [5, 15, 60]);
        assert!(rungs("15s,5s").is_err() && rungs("").is_err() && rungs("5s,5s").is_err());
    }
}
