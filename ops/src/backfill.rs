//! `counterfoil backfill`: records a provider's past events from its event list.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use counterfoil_payments::{Fact, Provider};
use counterfoil_providers::{Adapter, Mode};
use counterfoil_settlement::{Backfilled, Delivery, Outcome, backfill, known_events};
use sqlx::PgPool;
use time::OffsetDateTime;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::housekeep::reader;
use crate::print;

/// Events in one transaction.
const BATCH: usize = 64;

/// How often an order that somebody holds is tried again.
const TRIES: u32 = 5;

const CANNOT_BE_READ: &str = "skipped: cannot be read";

/// Pause between two words about the progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// What was asked for.
pub(crate) struct Asked {
    pub(crate) mode: Mode,
    pub(crate) provider: Provider,
    pub(crate) since: Duration,
    pub(crate) settled_before: Duration,
    pub(crate) from: PathBuf,
    pub(crate) dry_run: bool,
}

#[derive(Default)]
struct Report {
    lines: u64,
    bytes: u64,
    counts: BTreeMap<String, u64>,
}

impl Report {
    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }
}

/// Runs it. Each batch is one transaction; events that are stored already are skipped, so a second run goes on.
pub(crate) async fn run(pool: &PgPool, asked: Asked) -> anyhow::Result<()> {
    let adapter = reader(asked.provider).with_context(|| format!("{} has no event list", asked.provider))?;
    let from = if asked.from.as_os_str() == "-" { Path::new("/dev/stdin") } else { asked.from.as_path() };
    let input = tokio::fs::File::open(from).await.with_context(|| format!("cannot read {} (--from)", from.display()))?;
    let size = input.metadata().await?.len();
    let ago = |span: Duration| OffsetDateTime::now_utc().unix_timestamp().saturating_sub(i64::try_from(span.as_secs()).unwrap_or(i64::MAX));
    let window = ago(asked.since)..=ago(asked.settled_before);
    let mut lines = BufReader::new(input).split(b'\n');
    let (mut report, mut batch, mut said) = (Report::default(), Vec::new(), Instant::now());
    while let Some(line) = lines.next_segment().await? {
        report.lines += 1;
        report.bytes += line.len() as u64 + 1;
        if let Some(delivery) = read(adapter.as_ref(), &asked, &line, &window, &mut report) {
            batch.push(delivery);
        }
        if batch.len() == BATCH {
            record(pool, &asked, &mut batch, &mut report).await?;
        }
        if said.elapsed() >= PROGRESS {
            progress(&report, size);
            said = Instant::now();
        }
    }
    record(pool, &asked, &mut batch, &mut report).await?;
    progress(&report, size);
    for (what, count) in &report.counts {
        print(format_args!("{count:>9}  {what}\n"))?;
    }
    let unread = report.counts.get(CANNOT_BE_READ).copied().unwrap_or(0);
    print(format_args!("{} lines read{}\n", report.lines, if asked.dry_run { "; nothing was changed (--dry-run)" } else { "" }))?;
    anyhow::ensure!(unread == 0, "{unread} lines cannot be read; everything else was taken");
    Ok(())
}

fn progress(report: &Report, size: u64) {
    let share = (report.bytes.saturating_mul(100)).checked_div(size).map(|share| format!(" ({} %)", share.min(100))).unwrap_or_default();
    let _ = writeln!(std::io::stderr(), "backfill: {} lines{share}", report.lines);
}

fn read(adapter: &dyn Adapter, asked: &Asked, line: &[u8], window: &RangeInclusive<i64>, report: &mut Report) -> Option<Delivery> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return None;
    }
    let reading = adapter.read(&http::HeaderMap::new(), line, asked.mode);
    if let Fact::Unreadable { reason } = &reading.fact {
        report.count(CANNOT_BE_READ);
        let _ = writeln!(std::io::stderr(), "backfill: line {} cannot be read: {reason}", report.lines);
        return None;
    }
    if reading.made_at.is_some_and(|made_at| made_at < *window.start()) {
        report.count("skipped: older than --since");
        return None;
    }
    if reading.made_at.is_some_and(|made_at| made_at > *window.end()) {
        report.count("skipped: younger than --settled-before");
        return None;
    }
    Some(Delivery {
        provider: asked.provider,
        account: reading.account,
        event_id: reading.event_id,
        provider_event_id: reading.provider_event_id,
        event_type: reading.event_type,
        body: line.to_vec(),
        secret_position: -1,
        made_at: reading.made_at,
        late: false,
        ids: reading.ids,
        fact: reading.fact,
        traceparent: None,
    })
}

async fn record(pool: &PgPool, asked: &Asked, batch: &mut Vec<Delivery>, report: &mut Report) -> anyhow::Result<()> {
    let mut deliveries = std::mem::take(batch);
    let names: Vec<(String, String)> = deliveries.iter().map(|delivery| (delivery.account.clone(), delivery.event_id.clone())).collect();
    let known: HashSet<_> = known_events(&mut *pool.acquire().await?, asked.provider.name(), &names).await?.into_iter().collect();
    deliveries.retain(|delivery| {
        let new = !known.contains(&(delivery.account.clone(), delivery.event_id.clone()));
        if !new {
            report.count("skipped: known already");
        }
        new
    });
    for _ in 0..TRIES {
        if deliveries.is_empty() {
            return Ok(());
        }
        let mut tx = pool.begin().await?;
        let done = backfill(&mut tx, &deliveries).await.context("a batch cannot be recorded")?;
        if asked.dry_run {
            tx.rollback().await?
        } else {
            tx.commit().await?
        }
        let mut left = Vec::new();
        for (delivery, done) in deliveries.into_iter().zip(done) {
            if done == Backfilled::Locked {
                left.push(delivery);
            } else {
                say(&delivery, done, report)?;
            }
        }
        deliveries = left;
        if !deliveries.is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    for delivery in &deliveries {
        say(delivery, Backfilled::Locked, report)?;
    }
    Ok(())
}

/// What it did, or would do, and why.
fn say(delivery: &Delivery, done: Backfilled, report: &mut Report) -> anyhow::Result<()> {
    let name = format!("{} {}", delivery.event_type, delivery.event_id);
    let (outcome, paid) = match done {
        Backfilled::Recorded { outcome, paid } => (outcome, paid),
        Backfilled::Known => {
            report.count("skipped: known already");
            return Ok(());
        }
        Backfilled::Nowhere => {
            report.count("not recorded: its order or payment is not here; run it again once it is");
            return Ok(print(format_args!("not recorded, its order or payment is not here: {name}\n"))?);
        }
        Backfilled::Locked => {
            report.count("not recorded: its order is locked by somebody; run it again");
            return Ok(print(format_args!("not recorded, its order is locked: {name}\n"))?);
        }
    };
    report.count(&format!("recorded: {}", outcome.name()));
    match (&delivery.fact, paid) {
        (Fact::Payment { payment, money: Some(money), .. }, Some(order)) => {
            report.count("orders marked as paid, without a receipt");
            print(format_args!("order {order} paid by {payment}, {money}: {name}\n"))?;
        }
        (Fact::Payment { payment, money: Some(money), .. }, None) if matches!(outcome, Outcome::Held | Outcome::Extra) => {
            print(format_args!("{} {payment}, {money}: {name}\n", outcome.name()))?;
        }
        (Fact::Refund { payment, refund_id, money, .. }, _) => print(format_args!("refund {refund_id} of {payment}, {money}: {name}, {}\n", outcome.name()))?,
        (Fact::Dispute { payment, dispute_id, money, .. }, _) => {
            print(format_args!("dispute {dispute_id} of {payment}, {money}: {name}, {}\n", outcome.name()))?
        }
        (Fact::Unsupported { payment, reason, .. }, _) => print(format_args!("not settled, {payment}: {reason}: {name}\n"))?,
        (Fact::Ignored { reason }, _) => print(format_args!("ignored, {reason}: {name}\n"))?,
        (Fact::Payment { .. } | Fact::RefundsReported { .. } | Fact::Unreadable { .. }, _) => {}
    }
    Ok(())
}
