//! Settles a batch inside one transaction: fold, resolve, rounds, classify.

use std::collections::{HashMap, HashSet};

use counterfoil_payments::{Contact, Disposition, Fact, Money, News, OrderKey, OrderStatus, PaymentKey, Provider};
use sqlx::{Connection, PgTransaction};
use uuid::Uuid;

use crate::aside;
use crate::classify::{self, Leftover};
use crate::delivery::{Delivery, Outcome, Settled, Verdict};
use crate::events::{self, Note, Waiting};
use crate::failure::Failure;
use crate::rounds::{self, Item};
use crate::statement::{self, Done};
use crate::{moneyback, paying, refunds};

/// Settles deliveries; the verdicts stand in the order of the batch. One delivery is a batch of one.
///
/// Never waits for an order's row and never stores a delivery whose order is unknown: those come back as
/// [`Verdict::Locked`] and [`Verdict::NoOrder`], for [`lock_orders`] and [`settle_or_wait`].
///
/// # Errors
/// When a statement fails; roll back and ask [`crate::Failure::of`] what to do.
pub async fn settle(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<Vec<Verdict>> {
    settle_items(tx, batch.len(), rounds::fold(batch)).await
}

/// Waits for the rows of `orders`, in id order, so that a following [`settle()`] finds them free. Bound it by `lock_timeout`.
///
/// # Errors
/// When a statement fails, 55P03 among them.
pub async fn lock_orders(tx: &mut PgTransaction<'_>, orders: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!("SELECT id FROM orders WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE", orders).fetch_all(&mut **tx).await?;
    Ok(())
}

/// Settles deliveries whose order was not found: under the advisory lock of each reference (which `POST /orders` takes
/// first, too) it looks again, in a new statement, and stores as waiting those whose order still does not exist.
/// Must be the only thing its transaction does.
///
/// # Errors
/// When a statement fails.
pub async fn settle_or_wait(tx: &mut PgTransaction<'_>, batch: &[Delivery]) -> sqlx::Result<Vec<Verdict>> {
    let mut names: Vec<String> = batch.iter().filter_map(|delivery| delivery.fact.order()).map(OrderKey::waits_for).collect();
    names.sort();
    names.dedup();
    lock_names(tx, &names).await?;
    let mut verdicts = settle(tx, batch).await?;
    let items = rounds::fold(batch);
    let waiting: Vec<&Item<'_>> = items.iter().filter(|item| matches!(verdicts[item.positions[0]], Verdict::NoOrder(_))).collect();
    let notes: Vec<_> = waiting
        .iter()
        .map(|item| (*item, Note { outcome: Outcome::Waiting, reason: None, waits_for: item.delivery.fact.order().map(OrderKey::waits_for) }))
        .collect();
    for (item, verdict) in waiting.iter().zip(events::store(tx, &notes).await?) {
        assign(&mut verdicts, item, &verdict);
    }
    Ok(verdicts)
}

/// Settles again what waits for an order that now exists, inside the transaction that made it. One that cannot be settled
/// is marked as failed, so that it does not keep its order from being made. Returns the names that something waited for
/// which waits no longer.
pub(crate) async fn settle_waiting(tx: &mut PgTransaction<'_>, names: &[String]) -> sqlx::Result<HashSet<String>> {
    let waiting = events::take_waiting(tx, names).await?;
    settle_stored(tx, waiting).await
}

/// Settles again what waits for a payment that is known now.
pub(crate) async fn settle_awaiting(tx: &mut PgTransaction<'_>, payment: &PaymentKey) -> sqlx::Result<HashSet<String>> {
    let awaiting = events::take_awaiting(tx, payment).await?;
    settle_stored(tx, awaiting).await
}

async fn settle_stored(tx: &mut PgTransaction<'_>, stored: Vec<Waiting>) -> sqlx::Result<HashSet<String>> {
    let mut driven = HashSet::new();
    for waiting in stored {
        let settled = match waiting.delivery() {
            Ok(delivery) => drive_again(tx, &delivery).await?,
            Err(error) => {
                events::fail_stored(tx, &waiting.provider, &waiting.account, &waiting.event_id, &error.to_string()).await?;
                false
            }
        };
        if settled {
            driven.insert(waiting.waits_for);
        }
    }
    Ok(driven)
}

/// Settles a stored event again, behind a savepoint: it counts as no delivery, and its body stays as it is. One that is to
/// blame for an error is marked as failed. `false` when it waits on, its order being locked, say.
pub(crate) async fn drive_again(tx: &mut PgTransaction<'_>, delivery: &Delivery) -> sqlx::Result<bool> {
    let mut items = rounds::fold(std::slice::from_ref(delivery));
    for item in &mut items {
        item.deliveries = 0;
    }
    let mut alone = Connection::begin(&mut **tx).await?; // a savepoint
    let error = match settle_items(&mut alone, 1, items).await {
        Ok(verdicts) => {
            alone.commit().await?;
            return Ok(verdicts.iter().any(|verdict| matches!(verdict, Verdict::Settled(settled) if settled.outcome != Outcome::Waiting)));
        }
        Err(error) => error,
    };
    alone.rollback().await?;
    if Failure::of(&error) != Failure::Culprit {
        return Err(error);
    }
    let state = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
    tracing::error!(%error, event_id = delivery.event_id, "a stored event cannot be settled; it is marked as failed");
    events::fail_stored(tx, delivery.provider.name(), &delivery.account, &delivery.event_id, &format!("SQLSTATE {state}")).await?;
    Ok(true)
}

/// Takes the advisory locks of references, in the order given (sort them first).
pub(crate) async fn lock_names(tx: &mut PgTransaction<'_>, names: &[String]) -> sqlx::Result<()> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hash) FROM (SELECT hashtextextended(name, 0) AS hash FROM unnest($1::text[]) WITH ORDINALITY AS a (name, n) ORDER BY n OFFSET 0) AS sorted",
        names
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

fn payment_of(fact: &Fact) -> Option<(News, Option<Money>, &Contact)> {
    match fact {
        Fact::Payment { news, money, contact, .. } => Some((*news, *money, contact)),
        Fact::Unsupported { .. }
        | Fact::Refund { .. }
        | Fact::RefundsReported { .. }
        | Fact::Dispute { .. }
        | Fact::Ignored { .. }
        | Fact::Unreadable { .. } => None,
    }
}

/// Writes the verdict on an item for each of its copies; copies behind the first are duplicates.
fn assign(verdicts: &mut [Verdict], item: &Item<'_>, verdict: &Verdict) {
    for (nth, position) in item.positions.iter().enumerate() {
        verdicts[*position] = match verdict {
            Verdict::Settled(settled) if nth > 0 => Verdict::Settled(Settled { duplicate: true, paid: None, ..*settled }),
            Verdict::Settled(_) | Verdict::Locked(_) | Verdict::NoOrder(_) => verdict.clone(),
        };
    }
}

async fn settle_items(tx: &mut PgTransaction<'_>, size: usize, mut items: Vec<Item<'_>>) -> sqlx::Result<Vec<Verdict>> {
    resolve(tx, &mut items).await?;
    let mut verdicts = vec![Verdict::stored(Outcome::Failed, false, false); size];
    let mut aside: Vec<(&Item<'_>, Note<'_>)> = Vec::new();
    let (mut acting, mut money_back, mut awaited) = (Vec::new(), Vec::new(), Vec::new());
    for item in &items {
        match (&item.delivery.fact, item.order) {
            (Fact::Payment { payment, .. }, Some(order)) => acting.push((item, order, payment)),
            (Fact::Payment { order: Some(key), .. }, None) => assign(&mut verdicts, item, &Verdict::NoOrder(key.clone())),
            (Fact::Refund { .. } | Fact::RefundsReported { .. } | Fact::Dispute { .. }, _) => money_back.push(item),
            (fact, _) => aside.push((item, note(fact))),
        }
    }
    let stored = events::store(tx, &aside).await?;
    for ((item, _), verdict) in aside.iter().zip(&stored) {
        assign(&mut verdicts, item, verdict);
    }
    while !acting.is_empty() {
        let round = rounds::next_round(&mut acting);
        let done = statement::settle_round(tx, &round).await?;
        for ((item, ..), verdict) in round.iter().zip(classify_round(tx, &round, &done).await?) {
            assign(&mut verdicts, item, &verdict);
        }
        awaited.extend(round.iter().zip(&done).filter(|(_, done)| done.awaited && done.payment_status.is_some()).map(|((.., payment), _)| (*payment).clone()));
    }
    for item in money_back {
        let verdict = moneyback::settle(tx, item).await?;
        assign(&mut verdicts, item, &verdict);
    }
    for payment in awaited {
        Box::pin(settle_awaiting(tx, &payment)).await?;
    }
    Ok(verdicts)
}

fn note(fact: &Fact) -> Note<'_> {
    let (outcome, reason) = match fact {
        Fact::Payment { .. } | Fact::Refund { .. } | Fact::RefundsReported { .. } | Fact::Dispute { .. } => {
            (Outcome::Ignored, "it names no order, and its payment is not known")
        }
        Fact::Unsupported { reason, .. } | Fact::Ignored { reason } => (Outcome::Ignored, reason.as_str()),
        Fact::Unreadable { reason } => (Outcome::Unreadable, reason.as_str()),
    };
    Note { outcome, reason: Some(reason), waits_for: None }
}

/// Finds the order of each item: by id as it stands, by reference, or, where the event names none, by its payment.
async fn resolve(tx: &mut PgTransaction<'_>, items: &mut [Item<'_>]) -> sqlx::Result<()> {
    let (mut references, mut payments) = (Vec::new(), Vec::new());
    for item in items.iter_mut() {
        match &item.delivery.fact {
            Fact::Payment { order: Some(OrderKey::Id(id)), .. } => item.order = Some(id.0),
            Fact::Payment { order: Some(OrderKey::Reference(reference)), .. } => references.push(reference.as_str().to_owned()),
            Fact::Payment { order: None, payment, details, .. } => payments.push((payment, details.checkout.as_deref())),
            Fact::Unsupported { .. }
            | Fact::Refund { .. }
            | Fact::RefundsReported { .. }
            | Fact::Dispute { .. }
            | Fact::Ignored { .. }
            | Fact::Unreadable { .. } => {}
        }
    }
    let by_reference: HashMap<String, Uuid> = if references.is_empty() {
        HashMap::new()
    } else {
        let rows = sqlx::query!("SELECT reference, id FROM orders WHERE reference = ANY ($1)", &references).fetch_all(&mut **tx).await?;
        rows.into_iter().map(|row| (row.reference, row.id)).collect()
    };
    let by_payment = orders_of_payments(tx, &payments).await?;
    for item in items {
        if let Fact::Payment { order, payment, .. } = &item.delivery.fact {
            match order {
                Some(OrderKey::Reference(reference)) => item.order = by_reference.get(reference.as_str()).copied(),
                None => item.order = by_payment.get(&(payment.provider, payment.payment_id.clone())).copied(),
                Some(OrderKey::Id(_)) => {}
            }
        }
    }
    Ok(())
}

/// The orders of payments whose events name none: the order of the payment's row, or else the one whose shop told us of the
/// checkout that the payment came of.
async fn orders_of_payments(tx: &mut PgTransaction<'_>, payments: &[(&PaymentKey, Option<&str>)]) -> sqlx::Result<HashMap<(Provider, String), Uuid>> {
    if payments.is_empty() {
        return Ok(HashMap::new());
    }
    let providers: Vec<String> = payments.iter().map(|(payment, _)| payment.provider.name().to_owned()).collect();
    let accounts: Vec<String> = payments.iter().map(|(payment, _)| payment.account.clone()).collect();
    let ids: Vec<String> = payments.iter().map(|(payment, _)| payment.payment_id.clone()).collect();
    let checkouts: Vec<Option<String>> = payments.iter().map(|(_, checkout)| checkout.map(str::to_owned)).collect();
    let rows = sqlx::query!(
        r#"SELECT k.provider AS "provider!", k.payment_id AS "payment_id!", COALESCE(
            (SELECT p.order_id FROM payments p WHERE p.payment_id = k.payment_id AND p.provider = k.provider AND (p.account = k.account OR p.account = '' OR k.account = '')
                ORDER BY p.account <> k.account, p.account LIMIT 1),
            (SELECT o.id FROM orders o WHERE o.session_id = k.checkout AND o.session_provider = k.provider
                AND (o.session_account = k.account OR o.session_account = '' OR k.account = '') ORDER BY o.created_at DESC LIMIT 1)) AS order_id
         FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k (provider, account, payment_id, checkout)"#,
        &providers,
        &accounts,
        &ids,
        &checkouts as &[Option<String>],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().filter_map(|row| Some(((row.provider.parse().ok()?, row.payment_id), row.order_id?))).collect())
}

type Round<'a, 'b> = [(&'b Item<'a>, Uuid, &'b PaymentKey)];

/// Turns what the statement did into verdicts, correcting what was not plainly applied.
async fn classify_round(tx: &mut PgTransaction<'_>, round: &Round<'_, '_>, done: &[Done]) -> sqlx::Result<Vec<Verdict>> {
    let mut verdicts = Vec::with_capacity(round.len());
    let mut superseded = Vec::new();
    for ((item, order, payment), done) in round.iter().zip(done) {
        verdicts.push(classify_one(tx, item, *order, payment, done, &mut superseded).await?);
    }
    classify::supersede(tx, &superseded).await?;
    Ok(verdicts)
}

async fn classify_one<'a>(
    tx: &mut PgTransaction<'_>,
    item: &Item<'a>,
    order: Uuid,
    payment: &PaymentKey,
    done: &Done,
    superseded: &mut Vec<&'a Delivery>,
) -> sqlx::Result<Verdict> {
    let delivery = item.delivery;
    let (Some(outcome), Some((news, money, contact))) = (done.outcome.as_deref(), payment_of(&delivery.fact)) else {
        let key = delivery.fact.order().cloned().unwrap_or(OrderKey::Id(counterfoil_payments::OrderId(order)));
        return Ok(if done.order_exists { Verdict::Locked(order) } else { Verdict::NoOrder(key) });
    };
    let differs = done.differs.unwrap_or(false);
    if done.fresh != Some(true) {
        return Ok(Verdict::stored(Outcome::read(outcome), true, differs));
    }
    let trace = delivery.traceparent.as_deref();
    // As it is stored: one payment may be told of with the platform's own account and without.
    let payment = &PaymentKey { account: done.payment_account.clone().unwrap_or_default(), ..payment.clone() };
    if matches!(&delivery.fact, Fact::Payment { news: News::Captured, details, .. } if details.released_minor > 0) && done.payment_order == Some(order) {
        refunds::find_release(tx, payment, trace).await?;
    }
    if done.order_became.is_some() {
        let paid = (done.order_became.as_deref() == Some(OrderStatus::Paid.name())).then_some(order);
        if done.others_held == Some(true) {
            aside::now_extra(tx, order).await?;
        }
        return Ok(Verdict::Settled(Settled { outcome: Outcome::Applied, duplicate: false, differs, paid }));
    }
    if contact.email.is_some() && done.order_without_email == Some(true) && done.payment_order == Some(order) {
        classify::contact_known(tx, delivery, order, contact).await?;
    }
    let payable = done.order_status.as_deref().and_then(OrderStatus::read).is_some_and(OrderStatus::payable);
    let held = done.payment_order == Some(order) && done.payment_disposition.as_deref() == Some(Disposition::Held.name());
    if news == News::Captured && payable && held && done.payment_fits == Some(true) && paying::pay_if_it_fits(tx, order, trace).await? {
        return Ok(Verdict::Settled(Settled { outcome: Outcome::Applied, duplicate: false, differs, paid: Some(order) }));
    }
    let outcome = match classify::judge(news, order, money, done) {
        None => Outcome::Applied,
        Some(Leftover::Superseded) => {
            superseded.push(delivery);
            Outcome::Superseded
        }
        Some(Leftover::Extra) => {
            aside::set_aside(tx, delivery, order, payment, Outcome::Extra, "already_paid").await?;
            Outcome::Extra
        }
        Some(Leftover::Held(reason)) => {
            aside::set_aside(tx, delivery, order, payment, Outcome::Held, reason).await?;
            Outcome::Held
        }
        Some(Leftover::Claimed) => {
            aside::claim(tx, delivery, order, payment).await?;
            Outcome::Held
        }
        Some(Leftover::Grew) => {
            aside::set_aside(tx, delivery, order, payment, Outcome::Held, aside::growth(done.payment_disposition.as_deref())).await?;
            Outcome::Held
        }
        Some(Leftover::Shrank) => {
            aside::set_aside(tx, delivery, order, payment, Outcome::Held, aside::CAPTURED_LESS).await?;
            Outcome::Held
        }
    };
    Ok(Verdict::stored(outcome, false, differs))
}
