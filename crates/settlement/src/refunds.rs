//! `refunds`: money that goes back, one row for each refund, whoever asked for it.
//!
//! A refund's identity is the provider's refund id. One that we ask for has a row before the provider has an id for it; the
//! mark that travels with our call brings the provider's own event back to that row, and the answer to the call does so, too.
//! All of it happens under the order's lock, so that refunds can never come to more than was captured, whoever asks at once.

use counterfoil_outbox::{NewEvent, append};
use counterfoil_payments::{Books, Money, PaymentKey, RefundStatus, Topic, event};
use serde_json::json;
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::moneyback::Captured;
use crate::statement::headers;
use crate::stored::parsed;
use crate::{orders, paying, positions};

/// What a provider says of a refund.
#[derive(Debug)]
pub(crate) struct News<'a> {
    pub(crate) payment: &'a PaymentKey,
    pub(crate) refund_id: &'a str,
    pub(crate) status: RefundStatus,
    pub(crate) money: Money,
    pub(crate) ours: Option<Uuid>,
    pub(crate) may_be_release: bool,
}

/// A refund as it is stored.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Refund {
    /// Our id.
    pub id: Uuid,
    /// The order.
    pub order_id: Uuid,
    /// Who has the money.
    pub provider: String,
    /// The connected account, or empty.
    pub account: String,
    /// Which payment's money.
    pub payment_id: String,
    /// The provider's id, once it is known.
    pub provider_refund_id: Option<String>,
    /// Who asked for it.
    pub origin: String,
    /// Where it stands.
    pub status: String,
    /// Minor units.
    pub amount_minor: i64,
    /// Their currency.
    pub currency: String,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
    /// The key under which the provider is asked.
    pub provider_key: String,
    /// Calls to the provider so far.
    pub calls: i32,
    /// Why it waits for a person.
    pub held_reason: Option<String>,
    /// Whether it is in another currency than its payment: it is not booked, and waits for a person.
    pub foreign_currency: bool,
    /// What its last call met; for on-call, not for the shop.
    #[serde(skip)]
    pub last_error: Option<String>,
    /// When it was asked for, RFC 3339.
    pub created_at: String,
}

impl Refund {
    fn payload(&self, before: &str, restated: &orders::Restated, books: Option<&Books>) -> serde_json::Value {
        let mut payload = json!({
            "order_id": self.order_id, "version": restated.version, "order_status": restated.status,
            "refund": { "id": self.id, "provider_refund_id": self.provider_refund_id, "origin": self.origin, "status": self.status, "before": before,
                "amount_minor": self.amount_minor, "currency": self.currency, "reason": self.reason },
            "payment": { "provider": self.provider, "account": self.account, "payment_id": self.payment_id },
            "reference": restated.reference, "customer": restated.customer(),
        });
        if let Some(books) = books {
            payload["books"] = json!(books);
        }
        payload
    }

    /// Its payment.
    ///
    /// # Errors
    /// When the row names a provider that this release does not know.
    pub fn payment(&self) -> sqlx::Result<PaymentKey> {
        let provider = parsed(&self.provider)?;
        Ok(PaymentKey { provider, account: self.account.clone(), payment_id: self.payment_id.clone() })
    }
}

/// Records what a provider says of a refund. `false` when we knew as much.
pub(crate) async fn learn(tx: &mut PgTransaction<'_>, known: &Captured, news: &News<'_>, trace: Option<&str>) -> sqlx::Result<bool> {
    let taken_back = match release(tx, news).await? {
        Release::Is { new } => return Ok(new),
        Release::WasTaken => true,
        Release::No => false,
    };
    let rows = matching(tx, news).await?;
    let heard_of = rows.iter().any(|row| row.provider_refund_id.is_some());
    let before = rows.iter().filter_map(Row::status).max_by_key(|status| status.rank()).unwrap_or(RefundStatus::Requested);
    // What had been taken for a release succeeded.
    let after = before.after(if taken_back { RefundStatus::Succeeded.after(news.status) } else { news.status });
    let id = match rows.as_slice() {
        [] => insert_foreign(tx, known, news).await?,
        [one] => one.id,
        // The event came without our mark before the answer to our call: two rows for one refund, of which ours stays.
        [..] => merge(tx, &rows).await?,
    };
    update(tx, id, news.refund_id, after).await?;
    if rows.is_empty() || after != before {
        announce(tx, id, if rows.is_empty() { RefundStatus::Requested } else { before }, trace).await?;
        if taken_back {
            find_release(tx, news.payment, trace).await?;
        }
        return Ok(true);
    }
    positions::advance(tx, news.payment).await?; // what is explained of the provider's sum may have grown
    Ok(!heard_of)
}

/// What a refund is to its payment's release: what had been authorised and was not captured.
enum Release {
    /// It is but the provider's word for it. `new` when it is heard for the first time.
    Is { new: bool },
    /// It had been taken for it, and is a refund.
    WasTaken,
    /// It is a refund.
    No,
}

/// Whether a refund is but the provider's word for the release of what was authorised and not captured: as much as that, without
/// our mark, done at once, and the only one of its payment. Of two equal ones either stands for it; one that turns out pending or
/// failed was none.
async fn release(tx: &mut PgTransaction<'_>, news: &News<'_>) -> sqlx::Result<Release> {
    let key = news.payment;
    let may_be = news.may_be_release && news.status == RefundStatus::Succeeded;
    let row = sqlx::query!(
        r#"WITH old AS (SELECT release_refund_id FROM payments WHERE provider = $1 AND account = $2 AND payment_id = $3)
        UPDATE payments p SET release_refund_id = CASE WHEN $6 THEN $4 END FROM old
        WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3 AND p.currency = $7 AND CASE WHEN $6
            THEN p.released_minor = $5 AND $5 > 0 AND COALESCE(p.release_refund_id, $4) = $4
                AND NOT EXISTS (SELECT FROM refunds r WHERE r.provider = $1 AND r.account = $2 AND r.provider_refund_id = $4)
            ELSE p.release_refund_id = $4 END
        RETURNING old.release_refund_id IS NULL AS "new!""#,
        key.provider.name(),
        key.account,
        key.payment_id,
        news.refund_id,
        news.money.amount_minor,
        may_be,
        news.money.currency.code(),
    );
    Ok(match row.fetch_optional(&mut **tx).await? {
        Some(row) if may_be => Release::Is { new: row.new },
        Some(_) => Release::WasTaken,
        None => Release::No,
    })
}

/// Finds the release among the refunds that were heard of before it was known how much was not captured. That one never
/// happened: it is said to have failed, and waits for nobody.
pub(crate) async fn find_release(tx: &mut PgTransaction<'_>, payment: &PaymentKey, trace: Option<&str>) -> sqlx::Result<()> {
    let found = sqlx::query_scalar!(
        r#"WITH release AS (
            SELECT r.id, r.provider_refund_id FROM payments p JOIN refunds r ON r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id
            WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3 AND p.released_minor > 0 AND p.release_refund_id IS NULL
                AND r.may_be_release AND r.status = 'succeeded' AND r.amount_minor = p.released_minor AND r.currency = p.currency
            ORDER BY r.created_at, r.id LIMIT 1
        ), taken AS (
            UPDATE payments p SET release_refund_id = f.provider_refund_id FROM release f WHERE p.provider = $1 AND p.account = $2 AND p.payment_id = $3
        )
        UPDATE refunds r SET status = 'failed', answered = true, updated_at = now(), last_error = 'no money went back: it was authorised and not captured'
        FROM release f WHERE r.id = f.id RETURNING r.id"#,
        payment.provider.name(),
        payment.account,
        payment.payment_id,
    );
    if let Some(id) = found.fetch_optional(&mut **tx).await? {
        announce(tx, id, RefundStatus::Succeeded, trace).await?;
    }
    Ok(())
}

struct Row {
    id: Uuid,
    status: String,
    provider_refund_id: Option<String>,
}

impl Row {
    /// Where it stands at its provider. One that we gave up without knowing it there has not begun, as far as we know.
    fn status(&self) -> Option<RefundStatus> {
        match RefundStatus::read(&self.status) {
            Some(RefundStatus::Failed) if self.provider_refund_id.is_none() => Some(RefundStatus::Requested),
            status => status,
        }
    }
}

/// The rows that may be this refund: by the provider's id, or ours by its mark. Ours first.
async fn matching(tx: &mut PgTransaction<'_>, news: &News<'_>) -> sqlx::Result<Vec<Row>> {
    sqlx::query_as!(
        Row,
        "SELECT id, status, provider_refund_id FROM refunds
         WHERE provider = $1 AND account = $2 AND payment_id = $5
           AND (provider_refund_id = $3 OR (id = $4 AND (provider_refund_id IS NULL OR provider_refund_id = $3)))
         ORDER BY (origin = 'provider'), id FOR UPDATE",
        news.payment.provider.name(),
        news.payment.account,
        news.refund_id,
        news.ours,
        news.payment.payment_id,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A refund that somebody made at the provider: a fact, whatever we think can still be refunded.
async fn insert_foreign(tx: &mut PgTransaction<'_>, known: &Captured, news: &News<'_>) -> sqlx::Result<Uuid> {
    let key = news.payment;
    let what = format!("{}:{}:{}", key.provider, key.account, news.refund_id);
    answer_failed(tx, key, &news.money).await?;
    sqlx::query_scalar!(
        "INSERT INTO refunds (id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, foreign_currency, provider_key, may_be_release)
         VALUES ($1, $2, $3, $4, $5, $6, 'provider', 'requested', $7, $8, $9, $10, $11) RETURNING id",
        event::derived_refund(&what),
        known.order_id,
        key.provider.name(),
        key.account,
        key.payment_id,
        news.refund_id,
        news.money.amount_minor,
        news.money.currency.code(),
        known.currency != news.money.currency.code(),
        format!("provider:{what}"),
        news.may_be_release,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A refund that is made or asked for stands for failed ones of the same payment that wanted as much or less.
pub(crate) async fn answer_failed(tx: &mut PgTransaction<'_>, payment: &PaymentKey, money: &Money) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE refunds SET answered = true WHERE provider = $1 AND account = $2 AND payment_id = $3 AND status = 'failed' AND NOT answered
            AND amount_minor <= $4 AND currency = $5",
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        money.amount_minor,
        money.currency.code(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn merge(tx: &mut PgTransaction<'_>, rows: &[Row]) -> sqlx::Result<Uuid> {
    let others: Vec<Uuid> = rows[1..].iter().map(|row| row.id).collect();
    sqlx::query!("DELETE FROM refunds WHERE id = ANY ($1)", &others).execute(&mut **tx).await?;
    Ok(rows[0].id)
}

async fn update(tx: &mut PgTransaction<'_>, id: Uuid, refund_id: &str, status: RefundStatus) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE refunds SET provider_refund_id = $2, status = $3, held_reason = NULL, last_error = NULL, updated_at = now()
         WHERE id = $1 AND (provider_refund_id IS DISTINCT FROM $2 OR status <> $3)",
        id,
        refund_id,
        status.name(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Says what a refund became: `order.refunded`, or `refund.failed`.
pub(crate) async fn announce(tx: &mut PgTransaction<'_>, id: Uuid, before: RefundStatus, trace: Option<&str>) -> sqlx::Result<()> {
    let Some(refund) = find(&mut *tx, id).await? else { return Ok(()) };
    let payment = refund.payment()?;
    let books = positions::advance(tx, &payment).await?;
    let restated = orders::restate(tx, refund.order_id).await?;
    let provider = payment.provider;
    let (event_id, topic) = match (RefundStatus::read(&refund.status), &refund.provider_refund_id) {
        (Some(RefundStatus::Requested), _) => (event::refund_requested(id), Topic::RefundRequested),
        (Some(status @ (RefundStatus::Pending | RefundStatus::Succeeded)), Some(theirs)) => {
            (event::order_refunded(provider, theirs, status), Topic::OrderRefunded)
        }
        (_, theirs) => (event::refund_failed(id, theirs.as_deref()), Topic::RefundFailed),
    };
    let said = (topic != Topic::RefundRequested && currency_fits(&refund, &books)).then_some(&books);
    let (order_id, version, payload) = (refund.order_id, restated.version, refund.payload(before.name(), &restated, said));
    positions::announce(tx, &NewEvent { event_id, topic: topic.name(), order_id, version, payload, headers: headers(trace) }, Some(&books)).await?;
    if topic == Topic::RefundFailed {
        paying::pay_if_it_fits(tx, order_id, trace).await?; // what had been captured for it is here after all
    }
    Ok(())
}

/// Whether a refund moves its payment's money; one in another currency waits for a person.
fn currency_fits(refund: &Refund, books: &Books) -> bool {
    refund.currency == books.currency.code()
}

/// Asks the refunds consumer for a refund once more, by another event.
pub(crate) async fn ask_again(tx: &mut PgTransaction<'_>, id: Uuid, nth: i32) -> sqlx::Result<()> {
    let Some(refund) = find(&mut *tx, id).await? else { return Ok(()) };
    let restated = orders::restate(tx, refund.order_id).await?;
    let event_id = event::event_id(&format!("refund.requested:{id}:{nth}"));
    let (order_id, version, payload) = (refund.order_id, restated.version, refund.payload(RefundStatus::Requested.name(), &restated, None));
    append(tx, &NewEvent { event_id, topic: Topic::RefundRequested.name(), order_id, version, payload, headers: headers(None) }).await?;
    Ok(())
}

/// A provider's cumulative figure: kept, and compared by housekeeping with what we know. It changes no order and no books.
pub(crate) async fn report(tx: &mut PgTransaction<'_>, payment: &PaymentKey, total: &Money) -> sqlx::Result<bool> {
    let done = sqlx::query!(
        "UPDATE payments SET refunds_reported_minor = $4, updated_at = now()
         WHERE provider = $1 AND account = $2 AND payment_id = $3 AND currency = $5 AND refunds_reported_minor < $4",
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        total.amount_minor,
        total.currency.code(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Finds a refund by our id.
///
/// # Errors
/// When the database fails.
pub async fn find(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Refund>> {
    sqlx::query_as!(
        Refund,
        r#"SELECT id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, reason, provider_key, calls,
            held_reason, foreign_currency, last_error, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!" FROM refunds WHERE id = $1"#,
        id,
    )
    .fetch_optional(connection)
    .await
}

/// The refunds of an order, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn refunds_of(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Vec<Refund>> {
    sqlx::query_as!(
        Refund,
        r#"SELECT id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, reason, provider_key, calls,
            held_reason, foreign_currency, last_error, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS "created_at!" FROM refunds WHERE order_id = $1 ORDER BY created_at, id"#,
        order,
    )
    .fetch_all(connection)
    .await
}
