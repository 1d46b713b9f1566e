//! Refunds that we ask for: how much may go back, what is sent, what came of it.

use counterfoil_payments::{Currency, Money, PaymentKey, Provider, RefundStatus};
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::moneyback;
use crate::refunds::{self, News, Refund};
use crate::stored::parsed;

/// A refund that we ask for.
#[derive(Debug, Clone)]
pub struct NewRefund {
    /// Our id for it.
    pub id: Uuid,
    /// Whose money.
    pub order_id: Uuid,
    /// Which payment; `None` for the one that paid the order.
    pub payment: Option<PaymentName>,
    /// How much; `None` for all that is left of it.
    pub amount_minor: Option<i64>,
    /// Who asks: `api`, `extra`, `late`, `mismatch`, `sold_out`.
    pub origin: &'static str,
    /// Why, in the words of whoever asks.
    pub reason: Option<String>,
    /// The key under which the provider is asked, the same on every attempt.
    pub provider_key: String,
    /// The caller's idempotency key, scope first.
    pub made_by: Option<(String, String)>,
}

/// How somebody names a payment of an order: its id, and what tells it from another of the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentName {
    /// The provider's id.
    pub payment_id: String,
    /// Whose id; `None` where the caller does not say.
    pub provider: Option<Provider>,
    /// The connected account; `None` where the caller does not say.
    pub account: Option<String>,
}

impl From<&PaymentKey> for PaymentName {
    fn from(key: &PaymentKey) -> Self {
        Self { payment_id: key.payment_id.clone(), provider: Some(key.provider), account: Some(key.account.clone()) }
    }
}

/// Why a refund was not made.
#[derive(Debug, thiserror::Error)]
pub enum RefundRefused {
    /// No such order.
    #[error("no order has this id")]
    NoOrder,
    /// Nothing was captured that could go back.
    #[error("nothing can go back: the order is not paid, or has no captured payment of this id; name a payment that is held or extra by payment_id")]
    NoPayment,
    /// Two payments have this id.
    #[error(
        "more than one payment has this id: name its provider and account, too; if these are one payment told of twice, nothing can be sent back before a person has looked"
    )]
    Ambiguous,
    /// The bank has the money, and decides.
    #[error("the payment is disputed: the bank has taken the money, and a refund would pay it back twice")]
    Disputed,
    /// Its provider cannot be asked for it.
    #[error("{0} has no API to ask for a refund: make it there, and its webhook will be recorded")]
    NoApi(String),
    /// The caller's key made another refund before.
    #[error("this Idempotency-Key made another refund before: take a new key")]
    KeyUsed,
    /// More than is left.
    #[error("{asked} is more than the {left} minor units that can still be refunded of this payment")]
    TooMuch {
        /// What was asked for.
        asked: i64,
        /// What is left.
        left: i64,
    },
    /// The database failed.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

struct Refundable {
    provider: String,
    account: String,
    payment_id: String,
    currency: String,
    left: i64,
    disputed: bool,
    /// Payments that the name fits, and payments anywhere that have the same id under another account.
    alike: i64,
}

impl Refundable {
    fn key(&self) -> sqlx::Result<PaymentKey> {
        Ok(PaymentKey { provider: parsed(&self.provider)?, account: self.account.clone(), payment_id: self.payment_id.clone() })
    }
}

/// What can still go back of a payment, in its own currency: captured, less what went back or is about to, less what the bank
/// has taken. Of money that never paid the order only, when `unallocated`: whatever goes back takes from that first.
async fn refundable(tx: &mut PgTransaction<'_>, order: Uuid, payment: Option<&PaymentName>, unallocated: bool) -> sqlx::Result<Option<Refundable>> {
    sqlx::query_as!(
        Refundable,
        r#"SELECT p.provider, p.account, p.payment_id, p.currency AS "currency!",
            LEAST(p.amount_minor - m.back - m.away, CASE WHEN $5 THEN p.amount_minor - p.tip_minor - p.settled_minor - m.back - m.lost ELSE p.amount_minor END)::bigint AS "left!",
            EXISTS (SELECT FROM disputes d WHERE d.provider = p.provider AND d.account = p.account AND d.payment_id = p.payment_id AND d.status = 'opened') AS "disputed!",
            count(*) OVER () + (SELECT count(*) FROM payments x WHERE x.payment_id = p.payment_id AND x.provider = p.provider AND x.account <> p.account
                AND x.status = 'captured' AND (x.account = '' OR p.account = '')) AS "alike!"
        FROM orders o JOIN payments p ON p.order_id = o.id CROSS JOIN LATERAL (SELECT
            COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id
                AND r.currency = p.currency AND r.status <> 'failed'), 0) AS back,
            COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.provider = p.provider AND d.account = p.account AND d.payment_id = p.payment_id
                AND d.currency = p.currency AND d.status = 'lost'), 0) AS lost,
            COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.provider = p.provider AND d.account = p.account AND d.payment_id = p.payment_id
                AND d.currency = p.currency AND d.status IN ('opened', 'lost')), 0) AS away) m
        WHERE o.id = $1 AND p.status = 'captured' AND CASE WHEN $2::text IS NULL
            THEN p.provider = o.paid_provider AND p.account = o.paid_account AND p.payment_id = o.paid_payment_id
            ELSE p.payment_id = $2 AND p.provider = COALESCE($3, p.provider) AND p.account = COALESCE($4, p.account) END
        LIMIT 1"#,
        order,
        payment.map(|payment| payment.payment_id.as_str()),
        payment.and_then(|payment| payment.provider).map(Provider::name),
        payment.and_then(|payment| payment.account.as_deref()),
        unallocated,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Why no money of an order may be sent back automatically, in words; `None` when nothing speaks against it: a dispute of any
/// of its payments that is open or lost, an inquiry, a refund that failed and has no answer, one under way that a person
/// or the provider began, or, for a second payment, one of the first. Our own automatic refunds of other payments are no doubt. `refund` itself is left out.
///
/// # Errors
/// When the database fails.
pub async fn doubt_about(connection: &mut PgConnection, order: Uuid, refund: Uuid) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!(
        r#"SELECT why AS "why!" FROM (
            SELECT 1 AS nth, 'the payment ' || payment_id || ' has a dispute: ' || status AS why FROM disputes WHERE order_id = $1 AND status IN ('inquiry', 'opened', 'lost')
            UNION ALL
            SELECT 2, 'a refund of ' || payment_id || ' failed' FROM refunds WHERE order_id = $1 AND id <> $2 AND status = 'failed' AND NOT answered
            UNION ALL
            SELECT 3, 'a refund of ' || payment_id || ' is under way' FROM refunds
                WHERE order_id = $1 AND id <> $2 AND status IN ('requested', 'pending') AND origin IN ('api', 'provider')
            UNION ALL
            SELECT 4, 'the payment that paid the order went back itself' FROM refunds r JOIN payments p ON p.provider = r.provider AND p.account = r.account AND p.payment_id = r.payment_id
                WHERE r.order_id = $1 AND r.id <> $2 AND r.status = 'succeeded' AND r.origin IN ('api', 'provider') AND p.disposition = 'settled'
                    AND EXISTS (SELECT FROM refunds m WHERE m.id = $2 AND m.origin = 'extra')
            UNION ALL
            SELECT 5, 'another order claims ' || payment_id FROM payments WHERE order_id = $1 AND contested) doubts ORDER BY nth LIMIT 1"#,
        order,
        refund,
    )
    .fetch_optional(connection)
    .await
}

/// Whether a refund is made by a policy, and takes only what never paid the order.
fn takes_unallocated(origin: &str) -> bool {
    matches!(origin, "extra" | "late" | "mismatch")
}

/// Asks for a refund: its row, and `refund.requested` where the API asks. A refund of the same id or key is made once; the
/// same call again gets the first one's row, another call is refused.
///
/// # Errors
/// Why it is not made.
pub async fn request_refund(tx: &mut PgTransaction<'_>, new: &NewRefund, trace: Option<&str>) -> Result<Refund, RefundRefused> {
    let locked = sqlx::query_scalar!("SELECT id FROM orders WHERE id = $1 FOR NO KEY UPDATE", new.order_id).fetch_optional(&mut **tx).await?;
    locked.ok_or(RefundRefused::NoOrder)?;
    let (scope, key) = new.made_by.clone().unzip();
    let made = sqlx::query_scalar!("SELECT id FROM refunds WHERE id = $1 OR (made_by_scope = $2 AND made_by_key = $3)", new.id, scope, key);
    if let Some(made) = made.fetch_optional(&mut **tx).await? {
        let made = refunds::find(&mut *tx, made).await?.ok_or(RefundRefused::Database(sqlx::Error::RowNotFound))?;
        let same = made.order_id == new.order_id
            && new.amount_minor.is_none_or(|amount| amount == made.amount_minor)
            && new.payment.as_ref().is_none_or(|payment| {
                payment.payment_id == made.payment_id
                    && payment.provider.is_none_or(|provider| provider.name() == made.provider)
                    && payment.account.as_ref().is_none_or(|account| *account == made.account)
            });
        return if same { Ok(made) } else { Err(RefundRefused::KeyUsed) };
    }
    let payment = refundable(tx, new.order_id, new.payment.as_ref(), takes_unallocated(new.origin)).await?.ok_or(RefundRefused::NoPayment)?;
    if payment.alike > 1 {
        return Err(RefundRefused::Ambiguous);
    }
    if payment.provider == Provider::Standard.name() {
        return Err(RefundRefused::NoApi(payment.provider));
    }
    if payment.disputed {
        return Err(RefundRefused::Disputed);
    }
    let asked = new.amount_minor.unwrap_or(payment.left);
    if asked > payment.left || asked <= 0 {
        return Err(RefundRefused::TooMuch { asked, left: payment.left.max(0) });
    }
    let currency: Currency = parsed(&payment.currency)?;
    refunds::answer_failed(tx, &payment.key()?, &Money::new(asked, currency)).await?;
    sqlx::query!(
        "INSERT INTO refunds (id, order_id, provider, account, payment_id, origin, status, amount_minor, currency, reason, provider_key, made_by_scope, made_by_key)
         VALUES ($1, $2, $3, $4, $5, $6, 'requested', $7, $8, $9, $10, $11, $12)",
        new.id,
        new.order_id,
        payment.provider,
        payment.account,
        payment.payment_id,
        new.origin,
        asked,
        payment.currency,
        new.reason,
        new.provider_key,
        scope,
        key,
    )
    .execute(&mut **tx)
    .await?;
    if new.origin == "api" {
        refunds::announce(tx, new.id, RefundStatus::Requested, trace).await?; // the automatic one is in the refunds consumer's hands already
    }
    refunds::find(&mut *tx, new.id).await?.ok_or(RefundRefused::Database(sqlx::Error::RowNotFound))
}

/// Whether a refund may be sent now.
#[derive(Debug)]
pub enum Sending {
    /// It may: the call is counted, and committed before it is made.
    Send {
        /// The refund.
        refund: Refund,
        /// Seconds since the first call; `None` when this is the first.
        since_first_call_s: Option<i64>,
    },
    /// It is decided already.
    Decided(Refund),
    /// It waits, and why.
    Held(String),
    /// Others sent the money back, or the bank took it: nothing is left for it.
    NothingLeft(Refund),
}

/// Begins a call to the provider: looks once more, under the order's lock, whether the money is still ours to send back.
///
/// # Errors
/// When the database fails.
pub async fn begin_call(tx: &mut PgTransaction<'_>, id: Uuid) -> sqlx::Result<Sending> {
    let refund = refunds::find(&mut *tx, id).await?.ok_or(sqlx::Error::RowNotFound)?;
    sqlx::query!("SELECT id FROM orders WHERE id = $1 FOR NO KEY UPDATE", refund.order_id).fetch_all(&mut **tx).await?;
    let refund = refunds::find(&mut *tx, id).await?.ok_or(sqlx::Error::RowNotFound)?;
    if refund.status != RefundStatus::Requested.name() {
        return Ok(Sending::Decided(refund));
    }
    let room = refundable(tx, refund.order_id, Some(&PaymentName::from(&refund.payment()?)), takes_unallocated(&refund.origin)).await?;
    if refund.origin != "api"
        && let Some(why) = doubt_about(&mut *tx, refund.order_id, id).await?
    {
        hold_refund(&mut *tx, id, &why).await?;
        return Ok(Sending::Held(why));
    }
    match room {
        Some(room) if room.disputed => {
            let why = "the payment is disputed: the bank has taken the money".to_owned();
            hold_refund(&mut *tx, id, &why).await?;
            return Ok(Sending::Held(why));
        }
        Some(room) if room.left >= 0 => {} // what is left counts this refund as gone
        Some(_) | None => return Ok(Sending::NothingLeft(refund)),
    }
    let since_first_call_s = sqlx::query_scalar!(
        r#"UPDATE refunds SET calls = calls + 1, first_called_at = COALESCE(first_called_at, now()), held_reason = NULL, updated_at = now()
        WHERE id = $1 RETURNING CASE WHEN calls > 1 THEN extract(epoch FROM now() - first_called_at)::bigint END AS since"#,
        id,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(Sending::Send { refund, since_first_call_s })
}

/// Writes why a refund waits for a person.
///
/// # Errors
/// When the database fails.
pub async fn hold_refund(connection: &mut PgConnection, id: Uuid, reason: &str) -> sqlx::Result<()> {
    sqlx::query!("UPDATE refunds SET held_reason = $2, updated_at = now() WHERE id = $1 AND status = 'requested'", id, reason).execute(connection).await?;
    Ok(())
}

/// Writes why the money of a payment that was put aside is not sent back.
///
/// # Errors
/// When the database fails.
pub async fn hold_payment(connection: &mut PgConnection, payment: &PaymentKey, reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE payments SET hold_note = $4 WHERE provider = $1 AND account = $2 AND payment_id = $3 AND hold_note IS DISTINCT FROM $4",
        payment.provider.name(),
        payment.account,
        payment.payment_id,
        reason,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Records the provider's answer to our call, as its webhook would.
///
/// # Errors
/// When the database fails.
pub async fn refund_answered(tx: &mut PgTransaction<'_>, refund: &Refund, refund_id: &str, status: RefundStatus, trace: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!("SELECT id FROM orders WHERE id = $1 FOR NO KEY UPDATE", refund.order_id).fetch_all(&mut **tx).await?;
    let payment = refund.payment()?;
    let Some(known) = moneyback::captured(tx, &payment).await? else { return Ok(()) };
    let currency: Currency = parsed(&refund.currency)?;
    let news = News { payment: &payment, refund_id, status, money: Money::new(refund.amount_minor, currency), ours: Some(refund.id), may_be_release: false };
    refunds::learn(tx, &known, &news, trace).await?;
    Ok(())
}

/// Records that the provider refuses a refund: `refund.failed`. One that it has taken on is left to its webhook.
///
/// # Errors
/// When the database fails.
pub async fn refund_refused(tx: &mut PgTransaction<'_>, refund: &Refund, why: &str, trace: Option<&str>) -> sqlx::Result<()> {
    sqlx::query!("SELECT id FROM orders WHERE id = $1 FOR NO KEY UPDATE", refund.order_id).fetch_all(&mut **tx).await?;
    let failed = sqlx::query!(
        "UPDATE refunds SET status = 'failed', last_error = $2, held_reason = NULL, updated_at = now() WHERE id = $1 AND status = 'requested'",
        refund.id,
        why
    );
    if failed.execute(&mut **tx).await?.rows_affected() == 1 {
        refunds::announce(tx, refund.id, RefundStatus::Requested, trace).await?;
    }
    Ok(())
}
