//! Events that touch no order: ignored, deferred, unreadable, waiting, failed; and reading them back.

use counterfoil_payments::{Fact, Money, PaymentKey};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::delivery::{Delivery, Outcome, Verdict};
use crate::rounds::Item;
use crate::statement::joined;
use crate::stored::parsed;

/// Why an event that touches no order is stored.
pub(crate) struct Note<'a> {
    pub(crate) outcome: Outcome,
    pub(crate) reason: Option<&'a str>,
    pub(crate) waits_for: Option<String>,
}

/// The money of a capture that names no order of ours.
fn unplaced((item, note): &(&Item<'_>, Note<'_>)) -> Option<Money> {
    item.delivery.fact.captured().filter(|money| note.outcome == Outcome::Ignored && money.amount_minor > 0)
}

/// Stores events as they are, or counts one more delivery of them; one statement for all.
/// A copy of a stored event leaves its outcome as it is, except that one that waits, failed or was deferred is driven again.
pub(crate) async fn store(tx: &mut PgTransaction<'_>, items: &[(&Item<'_>, Note<'_>)]) -> sqlx::Result<Vec<Verdict>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let column = |read: &dyn Fn(&Delivery) -> String| items.iter().map(|(item, _)| read(item.delivery)).collect::<Vec<_>>();
    let provider_event_ids: Vec<Option<String>> = items.iter().map(|(item, _)| item.delivery.provider_event_id.clone()).collect();
    let bodies: Vec<Vec<u8>> = items.iter().map(|(item, _)| item.delivery.body.clone()).collect();
    let positions: Vec<i32> = items.iter().map(|(item, _)| item.delivery.secret_position).collect();
    let deliveries: Vec<i64> = items.iter().map(|(item, _)| item.deliveries).collect();
    let differing: Vec<Option<Vec<u8>>> = items.iter().map(|(item, _)| item.differing.map(<[u8]>::to_vec)).collect();
    let outcomes: Vec<String> = items.iter().map(|(_, note)| note.outcome.name().to_owned()).collect();
    let reasons: Vec<Option<String>> = items.iter().map(|(_, note)| note.reason.map(str::to_owned)).collect();
    let waits: Vec<Option<String>> = items.iter().map(|(_, note)| note.waits_for.clone()).collect();
    let facts: Vec<Option<serde_json::Value>> =
        items.iter().map(|entry| (entry.1.waits_for.is_some() || unplaced(entry).is_some()).then(|| stored_fact(entry.0.delivery))).collect();
    let (unplaced_minor, unplaced_currency): (Vec<Option<i64>>, Vec<Option<String>>) =
        items.iter().map(|entry| unplaced(entry).map(|money| (money.amount_minor, money.currency.to_string())).unzip()).unzip();
    let meanings: Vec<Uuid> = items.iter().map(|(item, _)| item.delivery.fact.meaning()).collect();
    let changed: Vec<bool> = items.iter().map(|(item, _)| item.changed).collect();
    let ids: Vec<Option<String>> = items.iter().map(|(item, _)| joined(&item.delivery.ids)).collect();
    let made_at: Vec<Option<i64>> = items.iter().map(|(item, _)| item.delivery.made_at).collect();
    let late: Vec<bool> = items.iter().map(|(item, _)| item.delivery.late).collect();
    let (payment_accounts, payment_ids): (Vec<_>, Vec<_>) =
        items.iter().map(|(item, _)| item.delivery.fact.payment().map(|key| (key.account.clone(), key.payment_id.clone())).unzip()).unzip();
    let rows = sqlx::query!(
        r#"WITH input AS (
            SELECT *, CASE WHEN late THEN deliveries ELSE 0 END AS late_deliveries FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[],
                $6::bytea[], $7::integer[], $8::bigint[], $9::bytea[], $10::text[], $11::text[], $12::text[], $13::jsonb[], $14::bigint[], $15::boolean[], $16::text[], $17::text[],
                $18::uuid[], $19::boolean[], $20::text[], $21::bigint[], $22::text[])
                WITH ORDINALITY
            AS i (provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries, differing_body, outcome, reason, waits_for, fact,
                made_at, late, payment_account, payment_id, meaning, changed, ids, unplaced_minor, unplaced_currency, n)
        ), stored AS (
            INSERT INTO webhook_events AS w (provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
                outcome, reason, waits_for, fact, processed_at, processed_in, differing, differing_body, made_at, late_deliveries,
                payment_account, payment_id, meaning, changed, ids, unplaced_minor, unplaced_currency)
            SELECT provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
                outcome, reason, waits_for, fact, CASE WHEN waits_for IS NULL THEN now() END, pg_current_xact_id(), (differing_body IS NOT NULL)::integer,
                differing_body, to_timestamp(made_at::float8), late_deliveries, payment_account, payment_id,
                meaning, changed::integer, string_to_array(ids, E'\x1f'), unplaced_minor, unplaced_currency
            FROM input ORDER BY provider, account, event_id
            ON CONFLICT (provider, account, event_id) DO UPDATE SET
                deliveries = w.deliveries + excluded.deliveries,
                late_deliveries = w.late_deliveries + excluded.late_deliveries,
                payment_account = COALESCE(w.payment_account, excluded.payment_account),
                payment_id = COALESCE(w.payment_id, excluded.payment_id),
                differing = w.differing + (excluded.deliveries > 0 AND w.body <> excluded.body)::integer + excluded.differing,
                changed = w.changed + excluded.changed + (excluded.deliveries > 0 AND w.meaning <> excluded.meaning AND w.body <> excluded.body)::integer,
                differing_body = CASE WHEN w.changed > 0 THEN w.differing_body
                    WHEN excluded.deliveries > 0 AND w.meaning IS DISTINCT FROM excluded.meaning AND w.body <> excluded.body THEN excluded.body
                    WHEN excluded.changed > 0 THEN excluded.differing_body
                    WHEN excluded.deliveries > 0 AND w.body <> excluded.body THEN excluded.body ELSE COALESCE(excluded.differing_body, w.differing_body) END,
                (outcome, reason, waits_for, fact, processed_at, processed_in, unplaced_minor, unplaced_currency) = (SELECT excluded.outcome, excluded.reason,
                        excluded.waits_for, COALESCE(excluded.fact, w.fact), excluded.processed_at, excluded.processed_in, excluded.unplaced_minor, excluded.unplaced_currency
                    WHERE w.outcome IN ('waiting', 'failed', 'deferred') AND w.outcome <> excluded.outcome AND (excluded.deliveries = 0 OR w.body = excluded.body)
                    UNION ALL SELECT w.outcome, w.reason, w.waits_for, w.fact, w.processed_at, w.processed_in, w.unplaced_minor, w.unplaced_currency LIMIT 1)
            RETURNING provider, account, event_id, outcome, w.processed_in IS NOT DISTINCT FROM pg_current_xact_id() AS fresh, w.body
        )
        SELECT s.outcome, s.fresh AS "fresh!", (i.deliveries > 0 AND s.body <> i.body OR i.differing_body IS NOT NULL) AS "differs!"
        FROM input i JOIN stored s USING (provider, account, event_id) ORDER BY i.n"#,
        &column(&|d| d.provider.name().to_owned()), &column(&|d| d.account.clone()), &column(&|d| d.event_id.clone()),
        &provider_event_ids as &[Option<String>], &column(&|d| d.event_type.clone()), &bodies, &positions, &deliveries, &differing as &[Option<Vec<u8>>],
        &outcomes, &reasons as &[Option<String>], &waits as &[Option<String>], &facts as &[Option<serde_json::Value>],
        &made_at as &[Option<i64>], &late, &payment_accounts as &[Option<String>], &payment_ids as &[Option<String>],
        &meanings, &changed, &ids as &[Option<String>], &unplaced_minor as &[Option<i64>], &unplaced_currency as &[Option<String>],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.iter().map(|row| Verdict::stored(Outcome::read(&row.outcome), !row.fresh, row.differs)).collect())
}

/// Stores an event whose settling alone failed, bare, with the SQLSTATE, so that it can be driven again.
///
/// # Errors
/// When even that cannot be stored: the delivery must be refused.
pub async fn store_failed(tx: &mut PgTransaction<'_>, delivery: &Delivery, last_error: &str) -> sqlx::Result<Verdict> {
    let payment = delivery.fact.payment();
    let row = sqlx::query!(
        r#"INSERT INTO webhook_events AS w (provider, account, event_id, provider_event_id, event_type, body, secret_position, outcome, fact, last_error, payment_account, payment_id, meaning, ids)
           VALUES ($1, $2, $3, $4, $5, $6, $7, 'failed', $8, $9, $10, $11, $12, $13)
           ON CONFLICT (provider, account, event_id) DO UPDATE SET deliveries = w.deliveries + 1, last_error = excluded.last_error
           RETURNING outcome, xmax::text <> '0' AS "known!", body <> $6 AS "differs!""#,
        delivery.provider.name(),
        delivery.account,
        delivery.event_id,
        delivery.provider_event_id,
        delivery.event_type,
        delivery.body,
        delivery.secret_position,
        stored_fact(delivery),
        last_error,
        payment.map(|payment| payment.account.clone()),
        payment.map(|payment| payment.payment_id.clone()),
        delivery.fact.meaning(),
        (!delivery.ids.is_empty()).then_some(delivery.ids.as_slice()),
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(Verdict::stored(Outcome::read(&row.outcome), row.known, row.differs))
}

fn stored_fact(delivery: &Delivery) -> serde_json::Value {
    serde_json::json!({ "fact": delivery.fact, "traceparent": delivery.traceparent })
}

#[derive(serde::Deserialize)]
struct StoredFact {
    fact: Fact,
    traceparent: Option<String>,
}

/// A waiting event, in hand: its row is locked.
pub(crate) struct Waiting {
    pub(crate) provider: String,
    pub(crate) account: String,
    pub(crate) event_id: String,
    pub(crate) waits_for: String,
    event_type: String,
    provider_event_id: Option<String>,
    secret_position: i32,
    fact: serde_json::Value,
}

impl Waiting {
    /// The delivery to settle again. Its body is left in the table.
    pub(crate) fn delivery(&self) -> sqlx::Result<Delivery> {
        let stored: StoredFact = serde_json::from_value(self.fact.clone()).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Delivery {
            provider: parsed(&self.provider)?,
            account: self.account.clone(),
            event_id: self.event_id.clone(),
            provider_event_id: self.provider_event_id.clone(),
            event_type: self.event_type.clone(),
            body: Vec::new(),
            secret_position: self.secret_position,
            made_at: None, // stored already
            late: false,
            ids: Vec::new(),
            fact: stored.fact,
            traceparent: stored.traceparent,
        })
    }
}

/// Takes the events that wait for one of `names`, oldest first.
pub(crate) async fn take_waiting(tx: &mut PgTransaction<'_>, names: &[String]) -> sqlx::Result<Vec<Waiting>> {
    sqlx::query_as!(
        Waiting,
        r#"SELECT provider, account, event_id, provider_event_id, event_type, secret_position, waits_for AS "waits_for!", fact AS "fact!" FROM webhook_events
           WHERE outcome = 'waiting' AND waits_for = ANY ($1) ORDER BY received_at, event_id FOR UPDATE"#,
        names,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Takes what waits for this payment: refunds and disputes that came before its capture, and captures of it that named no
/// order. The latter count as deferred from now on, so that they are settled as if they had just come.
pub(crate) async fn take_awaiting(tx: &mut PgTransaction<'_>, payment: &PaymentKey) -> sqlx::Result<Vec<Waiting>> {
    sqlx::query_as!(
        Waiting,
        r#"WITH mine AS MATERIALIZED (
            SELECT provider, account, event_id FROM webhook_events WHERE (outcome = 'waiting' OR unplaced_minor IS NOT NULL) AND payment_id = $2 AND provider = $1
                AND ((outcome = 'waiting' AND waits_for LIKE 'payment:%') OR (unplaced_minor IS NOT NULL AND fact -> 'fact' ? 'payment'))
            ORDER BY received_at, event_id FOR UPDATE
        ), taken AS (
            UPDATE webhook_events w SET unplaced_minor = NULL, unplaced_currency = NULL, outcome = CASE WHEN w.unplaced_minor IS NULL THEN w.outcome ELSE 'deferred' END
            FROM mine m WHERE w.provider = m.provider AND w.account = m.account AND w.event_id = m.event_id
            RETURNING w.provider, w.account, w.event_id, w.provider_event_id, w.event_type, w.secret_position, w.waits_for, w.fact, w.received_at
        )
        SELECT provider, account, event_id, provider_event_id, event_type, secret_position, COALESCE(waits_for, '') AS "waits_for!", fact AS "fact!"
        FROM taken ORDER BY received_at, event_id"#,
        payment.provider.name(),
        payment.payment_id,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Payments that something waits for although they are known: both came in the same instant.
pub(crate) async fn awaited_payments(tx: &mut PgTransaction<'_>, limit: i64) -> sqlx::Result<Vec<PaymentKey>> {
    let rows = sqlx::query!(
        r#"SELECT DISTINCT w.provider, w.payment_account AS "account!", w.payment_id AS "payment_id!" FROM webhook_events w
        JOIN payments p ON p.payment_id = w.payment_id AND p.provider = w.provider AND (p.account = w.payment_account OR p.account = '' OR w.payment_account = '')
        WHERE (w.outcome = 'waiting' AND w.waits_for LIKE 'payment:%' AND p.status = 'captured' AND p.disposition <> 'none')
            OR (w.unplaced_minor IS NOT NULL AND w.fact -> 'fact' ? 'payment' AND w.received_at > now() - interval '1 hour') LIMIT $1"#,
        limit,
    );
    let rows = rows.fetch_all(&mut **tx).await?;
    rows.into_iter().map(|row| Ok(PaymentKey { provider: parsed(&row.provider)?, account: row.account, payment_id: row.payment_id })).collect()
}

/// Payments whose capture named no order, and came of this checkout.
pub(crate) async fn unplaced_of_checkout(tx: &mut PgTransaction<'_>, checkout: &PaymentKey) -> sqlx::Result<Vec<PaymentKey>> {
    let rows = sqlx::query!(
        r#"SELECT DISTINCT payment_account AS "account!", payment_id AS "payment_id!" FROM webhook_events
        WHERE ids @> ARRAY[$2::text] AND unplaced_minor IS NOT NULL AND provider = $1 AND fact #>> '{fact,payment,details,checkout}' = $2"#,
        checkout.provider.name(),
        checkout.payment_id,
    );
    let rows = rows.fetch_all(&mut **tx).await?;
    Ok(rows.into_iter().map(|row| PaymentKey { provider: checkout.provider, account: row.account, payment_id: row.payment_id }).collect())
}

/// Marks a stored event as failed: it waits for nothing any more, and a person looks at it.
pub(crate) async fn fail_stored(tx: &mut PgTransaction<'_>, provider: &str, account: &str, event_id: &str, last_error: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE webhook_events SET outcome = 'failed', waits_for = NULL, last_error = $4 WHERE provider = $1 AND account = $2 AND event_id = $3",
        provider,
        account,
        event_id,
        last_error,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Takes back an event that this transaction has stored as waiting: its rows carry its own `now()`.
pub(crate) async fn forget(tx: &mut PgTransaction<'_>, delivery: &Delivery) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM webhook_events WHERE provider = $1 AND account = $2 AND event_id = $3 AND outcome = 'waiting' AND received_at = now()",
        delivery.provider.name(),
        delivery.account,
        delivery.event_id,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
