//! The keeper: moves what the consumers gave up from the `.dead` queues into `dead_letters`, so that looking disturbs no queue.
//!
//! A message is acked once its row is committed: a keeper that is killed has it delivered again, and the row is there already. While no
//! keeper runs, the queues simply hold.

use std::time::Duration;

use anyhow::Context;
use counterfoil_broker::lapin::message::Delivery;
use counterfoil_broker::lapin::options::{BasicConsumeOptions, BasicQosOptions};
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_broker::link::METHOD_DEADLINE;
use counterfoil_broker::publish::{number_header, text_header};
use counterfoil_broker::topology::{CONSUMERS, dead_queue};
use counterfoil_broker::{Link, Pace, supervise, topology};
use counterfoil_chassis::Process;
use counterfoil_chassis::postgres::{ran, within};
use counterfoil_inbox::dead::{Died, keep};
use counterfoil_payments::Event;
use counterfoil_settlement::Failure;
use futures_util::stream::select_all;
use futures_util::{FutureExt, StreamExt};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};
use sqlx::{Connection, PgConnection, PgPool};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, timeout};

use crate::runner::ack;

/// Messages in hand of each queue, and rows in one transaction: dead letters come in heaps, and each is small.
const BATCH: u16 = 100;

/// Longest time for one transaction.
const DEADLINE: Duration = Duration::from_secs(20);

/// How often it says that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Longest error that is kept, in characters.
const ERROR_CHARS_MAX: usize = 2000;

/// Runs until told to stop.
pub(crate) async fn run(amqp_url: &str, pool: &PgPool, process: &Process) {
    process.readiness.fails("database", "not asked yet");
    process.readiness.fails("broker", "not connected yet");
    let told = |error: &anyhow::Error| process.readiness.fails("broker", format!("{error:#}"));
    let pace = Pace { most: Duration::from_secs(5), ..Pace::default() };
    supervise(amqp_url, "counterfoil-consumers dead-letters", pace, &process.shutdown, told, async |link| {
        topology::verify(link, CONSUMERS.iter().map(|consumer| dead_queue(consumer.name))).await?;
        take(link, pool, process).await
    })
    .await;
}

async fn take(link: &Link, pool: &PgPool, process: &Process) -> anyhow::Result<()> {
    let channel = link.channel().await?;
    timeout(METHOD_DEADLINE, channel.basic_qos(BATCH, BasicQosOptions { global: false })).await.context("no answer to basic.qos")??;
    let mut queues = Vec::new();
    for consumer in CONSUMERS {
        let queue = dead_queue(consumer.name);
        let consumed = channel.basic_consume(queue.as_str().into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
        let stream = timeout(METHOD_DEADLINE, consumed).await.context("no answer to basic.consume")?.with_context(|| format!("cannot consume from {queue}"))?;
        // A queue that is deleted ends its stream: then everything is begun anew, since `select_all` would go on with the others.
        let end = futures_util::stream::once(std::future::ready((consumer.name, None)));
        queues.push(stream.map(|delivery| (consumer.name, Some(delivery))).chain(end));
    }
    let mut arriving = select_all(queues);
    process.readiness.holds("broker");
    let mut said: Option<Instant> = None;
    while !process.shutdown.is_cancelled() {
        if said.is_none_or(|at| at.elapsed() > SIGN_OF_LIFE) {
            within(pool, DEADLINE, async |connection: &mut PgConnection| ran(connection, "keeper", SIGN_OF_LIFE).await).await?;
            said = Some(Instant::now());
        }
        let first = tokio::select! {
            next = arriving.next() => next.context("the broker ended the keeper's consumers")?,
            () = process.shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                anyhow::ensure!(link.connected(), "the broker has closed the connection");
                continue;
            }
        };
        let mut next = Some(first);
        let mut batch = Vec::new();
        while let Some((consumer, taken)) = next.take() {
            let taken = taken.with_context(|| format!("the broker ended the keeper's consumer of {}: its queue was deleted", dead_queue(consumer)))?;
            batch.push((consumer, taken.context("the channel was closed")?));
            if batch.len() < usize::from(BATCH) {
                next = arriving.next().now_or_never().flatten();
            }
        }
        keep_batch(pool, batch).await?;
    }
    Ok(())
}

async fn keep_batch(pool: &PgPool, batch: Vec<(&'static str, Delivery)>) -> anyhow::Result<()> {
    let died: Vec<Died> = batch.iter().map(|(consumer, delivery)| read(consumer, delivery)).collect();
    if let Err(error) = keep_all(pool, &died).await {
        anyhow::ensure!(Failure::of(&error) == Failure::Culprit, "dead letters cannot be kept now; their queues hold them: {error}");
        // One of them may be to blame: each by itself, and it with nothing but its bytes.
        tracing::warn!(%error, "dead letters cannot be kept together; they are kept one by one");
        for letter in &died {
            if keep_all(pool, std::slice::from_ref(letter)).await.is_err() {
                let bare = Died {
                    topic: None,
                    order_id: None,
                    version: None,
                    amount_minor: None,
                    currency: None,
                    headers: Value::Object(Map::new()),
                    error: "it could not be kept whole".into(),
                    ..letter.clone()
                };
                keep_all(pool, &[bare]).await.context("dead letters cannot be kept; their queues hold them")?;
            }
        }
    }
    counterfoil_chassis::fault::point("keeper.before_ack");
    for (consumer, delivery) in batch {
        metrics::counter!("counterfoil_keeper_messages_total", "consumer" => consumer).increment(1);
        anyhow::ensure!(ack(delivery, false).await, "an ack came too late");
    }
    Ok(())
}

async fn keep_all(pool: &PgPool, died: &[Died]) -> sqlx::Result<()> {
    within(pool, DEADLINE, async |connection: &mut PgConnection| {
        let mut tx = connection.begin().await?;
        for letter in died {
            if keep(&mut tx, letter).await? {
                tracing::warn!(
                    consumer = letter.consumer,
                    kind = letter.kind,
                    error = letter.error,
                    event_id = letter.event_id.map(tracing::field::display),
                    "dead letter kept"
                );
            }
        }
        counterfoil_chassis::fault::point("keeper.before_commit");
        tx.commit().await
    })
    .await
}

/// What a message from a terminal queue says of its death.
fn read(consumer: &str, delivery: &Delivery) -> Died {
    let headers = delivery.properties.headers().as_ref();
    let text = |name: &str| text_header(headers, name);
    let number = |name: &str| number_header(headers, name).or_else(|| text(name)?.parse().ok()).and_then(|number| i32::try_from(number).ok());
    let instant = |name: &str| text(name).and_then(|at| OffsetDateTime::parse(&at, &Rfc3339).ok());
    let event = Event::read(&delivery.data).ok();
    let stakes: Stakes = serde_json::from_slice(&delivery.data).unwrap_or_default();
    let by_broker = broker_death(headers);
    let why = text("x-counterfoil-reason").filter(|_| by_broker.is_none());
    let error = why.unwrap_or_else(|| {
        by_broker
            .map_or_else(|| "not known".to_owned(), |(reason, _)| format!("the broker gave it up ({reason}): its consumer ended each time it had it in hand"))
    });
    let event_id = event.as_ref().map(|event| event.id);
    let kind = match (&event, by_broker) {
        (None, _) => "not_an_event".to_owned(),
        (_, Some(_)) => "crash".to_owned(),
        _ => kind(&error, text("x-counterfoil-kind").as_deref()),
    };
    Died {
        consumer: consumer.to_owned(),
        event_id,
        identity: event_id.map_or_else(|| format!("sha256:{}", hex::encode(digest(&SHA256, &delivery.data))), |id| id.to_string()),
        topic: event.as_ref().map(|event| event.topic().name().to_owned()),
        order_id: event.as_ref().map(|event| event.order_id.0),
        version: stakes.data.version,
        amount_minor: stakes.minor().map(|(minor, _)| minor),
        currency: stakes.minor().map(|(_, currency)| currency),
        body: delivery.data.clone(),
        headers: texts(headers),
        replay: number("x-counterfoil-replay").unwrap_or(0),
        kind,
        error: sound(&error),
        attempts: number("x-counterfoil-attempt").unwrap_or(1),
        first_failed_at: instant("x-counterfoil-first-failed-at"),
        died_at: by_broker.map_or_else(|| instant("x-counterfoil-failed-at"), |(_, at)| at),
    }
}

/// The money that a message is about, wherever its topic has it.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Stakes {
    data: StakesData,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct StakesData {
    version: Option<i64>,
    amount_minor: Option<i64>,
    currency: Option<String>,
    payment: Option<StakesMoney>,
    refund: Option<StakesMoney>,
    dispute: Option<StakesMoney>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct StakesMoney {
    amount_minor: Option<i64>,
    currency: Option<String>,
}

impl Stakes {
    fn minor(&self) -> Option<(i64, String)> {
        let data = &self.data;
        let code = |currency: &Option<String>| currency.clone().filter(|code| code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_uppercase()));
        let own = data.amount_minor.zip(code(&data.currency));
        let money = |money: &Option<StakesMoney>| money.as_ref().and_then(|money| money.amount_minor.zip(code(&money.currency)));
        own.or_else(|| money(&data.refund)).or_else(|| money(&data.dispute)).or_else(|| money(&data.payment))
    }
}

/// The reason and time of the broker's own dead-lettering, when that is how the message came here: our own copies carry our own reason.
fn broker_death(headers: Option<&FieldTable>) -> Option<(&'static str, Option<OffsetDateTime>)> {
    let AMQPValue::FieldArray(deaths) = headers?.inner().get("x-death")? else { return None };
    let AMQPValue::FieldTable(death) = deaths.as_slice().first()? else { return None };
    let at = match death.inner().get("time") {
        Some(AMQPValue::Timestamp(seconds)) => i64::try_from(*seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok()),
        _ => None,
    };
    let reason = text_header(Some(death), "reason")?;
    ["delivery_limit", "rejected", "maxlen", "expired"].into_iter().find(|known| *known == reason).map(|known| (known, at))
}

/// Headers as texts, for people and for a replay.
fn texts(headers: Option<&FieldTable>) -> Value {
    let mut map = Map::new();
    for name in headers.into_iter().flat_map(|headers| headers.inner().keys()).map(|name| name.as_str()) {
        let value = text_header(headers, name).or_else(|| number_header(headers, name).map(|number| number.to_string()));
        if let Some(value) = value {
            map.insert(sound(name), Value::String(sound(&value)));
        }
    }
    Value::Object(map)
}

/// Text as PostgreSQL takes it.
fn sound(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(ERROR_CHARS_MAX).collect()
}

/// The kind of an error: the other side's code where the text begins with one, else what the runner judged.
fn kind(error: &str, judged: Option<&str>) -> String {
    let digits = |text: &str| text.get(..3).filter(|code| code.bytes().all(|byte| byte.is_ascii_digit())).map(str::to_owned);
    if let Some(code) = error.split("HTTP ").nth(1).and_then(digits) {
        return format!("http_{code}");
    }
    match digits(error).filter(|_| error.get(3..7) == Some(" at ")) {
        Some(code) => format!("smtp_{code}"),
        None => judged.unwrap_or("unknown").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_of_the_kind_that_its_code_says() {
        assert_eq!(kind("HTTP 404 from the CRM", Some("permanent")), "http_404");
        assert_eq!(kind("550 at RCPT TO", Some("permanent")), "smtp_550");
        assert_eq!(kind("no answer within 20 s", Some("unknown")), "unknown");
        assert_eq!(kind("called 35 times without an end", None), "unknown");
        assert_eq!(kind("€", Some("transient")), "transient");
    }

    #[test]
    fn money_is_found_wherever_a_topic_has_it() {
        let minor = |text: &str| serde_json::from_str::<Stakes>(text).unwrap_or_default().minor();
        assert_eq!(minor(r#"{"data":{"amount_minor":5,"currency":"EUR","payment":{"amount_minor":9,"currency":"USD"}}}"#), Some((5, "EUR".into())));
        assert_eq!(minor(r#"{"data":{"refund":{"amount_minor":7,"currency":"INR"},"payment":{"provider":"stripe"}}}"#), Some((7, "INR".into())));
        assert_eq!(minor("not JSON"), None);
        assert_eq!(minor(r#"{"data":{"amount_minor":5,"currency":"\u0000"}}"#), None);
    }
}
