//! The runner: decoding, deadline, dedupe, retry, dead letters, acks, spans, metrics and shutdown, once for all consumers.
//!
//! Read as a pipeline: [`session`] takes messages from the queue, [`message`] decodes them, [`database`] or [`outside`]
//! judges them, [`settle`] writes the judgement down (ack, or a confirmed copy and then the ack).

pub mod conduct;
mod database;
mod handover;
mod message;
mod outside;
mod pause;
mod session;
mod settle;

use std::sync::Arc;

use counterfoil_broker::{Pace, Rung, supervise, topology};
use counterfoil_chassis::{Process, replica};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use conduct::{Failure, Ladder, Verdict};
pub use database::{Apply, InDatabase};
pub use message::Message;
pub use outside::{Deliver, Effect, Outside};
pub(crate) use settle::ack;

/// A message and what is to be done with it.
pub type Judged = (Message, Verdict);

/// One of the two kinds of consumers.
pub trait Kind: Send + Sync + 'static {
    /// The consumer's name; its queue is `counterfoil.<name>`.
    fn name(&self) -> &'static str;
    /// Messages handled together, at the most.
    fn batch_max(&self) -> usize;
    /// Batches handled at once, at the most.
    fn concurrency(&self) -> usize;
    /// Does the work and judges each message. Never fails: a failure is a verdict.
    fn process(self: Arc<Self>, batch: Vec<Message>) -> impl Future<Output = Vec<Judged>> + Send;
}

/// Runs a consumer.
#[derive(Debug, Clone)]
pub struct Runner {
    /// RabbitMQ.
    pub amqp_url: String,
    /// The retry ladder.
    pub rungs: Vec<Rung>,
    /// Messages that the broker may have delivered and not seen acknowledged.
    pub prefetch: u16,
    /// The process.
    pub process: Process,
    /// Where a person's pause is looked up.
    pub pool: PgPool,
}

impl Runner {
    /// Runs until the process is told to stop and what is in hand is settled.
    pub async fn run<K: Kind>(self, kind: Arc<K>) {
        let name = kind.name();
        self.process.readiness.fails("broker", "not connected yet");
        let handover_stop = CancellationToken::new();
        let (handover, publisher) = handover::start(&self.amqp_url, name, handover_stop.clone());
        let settler = Arc::new(settle::Settler { consumer: name, ladder: Ladder::new(self.rungs.clone()), handover, left: Default::default() });
        let (paused, watch_pause) = pause::watch(name, self.pool.clone(), self.process.shutdown.clone());
        let standing = Arc::new(session::Standing::default());
        let (told, width, prefetch) = (Arc::clone(&standing), kind.concurrency(), self.prefetch);
        let reports = replica::report(self.pool.clone(), format!("consumers {name}"), self.process.clone(), move || {
            let busy = told.busy.share(width);
            metrics::gauge!("counterfoil_busy_share", "process" => name).set(busy);
            let (outage, asked_until) = told.outage();
            json!({ "busy": busy, "outage": outage, "asked_until": asked_until, "connections": width * 2 + 2, "prefetch": prefetch })
        });
        let mut session = session::Session::new(kind, settler, self.prefetch, self.process.clone(), paused, standing);
        let mut tasks = JoinSet::new();
        let readiness = self.process.readiness.clone();
        let queues: Vec<String> =
            self.rungs.iter().map(|rung| topology::rung_queue(name, &rung.name)).chain([topology::work_queue(name), topology::dead_queue(name)]).collect();
        let told = |error: &anyhow::Error| readiness.fails("broker", format!("{error:#}"));
        let pace = Pace { most: std::time::Duration::from_secs(5), ..Pace::default() };
        let connection = format!("counterfoil-consumers {name}");
        let consume = async {
            supervise(&self.amqp_url, &connection, pace, &self.process.shutdown, told, async |link| {
                topology::verify(link, queues.iter().cloned()).await?;
                session.run(link, &mut tasks).await
            })
            .await;
            while tasks.join_next().await.is_some() {}
            handover_stop.cancel(); // the last copy has been handed over
        };
        // Side by side in one task: what either spawns is joined, and nothing outlives both.
        tokio::join!(Box::pin(consume), publisher, watch_pause, Box::pin(reports));
    }
}
