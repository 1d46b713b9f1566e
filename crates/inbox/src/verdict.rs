//! What a replay of a dead letter would do, from the dedupe rows and from how long they are kept.

use serde::Serialize;
use sqlx::PgConnection;

/// What a replay would do with one.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    /// Which.
    pub id: i64,
    /// What.
    pub verdict: Verdict,
    /// When it was done, by which version it was superseded, or what blocks it.
    pub detail: String,
}

/// What a replay would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The effect has not happened and will be tried.
    WillRun,
    /// The effect has happened: nothing to do.
    Done,
    /// A newer event of the same order has done its work.
    Superseded,
    /// Nobody knows whether it happened: it may happen twice, under the same key.
    Unknown,
    /// Its dedupe row may have been removed: it may happen twice.
    Unsafe,
    /// The consumer is paused, or an attempt is at work.
    Blocked,
    /// Its body is no event of ours.
    NotAnEvent,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 7] = [Self::WillRun, Self::Done, Self::Superseded, Self::Unknown, Self::Unsafe, Self::Blocked, Self::NotAnEvent];

    /// As it is stored.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WillRun => "will_run",
            Self::Done => "done",
            Self::Superseded => "superseded",
            Self::Unknown => "unknown",
            Self::Unsafe => "unsafe",
            Self::Blocked => "blocked",
            Self::NotAnEvent => "not_an_event",
        }
    }

    /// In words, with what is known.
    #[must_use]
    pub fn words(self, detail: &str) -> String {
        match self {
            Self::WillRun => "Will run".into(),
            Self::Done if detail.is_empty() => "Will be skipped: already done".into(),
            Self::Done => format!("Will be skipped: already done at {detail}"),
            Self::Superseded if detail.is_empty() => "Superseded by a newer version".into(),
            Self::Superseded => format!("Superseded by version {detail}"),
            Self::Unknown => "Outcome unknown: may happen twice, same key".into(),
            Self::Unsafe => "Unsafe: its dedupe record is gone".into(),
            Self::Blocked if detail.is_empty() => "Blocked: consumer paused, or an attempt holds the lease".into(),
            Self::Blocked => format!("Blocked: {detail}"),
            Self::NotAnEvent => "Cannot be replayed: not an event of ours".into(),
        }
    }

    pub(crate) fn read(name: &str) -> Self {
        Self::ALL.into_iter().find(|verdict| verdict.name() == name).unwrap_or(Self::Unsafe)
    }
}

/// Judges dead letters. `horizon_s`: how long dedupe rows are kept.
///
/// # Errors
/// When the database fails.
pub async fn judge(connection: &mut PgConnection, ids: &[i64], horizon_s: i64) -> sqlx::Result<Vec<Judgement>> {
    let rows = sqlx::query!(r#"SELECT id AS "id!", verdict AS "verdict!", detail AS "detail!" FROM dead_letters_judged($1, $2)"#, ids, horizon_s);
    let rows = rows.fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| Judgement { id: row.id, verdict: Verdict::read(&row.verdict), detail: row.detail }).collect())
}
