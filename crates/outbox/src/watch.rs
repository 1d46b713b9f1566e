//! What an operator wants to know of the outbox, read without a lock.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// What has not gone out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backlog {
    /// Rows neither published nor parked.
    pub unpublished: i64,
    /// Of these, put off for any reason.
    pub deferred: i64,
    /// Of these, put off because no queue is bound.
    pub unroutable: i64,
    /// Rows that the broker would not take.
    pub parked: i64,
    /// Age of the oldest unpublished row.
    pub oldest_seconds: f64,
}

/// Reads the backlog. Bounded work: the partial indexes hold nothing but the backlog itself, fresh rows and deferred ones apart.
///
/// # Errors
/// When the database fails.
pub async fn backlog(connection: &mut PgConnection) -> sqlx::Result<Backlog> {
    sqlx::query_as!(
        Backlog,
        r#"SELECT (SELECT count(*) FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0)
                + (SELECT count(*) FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals > 0) AS "unpublished!",
            (SELECT count(*) FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals > 0) AS "deferred!",
            (SELECT count(*) FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals > 0 AND last_error LIKE 'unroutable%') AS "unroutable!",
            (SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL) AS "parked!",
            COALESCE(extract(epoch FROM now() - LEAST(
                (SELECT created_at FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0 ORDER BY id LIMIT 1),
                (SELECT min(created_at) FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals > 0))), 0)::float8 AS "oldest_seconds!""#
    )
    .fetch_one(connection)
    .await
}

/// An event of one order.
#[derive(Debug, Clone)]
pub struct Published {
    /// The row.
    pub id: i64,
    /// The event.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Where it went; empty for one queue alone.
    pub exchange: String,
    /// With which routing key, or to which queue.
    pub routing_key: String,
    /// When it was appended.
    pub created_at: OffsetDateTime,
    /// When the broker had confirmed it.
    pub published_at: Option<OffsetDateTime>,
    /// Why it has not gone out.
    pub last_error: Option<String>,
}

/// The events of an order, in order.
///
/// # Errors
/// When the database fails.
pub async fn of_order(connection: &mut PgConnection, order_id: Uuid) -> sqlx::Result<Vec<Published>> {
    sqlx::query_as!(
        Published,
        "SELECT id, event_id, topic, exchange, routing_key, created_at, published_at, last_error FROM outbox WHERE order_id = $1 ORDER BY id",
        order_id
    )
    .fetch_all(connection)
    .await
}

/// Removes rows that were published long ago, at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn purge(connection: &mut PgConnection, older_than_s: i64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM outbox WHERE id = ANY (ARRAY(SELECT id FROM (SELECT id, created_at, published_at FROM outbox ORDER BY id LIMIT 2 * $2::bigint) oldest
            WHERE created_at < now() - make_interval(secs => $1::bigint::float8) AND published_at < now() - make_interval(secs => $1::bigint::float8) LIMIT $2))",
        older_than_s,
        limit,
    );
    Ok(done.execute(connection).await?.rows_affected())
}

/// The newest row's id.
///
/// # Errors
/// When the database fails.
pub async fn newest(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT COALESCE(max(id), 0) AS "id!" FROM outbox"#).fetch_one(connection).await
}

/// The orders of rows that were written after a mark.
#[derive(Debug, Clone)]
pub struct Since {
    /// Their orders, some of them more than once.
    pub orders: Vec<Uuid>,
    /// The last row that was looked at; none: there was none.
    pub last_id: Option<i64>,
}

/// The orders of at most `limit` rows after `mark` that are older than `older_than_s` seconds.
///
/// # Errors
/// When the database fails.
pub async fn orders_since(connection: &mut PgConnection, mark: i64, older_than_s: i64, limit: i64) -> sqlx::Result<Since> {
    let rows = sqlx::query!(
        "SELECT id, order_id, created_at <= now() - make_interval(secs => $2::bigint::float8) AS \"due!\" FROM outbox WHERE id > $1 ORDER BY id LIMIT $3",
        mark,
        older_than_s,
        limit
    );
    let rows = rows.fetch_all(connection).await?;
    let due = rows.into_iter().take_while(|row| row.due);
    let mut since = Since { orders: Vec::new(), last_id: None };
    for row in due {
        since.orders.extend(row.order_id);
        since.last_id = Some(row.id);
    }
    Ok(since)
}

/// Rows appended and rows published within the last minute.
///
/// # Errors
/// When the database fails.
pub async fn rates(connection: &mut PgConnection) -> sqlx::Result<(i64, i64)> {
    let row = sqlx::query!(
        r#"SELECT count(*) FILTER (WHERE created_at > now() - interval '1 minute') AS "appended!", count(*) FILTER (WHERE published_at > now() - interval '1 minute') AS "published!"
        FROM outbox WHERE created_at > now() - interval '15 minutes'"#
    );
    let row = row.fetch_one(connection).await?;
    Ok((row.appended, row.published))
}

/// The order that an event is about.
///
/// # Errors
/// When the database fails.
pub async fn of_event(connection: &mut PgConnection, event_id: Uuid) -> sqlx::Result<Option<Uuid>> {
    let order = sqlx::query_scalar!("SELECT order_id FROM outbox WHERE event_id = $1 AND exchange = 'counterfoil.events'", event_id);
    Ok(order.fetch_optional(connection).await?.flatten())
}
