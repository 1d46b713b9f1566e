//! Publishing under confirms: pipelined, mandatory, four outcomes told apart.

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use tokio::time::timeout;

use crate::link::broker_error;

/// Messages outstanding at once: full throughput at a tenth of the latency of "all at once", and small enough that
/// lapin never wedges behind a full socket.
pub const WINDOW_MAX: usize = 256;

/// The header by which a returned message is recognised.
const CORRELATION: &str = "x-counterfoil-correlation";

/// A message to publish.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Unique in its window.
    pub correlation: i64,
    /// Empty for the default exchange.
    pub exchange: String,
    /// Routing key, or the queue's name on the default exchange.
    pub routing_key: String,
    /// The bytes.
    pub body: Vec<u8>,
    /// Properties; headers included.
    pub properties: BasicProperties,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Every queue it was routed to has it.
    Confirmed,
    /// No queue was bound: it is nowhere.
    Returned,
    /// A queue would not take it; others may have it.
    Refused,
    /// The channel died, or nothing was heard in time.
    Unknown,
}

impl Fate {
    /// A short name for labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Returned => "returned",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// What became of a window of messages.
#[derive(Debug)]
pub struct Window {
    /// One for each message, in order.
    pub fates: Vec<Fate>,
    /// Why the broker closed the channel, when it did.
    pub closed: Option<(u16, String)>,
}

impl Window {
    /// Whether the channel may be used for another window. After any doubt its queue of returns cannot be trusted.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.closed.is_none() && !self.fates.contains(&Fate::Unknown)
    }
}

/// Publishes a window on a channel in confirm mode that nobody else uses, and decides only when every confirm is in or
/// the deadline has passed.
pub async fn publish_window(channel: &Channel, messages: &[Outgoing], deadline: Duration) -> Window {
    publish_window_unless(channel, messages, deadline, std::future::pending()).await
}

/// The same, but for no longer than until `over` says that waiting is of no use.
pub async fn publish_window_unless(channel: &Channel, messages: &[Outgoing], deadline: Duration, over: impl Future<Output = ()>) -> Window {
    debug_assert!(messages.len() <= WINDOW_MAX);
    let mut patience = Patience { over: pin!(timeout(deadline, over)), ended: false };
    let mut closed = None;
    let mut confirms: Vec<Option<PublisherConfirm>> = Vec::with_capacity(messages.len());
    for message in messages {
        match patience.wait(send(channel, message)).await {
            Some(Ok(confirm)) => confirms.push(Some(confirm)),
            Some(Err(error)) => {
                closed = closed.or_else(|| broker_error(&error));
                break;
            }
            None => break,
        }
    }
    let mut fates = vec![Fate::Unknown; messages.len()];
    let mut returned = HashSet::new();
    for (fate, confirm) in fates.iter_mut().zip(&mut confirms) {
        let Some(confirm) = confirm.take() else {
            continue;
        };
        let (kind, message) = match patience.wait(confirm).await {
            Some(Ok(Confirmation::Ack(message))) => (Fate::Confirmed, message),
            Some(Ok(Confirmation::Nack(message))) => (Fate::Refused, message),
            Some(Ok(Confirmation::NotRequested)) | None => (Fate::Unknown, None),
            Some(Err(error)) => {
                closed = closed.or_else(|| broker_error(&error));
                (Fate::Unknown, None)
            }
        };
        *fate = kind;
        // Whoever carries a returned message, it is the message's own header that says whose it is.
        returned.extend(message.and_then(|message| correlation(&message.delivery.properties)));
    }
    for (fate, message) in fates.iter_mut().zip(messages) {
        if *fate == Fate::Confirmed && returned.contains(&message.correlation) {
            *fate = Fate::Returned;
        }
    }
    Window { fates, closed }
}

/// How long a window is waited for, all its steps together.
struct Patience<'a, Over> {
    over: Pin<&'a mut Over>,
    ended: bool,
}

impl<Over: Future> Patience<'_, Over> {
    /// What `step` gives; once patience has ended, only what it gives at once.
    async fn wait<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            given = step => Some(given),
            () = async { if !self.ended { self.over.as_mut().await; } } => {
                self.ended = true;
                None
            }
        }
    }
}

async fn send(channel: &Channel, message: &Outgoing) -> lapin::Result<PublisherConfirm> {
    let mut headers = message.properties.headers().clone().unwrap_or_default();
    headers.insert(CORRELATION.into(), AMQPValue::LongLongInt(message.correlation));
    let properties = message.properties.clone().with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let (exchange, routing_key): (ShortString, ShortString) = (message.exchange.as_str().into(), message.routing_key.as_str().into());
    channel.basic_publish(exchange, routing_key, options, &message.body, properties).await
}

fn correlation(properties: &BasicProperties) -> Option<i64> {
    match properties.headers().as_ref()?.inner().get(CORRELATION)? {
        AMQPValue::LongLongInt(correlation) => Some(*correlation),
        _ => None,
    }
}

/// A header's text, where it is one.
#[must_use]
pub fn text_header(headers: Option<&FieldTable>, name: &str) -> Option<String> {
    match headers?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// A header's number, where it is one.
#[must_use]
pub fn number_header(headers: Option<&FieldTable>, name: &str) -> Option<i64> {
    match headers?.inner().get(name)? {
        AMQPValue::LongLongInt(number) => Some(*number),
        AMQPValue::LongInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortInt(number) => Some(i64::from(*number)),
        _ => None,
    }
}
