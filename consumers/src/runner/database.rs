//! Consumers inside the database: dedupe rows and effects commit together, so their effects happen exactly once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::postgres::within;
use counterfoil_inbox::insert_done;
use counterfoil_payments::Event;
use counterfoil_settlement::Failure as SqlFailure;
use sqlx::{Connection, PgConnection, PgPool, PgTransaction};
use tokio::time::sleep;
use tracing::Instrument;
use uuid::Uuid;

use super::conduct::{Failure, Verdict};
use super::message::Message;
use super::{Judged, Kind};

/// How often a batch that met a deadlock or a lock is tried again before it counts as an outage of the database.
const AGAIN_MAX: u32 = 5;

/// Longest time for a batch, its commit included: its statements end after 15 s by the server's clock, if it is there.
const BATCH_DEADLINE: Duration = Duration::from_secs(40);

/// A consumer whose effects are rows.
pub trait Apply: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// Writes the effects of events, sorted by id, none of which it has seen.
    fn apply(&self, tx: &mut PgTransaction<'_>, events: &[&Event]) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// Runs an [`Apply`] consumer.
#[derive(Debug)]
pub struct InDatabase<A> {
    consumer: Arc<A>,
    pool: PgPool,
    batch_max: u16,
}

impl<A: Apply> InDatabase<A> {
    /// Handles up to `batch_max` messages in one transaction.
    pub fn new(consumer: A, pool: PgPool, batch_max: u16) -> Self {
        Self { consumer: Arc::new(consumer), pool, batch_max }
    }

    /// Applies a part; in halves when one event of it is to blame.
    async fn apply(&self, events: Vec<Event>) -> BTreeMap<Uuid, Verdict> {
        let mut verdicts = BTreeMap::new();
        let mut parts = vec![events];
        while let Some(mut part) = parts.pop() {
            let ids: Vec<Uuid> = part.iter().map(|event| event.id).collect();
            match self.apply_all(part.clone()).await {
                Ok(()) => verdicts.extend(ids.iter().map(|id| (*id, Verdict::Done))),
                Err(Blame::Database(reason)) => verdicts.extend(ids.iter().map(|id| (*id, Verdict::Failed(Failure::outage(reason.clone()))))),
                Err(Blame::Culprit(failure)) if part.len() == 1 => verdicts.extend(ids.iter().map(|id| (*id, Verdict::Failed(failure.clone())))),
                Err(Blame::Culprit(_)) => {
                    let back = part.split_off(part.len() / 2);
                    parts.extend([back, part]);
                }
            }
        }
        verdicts
    }

    /// A span for the batch, in the trace of its first message. Where spans are exported, each other message has one in its own trace,
    /// linked to the first.
    fn span(&self, batch: &mut [Message]) -> tracing::Span {
        let Some((first, others)) = batch.split_first_mut() else { return tracing::Span::none() };
        let span = first.span(A::NAME);
        if let Some(own) = first.own_trace.filter(|own| *own != first.trace) {
            for other in others {
                own.link(&other.span(A::NAME));
            }
        }
        span
    }

    /// One transaction, in a task of its own: a panic in the consumer is a culprit, too.
    async fn apply_all(&self, events: Vec<Event>) -> Result<(), Blame> {
        for tries in 0..AGAIN_MAX {
            let (consumer, pool, events) = (Arc::clone(&self.consumer), self.pool.clone(), events.clone());
            let applied = tokio::spawn(async move { apply_once(consumer.as_ref(), &pool, &events).await }.in_current_span()).await;
            let error = match applied {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(panic) => return Err(Blame::Culprit(Failure::permanent(format!("the consumer panicked: {panic}")))),
            };
            match SqlFailure::of(&error) {
                // A little later, and not all at the same time: whoever met us in the deadlock tries again, too.
                SqlFailure::Again | SqlFailure::Slow => sleep(Duration::from_millis(4 << tries).mul_f64(0.5 + rand::random::<f64>())).await,
                SqlFailure::Outage => return Err(Blame::Database(format!("the database: {error}"))),
                SqlFailure::Culprit => return Err(Blame::Culprit(Failure::transient(format!("the database refuses it: {error}")))),
            }
        }
        Err(Blame::Database("locks of others do not end".into()))
    }
}

enum Blame {
    Database(String),
    Culprit(Failure),
}

async fn apply_once<A: Apply>(consumer: &A, pool: &PgPool, events: &[Event]) -> sqlx::Result<()> {
    within(pool, BATCH_DEADLINE, async |connection: &mut PgConnection| apply_on(consumer, connection, events).await).await
}

async fn apply_on<A: Apply>(consumer: &A, connection: &mut PgConnection, events: &[Event]) -> sqlx::Result<()> {
    let mut tx = connection.begin().await?;
    let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    let fresh: HashSet<Uuid> = insert_done(&mut tx, A::NAME, &ids).await?.into_iter().collect();
    let fresh: Vec<&Event> = events.iter().filter(|event| fresh.contains(&event.id)).collect();
    if !fresh.is_empty() {
        consumer.apply(&mut tx, &fresh).await?;
    }
    counterfoil_chassis::fault::point("apply.before_commit");
    tx.commit().await
}

impl<A: Apply> Kind for InDatabase<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn batch_max(&self) -> usize {
        usize::from(self.batch_max)
    }

    fn concurrency(&self) -> usize {
        1
    }

    async fn process(self: Arc<Self>, mut batch: Vec<Message>) -> Vec<Judged> {
        // Sorted by id and each once: two replicas with the same events cannot deadlock.
        let events: BTreeMap<Uuid, Event> = batch.iter().filter_map(|message| message.event.as_ref().ok()).map(|event| (event.id, event.clone())).collect();
        let begun = tokio::time::Instant::now();
        let span = self.span(&mut batch);
        let verdicts = self.apply(events.into_values().collect()).instrument(span).await;
        metrics::histogram!("counterfoil_effect_seconds", "consumer" => A::NAME).record(begun.elapsed());
        batch
            .into_iter()
            .map(|message| {
                let verdict = match &message.event {
                    Ok(event) => verdicts.get(&event.id).cloned().unwrap_or(Verdict::Leave),
                    Err(error) => Verdict::Failed(Failure::permanent(error.to_string())),
                };
                (message, verdict)
            })
            .collect()
    }
}
