//! The fast lane: one bounded queue for each committer, batches that form by themselves, one transaction for a batch.
//!
//! A committer takes all that is waiting whenever its last commit is done: an idle system commits each delivery at
//! once, a busy one shares commits. It never waits for an order's row: what it finds locked goes to the slow lane.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::postgres::{silent, within};
use counterfoil_payments::Fact;
use counterfoil_settlement::{Delivery, Failure, Settled, Verdict, settle, store_failed};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::slow::{self, SlowLane};
use crate::wake::Wake;

/// Committers. Two fill two cores; each delivery goes to the one that its order's hash names.
pub(crate) const COMMITTERS: u32 = 2;

/// Deliveries a statement: sixty-four do eleven thousand a second from one connection, more gain little.
pub(crate) const BATCH_MAX: usize = 64;

/// Deliveries that wait for one committer, at the most; more are answered 503.
const QUEUE_MAX: usize = 1024;

/// Bytes that wait in all lanes together, at the most.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// Longest time for a batch, its commit included: statements end after 1.5 s by the server's clock, if it is there.
pub(crate) const COMMIT_DEADLINE: Duration = Duration::from_secs(4);

/// How often a batch that met a deadlock is tried again.
const AGAIN_MAX: u32 = 5;

/// Why a delivery was not settled: it is answered 503 and comes again.
#[derive(Debug, Clone)]
pub(crate) struct Unavailable(pub(crate) String);

/// The answer to one delivery, and how it gets back to whoever waits for it.
#[derive(Debug)]
pub(crate) struct Ticket {
    reply: oneshot::Sender<Result<Settled, Unavailable>>,
    /// Bytes of the queue that it occupies.
    _bytes: OwnedSemaphorePermit,
    pub(crate) since: Instant,
}

impl Ticket {
    pub(crate) fn answer(self, answer: Result<Settled, Unavailable>) {
        let _ = self.reply.send(answer); // a client that hung up hears nothing; the work is done all the same
    }
}

/// A delivery in a lane.
pub(crate) type Job = (Delivery, Ticket);

/// Where deliveries are handed in.
#[derive(Debug)]
pub(crate) struct Lanes {
    fast: Vec<mpsc::Sender<Job>>,
    bytes: Arc<Semaphore>,
}

/// Starts committers and slow lane on `tracker`; they end when [`Lanes`] is dropped and their queues are empty.
pub(crate) fn start(pool: PgPool, wake: Arc<Wake>, tracker: &TaskTracker) -> Lanes {
    let slow = slow::start(&pool, &wake, tracker);
    let fast = (0..COMMITTERS)
        .map(|_| {
            let (sender, jobs) = mpsc::channel(QUEUE_MAX);
            tracker.spawn(Committer { pool: pool.clone(), wake: Arc::clone(&wake), slow: slow.clone() }.run(jobs));
            sender
        })
        .collect();
    Lanes { fast, bytes: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)) }
}

impl Lanes {
    /// Hands a delivery in; `None` when the queue is full.
    pub(crate) fn submit(&self, delivery: Delivery) -> Option<oneshot::Receiver<Result<Settled, Unavailable>>> {
        let size = u32::try_from(delivery.body.len()).ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(size).ok()?;
        let (reply, answer) = oneshot::channel();
        let lane = usize::try_from(lane_hash(&delivery) % u64::from(COMMITTERS)).ok()?;
        self.fast[lane].try_send((delivery, Ticket { reply, _bytes: bytes, since: Instant::now() })).ok()?;
        Some(answer)
    }
}

/// Deliveries about one order meet in one committer, so that they do not lock each other out.
fn lane_hash(delivery: &Delivery) -> u64 {
    let mut hasher = DefaultHasher::new();
    match &delivery.fact {
        Fact::Payment { order: Some(order), .. } => order.hash(&mut hasher),
        Fact::Payment { payment, .. } | Fact::Refund { payment, .. } | Fact::RefundsReported { payment, .. } | Fact::Dispute { payment, .. } => {
            payment.hash(&mut hasher);
        }
        Fact::Unsupported { .. } | Fact::Ignored { .. } | Fact::Unreadable { .. } => delivery.event_id.hash(&mut hasher),
    }
    hasher.finish()
}

struct Committer {
    pool: PgPool,
    wake: Arc<Wake>,
    slow: SlowLane,
}

impl Committer {
    async fn run(self, mut jobs: mpsc::Receiver<Job>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
            metrics::histogram!("counterfoil_settlement_batch_size").record(f64::from(u32::try_from(batch.len()).unwrap_or(u32::MAX)));
            let begun = Instant::now();
            self.commit(std::mem::take(&mut batch)).await;
            metrics::histogram!("counterfoil_settlement_commit_seconds").record(begun.elapsed());
        }
    }

    /// Settles a batch, in halves when one delivery of it is to blame.
    async fn commit(&self, jobs: Vec<Job>) {
        let mut parts = vec![jobs];
        while let Some(part) = parts.pop() {
            let (deliveries, tickets): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            match settle_batch(&self.pool, &deliveries).await {
                Ok(verdicts) => self.answer(deliveries, tickets, verdicts),
                Err((Failure::Slow, _)) => self.send_slowly(deliveries.into_iter().zip(tickets)),
                Err((Failure::Culprit, error)) if deliveries.len() == 1 => {
                    for (delivery, ticket) in deliveries.into_iter().zip(tickets) {
                        ticket.answer(store_culprit(&self.pool, &delivery, &error).await);
                    }
                }
                Err((Failure::Culprit, _)) => {
                    let mut front: Vec<Job> = deliveries.into_iter().zip(tickets).collect();
                    let back = front.split_off(front.len() / 2);
                    parts.extend([back, front]);
                }
                Err((Failure::Again | Failure::Outage, error)) => refuse(tickets, &error),
            }
        }
    }

    fn answer(&self, deliveries: Vec<Delivery>, tickets: Vec<Ticket>, verdicts: Vec<Verdict>) {
        self.wake.raise();
        for ((delivery, ticket), verdict) in deliveries.into_iter().zip(tickets).zip(verdicts) {
            match verdict {
                Verdict::Settled(settled) => ticket.answer(Ok(settled)),
                Verdict::Locked(_) => self.slow.wait_for_row((delivery, ticket)),
                Verdict::NoOrder(_) => self.slow.wait_for_order((delivery, ticket)),
            }
        }
    }

    fn send_slowly(&self, jobs: impl Iterator<Item = Job>) {
        for job in jobs {
            self.slow.wait_for_row(job);
        }
    }
}

/// Answers 503 to all.
pub(crate) fn refuse(tickets: Vec<Ticket>, error: &sqlx::Error) {
    tracing::error!(%error, deliveries = tickets.len(), "the database cannot take deliveries");
    for ticket in tickets {
        ticket.answer(Err(Unavailable("the database cannot take it now".into())));
    }
}

/// Settles a batch in one transaction; after a deadlock or a serialisation failure the whole of it again.
pub(crate) async fn settle_batch(pool: &PgPool, deliveries: &[Delivery]) -> Result<Vec<Verdict>, (Failure, sqlx::Error)> {
    let mut tries = 0;
    loop {
        match settle_once(pool, deliveries).await {
            Ok(verdicts) => return Ok(verdicts),
            Err(error) => match Failure::of(&error) {
                Failure::Again if tries < AGAIN_MAX => {
                    tries += 1;
                    metrics::counter!("counterfoil_settlement_again_total").increment(1);
                    tokio::time::sleep(Duration::from_millis(2 << tries)).await;
                }
                failure => return Err((failure, error)),
            },
        }
    }
}

async fn settle_once(pool: &PgPool, deliveries: &[Delivery]) -> sqlx::Result<Vec<Verdict>> {
    within(pool, COMMIT_DEADLINE, async |connection: &mut PgConnection| settle_on(connection, deliveries).await).await
}

async fn settle_on(connection: &mut PgConnection, deliveries: &[Delivery]) -> sqlx::Result<Vec<Verdict>> {
    let mut tx = connection.begin().await?;
    let verdicts = settle(&mut tx, deliveries).await?;
    counterfoil_chassis::fault::point("settle.before_commit");
    tx.commit().await?;
    counterfoil_chassis::fault::point("settle.after_commit");
    Ok(verdicts)
}

/// Keeps a delivery that cannot be settled, bare, with the SQLSTATE, for a person to look at.
pub(crate) async fn store_culprit(pool: &PgPool, delivery: &Delivery, error: &sqlx::Error) -> Result<Settled, Unavailable> {
    let state = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
    tracing::error!(%error, sqlstate = state, event_id = delivery.event_id, "a delivery cannot be settled; it is stored as failed");
    metrics::counter!("counterfoil_ingest_failed_events_total").increment(1);
    let stored = async {
        let mut tx = pool.begin().await?;
        let verdict = store_failed(&mut tx, delivery, &format!("SQLSTATE {state}")).await?;
        tx.commit().await?;
        Ok::<_, sqlx::Error>(verdict)
    };
    match timeout(COMMIT_DEADLINE, stored).await.unwrap_or(Err(silent())) {
        Ok(Verdict::Settled(settled)) => Ok(settled),
        Ok(Verdict::Locked(_) | Verdict::NoOrder(_)) | Err(_) => Err(Unavailable("the delivery can neither be settled nor stored".into())),
    }
}
