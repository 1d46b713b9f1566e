//! Writes a judgement down: ack, or a confirmed copy to a rung or the dead letters and then the ack. The one place that acks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_broker::lapin::message::Delivery;
use counterfoil_broker::lapin::options::BasicAckOptions;
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_broker::{Fate, Outgoing, topology};
use tokio::time::timeout;

use super::conduct::{Failure, Ladder, Next, Verdict};
use super::handover::Handover;
use super::message::{ATTEMPT_HEADER, Message, PREVIOUS_HEADER};

/// Longest wait for an ack to be written; lapin has none.
const ACK_DEADLINE: Duration = Duration::from_secs(5);

/// Longest reason in a header, in characters.
const REASON_CHARS_MAX: usize = 500;

#[derive(Debug)]
pub(crate) struct Settler {
    pub(crate) consumer: &'static str,
    pub(crate) ladder: Ladder,
    pub(crate) handover: Handover,
    /// Something was left to be delivered again: from then on an ack stands for its own message alone.
    pub(crate) left: AtomicBool,
}

/// What a settled batch means for the session.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// The channel or the publisher cannot be trusted any more.
    pub(crate) broken: bool,
    /// The other side is down; how long it asks us to wait.
    pub(crate) outage: Option<(String, Option<Duration>)>,
    /// At least one message got its effect.
    pub(crate) succeeded: bool,
}

impl Settler {
    /// Settles a batch of judged messages; in one ack, when all are done and everything before them is settled (`alone`).
    pub(crate) async fn settle(&self, mut judged: Vec<(Message, Verdict)>, alone: bool) -> Settled {
        let mut settled = Settled::default();
        if alone && !self.left.load(Ordering::Relaxed) && judged.iter().all(|(_, verdict)| *verdict == Verdict::Done) {
            metrics::counter!("counterfoil_consumer_messages_total", "consumer" => self.consumer, "outcome" => "done").increment(judged.len() as u64);
            settled.succeeded = true;
            if let Some((last, _)) = judged.pop() {
                settled.broken = !ack(last.delivery, true).await; // tags rise with delivery
            }
            return settled;
        }
        for (message, verdict) in judged {
            if let Verdict::Failed(Failure::Outage { reason, pause }) = &verdict {
                settled.outage = Some((reason.clone(), *pause));
            }
            settled.succeeded |= verdict == Verdict::Done;
            settled.broken |= !self.settle_one(message, verdict).await;
        }
        settled
    }

    /// Hands a message that nobody has looked at to the parking rung, without counting.
    pub(crate) async fn park(&self, delivery: Delivery, reason: &str) -> bool {
        self.settle_one(Message::read(delivery), Verdict::Failed(Failure::Busy { reason: reason.to_owned() })).await
    }

    /// `false` when the message could not be settled: the broker delivers it again.
    async fn settle_one(&self, message: Message, verdict: Verdict) -> bool {
        let failure = match verdict {
            Verdict::Done => {
                self.count("done");
                return ack(message.delivery, false).await;
            }
            Verdict::Leave => {
                self.count("left");
                self.left.store(true, Ordering::Relaxed);
                return true;
            }
            Verdict::Failed(failure) => failure,
        };
        let next = self.ladder.after_attempt(message.attempt, &failure, rand::random());
        let reason = reason_of(&failure);
        let (queue, attempt) = match &next {
            Next::Rung { rung, attempt } => (topology::rung_queue(self.consumer, rung), *attempt),
            Next::Dead => (topology::dead_queue(self.consumer), message.attempt),
        };
        match (&next, &failure) {
            (Next::Dead, _) => {
                self.count("dead");
                let event_id = message.event.as_ref().ok().map(|event| event.id);
                tracing::error!(consumer = self.consumer, reason, attempt, event_id = event_id.map(tracing::field::display), "message dead-lettered");
            }
            (Next::Rung { rung, .. }, Failure::Outage { .. } | Failure::Busy { .. }) => {
                self.count("parked");
                tracing::info!(consumer = self.consumer, reason, rung, "message waits without counting");
            }
            (Next::Rung { rung, .. }, _) => {
                self.count("retried");
                tracing::warn!(consumer = self.consumer, reason, rung, attempt, "attempt failed");
            }
        }
        let copy = copy(&message, queue, attempt, &failure, reason);
        match self.handover.publish(copy).await {
            Fate::Confirmed => ack(message.delivery, false).await,
            fate => {
                tracing::error!(consumer = self.consumer, fate = fate.name(), "the copy did not land: its original stays in the queue");
                metrics::counter!("counterfoil_consumer_handover_failures_total", "consumer" => self.consumer).increment(1);
                false
            }
        }
    }

    fn count(&self, outcome: &'static str) {
        metrics::counter!("counterfoil_consumer_messages_total", "consumer" => self.consumer, "outcome" => outcome).increment(1);
    }
}

fn reason_of(failure: &Failure) -> &str {
    match failure {
        Failure::Transient { reason, .. } | Failure::Permanent { reason } | Failure::Outage { reason, .. } | Failure::Busy { reason } => reason,
    }
}

fn kind_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::Transient { unknown: true, .. } => "unknown",
        Failure::Transient { .. } => "transient",
        Failure::Permanent { .. } => "permanent",
        Failure::Outage { .. } => "outage",
        Failure::Busy { .. } => "busy",
    }
}

/// The copy of a message: same bytes, same properties, our headers brought up to date, the broker's own left behind.
fn copy(message: &Message, queue: String, attempt: u32, failure: &Failure, reason: &str) -> Outgoing {
    let mut headers = FieldTable::default();
    for (name, value) in message.headers().inner() {
        if name.as_str() == "traceparent" || (name.as_str().starts_with("x-counterfoil-") && name.as_str() != "x-counterfoil-correlation") {
            headers.insert(name.clone(), value.clone());
        }
    }
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
    headers.insert(ATTEMPT_HEADER.into(), AMQPValue::LongLongInt(i64::from(attempt)));
    headers.insert("x-counterfoil-reason".into(), AMQPValue::LongString(reason.into()));
    if let Some(span) = &message.own_trace {
        headers.insert(PREVIOUS_HEADER.into(), AMQPValue::LongString(span.to_string().into()));
    }
    headers.insert("x-counterfoil-kind".into(), AMQPValue::LongString(kind_of(failure).into()));
    let now = time::OffsetDateTime::now_utc().format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
    if !headers.inner().contains_key("x-counterfoil-first-failed-at") {
        headers.insert("x-counterfoil-first-failed-at".into(), AMQPValue::LongString(now.as_str().into()));
    }
    headers.insert("x-counterfoil-failed-at".into(), AMQPValue::LongString(now.into()));
    let properties = message.delivery.properties.clone().with_headers(headers).with_delivery_mode(2);
    Outgoing { correlation: 0, exchange: String::new(), routing_key: queue, body: message.delivery.data.clone(), properties }
}

/// Acks; `multiple` for all that was delivered before it on its channel, too. `false` when it was too late: the message comes again, and its effect is known.
pub(crate) async fn ack(delivery: Delivery, multiple: bool) -> bool {
    counterfoil_chassis::fault::point("ack.before");
    match timeout(ACK_DEADLINE, delivery.acker.ack(BasicAckOptions { multiple })).await {
        Ok(Ok(true)) => true,
        Ok(Ok(false) | Err(_)) | Err(_) => {
            tracing::info!("an ack came too late; the message will be delivered again");
            false
        }
    }
}
