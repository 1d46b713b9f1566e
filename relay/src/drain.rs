//! `drain_once`: claim under the row lock, publish pipelined, decide when every confirm is in, mark, commit.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use counterfoil_broker::lapin::Channel;
use counterfoil_broker::{Fate, Link, Outgoing, publish_window_unless};
use counterfoil_chassis::busy::Busy;
use counterfoil_chassis::postgres::silent;
use counterfoil_outbox::{Claimed, EVENTS_EXCHANGE, claim, count_attempt, defer, low_water, mark_published};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool, PgTransaction};
use tokio::time::{Instant, timeout};

use crate::message::message;

/// Attempts of a message's own fault before it is parked.
const ATTEMPTS_MAX: i32 = 3;

/// How often a worker looks at the whole backlog: for rows that committed late, or that a dead relay released.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// How long a window may wait for confirms of a broker that has stopped reading: what it had read is confirmed by then.
const BLOCKED_GRACE: Duration = Duration::from_secs(1);

/// What of a step may be the database's.
const DATABASE_DEADLINE: Duration = Duration::from_secs(5);

/// Drains the outbox, batch by batch.
#[derive(Debug)]
pub struct Drainer {
    pool: PgPool,
    batch: usize,
    confirm_deadline: Duration,
    /// Fresh rows below it are not looked at between two sweeps.
    mark: AtomicI64,
    swept: Mutex<Option<Instant>>,
    /// Time spent with rows in hand, and, of this, waiting for the broker.
    busy: Busy,
    waiting: Busy,
}

/// What one step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Rows in hand.
    pub claimed: usize,
    /// Confirmed and marked.
    pub confirmed: usize,
    /// Put off: no queue is bound.
    pub returned: usize,
    /// Put off: a queue would not take them.
    pub refused: usize,
    /// Left as they were: the channel died first.
    pub unknown: usize,
    /// Attempts counted against rows that closed a channel alone, or that no broker would take.
    pub faulty: usize,
}

/// A window's rows and what became of each.
type Judged = Vec<(i64, Fate)>;

impl Drainer {
    /// Drains by batches of `batch`, each confirmed within `confirm_deadline`.
    #[must_use]
    pub fn new(pool: PgPool, batch: usize, confirm_deadline: Duration) -> Self {
        Self { pool, batch, confirm_deadline, mark: AtomicI64::new(0), swept: Mutex::new(None), busy: Busy::default(), waiting: Busy::default() }
    }

    /// Rows a batch, at the most.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How busy its workers were since the last report, and which share of that the broker took.
    pub(crate) fn report(&self) -> Value {
        let (busy, waiting) = (self.busy.share(crate::WORKERS as usize), self.waiting.share(crate::WORKERS as usize));
        metrics::gauge!("counterfoil_busy_share", "process" => "relay").set(busy);
        json!({ "busy": busy, "broker": if busy > 0.0 { (waiting / busy).min(1.0) } else { 0.0 }, "connections": crate::WORKERS + 2 })
    }

    /// One step. Opens no transaction before it has a channel, which it leaves in `channel` for the next step unless
    /// there is any doubt about it.
    ///
    /// # Errors
    /// When the connection is of no use any more. Trouble of the database is waited out here.
    pub async fn drain_once(&self, link: &Link, channel: &mut Option<Channel>) -> anyhow::Result<Drained> {
        if channel.as_ref().is_none_or(|channel| !channel.status().connected()) {
            *channel = Some(link.confirming_channel().await?);
        }
        match self.drain(link, channel).await {
            Ok(drained) => Ok(drained),
            Err(Trouble::Database(error)) => {
                tracing::warn!(%error, "the outbox cannot be drained");
                self.mark.store(0, Ordering::Relaxed); // another session may see other rows
                tokio::time::sleep(Duration::from_millis(500)).await;
                Ok(Drained::default())
            }
            Err(Trouble::Broker(error)) => Err(error),
        }
    }

    async fn drain(&self, link: &Link, channel: &mut Option<Channel>) -> Result<Drained, Trouble> {
        let mut connection = self.pool.acquire().await?;
        let deadline = self.confirm_deadline * 2 + DATABASE_DEADLINE;
        let drained = timeout(deadline, self.drain_on(&mut connection, link, channel)).await;
        drained.unwrap_or_else(|_| {
            drop(connection.detach());
            *channel = None; // what was published on it is undecided
            Err(silent().into())
        })
    }

    async fn drain_on(&self, connection: &mut PgConnection, link: &Link, channel: &mut Option<Channel>) -> Result<Drained, Trouble> {
        let begun = Instant::now();
        let mut tx = connection.begin().await?;
        let from = self.scan_from(&mut tx).await?;
        let rows = claim(&mut tx, from, i64::try_from(self.batch).unwrap_or(i64::MAX)).await?;
        if rows.is_empty() {
            tx.rollback().await?;
            return Ok(Drained::default());
        }
        let mut drained = Drained { claimed: rows.len(), ..Drained::default() };
        let messages = self.sound(&mut tx, &rows, &mut drained).await?;
        let published = Instant::now();
        let judged = self.publish(link, channel, messages).await;
        self.waiting.add(published.elapsed());
        counterfoil_chassis::fault::point("relay.confirmed");
        let (judged, trouble) = match judged {
            Ok(judged) => (judged, None),
            Err((judged, error)) => (judged, Some(error)),
        };
        self.record(&mut tx, &judged, &mut drained).await?;
        counterfoil_chassis::fault::point("relay.marked");
        tx.commit().await?;
        self.busy.add(begun.elapsed());
        // What was learned before the trouble is kept; then the connection is made anew.
        trouble.map_or(Ok(drained), |error| Err(Trouble::Broker(error)))
    }

    /// Where the claim begins: at the mark, but at 0 for a sweep every two seconds.
    async fn scan_from(&self, tx: &mut PgTransaction<'_>) -> sqlx::Result<i64> {
        let sweep = {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            let due = swept.is_none_or(|at| at.elapsed() > SWEEP_INTERVAL);
            if due {
                *swept = Some(Instant::now());
            }
            due
        };
        if sweep {
            let mark = low_water(tx).await?;
            self.mark.store(mark, Ordering::Relaxed);
            return Ok(0);
        }
        Ok(self.mark.load(Ordering::Relaxed))
    }

    /// The messages of the rows that can be sent; the others have an attempt counted against them.
    async fn sound(&self, tx: &mut PgTransaction<'_>, rows: &[Claimed], drained: &mut Drained) -> sqlx::Result<Vec<Outgoing>> {
        let mut messages = Vec::with_capacity(rows.len());
        for row in rows {
            match message(row) {
                Ok(message) => messages.push(message),
                Err(reason) => self.fault(tx, row.id, &reason, drained).await?,
            }
        }
        Ok(messages)
    }

    async fn fault(&self, tx: &mut PgTransaction<'_>, id: i64, reason: &str, drained: &mut Drained) -> sqlx::Result<()> {
        drained.faulty += 1;
        metrics::counter!("counterfoil_relay_messages_total", "fate" => "faulty").increment(1);
        if count_attempt(tx, id, reason, ATTEMPTS_MAX).await? {
            tracing::error!(outbox_id = id, reason, "outbox row parked");
        }
        Ok(())
    }

    /// Publishes a window; when the broker closes the channel over a message, the undecided halves again, each on a
    /// fresh channel, until the culprit stands alone.
    async fn publish(&self, link: &Link, channel: &mut Option<Channel>, messages: Vec<Outgoing>) -> Result<Judged, (Judged, anyhow::Error)> {
        let mut judged = Judged::new();
        let mut parts = vec![messages];
        while let Some(part) = parts.pop() {
            let open = match channel.take().filter(|channel| channel.status().connected()) {
                Some(open) => open,
                None => match link.confirming_channel().await {
                    Ok(open) => open,
                    Err(error) => return Err((judged, error)),
                },
            };
            let window = publish_window_unless(&open, &part, self.confirm_deadline, link.blocked_for(BLOCKED_GRACE)).await;
            let clean = window.clean();
            let mut undecided = Vec::new();
            for (message, fate) in part.into_iter().zip(window.fates) {
                if fate == Fate::Unknown { undecided.push(message) } else { judged.push((message.correlation, fate)) }
            }
            if clean {
                *channel = Some(open);
                continue;
            }
            if undecided.is_empty() {
                continue; // all were confirmed before it closed
            }
            match window.closed {
                Some((404, text)) if undecided.iter().any(|message| message.exchange == EVENTS_EXCHANGE) => {
                    return Err((judged, anyhow::anyhow!("the exchange is missing ({text}): run counterfoil-migrate")));
                }
                Some((code @ 400..=499, text)) if undecided.len() == 1 => {
                    let row = undecided[0].correlation;
                    tracing::warn!(outbox_id = row, code, text, "a message closes its channel");
                    judged.push((row, Fate::Unknown));
                }
                Some((400..=499, _)) => {
                    let back = undecided.split_off(undecided.len() / 2);
                    parts.extend([back, undecided]);
                }
                None if link.blocked() => {
                    metrics::counter!("counterfoil_relay_messages_total", "fate" => Fate::Unknown.name()).increment(undecided.len() as u64);
                    return Ok(judged); // the rows are free again; whoever waits for the broker holds no transaction
                }
                closed => {
                    let why = closed.map_or_else(|| "the confirms did not come in time".to_owned(), |(code, text)| format!("{code} {text}"));
                    metrics::counter!("counterfoil_relay_messages_total", "fate" => Fate::Unknown.name()).increment(undecided.len() as u64);
                    return Err((judged, anyhow::anyhow!("{} messages are undecided: {why}", undecided.len())));
                }
            }
        }
        Ok(judged)
    }

    /// Writes down what became of the rows. A judged `Unknown` is a message that closed its channel alone.
    async fn record(&self, tx: &mut PgTransaction<'_>, judged: &Judged, drained: &mut Drained) -> sqlx::Result<()> {
        let of = |fate: Fate| judged.iter().filter(|(_, judged)| *judged == fate).map(|(id, _)| *id).collect::<Vec<i64>>();
        let (confirmed, returned, refused) = (of(Fate::Confirmed), of(Fate::Returned), of(Fate::Refused));
        (drained.confirmed, drained.returned, drained.refused) = (confirmed.len(), returned.len(), refused.len());
        for (fate, count) in [(Fate::Confirmed, confirmed.len()), (Fate::Returned, returned.len()), (Fate::Refused, refused.len())] {
            metrics::counter!("counterfoil_relay_messages_total", "fate" => fate.name()).increment(count as u64);
        }
        if !confirmed.is_empty() {
            mark_published(tx, &confirmed).await?;
        }
        if !returned.is_empty() {
            tracing::warn!(rows = returned.len(), "no queue is bound for some messages; they stay and go out when one is");
            defer(tx, &returned, "unroutable: no queue is bound for this topic").await?;
        }
        if !refused.is_empty() {
            defer(tx, &refused, "refused: a queue would not take it (nack)").await?;
        }
        for id in of(Fate::Unknown) {
            self.fault(tx, id, "the broker closes the channel over this message", drained).await?;
        }
        drained.unknown = drained.claimed - drained.confirmed - drained.returned - drained.refused - drained.faulty;
        Ok(())
    }
}

/// Whose trouble it is.
enum Trouble {
    Database(sqlx::Error),
    Broker(anyhow::Error),
}

impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}
