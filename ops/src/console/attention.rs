//! Attention: money without a place, refunds and events that wait, each with its order and its reason.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use counterfoil_settlement::attention;
use maud::html;

use super::page::{Frame, Reader, instant, trail_link};
use super::{Console, Reply, shown};
use crate::words::money;

/// Entries of the page.
const ENTRIES: i64 = 200;

pub(super) async fn show(State(console): State<Arc<Console>>, reader: Reader) -> Response {
    let reply = list(&console, &reader).await;
    console.answer(reader, reply)
}

async fn list(console: &Console, reader: &Reader) -> Reply {
    let list = attention(&mut *console.pool.acquire().await?, ENTRIES).await?;
    let content = html! {
        h1 { "Held and waiting" }
        @if list.is_empty() { p.empty { "No money waits." } } @else {
            div.scroll tabindex="0" role="region" aria-label="What waits" { table {
                thead { tr { th { "Since" } th { "Kind" } th.n { "Amount" } th { "Order" } th { "Why" } } }
                tbody { @for entry in &list { tr {
                    td { (instant(entry.since)) } td { (entry.kind) } td.n { (money(entry.amount_minor, entry.currency.as_deref())) }
                    td { @if let Some(order) = &entry.order_name { (trail_link(order)) } @else { "-" } }
                    td { (entry.why) div.dim { (entry.what) } }
                } } }
            } }
            p.dim { "What each kind means and what to do: " a href="/runbook/HeldMoney" { "runbook" } ". The same as text: " code { "counterfoil attention" }
                @if list.len() == usize::try_from(ENTRIES).unwrap_or_default() { ". These are the oldest " (ENTRIES) } "." }
        }
    };
    shown(&Frame::of("Held and waiting", ""), reader, &content)
}
