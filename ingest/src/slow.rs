//! The slow lane: deliveries whose order is locked by somebody, or does not exist yet. Two connections of its own.
//!
//! A locked order is not waited for inside the database, where one would delay the next: every few milliseconds all
//! deliveries of the lane are offered again in one batch that skips what is still locked. After two seconds a delivery
//! is answered 503 and comes again.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_chassis::postgres::within;
use counterfoil_settlement::{Delivery, Failure, Verdict, settle_or_wait};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::lanes::{BATCH_MAX, COMMIT_DEADLINE, Job, Ticket, Unavailable, refuse, settle_batch, store_culprit};
use crate::wake::Wake;

/// Workers, and so connections: one for locked rows, one for orders that do not exist yet.
pub(crate) const WORKERS: u32 = 2;

/// Deliveries that wait in each queue of this lane, at the most.
const QUEUE_MAX: usize = 512;

/// How long a delivery waits for a row.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pauses between two offers: short while a commit may be under way, longer once somebody sits on the row.
const PAUSES_MS: [u64; 4] = [3, 10, 25, 50];

/// Where the fast lane sends what it cannot settle.
#[derive(Debug, Clone)]
pub(crate) struct SlowLane {
    rows: mpsc::Sender<Job>,
    orders: mpsc::Sender<Job>,
}

impl SlowLane {
    /// Its order's row is locked.
    pub(crate) fn wait_for_row(&self, job: Job) {
        enter(&self.rows, job);
    }

    /// Its order does not exist.
    pub(crate) fn wait_for_order(&self, job: Job) {
        enter(&self.orders, job);
    }
}

fn enter(lane: &mpsc::Sender<Job>, job: Job) {
    metrics::counter!("counterfoil_settlement_slow_total").increment(1);
    if let Err(mpsc::error::TrySendError::Full((_, ticket)) | mpsc::error::TrySendError::Closed((_, ticket))) = lane.try_send(job) {
        ticket.answer(Err(Unavailable("the slow lane is full".into())));
    }
}

pub(crate) fn start(pool: &PgPool, wake: &Arc<Wake>, tracker: &TaskTracker) -> SlowLane {
    let (rows, row_jobs) = mpsc::channel(QUEUE_MAX);
    let (orders, order_jobs) = mpsc::channel(QUEUE_MAX);
    // The order worker may hand over to the row worker, which hands to nobody: so they end in this order.
    tracker.spawn(wait_for_orders(pool.clone(), Arc::clone(wake), order_jobs, rows.clone()));
    tracker.spawn(wait_for_rows(pool.clone(), Arc::clone(wake), row_jobs));
    SlowLane { rows, orders }
}

async fn wait_for_rows(pool: PgPool, wake: Arc<Wake>, mut jobs: mpsc::Receiver<Job>) {
    let mut waiting: Vec<Job> = Vec::new();
    let mut offers = 0;
    loop {
        if waiting.is_empty() {
            offers = 0;
            if jobs.recv_many(&mut waiting, BATCH_MAX).await == 0 {
                return;
            }
        } else {
            sleep(Duration::from_millis(PAUSES_MS[offers.min(PAUSES_MS.len() - 1)])).await;
            while waiting.len() < BATCH_MAX
                && let Ok(job) = jobs.try_recv()
            {
                waiting.push(job);
                offers = 0;
            }
        }
        waiting = offer(&pool, &wake, waiting).await;
        offers += 1;
    }
}

/// Offers all once more; returns those still locked whose patience lasts.
async fn offer(pool: &PgPool, wake: &Wake, jobs: Vec<Job>) -> Vec<Job> {
    let (deliveries, tickets): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
    match settle_batch(pool, &deliveries).await {
        Ok(verdicts) => {
            wake.raise();
            keep_locked(deliveries, tickets, verdicts)
        }
        Err((Failure::Outage | Failure::Again, error)) => {
            refuse(tickets, &error);
            Vec::new()
        }
        Err((Failure::Slow | Failure::Culprit, error)) if deliveries.len() == 1 => one_in_trouble(pool, deliveries, tickets, &error).await,
        Err((Failure::Slow | Failure::Culprit, _)) => {
            let mut left = Vec::new();
            for (delivery, ticket) in deliveries.into_iter().zip(tickets) {
                left.extend(Box::pin(offer(pool, wake, vec![(delivery, ticket)])).await);
            }
            left
        }
    }
}

async fn one_in_trouble(pool: &PgPool, deliveries: Vec<Delivery>, tickets: Vec<Ticket>, error: &sqlx::Error) -> Vec<Job> {
    if Failure::of(error) == Failure::Slow {
        let locked = vec![Verdict::Locked(uuid::Uuid::nil()); deliveries.len()];
        return keep_locked(deliveries, tickets, locked);
    }
    for (delivery, ticket) in deliveries.into_iter().zip(tickets) {
        ticket.answer(store_culprit(pool, &delivery, error).await);
    }
    Vec::new()
}

fn keep_locked(deliveries: Vec<Delivery>, tickets: Vec<Ticket>, verdicts: Vec<Verdict>) -> Vec<Job> {
    let mut left = Vec::new();
    for ((delivery, ticket), verdict) in deliveries.into_iter().zip(tickets).zip(verdicts) {
        match verdict {
            Verdict::Settled(settled) => ticket.answer(Ok(settled)),
            Verdict::Locked(_) if ticket.since.elapsed() < PATIENCE => left.push((delivery, ticket)),
            Verdict::Locked(_) => ticket.answer(Err(Unavailable("the order's row is locked".into()))),
            // An order that was there a moment ago is gone: orders are never deleted, so this is somebody's hand.
            Verdict::NoOrder(_) => ticket.answer(Err(Unavailable("the order has just disappeared".into()))),
        }
    }
    left
}

async fn wait_for_orders(pool: PgPool, wake: Arc<Wake>, mut jobs: mpsc::Receiver<Job>, rows: mpsc::Sender<Job>) {
    let mut batch = Vec::new();
    while jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (deliveries, tickets): (Vec<_>, Vec<_>) = std::mem::take(&mut batch).into_iter().unzip();
        match wait_once(&pool, &deliveries).await {
            Ok(verdicts) => {
                wake.raise();
                for ((delivery, ticket), verdict) in deliveries.into_iter().zip(tickets).zip(verdicts) {
                    match verdict {
                        Verdict::Settled(settled) => ticket.answer(Ok(settled)),
                        Verdict::Locked(_) | Verdict::NoOrder(_) => enter(&rows, (delivery, ticket)),
                    }
                }
            }
            Err(error) => match Failure::of(&error) {
                Failure::Outage | Failure::Again => refuse(tickets, &error),
                Failure::Slow | Failure::Culprit => one_by_one(&pool, deliveries, tickets, &rows).await,
            },
        }
    }
}

/// Each alone, so that one cannot spoil the others.
async fn one_by_one(pool: &PgPool, deliveries: Vec<Delivery>, tickets: Vec<Ticket>, rows: &mpsc::Sender<Job>) {
    for (delivery, ticket) in deliveries.into_iter().zip(tickets) {
        match wait_once(pool, std::slice::from_ref(&delivery)).await.map(|mut verdicts| verdicts.pop()) {
            Ok(Some(Verdict::Settled(settled))) => ticket.answer(Ok(settled)),
            Ok(_) => enter(rows, (delivery, ticket)),
            Err(error) if Failure::of(&error) == Failure::Culprit => ticket.answer(store_culprit(pool, &delivery, &error).await),
            Err(_) => ticket.answer(Err(Unavailable("the database cannot take it now".into()))),
        }
    }
}

async fn wait_once(pool: &PgPool, deliveries: &[Delivery]) -> sqlx::Result<Vec<Verdict>> {
    within(pool, COMMIT_DEADLINE, async |connection: &mut PgConnection| wait_on(connection, deliveries).await).await
}

async fn wait_on(connection: &mut PgConnection, deliveries: &[Delivery]) -> sqlx::Result<Vec<Verdict>> {
    let mut tx = connection.begin().await?;
    let verdicts = settle_or_wait(&mut tx, deliveries).await?;
    tx.commit().await?;
    Ok(verdicts)
}
