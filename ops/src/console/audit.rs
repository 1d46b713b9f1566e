//! Audit: who did what, to how many, why, from where, and what came of it.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::{Frame, Reader, instant};
use super::{Console, Reply, shown};
use crate::actions::{Action, actions};

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    person: String,
    #[serde(default)]
    object: String,
}

pub(super) async fn show(State(console): State<Arc<Console>>, reader: Reader, Query(asked): Query<Asked>) -> Response {
    let reply = list(&console, &reader, &asked).await;
    console.answer(reader, reply)
}

async fn list(console: &Console, reader: &Reader, asked: &Asked) -> Reply {
    let given = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
    let done = actions(&mut *console.pool.acquire().await?, 400 * 86_400, given(&asked.object).as_deref(), given(&asked.person).as_deref(), 200).await?;
    let content = html! {
        h1 { "Audit" }
        form.filter action="/audit" {
            label { span { "Person" } input name="person" value=(asked.person); }
            label { span { "Object" } input name="object" value=(asked.object) placeholder="d_91, r_12, consumer crm"; }
            button { "Show" }
        }
        (table(&done))
        @if done.len() == 200 { p.dim { "The newest 200. counterfoil audit shows more." } }
    };
    shown(&Frame::of("Audit", "/audit"), reader, &content)
}

/// Where an object is looked at.
fn object_link(object: &str) -> Markup {
    match object.split_once('_') {
        Some(("d", number)) => html! { a href={ "/dead/" (number) } { (object) } },
        Some(("r", number)) => html! { a href={ "/replays/" (number) } { (object) } },
        _ => html! { (object) },
    }
}

pub(super) fn table(done: &[Action]) -> Markup {
    html! {
        @if done.is_empty() { p.empty { "Nobody has done anything." } } @else {
            div.scroll tabindex="0" role="region" aria-label="What was done" { table {
                thead { tr { th { "When" } th { "Who" } th { "What" } th.n { "How many" } th { "Why" } th { "Outcome" } } }
                tbody { @for action in done { tr {
                    td { (instant(action.at)) }
                    td { (action.person) div.dim { (action.role) ", " (action.came_from) } }
                    td { (action.action) " " (object_link(&action.object)) }
                    td.n { (action.rows_touched) } td { (action.reason) } td { (action.outcome) }
                } } }
            } }
        }
    }
}
