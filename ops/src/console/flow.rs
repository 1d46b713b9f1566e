//! Flow: one line for each process and queue, and what an operator should do about it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use counterfoil_outbox::{Stuck, stuck};
use maud::{Markup, html};

use super::Console;
use super::now::state_of;
use super::page::{Frame, Reader, action, badge, hidden, instant, page, trail_link};
use crate::actions::Role;
use crate::facts::{Consumer, Facts};
use crate::status::seconds;

pub(super) async fn show(State(console): State<Arc<Console>>, mut reader: Reader) -> Response {
    let (facts, away) = console.facts().await;
    reader.away = away;
    let rows = match console.pool.acquire().await {
        Ok(mut connection) if reader.away.is_none() => stuck(&mut connection, false, false, 50).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    let content = facts.as_ref().map_or_else(|| html! { h1 { "Unknown" } }, |facts| content(facts, &reader, &rows));
    page(&Frame::of("Flow", "/flow"), &reader, &content).into_response()
}

/// The advice alone, a line each.
pub(super) fn advice(facts: &Facts) -> Markup {
    let lines = std::iter::once(("relay", facts.outbox.advice.words())).chain(facts.consumers.iter().map(|consumer| (consumer.name, consumer.advice.words())));
    html! { ul.plain { @for (name, words) in lines { li { strong { (name) } " " (badge(state_of(&words).0, &words)) } } } }
}

fn percent(busy: Option<f64>) -> String {
    busy.map_or("unknown".into(), |busy| format!("{:.0} %", busy * 100.0))
}

fn content(facts: &Facts, reader: &Reader, rows: &[Stuck]) -> Markup {
    let outbox = &facts.outbox;
    html! {
        h1 { "Flow" }
        p.dim { "as of " (instant(facts.at)) ", " (format!("{:.0}", facts.connections * 100.0)) " % of the database's connections in use" }
        @if let Some(why) = &facts.broker_unknown { p.notice.warn { "Queues are unknown: " (why) } }
        div class={ "scroll " (if reader.away.is_some() { "stale" } else { "" }) } tabindex="0" role="region" aria-label="Processes and queues" {
            table {
                thead { tr { th { "Stage" } th.n { "Replicas" } th.n { "Busy" } th.n { "A minute" } th.n { "Waiting" } th.n { "Oldest" } th { "Queue" } th { "Advice" } } }
                tbody {
                    tr { th scope="row" { "ingest" } td.n { (facts.ingest.replicas) } td.n { "-" } td.n { (facts.ingest.last_minute) } td.n { "-" } td.n { "-" } td { "-" }
                        td { @if facts.ingest.replicas == 0 { (badge("bad", "No process runs: start one")) } @else { (badge("good", "Taking webhooks")) } } }
                    tr { th scope="row" { "relay" } td.n { (outbox.stage.replicas) } td.n { (percent(outbox.stage.busy)) } td.n { (outbox.stage.last_minute) }
                        td.n { (outbox.unpublished) } td.n { (seconds(outbox.oldest_s)) } td { (outbox.unroutable) " unroutable, " (outbox.parked) " parked" }
                        td { (badge(state_of(&outbox.advice.words()).0, &outbox.advice.words())) } }
                    @for consumer in &facts.consumers { (line(consumer)) }
                }
            }
        }
        section { h2 { "Rows that do not go out by themselves" } (stuck_rows(rows, reader)) }
        section { h2 { "Pauses" }
            div.cards { @for consumer in &facts.consumers { div.card {
                h3 { (consumer.name) }
                @if let Some(pause) = &consumer.pause {
                    p { (badge("warn", "Paused")) " until " (instant(pause.paused_until)) " by " (pause.paused_by) ": " (pause.reason) }
                    (action(reader, Role::Operator, "/flow/resume", &format!("Resume {}", consumer.name), &hidden("consumer", consumer.name)))
                } @else {
                    (action(reader, Role::Operator, "/flow/pause", &format!("Pause {}…", consumer.name), &html! {
                        (hidden("consumer", consumer.name))
                        label { span { "For" } select name="minutes" disabled[!reader.may(Role::Operator)] { @for (minutes, text) in [("5", "5 minutes"), ("30", "30 minutes"), ("120", "2 hours"), ("720", "12 hours")] { option value=(minutes) selected[minutes == "30"] { (text) } } } }
                    }))
                }
            } } }
        }
    }
}

fn line(consumer: &Consumer) -> Markup {
    let words = consumer.advice.words();
    let queue = consumer.queues.as_ref().map_or_else(
        || "unknown".to_owned(),
        |queues| {
            let work = queues.work.map_or("missing".to_owned(), |(ready, consumers)| format!("{ready} ready, {consumers} consumers"));
            let rungs: Vec<String> = queues
                .rungs
                .iter()
                .filter(|(_, ready)| *ready != Some(0))
                .map(|(rung, ready)| format!("{} on {rung}", ready.map_or("missing".into(), |ready| ready.to_string())))
                .collect();
            if rungs.is_empty() { work } else { format!("{work}; {}", rungs.join(", ")) }
        },
    );
    html! {
        tr {
            th scope="row" { (consumer.name) } td.n { (consumer.stage.replicas) } td.n { (percent(consumer.stage.busy)) } td.n { (consumer.stage.last_minute) }
            td.n { (consumer.waiting) } td.n { (seconds(consumer.oldest_s)) } td { (queue) }
            td { (badge(state_of(&words).0, &words)) @if let Some(dead) = consumer.dead.as_ref().filter(|dead| dead.open > 0) { " " a href={ "/dead?consumer=" (consumer.name) "&state=open" } { (dead.open) " dead" } } }
        }
    }
}

fn stuck_rows(rows: &[Stuck], reader: &Reader) -> Markup {
    html! {
        @if rows.is_empty() { p.empty { "Every row has gone out, or is about to." } }
        @for row in rows {
            div.card {
                p {
                    (if row.parked_at.is_some() { badge("bad", "Parked (broker refused it)") } else { badge("warn", "Put off") })
                    " row " (row.id) ", " (row.topic) ", appended " (instant(row.created_at)) @if let Some(order) = row.order_id { ", order " (trail_link(&order.to_string())) }
                }
                p.error { (row.last_error.as_deref().unwrap_or("waiting")) }
                (action(reader, Role::Operator, "/flow/release", "Release 1", &hidden("id", &row.id.to_string())))
            }
        }
    }
}
