//! Trail: what happened to one order, by time, with what is missing.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use time::OffsetDateTime;

use super::page::{Frame, Reader, badge, instant, path_part};
use super::{Console, Reply, Trouble, shown};
use crate::find::orders_of;
use crate::trail::{Trail, trail};
use crate::words::money;
use counterfoil_settlement::{Seen, deliveries_naming};

pub(super) async fn show(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<String>) -> Response {
    let reply = find(&console, &reader, &id).await;
    console.answer(reader, reply)
}

async fn find(console: &Console, reader: &Reader, id: &str) -> Reply {
    let mut connection = console.pool.acquire().await?;
    let orders = orders_of(&mut connection, id).await?;
    let mut trails = Vec::new();
    for order in &orders {
        trails.extend(trail(&mut connection, *order).await?);
    }
    let deliveries = if trails.is_empty() { deliveries_naming(&mut connection, id).await? } else { Vec::new() };
    let content = match trails.as_slice() {
        [] if !deliveries.is_empty() => unplaced(id, &deliveries),
        [] => {
            let waiting = counterfoil_settlement::waiting_for_order(&mut connection, id).await?;
            let more = if waiting > 0 { format!(" {waiting} events wait for an order of this name.") } else { String::new() };
            return Err(Trouble::Nothing(format!(
                "No payment, event, order or ticket has the id {id}.{more} Deliveries are kept as long as COUNTERFOIL_RETENTION_EVENTS_DAYS says. If the provider shows it as delivered, search its event id."
            )));
        }
        [one] => timeline(one),
        several => html! {
            h1 { (several.len()) " orders" }
            ul.plain { @for each in several { li { a.id href={ "/trail/" (each.order.id) } { (each.order.reference) } " " (each.words()) } } }
        },
    };
    shown(&Frame::of("Trail", ""), reader, &content)
}

/// What is stored of an id that leads to no order.
fn unplaced(id: &str, deliveries: &[Seen]) -> Markup {
    html! {
        h1 { "No order, and " (crate::words::counted(deliveries.len(), "stored event", "stored events")) }
        p.words { span.id { (id) } " counts for no order here." }
        div.scroll tabindex="0" role="region" aria-label="Stored events" { table {
            thead { tr { th { "When" } th { "Event" } th { "Outcome" } } }
            tbody { @for seen in deliveries { tr {
                td { (seen.received_at) } td { (seen.provider) " " (seen.event_type) div.dim { (seen.event_id) } }
                td { (seen.outcome) @if let Some(why) = &seen.reason { div.dim { (why) } } }
            } } }
        } }
        p.dim { "Captured money without an order stands in " a href="/attention" { "attention" } "." }
    }
}

fn timeline(trail: &Trail) -> Markup {
    let order = &trail.order;
    let entries = trail.entries();
    let missing = entries.iter().filter(|entry| entry.missing).count();
    let mut before: Option<OffsetDateTime> = None;
    html! {
        section.verdict.plainly {
            h1 { "Order " (order.reference) " " (badge(if missing == 0 { "good" } else { "warn" }, &order.status)) }
            p.words { (trail.words()) }
            p.dim { (money(Some(order.amount_minor), Some(&order.currency))) ", version " (order.version) ", id " span.id data-copy=(order.id) { (order.id) } }
        }
        div.scroll tabindex="0" role="region" aria-label="Timeline" { table.timeline {
            thead { tr { th { "When" } th.n { "Gap" } th { "Where" } th { "What" } th { "Id" } } }
            tbody {
                @for entry in &entries {
                    @let gap = entry.at.zip(before).map(|(at, before)| (at - before).as_seconds_f64());
                    tr class=(if entry.missing { "missing" } else { "" }) {
                        td { @if let Some(at) = entry.at { (instant(at)) } @else { span.dim { "not yet" } } }
                        td.n { (gap.filter(|gap| *gap >= 0.001).map(|gap| if gap < 1.0 { format!("+{:.0} ms", gap * 1000.0) } else { format!("+{}", crate::status::seconds(gap)) }).unwrap_or_default()) }
                        td { span class={ "lane lane-" (entry.lane) } { (entry.lane) } }
                        td { @if entry.missing { (badge("bad", "missing")) " " } (what(&entry.what)) }
                        td { @if entry.lane == "mail" { span.id { (entry.id) } } @else if !entry.id.is_empty() { a.id href={ "/trail/" (path_part(&entry.id)) } { (entry.id) } } }
                    }
                    @let _ = entry.at.inspect(|at| before = Some(*at));
                }
            }
        } }
        p.dim { "The same as text: " code { "counterfoil trail " (order.reference) } }
    }
}

/// Words, with dead letters linked.
fn what(text: &str) -> Markup {
    match text.split_once(" as d_").and_then(|(head, rest)| rest.split_once(':').map(|(number, tail)| (head, number, tail))) {
        Some((head, number, tail)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            html! { (head) " as " a href={ "/dead/" (number) } { "d_" (number) } ":" (tail) }
        }
        _ => html! { (text) },
    }
}
