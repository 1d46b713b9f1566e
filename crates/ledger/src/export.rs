//! The books as plain-text accounting: hledger (hledger.org/hledger.html, journal format) and beancount
//! (beancount.github.io/docs/beancount_language_syntax.html).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

use counterfoil_payments::{Currency, Money};
use sqlx::PgConnection;

/// For whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// hledger's journal.
    Hledger,
    /// beancount's ledger.
    Beancount,
}

impl FromStr for Format {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "hledger" => Ok(Self::Hledger),
            "beancount" => Ok(Self::Beancount),
            _ => Err("must be hledger or beancount"),
        }
    }
}

/// A line of the books.
#[derive(Debug, Clone)]
pub struct Line {
    entry_id: i64,
    date: String,
    topic: String,
    order_id: uuid::Uuid,
    payment: String,
    source_event_id: uuid::Uuid,
    account: String,
    amount_minor: i64,
    currency: String,
}

/// Entries of one page.
const PAGE: i64 = 5000;

/// Reads the lines of the next entries behind `after`; empty at the end.
///
/// # Errors
/// When the database fails.
pub async fn page(connection: &mut PgConnection, after: i64) -> sqlx::Result<Vec<Line>> {
    sqlx::query_as!(
        Line,
        r#"SELECT e.id AS entry_id, to_char(e.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS "date!", e.topic, e.order_id,
            e.payment_provider || ' ' || e.payment_id AS "payment!", e.source_event_id, l.account, l.amount_minor, l.currency
        FROM (SELECT * FROM ledger_entries WHERE id > $1 ORDER BY id LIMIT $2) e JOIN ledger_lines l ON l.entry_id = e.id
        ORDER BY e.id, l.amount_minor DESC, l.account"#,
        after,
        PAGE,
    )
    .fetch_all(connection)
    .await
}

/// Every account and currency of the books, with the date of the first entry, for the declarations at the head.
///
/// # Errors
/// When the database fails.
pub async fn head(connection: &mut PgConnection, format: Format) -> sqlx::Result<String> {
    let rows = sqlx::query!(
        r#"SELECT l.account, array_agg(DISTINCT l.currency) AS "currencies!", to_char(min(e.occurred_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS "since!"
        FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id GROUP BY l.account ORDER BY l.account"#
    )
    .fetch_all(connection)
    .await?;
    let mut text = String::from("; The books of Counterfoil. Debits are positive. Each entry names the event that it came from.\n\n");
    let mut currencies: BTreeMap<String, String> = BTreeMap::new();
    for row in rows {
        for currency in row.currencies {
            let first = currencies.entry(currency).or_insert_with(|| row.since.clone());
            *first = first.clone().min(row.since.clone());
        }
        let account = named(&row.account, format);
        let _ = match format {
            Format::Hledger => writeln!(text, "account {account}"),
            Format::Beancount => writeln!(text, "{} open {account}", row.since),
        };
    }
    for (currency, since) in currencies {
        let _ = match format {
            // A commodity directive must show a decimal mark, even where there are no decimals.
            Format::Hledger => writeln!(
                text,
                "commodity {}",
                amount(1000, &currency).replacen(&format!(" {currency}"), if decimals(&currency) == 0 { "." } else { "" }, 1) + " " + &currency
            ),
            Format::Beancount => writeln!(text, "{since} commodity {currency}"),
        };
    }
    text.push('\n');
    Ok(text)
}

fn decimals(currency: &str) -> u32 {
    currency.parse::<Currency>().map_or(2, |currency| currency.exponent())
}

fn amount(minor: i64, currency: &str) -> String {
    currency.parse().map_or_else(|_| format!("{minor} {currency}"), |currency: Currency| Money::new(minor, currency).to_string())
}

/// `assets:receivable:stripe`, or `Assets:Receivable:Stripe`: beancount wants capitals and no underscore.
fn named(account: &str, format: Format) -> String {
    match format {
        Format::Hledger => account.to_owned(),
        Format::Beancount => account.split(':').map(capital).collect::<Vec<_>>().join(":"),
    }
}

fn capital(part: &str) -> String {
    let part = part.replace('_', "-");
    let mut letters = part.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Writes lines as entries. The lines of an entry must stand together.
#[must_use]
pub fn text(lines: &[Line], format: Format) -> String {
    let mut text = String::new();
    let mut entry = None;
    for line in lines {
        if entry != Some(line.entry_id) {
            entry = Some(line.entry_id);
            let _ = match format {
                Format::Hledger => writeln!(
                    text,
                    "{}{} * {} | {}  ; order:{}, event:{}",
                    if text.is_empty() { "" } else { "\n" },
                    line.date,
                    line.topic,
                    plain(&line.payment),
                    line.order_id,
                    line.source_event_id
                ),
                Format::Beancount => writeln!(
                    text,
                    "{}{} * \"{}\" \"{}\"\n  order: \"{}\"\n  event: \"{}\"",
                    if text.is_empty() { "" } else { "\n" },
                    line.date,
                    line.topic,
                    escaped(&line.payment),
                    line.order_id,
                    line.source_event_id
                ),
            };
        }
        let _ = writeln!(text, "    {:<36}  {}", named(&line.account, format), amount(line.amount_minor, &line.currency));
    }
    text
}

/// Where the next page begins.
#[must_use]
pub fn last_entry(lines: &[Line]) -> Option<i64> {
    lines.last().map(|line| line.entry_id)
}

/// A provider's id may hold anything: what would end a line, begin a comment or look like another field becomes `_`.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || matches!(c, ';' | '|' | '#') { '_' } else { c }).collect()
}

fn escaped(text: &str) -> String {
    plain(text).replace('\\', "\\\\").replace('"', "\\\"")
}
