//! `counterfoil events`: stored webhook events, shown and driven again.

use counterfoil_payments::Provider;
use counterfoil_providers::Mode;
use counterfoil_settlement::housekeeping::{drive_again, take_event};
use counterfoil_settlement::{StoredEvent, stored_events};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::actions::{Actor, record};
use crate::housekeep::read_again;
use crate::letters::payload_text;
use crate::oncall::{EventsOptions, PayloadOptions};
use crate::print;
use crate::replays::{may, nothing, refused};

pub(crate) async fn run(pool: &PgPool, actor: &Actor, mode: Option<Mode>, command: EventsOptions) -> anyhow::Result<()> {
    match command {
        EventsOptions::Show { id, payload, json } => show(pool, actor, &id, &payload, json).await,
        EventsOptions::Reprocess { id, reason } => {
            let mode = mode.ok_or_else(|| refused("COUNTERFOIL_MODE must be live or test: it decides which events may change orders"))?;
            let outcome = reprocess(pool, actor, mode, &id, &reason).await?;
            Ok(print(format_args!("{id} is {outcome} now\n"))?)
        }
    }
}

async fn find(pool: &PgPool, id: &str) -> anyhow::Result<Vec<StoredEvent>> {
    let found = stored_events(&mut *pool.acquire().await?, id).await?;
    anyhow::ensure!(
        !found.is_empty(),
        nothing(format!(
            "no delivery of {id:?} is stored. If the provider shows it as delivered, look for its event id, and whether it went to another endpoint"
        ))
    );
    Ok(found)
}

async fn show(pool: &PgPool, actor: &Actor, id: &str, payload: &PayloadOptions, as_json: bool) -> anyhow::Result<()> {
    for event in find(pool, id).await? {
        let object = format!("event {}", event.event_id);
        let text = payload_text(&mut *pool.acquire().await?, actor, payload, &object, &event.body, true).await?;
        if as_json {
            let mut value: Value = json!(event);
            value["payload"] = json!(text);
            print(format_args!("{value}\n"))?;
            continue;
        }
        let StoredEvent { provider, event_type, event_id, deliveries, differing, outcome, .. } = &event;
        print(format_args!("{provider} {event_type} {event_id}\n{deliveries} deliveries, {differing} with another body; first {}\n", event.received_at))?;
        let why = event.reason.as_ref().or(event.last_error.as_ref()).map(|why| format!(" ({why})")).unwrap_or_default();
        let waits = event.waits_for.as_ref().map(|name| format!(", waits for {name}")).unwrap_or_default();
        print(format_args!("{outcome}{why}{waits}; about payment {}\n", event.payment_id.as_deref().unwrap_or("none")))?;
        if let Some(text) = text {
            print(format_args!("{text}\n"))?;
        }
    }
    Ok(())
}

/// Reads a stored event again and settles it, in the name of `actor`; what became of it.
///
/// # Errors
/// When the role or the reason does not suffice, its news is settled, or the database fails.
pub async fn reprocess(pool: &PgPool, actor: &Actor, mode: Mode, id: &str, reason: &str) -> anyhow::Result<String> {
    let object = format!("event {id}");
    may(pool, actor, "reprocess", &object, reason).await?;
    let found = find(pool, id).await?;
    let event = &found[0];
    let provider: Provider = event.provider.parse()?;
    let mut tx = pool.begin().await?;
    let taken = take_event(&mut tx, provider, &event.account, &event.event_id).await?;
    let Some(taken) = taken else {
        return Err(refused(format!("{id} is {}: its news is settled, there is nothing to do again", event.outcome)));
    };
    let delivery = read_again(&taken, mode).ok_or_else(|| refused(format!("{provider} cannot be read here")))?;
    drive_again(&mut tx, &delivery).await?;
    let now = stored_events(&mut tx, &event.event_id).await?;
    let outcome = now.first().map_or_else(String::new, |event| event.outcome.clone());
    record(&mut tx, actor, "reprocess", &object, 1, reason, &format!("{} → {outcome}", event.outcome)).await?;
    tx.commit().await?;
    Ok(outcome)
}
