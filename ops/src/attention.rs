//! `counterfoil attention`: what waits for a person, oldest first.

use counterfoil_settlement::{Attention, attention};
use sqlx::PgPool;

use crate::words::{counted, money};
use crate::{instant, print};

/// Prints the list.
pub(crate) async fn list(pool: &PgPool, limit: i64) -> anyhow::Result<()> {
    let list = attention(&mut *pool.acquire().await?, limit).await?;
    for entry in &list {
        print(format_args!("{}\n", line(entry)))?;
    }
    print(format_args!("{}\n", counted(list.len(), "entry waits", "entries wait")))?;
    if !list.is_empty() {
        print(format_args!("next  counterfoil trail <order>; money goes back, again too, by POST /orders/<id>/refunds with an Idempotency-Key of its own\n"))?;
    }
    Ok(())
}

fn line(entry: &Attention) -> String {
    let amount = money(entry.amount_minor, entry.currency.as_deref());
    let since = instant(entry.since);
    let name = entry.order_name.as_deref().unwrap_or("-");
    format!("{since}  {:<8} {:>16}  {name}  {}  {}", entry.kind, amount, entry.what, entry.why)
}
