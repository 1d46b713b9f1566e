//! Reads orders from their providers and settles what they say: by hand (`counterfoil reconcile`) and by housekeeping.

use std::time::Duration;

use anyhow::Context;
use counterfoil_payments::{Fact, OrderKey, PaymentKey};
use counterfoil_providers::Apis;
use counterfoil_providers::api::CallError;
use counterfoil_settlement::{Delivery, ReadPlan, Verdict, claim_due_reads, claim_read, find, lock_orders, plan_of, read_failed, settle};
use sqlx::PgPool;

use crate::print;

/// Pause between two calls to providers: a handful a second disturbs nobody's rate limit.
const CALL_PAUSE: Duration = Duration::from_millis(200);

/// What was asked for.
pub(crate) struct Asked {
    pub(crate) dry_run: bool,
    pub(crate) order: Option<String>,
    pub(crate) pending_for: Duration,
    pub(crate) limit: i64,
}

/// What one call brought to light.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) outcome: String,
    pub(crate) changed: bool,
}

/// Runs it by hand.
pub(crate) async fn run(pool: &PgPool, apis: &Apis, asked: Asked) -> anyhow::Result<()> {
    anyhow::ensure!(!apis.none(), "no provider has an API key: set COUNTERFOIL_STRIPE_API_KEY, _RAZORPAY_API_KEY or _SQUARE_API_KEY");
    let due = match &asked.order {
        Some(name) => vec![one(pool, name, asked.dry_run).await?],
        None => {
            let mut tx = pool.begin().await?;
            let due = claim_due_reads(&mut tx, seconds(asked.pending_for), asked.limit).await?;
            if asked.dry_run {
                tx.rollback().await?
            } else {
                tx.commit().await?
            }
            due
        }
    };
    let (mut orders, mut changes) = (0, 0);
    for (order, why) in due {
        let plan = plan_of(&mut *pool.acquire().await?, order, &why).await?;
        if plan.payments.is_empty() && plan.session.is_none() {
            print(format_args!(
                "{order}  {}: there is nothing to ask with, no open payment and no checkout session (POST /orders/{{id}}/session)\n",
                plan.why
            ))?;
            continue;
        }
        orders += 1;
        for finding in read_order(pool, apis, &plan, asked.dry_run).await? {
            changes += usize::from(finding.changed);
            print(format_args!("{order}  {}  {}: {}\n", plan.why, finding.what, finding.outcome))?;
        }
    }
    let verb = if asked.dry_run { "would change" } else { "changed" };
    print(format_args!("{orders} orders were asked about, {changes} facts {verb} something\n"))?;
    Ok(())
}

async fn one(pool: &PgPool, name: &str, dry_run: bool) -> anyhow::Result<(uuid::Uuid, String)> {
    let key = OrderKey::read(name).with_context(|| format!("{name:?} can name no order"))?;
    let mut connection = pool.acquire().await?;
    let order = find(&mut connection, &key).await?.with_context(|| format!("no order has the id or reference {name:?}"))?;
    if !dry_run {
        anyhow::ensure!(claim_read(&mut connection, order.id, 1).await?, "the order was read from its provider less than a second ago");
    }
    Ok((order.id, "asked for".into()))
}

fn seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
}

/// Reads one order and settles what its provider says.
///
/// # Errors
/// When the database fails. A provider's failure is a finding.
pub(crate) async fn read_order(pool: &PgPool, apis: &Apis, plan: &ReadPlan, dry_run: bool) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut failed = None;
    for (key, session) in plan.payments.iter().map(|key| (key, false)).chain(plan.session.iter().map(|key| (key, true))) {
        let what = format!("{} {}", key.provider, key.payment_id);
        match facts_of(apis, key, session).await {
            Ok(facts) => {
                for fact in facts {
                    findings.push(settle_read(pool, plan, key, fact, &what, dry_run).await?);
                }
            }
            Err(why) => {
                findings.push(Finding { what, outcome: why.clone(), changed: false });
                failed = Some(why);
            }
        }
    }
    if let Some(why) = failed.filter(|_| !dry_run) {
        read_failed(&mut *pool.acquire().await?, plan.order_id, &why).await?;
    }
    Ok(findings)
}

/// What the provider says of a payment, its refunds included.
async fn facts_of(apis: &Apis, key: &PaymentKey, session: bool) -> Result<Vec<Fact>, String> {
    let api = apis.of(key.provider).ok_or_else(|| format!("no API key: COUNTERFOIL_{}_API_KEY is not set", key.provider.name().to_ascii_uppercase()))?;
    tokio::time::sleep(CALL_PAUSE).await;
    let said = |error: CallError| error.to_string();
    if session {
        return Ok(vec![api.session(key).await.map_err(said)?.fact]);
    }
    let state = api.payment(key).await.map_err(said)?;
    let mut facts = vec![state.fact.clone()];
    if state.captured() {
        tokio::time::sleep(CALL_PAUSE).await;
        facts.extend(api.refunds_of(key).await.map_err(said)?);
    }
    Ok(facts)
}

async fn settle_read(pool: &PgPool, plan: &ReadPlan, key: &PaymentKey, fact: Fact, what: &str, dry_run: bool) -> anyhow::Result<Finding> {
    let what = match &fact {
        Fact::Payment { news, .. } => format!("{what} is {}", news.payment_status().name()),
        Fact::Refund { refund_id, status, .. } => format!("{what} refund {refund_id} {}", status.name()),
        Fact::Ignored { reason } | Fact::Unreadable { reason } => return Ok(Finding { what: what.to_owned(), outcome: reason.clone(), changed: false }),
        Fact::Unsupported { .. } | Fact::RefundsReported { .. } | Fact::Dispute { .. } => what.to_owned(),
    };
    let delivery = Delivery::of_read(key.provider, &key.account, fact).about(plan.order_id);
    let mut tx = pool.begin().await?;
    if let Err(error) = lock_orders(&mut tx, &[plan.order_id]).await {
        tracing::warn!(%error, order_id = %plan.order_id, "an order cannot be locked to settle what was read");
        return Ok(Finding { what, outcome: "its order is locked by somebody; later".into(), changed: false });
    }
    let verdict = settle(&mut tx, std::slice::from_ref(&delivery)).await?.remove(0);
    if dry_run {
        tx.rollback().await?
    } else {
        tx.commit().await?
    }
    let (outcome, changed) = match verdict {
        Verdict::Settled(settled) if settled.duplicate => ("known".to_owned(), false),
        Verdict::Settled(settled) => (settled.outcome.name().to_owned(), settled.outcome != counterfoil_settlement::Outcome::Superseded),
        Verdict::Locked(order) => (format!("the order {order} is locked by somebody"), false),
        Verdict::NoOrder(_) => ("it names an order that is not here".to_owned(), false),
    };
    Ok(Finding { what, outcome, changed })
}
