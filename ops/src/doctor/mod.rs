//! `counterfoil doctor`: checks what goes wrong in practice, and names the fix. Looking changes nothing.

mod broker;
mod database;
mod settings;

use counterfoil_ledger::check::differences;
use serde::Serialize;
use serde_json::json;
use sqlx::PgPool;

use crate::facts::BrokerAt;
use crate::print;
use crate::replays::nothing;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Ok,
    /// It works, and will not for ever.
    Warn,
    /// It does not work.
    Fail,
    /// It could not be asked.
    Unknown,
}

impl Health {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
            Self::Unknown => "unknown",
        }
    }
}

/// One thing that was checked.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The check's name, for --check.
    pub check: &'static str,
    /// How it ended.
    pub health: Health,
    /// What was found.
    pub found: String,
    /// What to do; empty where all is well.
    pub fix: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, health: Health::Ok, found: found.into(), fix: String::new() }
    }

    fn bad(check: &'static str, health: Health, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, health, found: found.into(), fix: fix.into() }
    }
}

/// Everything that can be checked, by name.
pub const CHECKS: [&str; 19] = [
    "database",
    "schema",
    "privileges",
    "clock",
    "connections",
    "transactions",
    "vacuum",
    "replication",
    "broker",
    "alarms",
    "queues",
    "arguments",
    "bindings",
    "tasks",
    "retention",
    "secrets",
    "ledger",
    "one_order_paid",
    "version_order",
];

/// Where and what to check.
pub(crate) struct Patient<'a> {
    pub(crate) pool: &'a PgPool,
    pub(crate) broker: Option<&'a BrokerAt>,
    pub(crate) horizon_s: i64,
}

pub(crate) async fn run(patient: &Patient<'_>, only: Option<&str>, as_json: bool) -> anyhow::Result<()> {
    if let Some(name) = only.filter(|name| !CHECKS.contains(name)) {
        return Err(nothing(format!("no check is called {name:?}: {}", CHECKS.join(", "))));
    }
    let findings: Vec<Finding> = examine(patient).await.into_iter().filter(|finding| only.is_none_or(|name| finding.check == name)).collect();
    if as_json {
        print(format_args!("{}\n", json!({ "findings": findings })))?;
    } else {
        for finding in &findings {
            print(format_args!("{:<8} {:<15} {}\n", finding.health.word(), finding.check, finding.found))?;
            if !finding.fix.is_empty() {
                print(format_args!("         fix:            {}\n", finding.fix))?;
            }
        }
    }
    let wrong = findings.iter().filter(|finding| matches!(finding.health, Health::Fail | Health::Warn)).count();
    anyhow::ensure!(wrong == 0, "{wrong} of {} checks found something wrong", findings.len());
    Ok(())
}

/// Every check. One that cannot be asked says so, and stops no other.
pub(crate) async fn examine(patient: &Patient<'_>) -> Vec<Finding> {
    let mut findings = database::examine(patient.pool, patient.horizon_s).await;
    findings.extend(broker::examine(patient.pool, patient.broker).await);
    findings.extend(settings::examine(&|name| std::env::var(name).ok()));
    findings.push(ledger(patient.pool).await.unwrap_or_else(|error| unknown("ledger", &error)));
    for check in ["one_order_paid", "version_order"] {
        findings.push(invariant(patient.pool, check).await.unwrap_or_else(|error| unknown(check, &error)));
    }
    findings
}

fn unknown(check: &'static str, error: &sqlx::Error) -> Finding {
    Finding::bad(check, Health::Unknown, format!("could not be asked: {error}"), "")
}

async fn ledger(pool: &PgPool) -> sqlx::Result<Finding> {
    let found = differences(&mut *pool.acquire().await?, 600, 20).await?;
    if found.is_empty() {
        return Ok(Finding::ok("ledger", "the books agree with the payments"));
    }
    let orders: Vec<String> =
        found.iter().map(|found| format!("{} ({} {}, booked {})", found.order_id, found.expected_minor, found.currency, found.booked_minor)).collect();
    let fix = "counterfoil trail on each: a ledger event that waits, or that is dead, is replayed; never write ledger rows by hand";
    Ok(Finding::bad("ledger", Health::Fail, format!("the books of {} orders differ: {}", found.len(), orders.join(", ")), fix))
}

async fn invariant(pool: &PgPool, check: &'static str) -> sqlx::Result<Finding> {
    let found = sqlx::query!(r#"SELECT what AS "what!" FROM invariant_violations WHERE check_name = $1 LIMIT 20"#, check).fetch_all(pool).await?;
    if found.is_empty() {
        return Ok(Finding::ok(check, "holds for every order of the last week"));
    }
    let found: Vec<String> = found.into_iter().map(|row| row.what).collect();
    Ok(Finding::bad(check, Health::Fail, found.join("; "), "pause the consumer (money first), counterfoil trail on three of them, keep the rows as evidence"))
}
