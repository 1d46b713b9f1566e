//! The frame of every page, and the small parts that pages share: times, badges, links, forms.

use maud::{DOCTYPE, Markup, html};
use time::OffsetDateTime;

use crate::actions::{Actor, Role};

/// What a page needs to know of whoever reads it.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) actor: Actor,
    pub(super) token: String,
    pub(super) mode: &'static str,
    /// Why nothing can be done now.
    pub(super) away: Option<String>,
}

impl Reader {
    /// Whether this reader may act now.
    pub(super) fn may(&self, role: Role) -> bool {
        self.away.is_none() && self.actor.role >= role
    }

    /// Why a button does nothing.
    pub(super) fn why_not(&self, role: Role) -> String {
        self.away.clone().unwrap_or_else(|| format!("needs the role {}", role.name()))
    }
}

/// A page that reloads itself, and when.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) here: &'a str,
    /// Seconds until it is left, whatever the reader does, and where to.
    pub(super) refresh: Option<(u32, String)>,
    /// Seconds after which it is read anew, unless the reader is busy with it.
    pub(super) live: Option<u32>,
}

impl<'a> Frame<'a> {
    pub(super) fn of(title: &'a str, here: &'a str) -> Self {
        Self { title, here, refresh: None, live: None }
    }
}

const PAGES: [(&str, &str); 5] = [("/", "Now"), ("/dead", "Dead letters"), ("/replays", "Replays"), ("/flow", "Flow"), ("/audit", "Audit")];

/// A whole page.
pub(super) fn page(frame: &Frame<'_>, reader: &Reader, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(seconds) = frame.live { noscript { meta http-equiv="refresh" content=(seconds); } }
                @if let Some((seconds, to)) = &frame.refresh { meta http-equiv="refresh" content={ (seconds) ";url=" (to) }; }
                title { (frame.title) " · Counterfoil" }
                link rel="stylesheet" href="/assets/style.css";
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                script src="/assets/script.js" defer {}
            }
            body data-live=[frame.live] {
                a.skip href="#content" { "Skip to the content" }
                header.top {
                    a.brand href="/" { span.stub aria-hidden="true" {} "Counterfoil" }
                    nav aria-label="Pages" {
                        @for (path, name) in PAGES {
                            a href=(path) aria-current=[(path == frame.here).then_some("page")] { (name) }
                        }
                    }
                    form.search action="/search" role="search" {
                        input #search type="search" name="q" aria-label="Search: payment, event, order, reference, ticket, dead letter" placeholder="Payment, order, event, ticket, d_91 …" autocomplete="off";
                    }
                    div.who {
                        span class={ "mode mode-" (reader.mode) } { (reader.mode.to_uppercase()) }
                        button.zone #zone type="button" hidden { "UTC" }
                        span.person title=(reader.actor.came_from) { (reader.actor.person) " · " (reader.actor.role.name()) }
                        form method="post" action="/sign-out" { (guard(reader)) button.quiet { "Sign out" } }
                    }
                }
                main #content tabindex="-1" {
                    @if let Some(why) = &reader.away { p.notice.bad role="status" { strong { "Last known numbers. " } (why) } }
                    (content)
                }
                footer { p { a href="/runbook" { "Runbook" } ". As of " (instant(OffsetDateTime::now_utc())) ". Keys: " kbd { "/" } " search, " kbd { "j" } " " kbd { "k" } " move, " kbd { "x" } " tick, " kbd { "r" } " preview, " kbd { "?" } " all." } }
                dialog #keys aria-label="Keys" {
                    h2 { "Keys" }
                    dl {
                        @for (key, what) in [("/", "search"), ("j k", "move through rows"), ("x", "tick a row"), ("Enter", "open a row"), ("r", "preview a replay of what is ticked"), ("g d", "dead letters"), ("g f", "flow"), ("u", "UTC or local time"), ("?", "this list")] {
                            div { dt { kbd { (key) } } dd { (what) } }
                        }
                    }
                    form method="dialog" { button { "Close" } }
                }
            }
        }
    }
}

/// The hidden field that says that a form is this person's own.
pub(super) fn guard(reader: &Reader) -> Markup {
    html! { input type="hidden" name="token" value=(reader.token); }
}

/// An instant, in UTC until the script says otherwise.
pub(super) fn instant(at: OffsetDateTime) -> Markup {
    let utc = crate::instant(at);
    html! { time datetime=(utc) { (utc.replace('T', " ")) } }
}

/// An instant, where there is one.
pub(super) fn instant_or(at: Option<OffsetDateTime>, otherwise: &str) -> Markup {
    at.map_or_else(|| html! { span.dim { (otherwise) } }, instant)
}

/// How long ago, with the instant behind it.
pub(super) fn ago(at: OffsetDateTime) -> Markup {
    let text = crate::words::age(at, OffsetDateTime::now_utc());
    html! { time.ago datetime=(crate::instant(at)) title=(crate::instant(at)) { (text) } }
}

/// A state: never by colour alone.
pub(super) fn badge(kind: &str, text: &str) -> Markup {
    let sign = match kind {
        "good" => "✓",
        "bad" => "✕",
        "warn" => "!",
        "busy" => "↻",
        _ => "·",
    };
    html! { span class={ "badge " (kind) } { span aria-hidden="true" { (sign) " " } (text) } }
}

/// An id that leads to its trail.
pub(super) fn trail_link(id: &str) -> Markup {
    html! { a.id href={ "/trail/" (path_part(id)) } { (id) } }
}

/// The same under the name that the shop gave it; without one, short enough for a column. The whole id is behind it.
pub(super) fn trail_link_as(id: &str, name: Option<&str>) -> Markup {
    let shown = name.map_or_else(|| id.chars().take(8).chain(['…']).collect(), str::to_owned);
    html! { a.id href={ "/trail/" (path_part(id)) } title=(id) { (shown) } }
}

/// Text as one part of a path.
pub(super) fn path_part(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A button in a form of its own, with a reason, for whoever may press it.
pub(super) fn action(reader: &Reader, role: Role, to: &str, label: &str, more: &Markup) -> Markup {
    let allowed = reader.may(role);
    html! {
        form.action method="post" action=(to) {
            (guard(reader))
            (more)
            label { span { "Reason" } input name="reason" required autocomplete="off" disabled[!allowed]; }
            button disabled[!allowed] title=[(!allowed).then(|| reader.why_not(role))] { (label) }
        }
    }
}

/// A hidden field.
pub(super) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}
