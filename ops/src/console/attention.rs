//! Attention: money without a place, refunds and events that wait, each with its order and its reason; and what people decided.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use counterfoil_settlement::{Decision, attention, decisions};
use maud::{Markup, html};

use super::fields::Fields;
use super::page::{Frame, Reader, action, hidden, instant, trail_link};
use super::{Console, Reply, Trouble, shown};
use crate::actions::Role;
use crate::attention::{decide_entry, undo_entry};
use crate::words::money;

/// Entries of the page.
const ENTRIES: i64 = 200;

pub(super) async fn show(State(console): State<Arc<Console>>, reader: Reader) -> Response {
    let reply = list(&console, &reader).await;
    console.answer(reader, reply)
}

pub(super) async fn decide(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        if decide_entry(&console.pool, &reader.actor, fields.text("subject"), Some(fields.text("state")), fields.text("reason")).await? {
            Ok(Redirect::to("/attention").into_response())
        } else {
            Err(Trouble::Nothing("It says something else by now: go back, and look at it again.".into()))
        }
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) async fn undo(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        undo_entry(&console.pool, &reader.actor, fields.text("subject"), fields.text("reason")).await?;
        Ok(Redirect::to("/attention").into_response())
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

async fn list(console: &Console, reader: &Reader) -> Reply {
    let mut connection = console.pool.acquire().await?;
    let list = attention(&mut connection, ENTRIES).await?;
    let decided = decisions(&mut connection, ENTRIES).await?;
    drop(connection);
    let content = html! {
        h1 { "Held and waiting" }
        @if list.is_empty() { p.empty { "No money waits." } } @else {
            div.scroll tabindex="0" role="region" aria-label="What waits" { table {
                thead { tr { th { "Since" } th { "Kind" } th.n { "Amount" } th { "Order" } th { "Why" } th { "Close it" } } }
                tbody { @for entry in &list { tr {
                    td { (instant(entry.since)) } td { (entry.kind) } td.n { (money(entry.amount_minor, entry.currency.as_deref())) }
                    td { @if let Some(order) = &entry.order_name { (trail_link(order)) } @else { "-" } }
                    td { (entry.why) div.dim { (entry.what) } }
                    td { details { summary { "Dealt with" } (action(reader, Role::Operator, "/attention/decide", "Close",
                        &html! { (hidden("subject", &entry.subject)) (hidden("state", &entry.state)) })) } }
                } } }
            } }
            p.dim { "What each kind means and what to do: " a href="/runbook" { "runbook" } ", under HeldMoney, MoneyWaiting, EventsUnsettled and DisputeOpen. The same as text: " code { "counterfoil attention" }
                @if list.len() == usize::try_from(ENTRIES).unwrap_or_default() { ". These are the oldest " (ENTRIES) } "." }
        }
        @if !decided.is_empty() { (decided_table(reader, &decided)) }
    };
    shown(&Frame::of("Held and waiting", ""), reader, &content)
}

fn decided_table(reader: &Reader, decided: &[Decision]) -> Markup {
    html! {
        h2 { "Closed by a decision" }
        div.scroll tabindex="0" role="region" aria-label="Decisions" { table {
            thead { tr { th { "When" } th { "Entry" } th { "Who" } th { "Why" } th { "Take it back" } } }
            tbody { @for decision in decided { tr {
                td { (instant(decision.decided_at)) } td { (decision.subject) } td { (decision.person) } td { (decision.reason) }
                td { details { summary { "Undo" } (action(reader, Role::Operator, "/attention/undo", "Open again", &hidden("subject", &decision.subject))) } }
            } } }
        } }
    }
}
