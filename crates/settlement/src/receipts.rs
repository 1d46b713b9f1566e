//! What was mailed about an order.

use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

/// What a mail was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptKind {
    /// The order is paid.
    Receipt,
    /// Its ticket numbers.
    Tickets,
    /// Its tickets are void.
    Void,
    /// There were none left.
    Unavailable,
}

impl ReceiptKind {
    /// The name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Receipt => "receipt",
            Self::Tickets => "tickets",
            Self::Void => "void",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A mail that was sent.
#[derive(Debug, Clone, Serialize)]
pub struct Receipt {
    /// The event that it was sent for.
    pub event_id: Uuid,
    /// `receipt`, `tickets`, `void` or `unavailable`.
    pub kind: String,
    /// Its Message-ID.
    pub message_id: String,
    /// When, RFC 3339.
    pub sent_at: String,
}

/// Records that a mail was sent; again does no harm. Mail about an order that is not here is not recorded.
///
/// # Errors
/// When the database fails.
pub async fn record_receipt(connection: &mut PgConnection, event_id: Uuid, order: Uuid, kind: ReceiptKind, message_id: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO receipts (event_id, order_id, kind, message_id) SELECT $1, id, $3, $4 FROM orders WHERE id = $2 ON CONFLICT DO NOTHING",
        event_id,
        order,
        kind.name(),
        message_id,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The mails of an order, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn receipts_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Vec<Receipt>> {
    sqlx::query_as!(
        Receipt,
        r#"SELECT event_id, kind, message_id, to_char(sent_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "sent_at!"
        FROM receipts WHERE order_id = $1 ORDER BY sent_at, event_id"#,
        order,
    )
    .fetch_all(connection)
    .await
}
