//! One consumer on one connection: takes messages, hands them to the kind, slows down and recovers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use counterfoil_broker::lapin::message::Delivery;
use counterfoil_broker::lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use counterfoil_broker::lapin::types::FieldTable;
use counterfoil_broker::lapin::{Channel, Consumer};
use counterfoil_broker::link::METHOD_DEADLINE;
use counterfoil_broker::{Link, topology};
use counterfoil_chassis::Process;
use counterfoil_chassis::busy::Busy;
use futures_util::{FutureExt, StreamExt};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Kind;
use super::message::Message;
use super::settle::{Settled, Settler};

/// The first and the longest pause of an outage.
const PAUSE_LEAST: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = Duration::from_secs(60);

/// Longest pause that the other side can ask for.
const PAUSE_ASKED_MOST: Duration = Duration::from_secs(15 * 60);

/// How often the connection, and whether copies could be published, is looked at when nothing else happens.
const LOOK: Duration = Duration::from_millis(200);

/// What the tag of a consumer with the whole prefetch begins with.
const FULL_TAG: &str = "full-";

/// How much is taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// One at a time until a message comes that was not delivered before: one that crashes its consumer must not take
    /// its neighbours to the dead letters.
    Start,
    /// One at a time until one succeeds: the other side was down.
    Probe,
    /// The whole prefetch.
    Full,
}

/// Why taking messages ended.
enum End {
    Stopped,
    Paused,
    Outage(String, Option<Duration>),
    Lost(anyhow::Error),
}

pub(crate) struct Session<K> {
    kind: Arc<K>,
    settler: Arc<Settler>,
    prefetch: u16,
    process: Process,
    stage: Stage,
    outages: u32,
    /// Whether a person has paused this consumer.
    paused: watch::Receiver<Option<bool>>,
    standing: Arc<Standing>,
}

/// How this replica stands, for its report.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub(crate) busy: Busy,
    outage: Mutex<Option<Outage>>,
}

/// The other side is down.
#[derive(Debug, Clone)]
struct Outage {
    why: String,
    /// Until when nothing is taken; and whether the other side asked for that.
    until: OffsetDateTime,
    asked: bool,
}

impl Standing {
    /// Why the other side is down, and until when it asks us to wait. An outage that is a minute past its pause is nobody's news any more:
    /// a replica that has nothing to try would repeat it for ever.
    pub(crate) fn outage(&self) -> (Option<String>, Option<String>) {
        let now = OffsetDateTime::now_utc();
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(|outage| now < outage.until + Duration::from_secs(60));
        let until = outage.as_ref().filter(|outage| outage.asked && now < outage.until).and_then(|outage| outage.until.format(&Rfc3339).ok());
        (outage.map(|outage| outage.why), until)
    }
}

impl<K: Kind> Session<K> {
    pub(crate) fn new(
        kind: Arc<K>,
        settler: Arc<Settler>,
        prefetch: u16,
        process: Process,
        paused: watch::Receiver<Option<bool>>,
        standing: Arc<Standing>,
    ) -> Self {
        Self { kind, settler, prefetch, process, stage: Stage::Start, outages: 0, paused, standing }
    }

    /// Works on one connection until it is lost or the process stops. Tasks under way go on in `tasks`.
    pub(crate) async fn run(&mut self, link: &Link, tasks: &mut JoinSet<Settled>) -> anyhow::Result<()> {
        self.stage = if self.stage == Stage::Probe { Stage::Probe } else { Stage::Start };
        // A database that does not answer keeps nobody from consuming: it is an outage of its own.
        let _ = timeout(METHOD_DEADLINE, self.paused.wait_for(Option::is_some)).await;
        loop {
            self.wait_out_pause(link).await?;
            if self.process.shutdown.is_cancelled() {
                return Ok(());
            }
            let channel = link.channel().await?;
            match self.take(link, &channel, tasks).await {
                End::Stopped => return Ok(()),
                // What was delivered and not begun goes back with the channel.
                End::Paused => drop(timeout(METHOD_DEADLINE, channel.close(200, "paused".into())).await),
                End::Lost(error) => return Err(error),
                End::Outage(reason, asked) => {
                    let _ = timeout(METHOD_DEADLINE, channel.close(200, "outage".into())).await;
                    self.wait_out(&reason, asked).await;
                }
            }
        }
    }

    fn paused(&self) -> bool {
        *self.paused.borrow() == Some(true)
    }

    /// Waits, with an idle connection, while a person has paused this consumer.
    async fn wait_out_pause(&mut self, link: &Link) -> anyhow::Result<()> {
        if !self.paused() {
            return Ok(());
        }
        let consumer = self.kind.name();
        tracing::warn!(consumer, "paused by a person: nothing is taken");
        metrics::gauge!("counterfoil_consumer_paused", "consumer" => consumer).set(1.0);
        self.process.readiness.holds("broker");
        while self.paused() && !self.process.shutdown.is_cancelled() {
            anyhow::ensure!(link.connected(), "the broker has closed the connection");
            let _ = timeout(LOOK, self.process.shutdown.cancelled()).await;
        }
        metrics::gauge!("counterfoil_consumer_paused", "consumer" => consumer).set(0.0);
        tracing::info!(consumer, "the pause is over");
        self.stage = if self.stage == Stage::Probe { Stage::Probe } else { Stage::Start };
        Ok(())
    }

    /// Waits as long as the other side asks, else longer each time, with jitter.
    async fn wait_out(&mut self, reason: &str, asked: Option<Duration>) {
        let own = PAUSE_LEAST.saturating_mul(1 << self.outages.min(6)).min(PAUSE_MOST).mul_f64(0.5 + rand::random::<f64>() / 2.0);
        let pause = asked.map_or(own, |asked| asked.clamp(PAUSE_LEAST, PAUSE_ASKED_MOST));
        self.outages += 1;
        self.stage = Stage::Probe;
        let consumer = self.kind.name();
        tracing::error!(consumer, reason, pause_ms = pause.as_millis(), "outage: nothing is taken, no attempts are used");
        metrics::gauge!("counterfoil_consumer_outage", "consumer" => consumer).set(1.0);
        let outage = Outage { why: reason.to_owned(), until: OffsetDateTime::now_utc() + pause, asked: asked.is_some() };
        *self.standing.outage.lock().unwrap_or_else(PoisonError::into_inner) = Some(outage);
        let _ = timeout(pause, self.process.shutdown.cancelled()).await;
    }

    async fn take(&mut self, link: &Link, channel: &Channel, tasks: &mut JoinSet<Settled>) -> End {
        let mut stream = match self.consume(channel).await {
            Ok(stream) => stream,
            Err(error) => return End::Lost(error),
        };
        self.process.readiness.holds("broker");
        let end = loop {
            let has_room = tasks.len() < self.kind.concurrency() && self.settler.handover.usable();
            tokio::select! {
                biased;
                () = self.process.shutdown.cancelled() => break End::Stopped,
                Some(joined) = tasks.join_next(), if !tasks.is_empty() => if let Some(end) = self.joined(joined) { break end },
                next = stream.next(), if has_room => match next {
                    Some(Ok(delivery)) => self.spawn(delivery, &mut stream, tasks),
                    Some(Err(error)) => break End::Lost(anyhow::Error::new(error).context("the channel was closed")),
                    None => break End::Lost(anyhow::anyhow!("the broker ended the consumer: its queue was deleted, or it timed out")),
                },
                () = tokio::time::sleep(LOOK) => if !link.connected() {
                    break End::Lost(anyhow::anyhow!("the broker has closed the connection"));
                },
            }
            if self.paused() {
                break End::Paused;
            }
            if self.promoted(&stream) {
                match self.promote(channel, stream, tasks).await {
                    Ok(promoted) => stream = promoted,
                    Err(error) => return End::Lost(error),
                }
            }
        };
        self.leave(channel, stream, tasks, end).await
    }

    async fn consume(&self, channel: &Channel) -> anyhow::Result<Consumer> {
        let prefetch = if self.stage == Stage::Full { self.prefetch } else { 1 };
        timeout(METHOD_DEADLINE, channel.basic_qos(prefetch, BasicQosOptions { global: false })).await.context("no answer to basic.qos")??;
        let queue = topology::work_queue(self.kind.name());
        let tag = format!("{}{}", if self.stage == Stage::Full { FULL_TAG } else { "one-" }, uuid::Uuid::new_v4());
        let consumed = channel.basic_consume(queue.as_str().into(), tag.as_str().into(), BasicConsumeOptions::default(), FieldTable::default());
        timeout(METHOD_DEADLINE, consumed).await.context("no answer to basic.consume")?.with_context(|| format!("cannot consume from {queue}"))
    }

    /// Takes a delivery, and what else has arrived with it, as one batch.
    fn spawn(&mut self, first: Delivery, stream: &mut Consumer, tasks: &mut JoinSet<Settled>) {
        let mut redelivered = first.redelivered;
        let mut batch = vec![Message::read(first)];
        while batch.len() < self.kind.batch_max() {
            // An error here shows again at the next look.
            let Some(Some(Ok(delivery))) = stream.next().now_or_never() else { break };
            redelivered &= delivery.redelivered;
            batch.push(Message::read(delivery));
        }
        if self.stage == Stage::Start && !redelivered {
            self.stage = Stage::Full;
        }
        let (kind, settler) = (Arc::clone(&self.kind), Arc::clone(&self.settler));
        // All that was delivered on this channel before is settled: one ack may stand for the batch.
        let alone = tasks.is_empty() && self.kind.concurrency() == 1;
        let busy = Arc::clone(&self.standing);
        tasks.spawn(async move {
            let begun = Instant::now();
            let settled = settler.settle(kind.process(batch).await, alone).await;
            busy.busy.add(begun.elapsed());
            settled
        });
    }

    fn joined(&mut self, joined: Result<Settled, tokio::task::JoinError>) -> Option<End> {
        let settled = match joined {
            Ok(settled) => settled,
            Err(error) => return Some(End::Lost(anyhow::Error::new(error).context("a handler's task failed"))),
        };
        if let Some((reason, pause)) = settled.outage {
            return Some(End::Outage(reason, pause));
        }
        if settled.broken {
            return Some(End::Lost(anyhow::anyhow!("a message could not be settled")));
        }
        if settled.succeeded && self.stage == Stage::Probe {
            self.stage = Stage::Full;
            self.outages = 0;
            metrics::gauge!("counterfoil_consumer_outage", "consumer" => self.kind.name()).set(0.0);
            *self.standing.outage.lock().unwrap_or_else(PoisonError::into_inner) = None;
            tracing::info!(consumer = self.kind.name(), "the outage is over");
        }
        None
    }

    /// Whether the stream still runs with a prefetch of one although the stage allows more.
    fn promoted(&self, stream: &Consumer) -> bool {
        self.stage == Stage::Full && self.prefetch > 1 && !stream.tag().as_str().starts_with(FULL_TAG)
    }

    /// Consumes anew with the whole prefetch, on the same channel: what is in hand is still acked on it.
    async fn promote(&mut self, channel: &Channel, mut stream: Consumer, tasks: &mut JoinSet<Settled>) -> anyhow::Result<Consumer> {
        timeout(METHOD_DEADLINE, channel.basic_cancel(stream.tag(), BasicCancelOptions::default())).await.context("no answer to basic.cancel")??;
        while let Some(delivery) = timeout(METHOD_DEADLINE, stream.next()).await.context("the cancelled consumer does not end")? {
            self.spawn(delivery?, &mut stream, tasks);
        }
        self.consume(channel).await
    }

    /// Ends taking: what was delivered and not begun waits on a rung when the other side is down, else goes back.
    async fn leave(&mut self, channel: &Channel, mut stream: Consumer, tasks: &mut JoinSet<Settled>, mut end: End) -> End {
        let cancelled = timeout(METHOD_DEADLINE, channel.basic_cancel(stream.tag(), BasicCancelOptions::default())).await;
        if matches!(end, End::Lost(_)) || !matches!(cancelled, Ok(Ok(()))) {
            return end;
        }
        if let End::Outage(reason, _) = &end {
            let reason = format!("outage: {reason}");
            while let Ok(Some(Ok(delivery))) = timeout(METHOD_DEADLINE, stream.next()).await {
                if !self.settler.park(delivery, &reason).await {
                    end = End::Lost(anyhow::anyhow!("a message could not be parked"));
                    break;
                }
            }
        }
        // Their acks need the channel.
        while let Some(joined) = tasks.join_next().await {
            if let (Some(End::Lost(error)), false) = (self.joined(joined), matches!(end, End::Stopped)) {
                end = End::Lost(error);
            }
        }
        end
    }
}
