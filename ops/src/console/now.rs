//! Now: is money moving, and what needs me?

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use counterfoil_inbox::replay::{Replay, replays};
use maud::{Markup, html};
use serde_json::json;

use super::page::{Frame, Reader, ago, badge, instant, page};
use super::{Console, flow};
use crate::depths::Depths;
use crate::facts::Facts;
use crate::status::seconds;
use crate::words::amounts;

pub(super) async fn show(State(console): State<Arc<Console>>, mut reader: Reader) -> Response {
    let (facts, away) = console.facts().await;
    reader.away = away;
    let running = match console.pool.acquire().await {
        Ok(mut connection) if reader.away.is_none() => replays(&mut connection, None, 5).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    page(&Frame { live: Some(15), ..Frame::of("Now", "/") }, &reader, &content(facts.as_ref(), &reader, &running)).into_response()
}

/// The page without its frame; also what is shown while the database is away.
pub(super) fn content(facts: Option<&Facts>, reader: &Reader, running: &[Replay]) -> Markup {
    let Some(facts) = facts else {
        return html! { h1 { "Unknown" } p { "Nothing has been read from the database since this console started." } };
    };
    let needed = !facts.needs.is_empty();
    html! {
        div class=(if reader.away.is_some() { "stale" } else { "" }) {
            section class={ "verdict " (if needed { "needed" } else { "well" }) } {
                h1 { (facts.verdict) }
                p.dim { "as of " (instant(facts.at)) }
            }
            (tiles(facts))
            @if needed {
                section { h2 { "Needs a person" }
                    ul.needs { @for need in &facts.needs { li { (need_line(need)) } } }
                }
            } @else { p.notice.good role="status" { "Nobody is needed." } }
            (groups(facts))
            @if !running.is_empty() { section { h2 { "Replays" } (super::replays::table(running)) } }
            (money(facts))
        }
    }
}

/// A need, its command as code.
fn need_line(need: &str) -> Markup {
    match need.split_once(": counterfoil ") {
        Some((what, command)) => html! { (what) " " code { "counterfoil " (command) } },
        None => html! { (need) },
    }
}

struct Tile {
    name: &'static str,
    to: &'static str,
    number: String,
    unit: &'static str,
    oldest: String,
    state: (&'static str, String),
}

fn tiles(facts: &Facts) -> Markup {
    html! {
        div.tiles {
            @for tile in [ingest_tile(facts), outbox_tile(facts), broker_tile(facts), consumers_tile(facts), effects_tile(facts)] {
                a.tile href=(tile.to) {
                    span.name { (tile.name) }
                    span.number { (tile.number) " " small { (tile.unit) } }
                    span.oldest { (tile.oldest) }
                    (badge(tile.state.0, &tile.state.1))
                }
            }
        }
    }
}

fn ingest_tile(facts: &Facts) -> Tile {
    let last = facts.providers.iter().map(|provider| provider.health.ago_s).reduce(f64::min);
    Tile {
        name: "Ingest",
        to: "/flow",
        number: facts.ingest.last_minute.to_string(),
        unit: "events a minute",
        oldest: last.map_or("none today".into(), |s| format!("last {} ago", seconds(s.max(0.1)))),
        state: if facts.ingest.replicas == 0 { ("bad", "no process runs".into()) } else { ("good", format!("{} running", facts.ingest.replicas)) },
    }
}

fn outbox_tile(facts: &Facts) -> Tile {
    let outbox = &facts.outbox;
    let stuck = outbox.unroutable + outbox.parked;
    Tile {
        name: "Outbox",
        to: "/flow",
        number: outbox.unpublished.to_string(),
        unit: "waiting",
        oldest: format!("oldest {}", seconds(outbox.oldest_s)),
        state: if stuck > 0 { ("bad", format!("{} unroutable, {} parked", outbox.unroutable, outbox.parked)) } else { state_of(&outbox.advice.words()) },
    }
}

fn broker_tile(facts: &Facts) -> Tile {
    let tile = |number: String, unit, oldest, state| Tile { name: "Broker", to: "/flow", number, unit, oldest, state };
    if let Some(why) = &facts.broker_unknown {
        return tile("unknown".into(), "", why.clone(), ("warn", "unknown".into()));
    }
    let queues = || facts.consumers.iter().filter_map(|consumer| consumer.queues.as_ref());
    let ready: u32 = queues().filter_map(|queues| queues.work).map(|(ready, _)| ready).sum();
    let rungs: u32 = queues().map(Depths::on_rungs).sum();
    let missing = queues().flat_map(Depths::missing).count();
    let state = if missing > 0 { ("bad", format!("{missing} queues missing")) } else { ("good", "all queues there".into()) };
    tile(ready.to_string(), "ready", format!("{rungs} on retry rungs"), state)
}

fn consumers_tile(facts: &Facts) -> Tile {
    let oldest = facts.consumers.iter().map(|consumer| consumer.oldest_s).fold(0.0, f64::max);
    let waiting: i64 = facts.consumers.iter().map(|consumer| consumer.waiting).sum();
    let worst = facts.consumers.iter().map(|consumer| state_of(&consumer.advice.words())).find(|(kind, _)| *kind != "good");
    Tile {
        name: "Consumers",
        to: "/flow",
        number: waiting.to_string(),
        unit: "waiting",
        oldest: format!("oldest {}", seconds(oldest)),
        state: worst.unwrap_or(("good", "keeping up".into())),
    }
}

fn effects_tile(facts: &Facts) -> Tile {
    let dead = || facts.consumers.iter().filter_map(|consumer| consumer.dead.as_ref());
    let open: i64 = dead().map(|dead| dead.open).sum();
    let oldest = dead().map(|dead| dead.oldest_seconds).reduce(f64::max).filter(|s| *s > 0.0);
    Tile {
        name: "Effects",
        to: "/dead",
        number: open.to_string(),
        unit: "dead letters",
        oldest: oldest.map_or("none open".into(), |s| format!("oldest {}", seconds(s))),
        state: if open == 0 { ("good", "none needs a decision".into()) } else { ("bad", format!("{open} need a decision")) },
    }
}

pub(super) fn state_of(advice: &str) -> (&'static str, String) {
    let kind = match advice {
        "Keeping up" => "good",
        "More replicas than needed" => "idle",
        text if text.starts_with("No process") || text.contains("is down") => "bad",
        _ => "warn",
    };
    (kind, advice.to_owned())
}

fn groups(facts: &Facts) -> Markup {
    html! {
        section {
            h2 { "Dead letters" }
            @if facts.groups.is_empty() {
                p.empty { "No dead letters. Keeper last looked " (facts.tasks.iter().find(|task| task.task == "keeper").map_or("unknown".to_owned(), |task| format!("{} ago", seconds(task.ago_s.max(0.1))))) "." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Groups of dead letters" {
                    table {
                        thead { tr { th { "Consumer" } th { "Error" } th.n { "Open" } th.n { "Orders" } th { "At stake" } th { "First seen" } th { "Last seen" } th.n { "Came back" } } }
                        tbody { @for group in &facts.groups {
                            tr {
                                td { (group.consumer) }
                                td { a href={ "/dead?consumer=" (group.consumer) "&kind=" (super::page::path_part(&group.kind)) "&state=open" } { (group.kind) } div.dim { (group.example) } }
                                td.n { (group.letters) } td.n { (group.orders) } td { (amounts(&group.amounts)) }
                                td { (ago(group.first_died_at)) } td { (ago(group.last_died_at)) } td.n { (group.came_back) }
                            }
                        } }
                    }
                }
            }
        }
    }
}

fn money(facts: &Facts) -> Markup {
    html! {
        section.columns {
            div {
                h2 { "Held and waiting" }
                @if facts.attention.is_empty() { p.empty { "No money waits." } }
                ul.plain { @for waiting in &facts.attention { li { a href="/attention" { strong { (waiting.count) " × " (waiting.kind) } } " " (amounts(&json!(waiting.amounts))) } } }
            }
            div {
                h2 { "Providers" }
                @if facts.providers.is_empty() { p.empty { "No provider has sent anything within a day." } }
                ul.plain { @for provider in &facts.providers {
                    li { strong { (provider.health.provider) } " last " (ago(provider.health.last_received_at)) " ago, " (provider.health.events) " events in " (provider.health.deliveries) " deliveries today"
                        @if provider.health.late > 0 { ", " (provider.health.late) " late" }
                        @if provider.refused > 0 { " " (badge("warn", &format!("{} bad signatures", provider.refused))) }
                    }
                } }
            }
            div { h2 { "Advice" } (flow::advice(facts)) }
        }
    }
}
