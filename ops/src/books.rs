//! `counterfoil ledger`: the books as plain-text accounting, and against the payments.

use counterfoil_ledger::{check, export};
use counterfoil_payments::{Currency, Money};
use sqlx::PgPool;

use crate::print;
use crate::settings::Ledger;

/// Differences that are named, at the most.
const NAMED_MAX: i64 = 1000;

/// Runs one of its commands.
pub(crate) async fn run(pool: &PgPool, command: Ledger) -> anyhow::Result<()> {
    match command {
        Ledger::Export { format } => {
            // One snapshot for head and pages: an entry that commits meanwhile is in neither.
            let mut connection = pool.begin().await?;
            sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *connection).await?;
            print(format_args!("{}", export::head(&mut connection, format).await?))?;
            let mut after = 0;
            loop {
                let page = export::page(&mut connection, after).await?;
                let Some(last) = export::last_entry(&page) else { return Ok(()) };
                print(format_args!("{}\n", export::text(&page, format)))?;
                after = last;
            }
        }
        Ledger::Check { settled_s } => {
            let differences = check::differences(&mut *pool.acquire().await?, settled_s, NAMED_MAX).await?;
            for found in &differences {
                print(format_args!(
                    "{}  {}  expected {}, booked {}\n",
                    found.order_id,
                    found.currency,
                    money(found.expected_minor, &found.currency),
                    money(found.booked_minor, &found.currency)
                ))?;
            }
            anyhow::ensure!(differences.is_empty(), "the books of {} orders differ from their payments: see counterfoil trail <order>", differences.len());
            print(format_args!("the books and the payments agree\n"))?;
            Ok(())
        }
    }
}

fn money(minor: i64, currency: &str) -> String {
    currency.parse::<Currency>().map_or_else(|_| minor.to_string(), |currency| Money::new(minor, currency).to_string())
}
