//! `counterfoil console`: the on-call's page. Server-rendered, readable without script, no asset from outside.

mod actions;
mod attention;
mod audit;
mod dead;
mod fields;
mod flow;
mod now;
mod options;
mod page;
mod replays;
mod session;
mod trail;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use counterfoil_chassis::process::Exit;
use counterfoil_chassis::{Process, postgres, replica};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::json;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::facts::{BrokerAt, Facts};
use crate::gather::Gatherer;
use crate::replays::exit;
use fields::Fields;
use page::{Frame, Reader, page};

pub use options::{ConsoleOptions, ConsoleSettings};
pub use session::{Door, Proxy};

/// Longest time for gathering the facts of a page.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest form: ten thousand ticked rows.
const FORM_BYTES_MAX: usize = 512 << 10;

/// Connections of the console.
pub(crate) const CONNECTIONS: u32 = 5;

/// Nothing from outside, no frame, no inline script or style.
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// What the pages share.
struct Console {
    pool: PgPool,
    gatherer: Gatherer,
    door: Door,
    mode: &'static str,
    horizon_s: i64,
    /// The last facts that could be had, for when the database is away.
    known: Mutex<Option<Facts>>,
}

/// Runs until told to stop.
///
/// # Errors
/// When the address cannot be had.
pub async fn run(pool: PgPool, broker: Option<BrokerAt>, settings: ConsoleSettings, horizon_s: i64, process: Process) -> anyhow::Result<()> {
    let ConsoleSettings { listen, door, mode } = settings;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen} (COUNTERFOIL_CONSOLE_LISTEN)"))?;
    process.readiness.fails("database", "not asked yet");
    let console = Arc::new(Console { pool: pool.clone(), gatherer: Gatherer::new(broker), door, mode, horizon_s, known: Mutex::default() });
    let shutdown = process.shutdown.clone();
    let service = router(console).into_make_service_with_connect_info::<SocketAddr>();
    let serve = async { axum::serve(listener, service).with_graceful_shutdown(shutdown.cancelled_owned()).await.context("the console's server failed") };
    let reports = replica::report(pool.clone(), "console".into(), process.clone(), || json!({ "connections": CONNECTIONS }));
    let (served, (), ()) = tokio::join!(serve, postgres::watch(pool, process.clone()), reports);
    served
}

fn router(console: Arc<Console>) -> Router {
    Router::new()
        .route("/", get(now::show))
        .route("/dead", get(dead::list))
        .route("/dead/plan", post(actions::plan))
        .route("/dead/replay", post(actions::replay_one))
        .route("/dead/{id}", get(dead::show))
        .route("/dead/{id}/discard", post(actions::discard))
        .route("/dead/{id}/reopen", post(actions::reopen))
        .route("/dead/{id}/reveal", post(dead::reveal))
        .route("/dead/{id}/payload", post(dead::payload))
        .route("/trail/{id}", get(trail::show))
        .route("/search", get(search))
        .route("/replays", get(replays::list))
        .route("/replays/{id}", get(replays::show))
        .route("/replays/{id}/run", post(actions::run))
        .route("/replays/{id}/stop", post(actions::stop))
        .route("/replays/{id}/again", post(actions::plan_again))
        .route("/flow", get(flow::show))
        .route("/flow/pause", post(actions::pause))
        .route("/flow/resume", post(actions::resume))
        .route("/flow/release", post(actions::release))
        .route("/attention", get(attention::show))
        .route("/attention/decide", post(attention::decide))
        .route("/attention/undo", post(attention::undo))
        .route("/audit", get(audit::show))
        .route("/runbook", get(runbook))
        .route("/runbook/{alert}", get(runbook_of))
        .route("/sign-in", get(sign_in_page).post(sign_in))
        .route("/sign-out", post(sign_out))
        .route("/assets/style.css", get(|| async { asset("text/css; charset=utf-8", include_str!("assets/style.css")) }))
        .route("/assets/script.js", get(|| async { asset("text/javascript; charset=utf-8", include_str!("assets/script.js")) }))
        .route("/assets/icon.svg", get(|| async { asset("image/svg+xml", include_str!("assets/icon.svg")) }))
        .route("/favicon.ico", get(|| async { asset("image/svg+xml", include_str!("assets/icon.svg")) }))
        .fallback(nowhere)
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(middleware::from_fn(harden))
        .with_state(console)
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=300")], text).into_response()
}

/// The headers of every answer.
async fn harden(request: axum::extract::Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Why a page is not what was asked for.
enum Trouble {
    /// The database is away.
    Away(String),
    /// Not for this person, or not now.
    Refused(StatusCode, String),
    /// There is no such thing.
    Nothing(String),
}

impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        Self::from(anyhow::Error::new(error))
    }
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast_ref::<Exit>() {
            Some(refusal) if refusal.code == exit::NOTHING => return Self::Nothing(refusal.message.clone()),
            Some(refusal) if refusal.code == exit::REFUSED => return Self::Refused(StatusCode::FORBIDDEN, refusal.message.clone()),
            _ => {}
        }
        tracing::warn!(error = format!("{error:#}"), "a page could not be read");
        Self::Away(format!("The database cannot be asked: {error:#}"))
    }
}

/// A page, or why there is none.
type Reply = Result<Response, Trouble>;

impl Console {
    /// The facts, and why they are old, where they are.
    async fn facts(&self) -> (Option<Facts>, Option<String>) {
        let remember = |facts: &Facts| *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts.clone());
        match timeout(PATIENCE, self.gatherer.gather(&self.pool)).await.unwrap_or_else(|_| Err(anyhow::anyhow!("it does not answer in time"))) {
            Ok(facts) => {
                remember(&facts);
                (Some(facts), None)
            }
            Err(error) => (self.known.lock().unwrap_or_else(PoisonError::into_inner).clone(), Some(format!("The database cannot be asked: {error:#}"))),
        }
    }

    /// A reply as a response: trouble is a page, too.
    fn answer(&self, mut reader: Reader, reply: Reply) -> Response {
        let trouble = match reply {
            Ok(response) => return response,
            Err(trouble) => trouble,
        };
        let (status, title, text) = match trouble {
            Trouble::Refused(status, why) => (status, "Not done", why),
            Trouble::Nothing(what) => (StatusCode::NOT_FOUND, "Nothing here", what),
            Trouble::Away(why) => {
                reader.away = Some(why);
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return (StatusCode::SERVICE_UNAVAILABLE, page(&Frame::of("Database away", "/"), &reader, &now::content(known.as_ref(), &reader, &[])))
                    .into_response();
            }
        };
        let content = html! {
            h1 { (title) }
            p.notice.bad role="alert" { (text) }
            p { a href="/" { "Back to Now" } }
        };
        (status, page(&Frame::of(title, ""), &reader, &content)).into_response()
    }

    /// Whether a form is this person's own.
    fn own(&self, reader: &Reader, headers: &HeaderMap, fields: &Fields) -> Result<(), Trouble> {
        if self.door.own_form(&reader.actor, fields.text("token"), headers) {
            return Ok(());
        }
        Err(Trouble::Refused(
            StatusCode::FORBIDDEN,
            "This form is not from this console, or from before you signed in. Go back, reload the page, and press the button again.".into(),
        ))
    }
}

/// Renders a page.
fn shown(frame: &Frame<'_>, reader: &Reader, content: &Markup) -> Reply {
    Ok(page(frame, reader, content).into_response())
}

impl FromRequestParts<Arc<Console>> for Reader {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Arc<Console>) -> Result<Self, Response> {
        let from = parts.extensions.get::<ConnectInfo<SocketAddr>>().map_or(std::net::IpAddr::from([0, 0, 0, 0]), |info| info.0.ip());
        let Some(actor) = console.door.who(&parts.headers, from) else {
            if parts.method != http::Method::GET {
                return Err((StatusCode::UNAUTHORIZED, "Sign in first.\n").into_response());
            }
            let next = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
            return Err(Redirect::to(&format!("/sign-in?next={}", page::path_part(next))).into_response());
        };
        Ok(Self { token: console.door.form_token(&actor), actor, mode: console.mode, away: None })
    }
}

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    q: String,
}

/// Where something is looked at.
pub(crate) fn place(id: &str) -> String {
    match id.split_once('_') {
        Some(("d", number)) if number.parse::<i64>().is_ok() => format!("/dead/{number}"),
        Some(("r" | "p", number)) if number.parse::<i64>().is_ok() => format!("/replays/{number}"),
        _ if id.is_empty() => "/".to_owned(),
        _ => format!("/trail/{}", page::path_part(id)),
    }
}

/// Exact first: one hit jumps to its page.
async fn search(_: Reader, Query(asked): Query<Asked>) -> Redirect {
    Redirect::to(&place(asked.q.trim()))
}

/// deploy/runbook.md, a section for each alert: title and lines.
fn runbook_sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    include_str!("../../../deploy/runbook.md").split("\n## ").map(|section| section.split_once('\n').unwrap_or((section, "")))
}

fn runbook_section(title: &str, body: &str) -> Markup {
    html! { section id=(title) { h2 { (title) } @for line in body.lines().filter(|line| !line.trim().is_empty()) { p { (marked(line)) } } } }
}

async fn runbook(reader: Reader) -> Markup {
    let alerts: Vec<&str> = runbook_sections().skip(1).map(|(title, _)| title).collect();
    let content = html! {
        @for (nth, (title, body)) in runbook_sections().enumerate() {
            (runbook_section(title.trim_start_matches("# "), body))
            @if nth == 0 { nav aria-label="Alerts" { p { @for (nth, alert) in alerts.iter().enumerate() { @if nth > 0 { " · " } a href={ "#" (alert) } { (alert) } } } } }
        }
    };
    page(&Frame::of("Runbook", ""), &reader, &content)
}

/// One section at an address of its own, which a sign-in leads back to.
async fn runbook_of(State(console): State<Arc<Console>>, reader: Reader, Path(alert): Path<String>) -> Response {
    let Some((title, body)) = runbook_sections().skip(1).find(|(title, _)| *title == alert) else {
        return console.answer(reader, Err(Trouble::Nothing(format!("The runbook has no section {alert}: /runbook has them all."))));
    };
    let content = html! { (runbook_section(title, body)) p { a href="/runbook" { "The whole runbook" } } };
    page(&Frame::of("Runbook", ""), &reader, &content).into_response()
}

/// A line of the runbook: its bold parts and its commands.
fn marked(line: &str) -> Markup {
    html! {
        @for (place, part) in line.split('`').enumerate() {
            @if place % 2 == 1 { code { (part) } } @else {
                @for (inner, text) in part.split("**").enumerate() { @if inner % 2 == 1 { strong { (text) } } @else { (text) } }
            }
        }
    }
}

async fn nowhere(State(console): State<Arc<Console>>, reader: Reader) -> Response {
    console.answer(reader, Err(Trouble::Nothing("There is no such page.".into())))
}

#[derive(Deserialize)]
struct SignIn {
    #[serde(default)]
    next: String,
}

/// A path of this site, whatever was asked for.
fn local(next: &str) -> &str {
    let sound = next.starts_with('/') && !next.starts_with("//") && next.bytes().all(|byte| byte > b' ' && byte != b'\\' && byte != 0x7f);
    if sound { next } else { "/" }
}

fn sign_in_form(console: &Console, next: &str, wrong: bool) -> Markup {
    html! {
        (maud::DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Sign in · Counterfoil" }
                link rel="stylesheet" href="/assets/style.css";
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
            }
            body.door {
                main {
                    h1 { span.stub aria-hidden="true" {} "Counterfoil" }
                    @if wrong { p.notice.bad role="alert" { "Nobody has this token. Ask whoever runs the console for yours." } }
                    @if console.door.takes_tokens() {
                        form method="post" action="/sign-in" {
                            input type="hidden" name="next" value=(local(next));
                            label { span { "Your token" } input type="password" name="secret" autocomplete="current-password" required autofocus; }
                            button.primary { "Sign in" }
                        }
                    } @else { p { "You come in by your identity-aware proxy, and it has not said who you are." } }
                    p.dim { "The on-call's page. Everything that is changed here is written down with your name." }
                }
            }
        }
    }
}

async fn sign_in_page(State(console): State<Arc<Console>>, Query(asked): Query<SignIn>) -> Markup {
    sign_in_form(&console, &asked.next, false)
}

async fn sign_in(State(console): State<Arc<Console>>, fields: Fields) -> Response {
    let next = fields.text("next").to_owned();
    match console.door.sign_in(fields.text("secret").trim()) {
        Some((person, cookie)) => {
            tracing::info!(person, "signed in");
            ([(header::SET_COOKIE, cookie)], Redirect::to(local(&next))).into_response()
        }
        None => {
            tokio::time::sleep(Duration::from_millis(500)).await; // guessing is slow
            metrics::counter!("counterfoil_console_refused_total").increment(1);
            (StatusCode::UNAUTHORIZED, sign_in_form(&console, &next, true)).into_response()
        }
    }
}

async fn sign_out(State(console): State<Arc<Console>>, reader: Reader, headers: HeaderMap, fields: Fields) -> Response {
    if let Err(trouble) = console.own(&reader, &headers, &fields) {
        return console.answer(reader, Err(trouble));
    }
    ([(header::SET_COOKIE, Door::sign_out())], Redirect::to("/sign-in")).into_response()
}
