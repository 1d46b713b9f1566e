//! `counterfoil erase`: a customer's personal data leaves every table; amounts, ids, states and books stay.

use counterfoil_broker::topology::CONSUMERS;
use counterfoil_inbox::erase_texts;
use counterfoil_inbox::lost::unaccounted;
use counterfoil_inbox::upkeep::{erase_dead, replaying};
use counterfoil_outbox::{Published, erase_payloads, of_order};
use counterfoil_settlement::{erase_customer, orders_of_customer};
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

use crate::actions::{Actor, record};
use crate::print;
use crate::replays::{may, nothing, refused};

/// Effects that an event should have and that nobody has had or given up: whatever queue or rung their messages are in.
async fn under_way(tx: &mut PgTransaction<'_>, events: &[Published]) -> sqlx::Result<i64> {
    let mut busy = 0;
    for consumer in CONSUMERS {
        let ids: Vec<Uuid> = events.iter().filter(|event| consumer.topics.contains(&event.topic.as_str())).map(|event| event.event_id).collect();
        busy += unaccounted(&mut *tx, consumer.name, &ids).await?.len();
    }
    Ok(i64::try_from(busy).unwrap_or(i64::MAX))
}

pub(crate) async fn run(pool: &PgPool, actor: &Actor, customer: &str, reason: &str, dry_run: bool) -> anyhow::Result<()> {
    if !dry_run {
        may(pool, actor, "erase", "a customer", reason).await?;
    }
    let mut tx = pool.begin().await?;
    let found = orders_of_customer(&mut tx, customer).await?;
    anyhow::ensure!(!found.is_empty(), nothing("no order has this address or customer id"));
    let orders: Vec<Uuid> = found.iter().map(|(id, _)| *id).collect();
    let mut texts: Vec<String> = found.iter().filter_map(|(_, email)| email.clone()).collect();
    texts.sort();
    texts.dedup();
    let mut events = Vec::new();
    for order in &orders {
        events.extend(of_order(&mut tx, *order).await?.into_iter().filter(|event| event.last_error.is_none()));
    }
    let (payloads, waiting) = erase_payloads(&mut tx, &orders).await?;
    let busy = under_way(&mut tx, &events).await? + replaying(&mut tx, &orders).await?;
    anyhow::ensure!(
        waiting + busy == 0,
        refused(format!(
            "{} effects of this customer are under way: their messages hold the address. Try again when counterfoil trail shows nothing outstanding",
            waiting + busy
        ))
    );
    let erased = erase_customer(&mut tx, &orders, &texts).await?;
    anyhow::ensure!(
        erased.unsettled == 0,
        refused(format!(
            "{} stored events of this customer are not settled: counterfoil attention, counterfoil events reprocess; their bodies are needed for that",
            erased.unsettled
        ))
    );
    let events: Vec<Uuid> = events.iter().map(|event| event.event_id).collect();
    let letters = erase_dead(&mut tx, &orders, &texts).await?;
    erase_texts(&mut tx, &events, &texts).await?;
    let said = format!(
        "{} orders, {} webhook events, {payloads} outbox rows, {letters} dead letters, {} stored answers, {} claim tokens",
        erased.orders, erased.events, erased.answers, erased.tokens
    );
    if dry_run {
        tx.rollback().await?;
        return Ok(print(format_args!("would erase: {said}\n"))?);
    }
    // Not whose: the record of an erasure must not bring back what was erased.
    record(&mut tx, actor, "erase", "a customer", orders.len(), reason, &said).await?;
    tx.commit().await?;
    print(format_args!("erased: {said}\nleft to others: mails that were sent, the CRM's contact, the providers' own records, backups\n"))?;
    Ok(())
}
