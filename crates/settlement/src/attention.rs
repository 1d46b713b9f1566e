//! What on-call should look at: money without a place, events without an order, refunds and keys that wait for a person; and
//! what people decided about it. The list is the view `attention_entries`.

use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;

/// One thing that waits for a person, or for something else to happen.
#[derive(Debug, Clone)]
pub struct Attention {
    /// `waiting`, `unplaced`, `failed`, `unreadable`, `changed`, `held`, `extra`, `overpaid`, `claimed`, `refund`, `currency`, `disputed`,
    /// `unfulfilled` or `key`.
    pub kind: String,
    /// What a decision names it by.
    pub subject: String,
    /// What it says now: a decision holds as long as it says the same.
    pub state: String,
    /// What it is: a payment, an event, a refund, a key.
    pub what: String,
    /// The order, where there is one; else the name that it waits for.
    pub order_name: Option<String>,
    /// Minor units at stake.
    pub amount_minor: Option<i64>,
    /// Their currency.
    pub currency: Option<String>,
    /// Why it waits.
    pub why: String,
    /// Since when.
    pub since: OffsetDateTime,
}

/// Every kind of entry; docs/attention.md says what each is and where it shows.
pub const ATTENTION_KINDS: [&str; 14] =
    ["waiting", "unplaced", "failed", "unreadable", "changed", "held", "extra", "overpaid", "claimed", "refund", "currency", "disputed", "unfulfilled", "key"];

/// How much of one kind and currency there is.
#[derive(Debug, Clone)]
pub struct AttentionCount {
    /// The kind.
    pub kind: String,
    /// The currency, where money is at stake.
    pub currency: Option<String>,
    /// Entries.
    pub count: i64,
    /// Of them, older than an hour.
    pub overdue: i64,
    /// Their money, in minor units.
    pub amount_minor: Option<i64>,
}

/// Counts what no decision has closed.
///
/// # Errors
/// When the database fails.
pub async fn count_attention(connection: &mut PgConnection) -> sqlx::Result<Vec<AttentionCount>> {
    sqlx::query_as!(
        AttentionCount,
        r#"SELECT kind AS "kind!", currency, count(*) AS "count!", count(*) FILTER (WHERE since < now() - interval '1 hour') AS "overdue!",
            sum(amount_minor)::bigint AS amount_minor
        FROM attention_entries e WHERE NOT EXISTS (SELECT FROM attention_decisions d WHERE d.subject = e.subject AND d.state = e.state)
        GROUP BY kind, currency ORDER BY kind, currency"#
    )
    .fetch_all(connection)
    .await
}

/// A decision in force.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The entry.
    pub subject: String,
    /// Who decided.
    pub person: String,
    /// Why, in their words.
    pub reason: String,
    /// When.
    pub decided_at: OffsetDateTime,
}

/// Reads what no decision has closed, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn attention(connection: &mut PgConnection, limit: i64) -> sqlx::Result<Vec<Attention>> {
    sqlx::query_as!(
        Attention,
        r#"SELECT kind AS "kind!", subject AS "subject!", state AS "state!", what AS "what!", order_name, amount_minor, currency, why AS "why!", since AS "since!"
        FROM attention_entries e
        WHERE NOT EXISTS (SELECT FROM attention_decisions d WHERE d.subject = e.subject AND d.state = e.state) ORDER BY since LIMIT $1"#,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Reads the decisions whose entry still says what it said then, newest first.
///
/// # Errors
/// When the database fails.
pub async fn decisions(connection: &mut PgConnection, limit: i64) -> sqlx::Result<Vec<Decision>> {
    sqlx::query_as!(
        Decision,
        "SELECT d.subject, d.person, d.reason, d.decided_at FROM attention_decisions d
         WHERE EXISTS (SELECT FROM attention_entries e WHERE e.subject = d.subject AND e.state = d.state) ORDER BY d.decided_at DESC LIMIT $1",
        limit,
    )
    .fetch_all(connection)
    .await
}

/// Closes an entry by a person's decision, as long as it says what it said when they looked: `state`, or what it says now where
/// they did not look. `false` when no entry has this subject and says that.
///
/// # Errors
/// When the database fails.
pub async fn decide(tx: &mut PgTransaction<'_>, subject: &str, state: Option<&str>, person: &str, reason: &str) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "INSERT INTO attention_decisions (subject, state, person, reason)
         SELECT DISTINCT ON (e.subject) e.subject, e.state, $3, $4 FROM attention_entries e WHERE e.subject = $1 AND e.state = COALESCE($2, e.state)
         ON CONFLICT (subject) DO UPDATE SET state = excluded.state, person = excluded.person, reason = excluded.reason, decided_at = now()",
        subject,
        state,
        person,
        reason,
    );
    Ok(done.execute(&mut **tx).await?.rows_affected() == 1)
}

/// Takes a decision back. `false` when there is none about this subject.
///
/// # Errors
/// When the database fails.
pub async fn undo_decision(tx: &mut PgTransaction<'_>, subject: &str) -> sqlx::Result<bool> {
    let done = sqlx::query!("DELETE FROM attention_decisions WHERE subject = $1", subject);
    Ok(done.execute(&mut **tx).await?.rows_affected() == 1)
}
