//! `actions`: who did what, to how many, why, from where, and what came of it. Append-only; refused attempts, too.

use std::fmt;

use counterfoil_inbox::replay::of_letter;
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// What a person may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look, everything masked.
    Viewer,
    /// Replay what will run, discard, reopen, pause, release.
    Operator,
    /// Replay what may happen twice, and see customer data.
    Admin,
}

impl Role {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Viewer, Self::Operator, Self::Admin]
            .into_iter()
            .find(|role| role.name() == text)
            .ok_or_else(|| format!("{text:?} is no role: viewer, operator or admin"))
    }
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// A person's name.
    pub person: String,
    /// What they may do.
    pub role: Role,
    /// Where they came from: `cli` and the machine, or `console` and an address.
    pub came_from: String,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.person, self.role.name())
    }
}

/// One thing that somebody did.
#[derive(Debug, Clone, Serialize)]
pub struct Action {
    /// Its number.
    pub id: i64,
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Who.
    pub person: String,
    /// As what.
    pub role: String,
    /// From where.
    pub came_from: String,
    /// What: `replay`, `discard`, `reveal`, …
    pub action: String,
    /// To what: `d_91`, `r_12`, `consumer crm`, …
    pub object: String,
    /// To how many.
    pub rows_touched: i64,
    /// Why.
    pub reason: String,
    /// What came of it.
    pub outcome: String,
}

/// Writes it down; in the transaction of the change itself, where there is one.
///
/// # Errors
/// When the database fails.
pub async fn record(connection: &mut PgConnection, actor: &Actor, action: &str, object: &str, rows: usize, reason: &str, outcome: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO actions (person, role, came_from, action, object, rows_touched, reason, outcome) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        actor.person,
        actor.role.name(),
        actor.came_from,
        action,
        object,
        i64::try_from(rows).unwrap_or(i64::MAX),
        reason,
        outcome,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Reads the newest: of the last so many seconds; of one object or one person, where asked.
///
/// # Errors
/// When the database fails.
pub async fn actions(connection: &mut PgConnection, since_s: i64, object: Option<&str>, person: Option<&str>, limit: i64) -> sqlx::Result<Vec<Action>> {
    sqlx::query_as!(
        Action,
        "SELECT id, at, person, role, came_from, action, object, rows_touched, reason, outcome FROM actions
         WHERE at > now() - make_interval(secs => $1::bigint::float8) AND ($2::text IS NULL OR object = $2) AND ($3::text IS NULL OR person = $3) ORDER BY id DESC LIMIT $4",
        since_s,
        object,
        person,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// As long ago as anything can be, in seconds.
pub(crate) const EVER_S: i64 = i32::MAX as i64;

/// What was done to a dead letter: itself, and the replays that took it. The newest first.
///
/// # Errors
/// When the database fails.
pub async fn actions_on_letter(connection: &mut PgConnection, dead_letter: i64) -> sqlx::Result<Vec<Action>> {
    let mut done = actions(&mut *connection, EVER_S, Some(&format!("d_{dead_letter}")), None, 50).await?;
    for run in of_letter(&mut *connection, dead_letter).await? {
        done.extend(actions(&mut *connection, EVER_S, Some(&run), None, 10).await?);
    }
    done.sort_by_key(|action| std::cmp::Reverse(action.id));
    Ok(done)
}

/// Removes what was done long ago, at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn purge_actions(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM actions WHERE id IN (SELECT id FROM actions WHERE at < now() - make_interval(secs => $1::bigint::float8) ORDER BY id LIMIT $2)",
        older_than_s,
        limit
    );
    Ok(done.execute(connection).await?.rows_affected())
}
