//! What a database error means for the batch that met it.

/// What to do with a batch after an error. Matches SQLSTATE classes (PostgreSQL, Appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// 40001, 40P01: the whole batch again; settling is idempotent.
    Again,
    /// 55P03, 57014: a lock or a statement took too long; one by one in the slow lane.
    Slow,
    /// Connection loss, 53xxx, 57P0x, 25006: the database cannot take it now; never halved.
    Outage,
    /// Anything else: one delivery of the batch is to blame.
    Culprit,
}

impl Failure {
    /// Reads an error.
    #[must_use]
    pub fn of(error: &sqlx::Error) -> Self {
        let Some(database) = error.as_database_error() else {
            return match error {
                sqlx::Error::Encode(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Self::Culprit,
                _ => Self::Outage,
            };
        };
        match database.code().as_deref().unwrap_or_default() {
            "40001" | "40P01" => Self::Again,
            "55P03" | "57014" => Self::Slow,
            "25006" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => Self::Outage,
            code if code.starts_with("53") || code.starts_with("08") => Self::Outage,
            _ => Self::Culprit,
        }
    }
}
