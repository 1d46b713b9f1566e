//! Dead letters: groups, rows with their filter, and one with all that is known of it.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use counterfoil_inbox::dead::{self, DeadLetter, Filter, Judgement, Order, Verdict};
use maud::{Markup, html};
use serde::Deserialize;
use sqlx::PgConnection;

use super::fields::Fields;
use super::page::{Frame, Reader, action, ago, badge, guard, hidden, instant, path_part, trail_link, trail_link_as};
use super::{Console, Reply, Trouble, audit, shown};
use crate::actions::{Role, actions_on_letter};
use crate::listed::{self, Listed, listed};
use crate::mask::masked;
use crate::words::{amounts, money, state_words};

/// Rows of one page.
const PAGE: i64 = 50;

/// Bytes of a payload that a page shows; the download has them all.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// What the address of a list says: every state of it is a URL.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub(super) struct Asked {
    consumer: String,
    kind: String,
    state: String,
    topic: String,
    order: String,
    event: String,
    since_s: String,
    currency: String,
    text: String,
    attempts_min: String,
    came_back: String,
    sort: String,
    page: String,
    note: String,
}

impl Asked {
    fn filter(&self) -> Result<Filter, Trouble> {
        let given = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
        let whole = |name: &str, text: &str| match given(text) {
            Some(text) if text.parse::<u32>().is_err() => Err(Trouble::Refused(http::StatusCode::BAD_REQUEST, format!("{name} must be a whole number"))),
            text => Ok(text),
        };
        Ok(Filter {
            consumer: given(&self.consumer),
            kind: given(&self.kind),
            state: match self.state.trim() {
                "" => Some("open".into()),
                "all" => None,
                state => Some(state.to_owned()),
            },
            topic: given(&self.topic),
            order: given(&self.order),
            event: given(&self.event),
            since_s: whole("since_s", &self.since_s)?,
            until_s: None,
            attempts_min: whole("attempts_min", &self.attempts_min)?,
            came_back: given(&self.came_back).filter(|text| text == "true" || text == "false"),
            currency: given(&self.currency),
            text: given(&self.text),
            id: None,
        })
    }

    fn number(&self) -> i64 {
        self.page.parse().unwrap_or(1).max(1)
    }

    /// The address of the same list, with another page.
    fn address(&self, number: i64) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let fields = [
            ("consumer", &self.consumer),
            ("kind", &self.kind),
            ("state", &self.state),
            ("topic", &self.topic),
            ("order", &self.order),
            ("event", &self.event),
            ("since_s", &self.since_s),
            ("currency", &self.currency),
            ("text", &self.text),
            ("attempts_min", &self.attempts_min),
            ("came_back", &self.came_back),
            ("sort", &self.sort),
        ];
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        if number > 1 {
            query.append_pair("page", &number.to_string());
        }
        format!("/dead?{}", query.finish())
    }
}

pub(super) async fn list(State(console): State<Arc<Console>>, reader: Reader, Query(asked): Query<Asked>) -> Response {
    let reply = rows(&console, &reader, &asked).await;
    console.answer(reader, reply)
}

async fn rows(console: &Console, reader: &Reader, asked: &Asked) -> Reply {
    let filter = asked.filter()?;
    let mut connection = console.pool.acquire().await?;
    let total = dead::count(&mut connection, &filter).await?;
    let order = if asked.sort == "oldest" { Order::Oldest } else { Order::Newest };
    let letters = listed(&mut connection, &filter, order, (asked.number() - 1) * PAGE, PAGE, console.horizon_s).await?;
    let groups = if asked.consumer.is_empty() && asked.kind.is_empty() { dead::groups(&mut connection, &filter, 20).await? } else { Vec::new() };
    let open = dead::count(&mut connection, &Filter { state: Some("open".into()), ..Filter::default() }).await?;
    let content = html! {
        h1 { "Dead letters" }
        @if !asked.note.is_empty() { p.notice.good role="status" { (note(&asked.note)) } }
        (filter_form(asked))
        @if !groups.is_empty() { (group_table(&groups, asked)) }
        @if letters.is_empty() {
            @if filter.is_empty() && open == 0 { p.empty { "No dead letters. " (keeper(&mut connection).await?) } }
            @else { p.empty { "Nothing matches " (filter.words()) ". " (open) " are open without this filter. " a href="/dead" { "Clear" } } }
        } @else { (row_table(reader, asked, &filter, &letters, total)) }
    };
    shown(&Frame::of("Dead letters", "/dead"), reader, &content)
}

/// What was just done, with its run linked.
fn note(text: &str) -> Markup {
    if let Some((letter, rest)) = text.split_once(' ').filter(|(letter, _)| letter.starts_with("d_") && letter[2..].bytes().all(|byte| byte.is_ascii_digit())) {
        return html! { a href={ "/dead/" (letter[2..]) } { (letter) } " " (rest) };
    }
    match text.split_once(' ').filter(|(run, _)| run.starts_with("r_") && run[2..].bytes().all(|byte| byte.is_ascii_digit())) {
        Some((run, rest)) => html! { a href={ "/replays/" (run[2..]) } { (run) } " " (rest) },
        None => html! { (text) },
    }
}

async fn keeper(connection: &mut PgConnection) -> Result<String, Trouble> {
    let tasks = counterfoil_chassis::postgres::tasks(connection).await?;
    let keeper = tasks.iter().find(|task| task.task == "keeper");
    Ok(keeper.map_or("The keeper has never run.".to_owned(), |keeper| format!("Keeper last looked {} ago.", crate::status::seconds(keeper.ago_s.max(0.1)))))
}

fn filter_form(asked: &Asked) -> Markup {
    let select = |name: &str, label: &str, now: &str, options: &[(&str, &str)]| {
        html! { label { span { (label) } select name=(name) { @for (value, text) in options { option value=(value) selected[*value == now] { (text) } } } } }
    };
    html! {
        form.filter action="/dead" {
            (select("consumer", "Consumer", &asked.consumer, &[("", "any"), ("email", "email"), ("crm", "crm"), ("ledger", "ledger"), ("refunds", "refunds"), ("tickets", "tickets")]))
            label { span { "Error kind" } input name="kind" value=(asked.kind) placeholder="http_404"; }
            (select("state", "State", &asked.state, &[("open", "Open"), ("queued", "Replay queued"), ("replaying", "Replaying"), ("resolved", "Resolved"), ("discarded", "Discarded"), ("all", "any")]))
            (select("since_s", "Died within", &asked.since_s, &[("", "any time"), ("900", "15 minutes"), ("3600", "1 hour"), ("21600", "6 hours"), ("86400", "24 hours"), ("604800", "7 days")]))
            label { span { "Text in the error" } input name="text" value=(asked.text); }
            (select("came_back", "Came back", &asked.came_back, &[("", "either"), ("true", "yes"), ("false", "no")]))
            (select("sort", "First", &asked.sort, &[("newest", "newest"), ("oldest", "oldest")]))
            @for (name, value) in [("topic", &asked.topic), ("order", &asked.order), ("event", &asked.event), ("currency", &asked.currency), ("attempts_min", &asked.attempts_min)] {
                @if !value.is_empty() { (hidden(name, value)) }
            }
            button { "Show" } " " a.quiet href="/dead" { "Clear" }
        }
        (chips(asked))
    }
}

/// What is chosen, in words.
fn chips(asked: &Asked) -> Markup {
    let chosen = [
        ("consumer", &asked.consumer),
        ("kind", &asked.kind),
        ("state", &asked.state),
        ("topic", &asked.topic),
        ("order", &asked.order),
        ("event", &asked.event),
        ("currency", &asked.currency),
        ("text", &asked.text),
    ];
    html! { p.chips { @for (name, value) in chosen.into_iter().filter(|(_, value)| !value.is_empty()) { span.chip { (name) " = " (value) } " " } } }
}

fn group_table(groups: &[dead::Group], asked: &Asked) -> Markup {
    html! { section { h2 { "By kind" } div.scroll tabindex="0" role="region" aria-label="Dead letters by kind" { table {
        thead { tr { th { "Consumer" } th { "Error" } th.n { "Number" } th.n { "Orders" } th { "At stake" } th { "First seen" } th { "Last seen" } th.n { "Came back" } } }
        tbody { @for group in groups { tr {
            td { (group.consumer) }
            td { a href=(Asked { consumer: group.consumer.clone(), kind: group.kind.clone(), page: String::new(), ..asked.clone() }.address(1)) { (group.kind) } div.dim { (group.example) } }
            td.n { (group.letters) } td.n { (group.orders) } td { (amounts(&group.amounts)) } td { (ago(group.first_died_at)) } td { (ago(group.last_died_at)) } td.n { (group.came_back) }
        } } }
    } } } }
}

fn row_table(reader: &Reader, asked: &Asked, filter: &Filter, letters: &[Listed], total: i64) -> Markup {
    let may = reader.may(Role::Operator);
    let here = asked.address(asked.number());
    let pages = (total + PAGE - 1) / PAGE;
    html! {
        form #rows method="post" action="/dead/plan" {
            (guard(reader)) (hidden("back", &here))
            @for (name, value) in filter.json().as_object().into_iter().flatten() { (hidden(&format!("filter_{name}"), value.as_str().unwrap_or_default())) }
            div.bar {
                p { strong { (total) } " match, " (letters.len()) " on this page" }
                button name="choice" value="ticked" disabled[!may] { "Replay ticked…" }
                @if !filter.is_empty() && filter.state.as_deref() == Some("open") { button name="choice" value="all" disabled[!may] { "Replay all " (total) " matching…" } }
            }
            div.scroll tabindex="0" role="region" aria-label="Dead letters" { table.rows {
                thead { tr {
                    th { input #all type="checkbox" disabled[!may] aria-label={ (letters.len()) " on this page" } title={ (letters.len()) " on this page" }; }
                    th { "Id" } th { "Died" } th { "Consumer" } th { "Error" } th { "State" } th { "Order" } th.n { "Amount" } th.n { "Attempts" } th { "A replay" }
                } }
                tbody { @for each in letters {
                    @let letter = &each.letter;
                    tr id={ "d_" (letter.id) } tabindex="-1" {
                        td { input type="checkbox" name="id" value=(letter.id) disabled[!may || letter.state != "open"] aria-label={ "Tick d_" (letter.id) }; }
                        td { a.open href={ "/dead/" (letter.id) "?back=" (path_part(&here)) } { "d_" (letter.id) } }
                        td { (instant(letter.died_at)) }
                        td { (letter.consumer) }
                        td { (letter.kind) div.dim { (letter.error) } }
                        td { (state_badge(letter)) }
                        td { @if let Some(order) = letter.order_id { (trail_link_as(&order.to_string(), each.reference.as_deref())) } @else { "-" } }
                        td.n { (money(letter.amount_minor, letter.currency.as_deref())) }
                        td.n { (letter.attempts) }
                        td { @if letter.state == "open" { (each.verdict()) } }
                    }
                } }
            } }
        }
        nav.pages aria-label="Pages of the list" {
            @if asked.number() > 1 { a href=(asked.address(asked.number() - 1)) rel="prev" { "Previous" } }
            span { "Page " (asked.number()) " of " (pages) }
            @if asked.number() < pages { a href=(asked.address(asked.number() + 1)) rel="next" { "Next" } }
        }
    }
}

pub(super) fn state_badge(letter: &DeadLetter) -> Markup {
    let kind = match letter.state.as_str() {
        "open" => "bad",
        "queued" | "replaying" => "busy",
        "resolved" => "good",
        _ => "idle",
    };
    badge(kind, &state_words(letter))
}

#[derive(Deserialize, Default)]
pub(super) struct From {
    #[serde(default)]
    back: String,
}

pub(super) async fn show(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, Query(from): Query<From>) -> Response {
    let reply = one(&console, &reader, id, &from.back, None).await;
    console.answer(reader, reply)
}

/// Customer data, for this answer alone: leaving the page ends it, and so do five minutes.
pub(super) async fn reveal(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        let text = revealed(&console, &reader, id, fields.text("reason")).await?;
        one(&console, &reader, id, "", Some(text)).await
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

async fn revealed(console: &Console, reader: &Reader, id: i64, reason: &str) -> Result<String, Trouble> {
    let mut connection = console.pool.acquire().await?;
    let (body, _) = dead::bytes(&mut connection, id).await?.ok_or_else(|| Trouble::Nothing(format!("No dead letter d_{id}.")))?;
    Ok(crate::letters::reveal(&mut connection, &reader.actor, &format!("d_{id}"), reason, &body).await?)
}

/// The bytes as they are, as a file.
pub(super) async fn payload(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>, headers: HeaderMap, fields: Fields) -> Response {
    let reply = async {
        console.own(&reader, &headers, &fields)?;
        revealed(&console, &reader, id, fields.text("reason")).await?;
        let (body, _) = dead::bytes(&mut *console.pool.acquire().await?, id).await?.unwrap_or_default();
        let name = format!("attachment; filename=\"d_{id}.txt\"");
        Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()), (header::CONTENT_DISPOSITION, name)], body).into_response())
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

async fn one(console: &Console, reader: &Reader, id: i64, back: &str, revealed: Option<String>) -> Reply {
    let mut connection = console.pool.acquire().await?;
    let Listed { letter, judged, reference } = listed::find(&mut connection, id, console.horizon_s)
        .await?
        .ok_or_else(|| Trouble::Nothing(format!("No dead letter d_{id}. Closed ones are kept as long as COUNTERFOIL_RETENTION_OUTBOX_DAYS says.")))?;
    let (body, headers) = dead::bytes(&mut connection, id).await?.unwrap_or_default();
    let same = Filter { consumer: Some(letter.consumer.clone()), kind: Some(letter.kind.clone()), state: Some("open".into()), ..Filter::default() };
    let same = dead::count(&mut connection, &same).await?;
    let history = actions_on_letter(&mut connection, id).await?;
    let open = revealed.is_some();
    let text = revealed.unwrap_or_else(|| masked(&body, letter.event_id.is_some()).unwrap_or_else(|why| format!("({} bytes, {why}.)", body.len())));
    let back = if back.starts_with("/dead") { back } else { "/dead" };
    let content = html! {
        p { a href=(back) { "Back to the list" } }
        section.verdict.plainly {
            h1 { "d_" (id) " " (state_badge(&letter)) }
            p.words { (letter.consumer) "'s effect of " (letter.topic.as_deref().unwrap_or("something that is no event")) (if matches!(letter.state.as_str(), "resolved") { " had not happened: " } else { " did not happen: " }) strong { (letter.error) } ". "
                (letter.attempts) " attempts, first " (instant(letter.first_failed_at)) ", last " (instant(letter.died_at)) ". "
                @if let Some(judged) = judged.as_ref().filter(|_| letter.state == "open") { "A replay: " strong { (judged.verdict.words(&judged.detail)) } "." } }
            p.dim { @if let Some(order) = letter.order_id { "order " (trail_link_as(&order.to_string(), reference.as_deref())) ", " } (money(letter.amount_minor, letter.currency.as_deref()))
                @if let Some(event) = letter.event_id { ", event " (trail_link(&event.to_string())) }
                ", " a href={ "/dead?consumer=" (letter.consumer) "&kind=" (path_part(&letter.kind)) "&state=open" } { (same) " of the same kind are open" } }
            @if let Some(previous) = &letter.previous_error { p { "Before its last replay it died of: " (previous) } }
        }
        (decide(reader, &letter, judged.as_ref(), back))
        section { h2 { "Payload" }
            p.dim { @if text.len() > SHOWN_BYTES_MAX { (SHOWN_BYTES_MAX) " of " (text.len()) " bytes are shown, " } (body.len()) " bytes are stored. " @if open { strong { "Customer data is shown, until you leave, and for five minutes at the most." } } @else { "Customer data is masked." } }
            pre.payload tabindex="0" { (cut(&text)) }
            @if !open {
                div.cards {
                    div.card { (action(reader, Role::Admin, &format!("/dead/{id}/reveal"), "Reveal customer data…", &html! {})) }
                    div.card { (action(reader, Role::Admin, &format!("/dead/{id}/payload"), "Download the bytes…", &html! {})) }
                }
            }
        }
        section { h2 { "Headers" } @if headers.as_object().is_none_or(serde_json::Map::is_empty) { p.empty { "None." } } dl.facts { @for (name, value) in headers.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-counterfoil-") || *name == "traceparent") { div { dt { (name) } dd { (value.as_str().unwrap_or_default()) } } } } }
        section { h2 { "Audit of this one" } (audit::table(&history)) }
    };
    let mut frame = Frame::of("Dead letter", "/dead");
    if open {
        frame.refresh = Some((300, format!("/dead/{id}")));
    }
    shown(&frame, reader, &content)
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(SHOWN_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn decide(reader: &Reader, letter: &DeadLetter, judged: Option<&Judgement>, back: &str) -> Markup {
    let id = letter.id;
    let will_run = judged.is_some_and(|judged| judged.verdict == Verdict::WillRun);
    let risky = judged.filter(|judged| matches!(judged.verdict, Verdict::Unknown | Verdict::Unsafe));
    html! { section { h2 { "Decide" } div.cards {
        @if letter.state == "open" {
            @if will_run { div.card { (action(reader, Role::Operator, "/dead/replay", "Replay 1", &html! { (hidden("id", &id.to_string())) (hidden("back", back)) })) p.dim { "What is released cannot be recalled." } } }
            @if let Some(judged) = risky { div.card {
                (action(reader, Role::Admin, "/dead/replay", "Replay 1 knowingly", &html! { (hidden("id", &id.to_string())) (hidden("back", back)) (hidden("risk", judged.verdict.name())) }))
                p.dim { (judged.verdict.words(&judged.detail)) ": ask the other side by the event's id first." }
            } }
            div.card { (action(reader, Role::Operator, &format!("/dead/{id}/discard"), "Discard 1", &hidden("back", back))) p.dim { "Its effect will not happen. Reopen undoes it." } }
        } @else if matches!(letter.state.as_str(), "discarded" | "resolved") {
            div.card { (action(reader, Role::Operator, &format!("/dead/{id}/reopen"), "Reopen", &hidden("back", back))) }
        } @else { p { "A replay is under way: " a href="/replays" { "Replays" } } }
    } } }
}
