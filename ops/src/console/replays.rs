//! Replays: a plan as a preview, a run as progress, and what came back.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use counterfoil_inbox::dead::Verdict;
use counterfoil_inbox::replay::{self, Item, PlanLine, Replay};
use maud::{Markup, html};

use super::page::{Frame, Reader, action, badge, guard, instant, instant_or, trail_link};
use super::{Console, Reply, Trouble, shown};
use crate::actions::Role;
use crate::replays::{CONFIRM_ABOVE, RATE_PER_S};
use crate::words::amounts;

pub(super) async fn list(State(console): State<Arc<Console>>, reader: Reader) -> Response {
    let reply = async {
        let runs = replay::replays(&mut *console.pool.acquire().await?, None, 50).await?;
        let content = html! { h1 { "Replays" } @if runs.is_empty() { p.empty { "Nothing has been replayed." } } @else { (table(&runs)) } };
        shown(&Frame::of("Replays", "/replays"), &reader, &content)
    };
    let reply = reply.await;
    console.answer(reader, reply)
}

pub(super) fn table(runs: &[Replay]) -> Markup {
    html! { div.scroll tabindex="0" role="region" aria-label="Replays" { table {
        thead { tr { th { "Id" } th { "State" } th { "Outcome" } th { "By" } th { "Why" } th { "Chosen" } th { "Started" } } }
        tbody { @for run in runs { tr {
            td { a href={ "/replays/" (run.id) } { "r_" (run.id) } } td { (state(run)) } td { (run.words()) }
            td { (run.started_by.as_deref().unwrap_or(&run.planned_by)) } td { (run.reason.as_deref().unwrap_or("-")) } td { (run.choice) } td { (instant_or(run.started_at, "not yet")) }
        } } }
    } } }
}

fn state(run: &Replay) -> Markup {
    match run.state.as_str() {
        "running" => badge("busy", "Running"),
        "done" if run.came_back > 0 => badge("warn", "Done, some came back"),
        "done" => badge("good", "Done"),
        "stopped" => badge("warn", "Stopped"),
        _ => badge("idle", "Preview"),
    }
}

pub(super) async fn show(State(console): State<Arc<Console>>, reader: Reader, Path(id): Path<i64>) -> Response {
    let reply = one(&console, &reader, id).await;
    console.answer(reader, reply)
}

async fn one(console: &Console, reader: &Reader, id: i64) -> Reply {
    let mut connection = console.pool.acquire().await?;
    let run = replay::replays(&mut connection, Some(id), 1).await?.pop().ok_or_else(|| Trouble::Nothing(format!("No replay r_{id}.")))?;
    if run.state == "planned" {
        let lines = replay::plan_lines(&mut connection, id).await?;
        let samples = replay::items(&mut connection, id, None, 3).await?;
        let (newer, _) = replay::newer_than_plan(&mut connection, id).await?;
        return shown(&Frame::of("Replay preview", "/replays"), reader, &preview(reader, &run, &lines, &samples, newer));
    }
    let back = replay::items(&mut connection, id, Some("came_back"), 200).await?;
    let (newer, _) = replay::newer_than_plan(&mut connection, id).await?;
    let live = (run.state == "running").then_some(1);
    shown(&Frame { live, ..Frame::of("Replay", "/replays") }, reader, &progress(reader, &run, &back, newer))
}

fn preview(reader: &Reader, run: &Replay, lines: &[PlanLine], samples: &[Item], newer: i64) -> Markup {
    let id = run.id;
    let will_run: i64 = lines.iter().filter(|line| line.verdict == Verdict::WillRun).map(|line| line.letters).sum();
    let risky = lines.iter().any(|line| matches!(line.verdict, Verdict::Unknown | Verdict::Unsafe));
    let may = reader.may(Role::Operator);
    html! {
        h1 { "Preview p_" (id) }
        p { "Chosen: " (run.choice) ". " (run.planned) " dead letters, frozen " (instant(run.planned_at)) " by " (run.planned_by) ". Nothing has been changed."
            @if newer > 0 { " " strong { (newer) " arrived since and are not included." } } }
        @if run.seconds_valid == 0 {
            p.notice.bad role="alert" { "This plan is older than 15 minutes: what it says may not be true any more." }
            form method="post" action={ "/replays/" (id) "/again" } { (guard(reader)) button disabled[!may] { "Fresh preview" } }
        } @else {
            form.plan method="post" action={ "/replays/" (id) "/run" } {
                (guard(reader))
                div.scroll tabindex="0" role="region" aria-label="What would happen" { table {
                    thead { tr { th { "Take" } th { "What would happen" } th.n { "Number" } th.n { "Orders" } th { "At stake" } } }
                    tbody { @for line in lines { tr {
                        td { @match line.verdict {
                            Verdict::WillRun => input type="checkbox" checked disabled aria-label="Taken";,
                            Verdict::Unknown => input type="checkbox" name="unknown" value="1" disabled[!reader.may(Role::Admin)] aria-label="Take those of unknown outcome";,
                            Verdict::Unsafe => input type="checkbox" name="unsafe" value="1" disabled[!reader.may(Role::Admin)] aria-label="Take those that are unsafe";,
                            Verdict::Done | Verdict::Superseded | Verdict::Blocked | Verdict::NotAnEvent => input type="checkbox" disabled aria-label="Not taken";,
                        } }
                        td { (line.verdict.words("")) @if line.verdict == Verdict::Unknown { div.dim { "The other side may have it already; it carries the same key, and a mail may be sent twice." } } }
                        td.n { (line.letters) } td.n { (line.orders) } td { (amounts(&line.amounts)) }
                    } } }
                } }
                @if !samples.is_empty() { p.dim { "For example: " @for item in samples { a href={ "/dead/" (item.dead_letter_id) } { "d_" (item.dead_letter_id) } " (" (item.consumer) @if let Some(order) = item.order_id { ", order " (trail_link(&order.to_string())) } ") " } } }
                fieldset {
                    legend { "How" }
                    label { span { "Reason" } input name="reason" required disabled[!may] autocomplete="off"; }
                    label { span { "Rate, a second" } input type="number" name="rate" min="0.1" max="200" step="0.1" value=(RATE_PER_S) disabled[!may]; }
                    label { span { "Stop after so many came back" } input type="number" name="stop_after" min="1" value="5" disabled[!may]; }
                    label.box { input type="checkbox" name="one_first" value="1" checked disabled[!may]; span { "One first: go on only when it is done" } }
                    @if will_run > CONFIRM_ABOVE as i64 || risky { label { span { "Type the number that will run" } input name="confirm" inputmode="numeric" disabled[!may] autocomplete="off"; } }
                }
                p.dim { "Stop takes back what is not released; what is released cannot be recalled." }
                button.primary disabled[!may || (will_run == 0 && !risky)] title=[(!may).then(|| reader.why_not(Role::Operator))] { "Replay " (will_run) }
            }
        }
    }
}

fn progress(reader: &Reader, run: &Replay, back: &[Item], newer: i64) -> Markup {
    let id = run.id;
    html! {
        h1 { "Replay r_" (id) " " (state(run)) }
        p.words role="status" { (run.words()) }
        progress max=(run.taken.max(1)) value=(run.done + run.skipped + run.came_back) aria-label="Ended" {}
        p { "Started " (instant_or(run.started_at, "not yet")) " by " (run.started_by.as_deref().unwrap_or("-")) ": " (run.reason.as_deref().unwrap_or("-")) ". Chosen: " (run.choice) ". "
            (run.planned) " planned, " (run.taken) " taken, " (run.rate_per_s.unwrap_or(RATE_PER_S)) " a second."
            @if newer > 0 { " " strong { (newer) " arrived since the preview and were not included." } } }
        @if let Some(why) = &run.stopped_why { p.notice.warn { "Stopped: " (why) ". What was not released is open again." } }
        @if run.state == "running" { (action(reader, Role::Operator, &format!("/replays/{id}/stop"), "Stop replay", &html! {})) }
        @if !back.is_empty() {
            h2 { "Came back" }
            div.scroll tabindex="0" role="region" aria-label="What came back" { table {
                thead { tr { th { "Id" } th { "Consumer" } th { "Now" } th { "Before" } } }
                tbody { @for item in back { tr {
                    td { a href={ "/dead/" (item.dead_letter_id) } { "d_" (item.dead_letter_id) } } td { (item.consumer) }
                    td { (item.error.as_deref().unwrap_or("-")) } td { (item.error_before.as_deref().unwrap_or("-")) }
                } } }
            } }
        }
        @if run.state != "running" && (run.left > 0 || run.came_back > 0) {
            form method="post" action={ "/replays/" (id) "/again" } { (guard(reader)) button disabled[!reader.may(Role::Operator)] { "New preview from the rest…" } }
        }
    }
}
