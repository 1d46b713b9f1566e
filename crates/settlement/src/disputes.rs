//! `disputes`: customers' objections at their bank, each a record of its own beside the order.

use counterfoil_outbox::NewEvent;
use counterfoil_payments::{DisputeStatus, Money, PaymentKey, Topic, event};
use serde_json::json;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::moneyback::Captured;
use crate::statement::headers;
use crate::{orders, paying, positions};

/// What a provider says of a dispute.
#[derive(Debug)]
pub(crate) struct News<'a> {
    pub(crate) payment: &'a PaymentKey,
    pub(crate) dispute_id: &'a str,
    pub(crate) status: DisputeStatus,
    pub(crate) money: Money,
    pub(crate) reason: Option<&'a str>,
}

/// A dispute as it is read.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Dispute {
    /// Who says so.
    pub provider: String,
    /// The provider's id.
    pub dispute_id: String,
    /// Which payment.
    pub payment_id: String,
    /// Where it stands.
    pub status: String,
    /// Minor units.
    pub amount_minor: i64,
    /// Their currency.
    pub currency: String,
    /// The provider's word for why.
    pub reason: Option<String>,
    /// When it was first heard of, RFC 3339. For people; not in the API.
    #[serde(skip)]
    pub created_at: String,
}

/// Records what a provider says of a dispute. `false` when we knew as much.
pub(crate) async fn learn(tx: &mut PgTransaction<'_>, known: &Captured, news: &News<'_>, trace: Option<&str>) -> sqlx::Result<bool> {
    let key = news.payment;
    let known_row = sqlx::query!(
        "SELECT status FROM disputes WHERE provider = $1 AND account = $2 AND dispute_id = $3 FOR UPDATE",
        key.provider.name(),
        key.account,
        news.dispute_id
    )
    .fetch_optional(&mut **tx)
    .await?;
    let before = known_row.as_ref().and_then(|row| DisputeStatus::read(&row.status));
    let after = before.map_or(news.status, |before| before.after(news.status));
    if before == Some(after) {
        return Ok(false);
    }
    let stored = sqlx::query!(
        "INSERT INTO disputes AS d (provider, account, dispute_id, order_id, payment_id, status, amount_minor, currency, reason, foreign_currency)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (provider, account, dispute_id) DO UPDATE SET status = excluded.status, amount_minor = excluded.amount_minor, currency = excluded.currency,
            foreign_currency = excluded.foreign_currency, reason = COALESCE(d.reason, excluded.reason), updated_at = now()
         RETURNING amount_minor, currency, reason, foreign_currency",
        key.provider.name(),
        key.account,
        news.dispute_id,
        known.order_id,
        key.payment_id,
        after.name(),
        news.money.amount_minor,
        news.money.currency.code(),
        news.reason,
        known.currency != news.money.currency.code(),
    )
    .fetch_one(&mut **tx)
    .await?;
    let books = positions::advance(tx, key).await?;
    let version = orders::restate(tx, known.order_id).await?.version;
    let mut payload = json!({
        "order_id": known.order_id, "version": version,
        "dispute": { "dispute_id": news.dispute_id, "status": after, "before": before, "amount_minor": stored.amount_minor, "currency": stored.currency,
            "reason": stored.reason },
        "payment": key,
    });
    let event_id = event::order_disputed(key.provider, news.dispute_id, after);
    if !stored.foreign_currency || !books.unchanged() {
        payload["books"] = json!(books);
    }
    let said = NewEvent { event_id, topic: Topic::OrderDisputed.name(), order_id: known.order_id, version, payload, headers: headers(trace) };
    positions::announce(tx, &said, Some(&books)).await?;
    paying::pay_if_it_fits(tx, known.order_id, trace).await?; // a bank gave back what had been captured for it
    Ok(true)
}

/// The disputes of an order, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn disputes_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Vec<Dispute>> {
    sqlx::query_as!(
        Dispute,
        r#"SELECT provider, dispute_id, payment_id, status, amount_minor, currency, reason,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!" FROM disputes d WHERE order_id = $1 ORDER BY d.created_at, dispute_id"#,
        order,
    )
    .fetch_all(connection)
    .await
}
