//! `counterfoil attention`: what waits for a person, oldest first.

use counterfoil_payments::{Currency, Money};
use counterfoil_settlement::{Attention, attention};
use sqlx::PgPool;
use time::format_description::well_known::Rfc3339;

use crate::print;
use crate::words::counted;

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
    let amount = match (entry.amount_minor, entry.currency.as_deref().map(str::parse::<Currency>)) {
        (Some(minor), Some(Ok(currency))) => Money::new(minor, currency).to_string(),
        _ => "-".into(),
    };
    let since = entry.since.replace_nanosecond(0).unwrap_or(entry.since).format(&Rfc3339).unwrap_or_default();
    let name = entry.order_name.as_deref().unwrap_or("-");
    format!("{since}  {:<8} {:>16}  {name}  {}  {}", entry.kind, amount, entry.what, entry.why)
}
