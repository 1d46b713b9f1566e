//! Consumers outside the database: a claim before the call, `done` after it. Their effects happen at least once.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::Process;
use counterfoil_chassis::postgres::within;
use counterfoil_inbox::{Claim, Ended, claim, finish, give_up, renew};
use counterfoil_payments::Event;
use sqlx::{PgConnection, PgPool};
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use super::conduct::{Failure, Verdict};
use super::message::Message;
use super::{Judged, Kind};

/// How long a claim lasts by the database's clock, and how often it is prolonged while the handler lives.
const LEASE: Duration = Duration::from_secs(30);
const RENEWAL: Duration = Duration::from_secs(10);

/// What is left of the shutdown deadline for writing down that an outcome is unknown.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Longest wait for one statement.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(5);

/// How often a write after the call is tried, a second apart: the effect has happened, and that should be known.
const WRITE_TRIES: u32 = 5;

/// Calls to the outside for one event, replays included: five times what the ladder asks for. A message that makes its
/// consumer crash, or comes back over and over, must not call for ever.
const CALLS_MAX: i32 = 35;

/// What a delivered event led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It happened; what the other side calls it.
    Made(Option<String>),
    /// There was nothing to do; why.
    NotNeeded(&'static str),
}

/// A consumer whose effects are elsewhere. Every repeat must carry the same idempotency key: the event's id.
pub trait Deliver: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// Longest time for one event. Past it the outcome is unknown. Far below the broker's patience of 30 minutes.
    const DEADLINE: Duration;
    /// Brings the effect about.
    fn deliver(&self, event: &Event) -> impl Future<Output = Result<Effect, Failure>> + Send;
}

/// Runs a [`Deliver`] consumer.
#[derive(Debug)]
pub struct Outside<D> {
    consumer: Arc<D>,
    pool: PgPool,
    concurrency: usize,
    process: Process,
}

impl<D: Deliver> Outside<D> {
    /// Handles up to `concurrency` events at once.
    pub fn new(consumer: D, pool: PgPool, concurrency: usize, process: Process) -> Self {
        Self { consumer: Arc::new(consumer), pool, concurrency, process }
    }

    /// Returns shortly before the process must end: what has no answer by then is unknown.
    async fn cutoff(&self) {
        self.process.shutdown.cancelled().await;
        sleep(self.process.deadline.saturating_sub(LAST_WORDS)).await;
    }

    /// Runs one statement, within a deadline; a connection that does not answer is thrown away.
    async fn ask<T>(&self, statement: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>) -> sqlx::Result<T> {
        within(&self.pool, STATEMENT_DEADLINE, statement).await
    }

    async fn judge(&self, event: &Event) -> Verdict {
        let id = event.id;
        let claimed = self.ask(async move |connection: &mut PgConnection| claim(connection, D::NAME, id, LEASE).await);
        let (fence, attempts, may_repeat) = match claimed.await {
            Ok(Claim::Won { fence, attempts, may_repeat }) => (fence, attempts, may_repeat),
            Ok(Claim::Done) => return Verdict::Done,
            Ok(Claim::Held) => return Verdict::Failed(Failure::Busy { reason: "another replica works on it".into() }),
            Err(error) => return Verdict::Failed(Failure::outage(format!("the database: {error}"))),
        };
        if attempts > CALLS_MAX {
            return self.write_down(event, fence, Err(Failure::permanent(format!("called {CALLS_MAX} times without an end")))).await;
        }
        if may_repeat {
            metrics::counter!("counterfoil_effects_possible_repeats_total", "consumer" => D::NAME).increment(1);
            tracing::warn!(attempts, "an earlier attempt ended unknown: the effect may happen twice, under the same key");
        }
        counterfoil_chassis::fault::point("effect.before");
        let begun = Instant::now();
        let delivered = self.deliver(event, fence).await;
        metrics::histogram!("counterfoil_effect_seconds", "consumer" => D::NAME).record(begun.elapsed());
        counterfoil_chassis::fault::point("effect.after");
        self.write_down(event, fence, delivered).await
    }

    /// Calls the consumer in a task of its own, the lease being prolonged meanwhile.
    async fn deliver(&self, event: &Event, fence: i64) -> Result<Effect, Failure> {
        let (consumer, owned) = (Arc::clone(&self.consumer), event.clone());
        let mut call = tokio::spawn(async move { consumer.deliver(&owned).await }.in_current_span());
        let delivered = tokio::select! {
            joined = timeout(D::DEADLINE, &mut call) => match joined {
                Ok(Ok(delivered)) => delivered,
                Ok(Err(panic)) => Err(Failure::permanent(format!("the consumer panicked: {panic}"))),
                Err(_) => Err(Failure::unknown(format!("no answer within {} s", D::DEADLINE.as_secs()))),
            },
            () = self.keep_lease(event, fence) => Err(Failure::Busy { reason: "the claim was lost to another replica".into() }),
            () = self.cutoff() => Err(Failure::unknown("the process ended before the answer came")),
        };
        call.abort();
        delivered
    }

    /// Prolongs the lease; returns when the claim is no longer ours.
    async fn keep_lease(&self, event: &Event, fence: i64) {
        loop {
            sleep(RENEWAL).await;
            let id = event.id;
            let renewed = self.ask(async move |connection: &mut PgConnection| renew(connection, D::NAME, id, fence, LEASE).await);
            if let Ok(false) = renewed.await {
                return;
            }
        }
    }

    /// Writes down how it ended, and turns it into a verdict.
    async fn write_down(&self, event: &Event, fence: i64, delivered: Result<Effect, Failure>) -> Verdict {
        let failure = match delivered {
            Ok(effect) => {
                let reference = match &effect {
                    Effect::Made(reference) => reference.as_deref(),
                    Effect::NotNeeded(why) => Some(*why),
                };
                tracing::info!(effect = ?effect, "effect done");
                return match self.finish(event, fence, reference).await {
                    // A lost claim: whoever holds it now finds the same key at the other side.
                    Ok(_) => Verdict::Done,
                    Err(error) => Verdict::Failed(Failure::outage(format!("the effect happened, but the database: {error}"))),
                };
            }
            Err(failure) => failure,
        };
        let (ended, reason) = match &failure {
            Failure::Transient { reason, unknown: true, .. } => (Ended::Unknown, reason),
            Failure::Transient { reason, .. } | Failure::Permanent { reason } => (Ended::Failed, reason),
            // However long it lasts: it must not use up the calls that are allowed.
            Failure::Outage { reason, .. } | Failure::Busy { reason } => (Ended::Uncounted, reason),
        };
        if ended == Ended::Unknown {
            metrics::counter!("counterfoil_effects_unknown_total", "consumer" => D::NAME).increment(1);
        }
        let (id, reason) = (event.id, reason.clone());
        let written = self.ask(async move |connection: &mut PgConnection| give_up(connection, D::NAME, id, fence, ended, &reason).await);
        match written.await {
            Ok(_) if self.process.shutdown.is_cancelled() && ended == Ended::Unknown => Verdict::Leave,
            Ok(_) => Verdict::Failed(failure),
            Err(error) => Verdict::Failed(Failure::outage(format!("the database: {error}"))),
        }
    }

    async fn finish(&self, event: &Event, fence: i64, reference: Option<&str>) -> sqlx::Result<bool> {
        let mut tries = 1;
        loop {
            let (id, reference) = (event.id, reference.map(str::to_owned));
            let finished = self.ask(async move |connection: &mut PgConnection| finish(connection, D::NAME, id, fence, reference.as_deref()).await);
            match finished.await {
                Ok(ours) => return Ok(ours),
                Err(error) if tries == WRITE_TRIES => return Err(error),
                Err(_) => tries += 1,
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

impl<D: Deliver> Kind for Outside<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn batch_max(&self) -> usize {
        1
    }

    fn concurrency(&self) -> usize {
        self.concurrency
    }

    async fn process(self: Arc<Self>, batch: Vec<Message>) -> Vec<Judged> {
        let mut judged = Vec::with_capacity(batch.len());
        for mut message in batch {
            let span = message.span(D::NAME);
            let verdict = match &message.event {
                Ok(event) => self.judge(event).instrument(span).await,
                Err(error) => Verdict::Failed(Failure::permanent(error.to_string())),
            };
            judged.push((message, verdict));
        }
        judged
    }
}
