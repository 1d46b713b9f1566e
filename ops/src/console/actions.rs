//! What the buttons do: each checks that the form is the person's own, does one thing, and leads to where its outcome is seen.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use counterfoil_inbox::dead::{self, Filter};
use counterfoil_inbox::replay::{self, Started};
use serde_json::{Map, Value};

use super::fields::Fields;
use super::page::{Reader, path_part};
use super::{Console, Reply, Trouble};
use crate::actions::{Role, record};
use crate::queues::{pause_consumer, release_row, resume_consumer};
use crate::replays::{self, RATE_PER_S, Risks, Wanted, confirm, decide};

fn to(place: &str) -> Reply {
    Ok(Redirect::to(place).into_response())
}

/// A list of ours to go back to, whatever the form says.
fn back(fields: &Fields) -> &str {
    let back = fields.text("back");
    if back.starts_with("/dead") && super::local(back) == back { back } else { "/dead" }
}

/// Back to the list, where the row behind the one that was decided waits.
fn back_with(fields: &Fields, note: &str, anchor: Option<i64>) -> Reply {
    let back = back(fields);
    let joint = if back.contains('?') { '&' } else { '?' };
    let anchor = anchor.map_or_else(String::new, |id| format!("#d_{id}"));
    to(&format!("{back}{joint}note={}{anchor}", path_part(note)))
}

/// Refuses a viewer, and writes the attempt down.
async fn operators_only(console: &Console, reader: &Reader, action: &str, object: &str) -> Result<(), Trouble> {
    if reader.actor.role >= Role::Operator {
        return Ok(());
    }
    let why = format!("a {} may look, and not {action}", reader.actor.role.name());
    record(&mut *console.pool.acquire().await?, &reader.actor, action, object, 0, "", &format!("refused: {why}")).await?;
    Err(Trouble::Refused(StatusCode::FORBIDDEN, why))
}

pub(super) async fn plan(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        operators_only(&console, &reader, "plan a replay", "dead letters").await?;
        let ids = fields.numbers("id");
        let all = fields.text("choice") == "all";
        if !all && ids.is_empty() {
            return Err(Trouble::Refused(StatusCode::UNPROCESSABLE_ENTITY, "Nothing is ticked: tick rows, or replay all that match.".into()));
        }
        let filter = filter_of(&fields)?;
        let mut tx = console.pool.begin().await?;
        let plan =
            replay::plan(&mut tx, if all { &filter } else { &NOTHING }, (!all).then_some(ids.as_slice()), &reader.actor.person, console.horizon_s).await?;
        tx.commit().await?;
        to(&format!("/replays/{plan}"))
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

/// No filter: the ids alone choose.
static NOTHING: std::sync::LazyLock<Filter> = std::sync::LazyLock::new(Filter::default);

/// The filter that the list was made with.
fn filter_of(fields: &Fields) -> Result<Filter, Trouble> {
    let names = ["consumer", "kind", "state", "topic", "order", "event", "since_s", "attempts_min", "came_back", "currency", "text"];
    let given: Map<String, Value> = names
        .into_iter()
        .map(|name| (name.to_owned(), fields.text(&format!("filter_{name}"))))
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name, Value::String(text.to_owned())))
        .collect();
    let filter: Filter = serde_json::from_value(Value::Object(given)).map_err(|error| Trouble::Refused(StatusCode::BAD_REQUEST, error.to_string()))?;
    if fields.text("choice") == "all" {
        replays::must_choose(&filter)?;
    }
    Ok(filter)
}

/// One row, one click: planned, confirmed and released together.
pub(super) async fn replay_one(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        operators_only(&console, &reader, "replay", &format!("d_{}", fields.text("id"))).await?;
        let id: i64 = fields.number("id").ok_or_else(|| Trouble::Nothing("No dead letter was named.".into()))?;
        let mut tx = console.pool.begin().await?;
        let letter = dead::find(&mut tx, id).await?.ok_or_else(|| Trouble::Nothing(format!("No dead letter d_{id}.")))?;
        if letter.state != "open" {
            // Pressed twice, in two tabs, or by two people: the same replay, and who began it stands in its audit.
            return back_with(&fields, &format!("d_{id} is {} already; nothing was done twice", crate::words::state_words(&letter).to_lowercase()), Some(id));
        }
        let next = next_of(&mut tx, &fields, id).await?;
        let plan = replay::plan(&mut tx, &NOTHING, Some(&[id]), &reader.actor.person, console.horizon_s).await?;
        tx.commit().await?;
        let risks = Risks { unknown: fields.text("risk") == "unknown", unsafe_: fields.text("risk") == "unsafe" };
        let wanted = Wanted { reason: fields.text("reason").to_owned(), rate_per_s: RATE_PER_S, one_first: false, stop_after: 1, risks, confirmed: Some(1) };
        if let Started::Running(1) = confirm(&console.pool, &reader.actor, plan, &wanted, console.horizon_s).await? {
            replays::step(&console.pool, Some(plan), console.horizon_s).await?;
            return back_with(&fields, &format!("r_{plan} replays d_{id}"), next.or(Some(id)));
        }
        back_with(&fields, &format!("d_{id} was not replayed: it would not run now"), Some(id))
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

/// The row behind one, in the list that it was seen in.
async fn next_of(connection: &mut sqlx::PgConnection, fields: &Fields, id: i64) -> Result<Option<i64>, Trouble> {
    let query = back(fields).split_once('?').map_or("", |(_, query)| query).to_owned();
    let pairs: Map<String, Value> =
        url::form_urlencoded::parse(query.as_bytes()).map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect();
    let text = |name: &str| pairs.get(name).and_then(Value::as_str).unwrap_or_default();
    let filter = Filter {
        consumer: Some(text("consumer").to_owned()).filter(|text| !text.is_empty()),
        kind: Some(text("kind").to_owned()).filter(|text| !text.is_empty()),
        state: Some("open".into()),
        text: Some(text("text").to_owned()).filter(|text| !text.is_empty()),
        ..Filter::default()
    };
    let order = if text("sort") == "oldest" { dead::Order::Oldest } else { dead::Order::Newest };
    let page: i64 = text("page").parse().unwrap_or(1);
    let rows = dead::list(connection, &filter, order, (page - 1).max(0) * 50, 51).await?;
    let at = rows.iter().position(|letter| letter.id == id);
    Ok(at.and_then(|at| rows.get(at + 1)).map(|letter| letter.id))
}

pub(super) async fn discard(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    decided(console, reader, id, headers, fields, true).await
}

pub(super) async fn reopen(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    decided(console, reader, id, headers, fields, false).await
}

async fn decided(console: Arc<Console>, reader: Reader, id: i64, headers: HeaderMap, fields: Fields, discarding: bool) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        let next = next_of(&mut *console.pool.acquire().await?, &fields, id).await?;
        let done = decide(&console.pool, &reader.actor, &[id], discarding, fields.text("reason")).await?;
        let what = match (done.is_empty(), discarding) {
            (true, _) => "was not changed: somebody was faster",
            (false, true) => "is discarded",
            (false, false) => "is open again",
        };
        back_with(&fields, &format!("d_{id} {what}"), next)
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) async fn run(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        let wanted = Wanted {
            reason: fields.text("reason").to_owned(),
            rate_per_s: fields.number("rate").unwrap_or(RATE_PER_S),
            one_first: fields.ticked("one_first"),
            stop_after: fields.number("stop_after").unwrap_or(5),
            risks: Risks { unknown: fields.ticked("unknown"), unsafe_: fields.ticked("unsafe") },
            confirmed: fields.number("confirm"),
        };
        match confirm(&console.pool, &reader.actor, id, &wanted, console.horizon_s).await? {
            Started::NoPlan => Err(Trouble::Nothing(format!("No plan p_{id}."))),
            // Old: the page says so, and has the button for a fresh one. Already: the page says who started it, and when.
            Started::Running(_) | Started::Already { .. } | Started::Old => to(&format!("/replays/{id}")),
        }
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) async fn stop(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        replays::stop(&console.pool, &reader.actor, id, fields.text("reason")).await?;
        to(&format!("/replays/{id}"))
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

/// A fresh plan: of the same choice where the old one was never confirmed, else of what was left or came back.
pub(super) async fn plan_again(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        operators_only(&console, &reader, "plan a replay", &format!("r_{id}")).await?;
        let mut tx = console.pool.begin().await?;
        let run = replay::replays(&mut tx, Some(id), 1).await?.pop().ok_or_else(|| Trouble::Nothing(format!("No replay r_{id}.")))?;
        let (_, filter) = replay::newer_than_plan(&mut tx, id).await?;
        let rest: Vec<i64> = replay::items(&mut tx, id, None, replay::PLAN_MAX)
            .await?
            .into_iter()
            .filter(|item| matches!(item.outcome.as_str(), "left" | "came_back"))
            .map(|item| item.dead_letter_id)
            .collect();
        let plan = match filter.filter(|_| run.state == "planned") {
            Some(filter) => replay::plan(&mut tx, &filter, None, &reader.actor.person, console.horizon_s).await?,
            None => replay::plan(&mut tx, &NOTHING, Some(&rest), &reader.actor.person, console.horizon_s).await?,
        };
        tx.commit().await?;
        to(&format!("/replays/{plan}"))
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) async fn pause(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        let minutes: u64 = fields.number("minutes").unwrap_or(30);
        pause_consumer(&console.pool, &reader.actor, fields.text("consumer"), Duration::from_secs(minutes.saturating_mul(60)), fields.text("reason")).await?;
        to("/flow")
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) async fn resume(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        resume_consumer(&console.pool, &reader.actor, fields.text("consumer"), fields.text("reason")).await?;
        to("/flow")
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) async fn release(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        let id = fields.number("id").ok_or_else(|| Trouble::Nothing("No row was named.".into()))?;
        release_row(&console.pool, &reader.actor, id, fields.text("reason")).await?;
        to("/flow")
    };
    let reply = reply.await;
    console.answer(reader, reply)
}
