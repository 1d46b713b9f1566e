//! How the providers' deliveries stand.

use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// What a provider has sent within a day.
#[derive(Debug, Clone, Serialize)]
pub struct ProviderHealth {
    /// Whose.
    pub provider: String,
    /// When its newest event came first.
    #[serde(with = "time::serde::rfc3339")]
    pub last_received_at: OffsetDateTime,
    /// How long ago, in seconds.
    pub ago_s: f64,
    /// Events.
    pub events: i64,
    /// Deliveries, copies included.
    pub deliveries: i64,
    /// Deliveries that came more than 24 hours after their event was made.
    pub late: i64,
    /// Events that could not be read, or whose settling failed.
    pub failed: i64,
    /// Events of the last minute.
    pub last_minute: i64,
}

/// The providers that have sent something within a day.
///
/// # Errors
/// When the database fails.
pub async fn provider_health(connection: &mut PgConnection) -> sqlx::Result<Vec<ProviderHealth>> {
    sqlx::query_as!(
        ProviderHealth,
        r#"SELECT provider, max(received_at) AS "last_received_at!", extract(epoch FROM now() - max(received_at))::float8 AS "ago_s!", count(*) AS "events!",
            sum(deliveries)::bigint AS "deliveries!", sum(late_deliveries)::bigint AS "late!", count(*) FILTER (WHERE outcome IN ('failed', 'unreadable')) AS "failed!",
            count(*) FILTER (WHERE received_at > now() - interval '1 minute') AS "last_minute!"
        FROM webhook_events WHERE received_at > now() - interval '1 day' GROUP BY provider ORDER BY provider"#
    )
    .fetch_all(connection)
    .await
}
