//! The jobs: each takes a few rows, does its work in one transaction, and says how much it did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use counterfoil_inbox::upkeep::erase_dead;
use counterfoil_ledger::check::{Compared, compare, compared};
use counterfoil_outbox::orders_since;
use counterfoil_providers::{Apis, Mode};
use counterfoil_settlement::housekeeping;
use counterfoil_settlement::{claim_due_reads, erase_again, erased_lately, expire, orders_after, plan_of, purge_tokens};
use counterfoil_tickets::{release_due, settle_owed};
use sqlx::{Connection, PgConnection, PgPool};

use super::{Rhythm, read_again};
use crate::actions::purge_actions;
use crate::facts::BrokerAt;
use crate::gather::Gatherer;
use crate::notify::Notifier;
use crate::reconcile::read_order;

/// Rows of one step.
const BATCH: i64 = 200;

/// Orders read from providers in one step: a few seconds' worth of calls.
const READS: usize = 4;

/// How long a refund or dispute may wait for its payment: as long as providers can send the payment's event again.
const FOREIGN_S: i64 = 30 * 86_400;

/// Orders that are compared with the books in one step: the new ones, and as many in turn.
const COMPARED_MAX: i64 = 500;

/// An order that changed less than this ago may have an event on its way to the books.
const BOOKS_SETTLED_S: i64 = 600;

pub(super) struct Jobs {
    pub(super) pool: PgPool,
    pub(super) apis: Apis,
    pub(super) broker: Option<BrokerAt>,
    pub(super) gatherer: Gatherer,
    pub(super) notifier: Notifier,
    pub(super) mode: Mode,
    pub(super) rhythm: Rhythm,
    /// Currencies that a difference was reported in: their gauge goes back to zero.
    pub(super) reported: Mutex<BTreeSet<String>>,
}

impl Jobs {
    /// Applies waiting events whose order or payment has appeared; counts the rest, and cries out about old ones.
    pub(super) async fn drive_waiting(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let driven = housekeeping::drive_waiting(&mut tx, BATCH).await?;
        tx.commit().await?;
        let waiting = housekeeping::waiting(&mut *self.pool.acquire().await?, self.rhythm.waiting_alert_s).await?;
        gauge("counterfoil_waiting_events", waiting.events);
        gauge("counterfoil_waiting_overdue", waiting.overdue);
        metrics::gauge!("counterfoil_waiting_oldest_seconds").set(waiting.oldest_seconds);
        if waiting.overdue > 0 {
            tracing::error!(overdue = waiting.overdue, "events wait for an order or a payment that does not come: see counterfoil attention");
        }
        Ok(driven)
    }

    /// Drives events again that an earlier release stored and did not act on.
    pub(super) async fn drive_deferred(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let deferred = housekeeping::take_deferred(&mut tx, BATCH).await?;
        let mut driven = 0;
        for event in &deferred {
            if let Some(delivery) = read_again(event, self.mode) {
                driven += usize::from(housekeeping::drive_again(&mut tx, &delivery).await?);
            }
        }
        tx.commit().await?;
        Ok(driven)
    }

    pub(super) async fn expire(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let expired = expire(&mut tx, BATCH).await?;
        tx.commit().await?;
        Ok(expired.len())
    }

    /// Gives back places in draws whose time is over. Nobody waits for this: a request that finds too few left looks itself.
    pub(super) async fn release_places(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let released = release_due(&mut tx, None, BATCH).await?;
        settle_owed(&mut tx, BATCH).await?;
        tx.commit().await?;
        Ok(usize::try_from(released)?)
    }

    pub(super) async fn settle_keys(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let (completed, cleared) = housekeeping::settle_keys(&mut tx, self.rhythm.key_stuck_s, BATCH).await?;
        tx.commit().await?;
        if completed + cleared > 0 {
            tracing::warn!(completed, cleared, "idempotency keys that a crash had left in progress were settled");
        }
        Ok(completed + cleared)
    }

    /// Reads orders that are due from their providers; each is claimed just before it is read.
    pub(super) async fn read_due(&self) -> anyhow::Result<usize> {
        let mut changes = 0;
        for _ in 0..READS {
            let due = claim_due_reads(&mut *self.pool.acquire().await?, self.rhythm.pending_s, 1).await?;
            let Some((order, why)) = due.into_iter().next() else { break };
            let plan = plan_of(&mut *self.pool.acquire().await?, order, &why).await?;
            for finding in read_order(&self.pool, &self.apis, &plan, false).await? {
                tracing::info!(order_id = %order, why, what = finding.what, outcome = finding.outcome, "an order was read from its provider");
                changes += usize::from(finding.changed);
            }
        }
        Ok(changes)
    }

    /// Takes up refunds that were held, or whose message died.
    pub(super) async fn resume_refunds(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let resumed = housekeeping::resume_refunds(&mut tx, BATCH).await?;
        tx.commit().await?;
        Ok(resumed)
    }

    pub(super) async fn purge(&self) -> anyhow::Result<usize> {
        let mut connection = self.pool.acquire().await?;
        let rhythm = &self.rhythm;
        let mut removed = housekeeping::purge_events(&mut connection, rhythm.events_s, BATCH * 5).await?;
        removed += housekeeping::give_up_foreign(&mut connection, FOREIGN_S).await?;
        removed += housekeeping::purge_keys(&mut connection, rhythm.keys_s, BATCH * 5).await?;
        removed += purge_tokens(&mut connection, rhythm.keys_s, BATCH * 5).await?;
        removed += counterfoil_outbox::purge(&mut connection, rhythm.outbox_s, BATCH * 5).await?;
        removed += counterfoil_inbox::purge(&mut connection, rhythm.processed_s, BATCH * 5).await?;
        removed += counterfoil_inbox::upkeep::purge_dead(&mut connection, rhythm.outbox_s, BATCH * 5).await?;
        removed += counterfoil_inbox::replay::purge_replays(&mut connection, rhythm.outbox_s, BATCH * 5).await?;
        removed += counterfoil_inbox::lost::purge_lost(&mut connection, rhythm.processed_s, BATCH * 5).await?;
        removed += erase_again(&mut connection, BATCH).await?;
        removed += self.erase_late_letters(&mut connection).await?;
        removed += purge_actions(&mut connection, rhythm.actions_s, BATCH * 5).await?;
        Ok(usize::try_from(removed)?)
    }

    /// Dead letters that were kept after their customer had been erased.
    async fn erase_late_letters(&self, connection: &mut PgConnection) -> sqlx::Result<u64> {
        let orders = erased_lately(&mut *connection).await?;
        let mut tx = connection.begin().await?;
        let erased = erase_dead(&mut tx, &orders, &[]).await?;
        tx.commit().await?;
        Ok(erased)
    }

    /// Compares books and payments, of the orders whose events were written since and of the next few in turn; a difference is
    /// an alert, not something to repair.
    pub(super) async fn compare_books(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let mark = compared(&mut tx).await?;
        let new = orders_since(&mut tx, mark.outbox_id, BOOKS_SETTLED_S, COMPARED_MAX).await?;
        let in_turn = orders_after(&mut tx, mark.order_id, COMPARED_MAX).await?;
        let order_id = in_turn.last().copied().unwrap_or_default(); // from the beginning again
        let mark = Compared { outbox_id: new.last_id.unwrap_or(mark.outbox_id), order_id };
        let found = compare(&mut tx, &[new.orders, in_turn].concat(), mark, BOOKS_SETTLED_S).await?;
        tx.commit().await?;
        let mut by_currency: BTreeMap<&str, i64> = BTreeMap::new();
        for difference in &found {
            let sum = by_currency.entry(&difference.currency).or_default();
            *sum = sum.saturating_add(difference.expected_minor.saturating_sub(difference.booked_minor).saturating_abs());
            tracing::error!(order_id = %difference.order_id, expected_minor = difference.expected_minor, booked_minor = difference.booked_minor,
                currency = difference.currency, "the books of an order differ from its payments");
        }
        gauge("counterfoil_ledger_orders_that_differ", i64::try_from(found.len())?);
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.extend(by_currency.keys().map(|currency| (*currency).to_owned()));
        for currency in reported.iter() {
            let minor = by_currency.get(currency.as_str()).copied().unwrap_or(0);
            metrics::gauge!("counterfoil_ledger_difference_minor", "currency" => currency.to_owned()).set(f64::from(i32::try_from(minor).unwrap_or(i32::MAX)));
        }
        Ok(0)
    }
}

pub(super) fn gauge(name: &'static str, value: i64) {
    metrics::gauge!(name).set(f64::from(i32::try_from(value).unwrap_or(i32::MAX)));
}
