//! `counterfoil attention`: what waits for a person, oldest first, and what people decided about it.

use counterfoil_settlement::{Attention, attention, decide, decisions, undo_decision};
use sqlx::PgPool;

use crate::actions::{Actor, record};
use crate::options::AttentionOptions;
use crate::replays::{may, nothing};
use crate::words::{counted, money};
use crate::{instant, print};

/// Does what the command says: without one, it lists.
pub(crate) async fn run(pool: &PgPool, actor: &Actor, action: Option<AttentionOptions>, limit: i64) -> anyhow::Result<()> {
    match action {
        None => list(pool, limit).await,
        Some(AttentionOptions::Decide { subject, reason }) => {
            anyhow::ensure!(
                decide_entry(pool, actor, &subject, None, &reason).await?,
                nothing(format!("no entry is called {subject}: see counterfoil attention"))
            );
            Ok(print(format_args!("{subject} is closed until it says something else; counterfoil attention undo takes it back\n"))?)
        }
        Some(AttentionOptions::Undo { subject, reason }) => {
            anyhow::ensure!(
                undo_entry(pool, actor, &subject, &reason).await?,
                nothing(format!("nothing was decided about {subject}: see counterfoil attention decisions"))
            );
            Ok(print(format_args!("{subject} is open again\n"))?)
        }
        Some(AttentionOptions::Decisions { limit }) => {
            for decision in decisions(&mut *pool.acquire().await?, limit).await? {
                print(format_args!("{}  {}  {}: {}\n", instant(decision.decided_at), decision.subject, decision.person, decision.reason))?;
            }
            Ok(())
        }
    }
}

async fn list(pool: &PgPool, limit: i64) -> anyhow::Result<()> {
    let list = attention(&mut *pool.acquire().await?, limit).await?;
    for entry in &list {
        print(format_args!("{}\n", line(entry)))?;
    }
    print(format_args!("{}\n", counted(list.len(), "entry waits", "entries wait")))?;
    if !list.is_empty() {
        print(format_args!("next  counterfoil trail <order>; money goes back, again too, by POST /orders/<id>/refunds with an Idempotency-Key of its own\n"))?;
        print(format_args!("      dealt with elsewhere: counterfoil attention decide <entry> --reason … --by <your name>\n"))?;
    }
    Ok(())
}

fn line(entry: &Attention) -> String {
    let amount = money(entry.amount_minor, entry.currency.as_deref());
    let since = instant(entry.since);
    let name = entry.order_name.as_deref().unwrap_or("-");
    format!("{since}  {:<10} {:>16}  {name}  {}  {}  [{}]", entry.kind, amount, entry.what, entry.why, entry.subject)
}

/// Closes an entry in the name of `actor`, as long as it says what they saw.
///
/// # Errors
/// When the role or the reason does not suffice, or the database fails.
pub(crate) async fn decide_entry(pool: &PgPool, actor: &Actor, subject: &str, state: Option<&str>, reason: &str) -> anyhow::Result<bool> {
    may(pool, actor, "decide", subject, reason).await?;
    let mut tx = pool.begin().await?;
    let done = decide(&mut tx, subject, state, &actor.person, reason).await?;
    record(&mut tx, actor, "decide", subject, usize::from(done), reason, if done { "closed" } else { "no such entry" }).await?;
    tx.commit().await?;
    Ok(done)
}

/// Takes a decision back in the name of `actor`.
///
/// # Errors
/// When the role or the reason does not suffice, or the database fails.
pub(crate) async fn undo_entry(pool: &PgPool, actor: &Actor, subject: &str, reason: &str) -> anyhow::Result<bool> {
    may(pool, actor, "undo a decision", subject, reason).await?;
    let mut tx = pool.begin().await?;
    let done = undo_decision(&mut tx, subject).await?;
    record(&mut tx, actor, "undo a decision", subject, usize::from(done), reason, if done { "open again" } else { "nothing was decided" }).await?;
    tx.commit().await?;
    Ok(done)
}
