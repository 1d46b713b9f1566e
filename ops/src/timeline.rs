//! The trail as people read it: one line in words, then every step by time, with the gap since the one before, and where each effect is.

use std::fmt;

use counterfoil_inbox::Effect;
use counterfoil_inbox::dead::DeadLetter;
use serde::Serialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::trail::Trail;
use crate::words::{money, state_words};

/// One row of the timeline.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// When; none: it has not happened.
    #[serde(with = "time::serde::rfc3339::option")]
    pub at: Option<OffsetDateTime>,
    /// `provider`, `order`, `payment`, `place`, `tickets`, `outbox`, a consumer's name, `books`, `mail`, `person`.
    pub lane: String,
    /// What happened, in words.
    pub what: String,
    /// What it is called, to copy.
    pub id: String,
    /// Whether this is something that should have happened and has not.
    pub missing: bool,
}

fn read(at: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(at, &Rfc3339).ok()
}

fn entry(at: Option<OffsetDateTime>, lane: &str, what: impl Into<String>, id: impl Into<String>) -> Entry {
    Entry { at, lane: lane.to_owned(), what: what.into(), id: id.into(), missing: false }
}

impl Trail {
    /// Every step, by time; what has not happened comes last.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = vec![entry(
            read(&self.order.created_at),
            "order",
            format!("made: {}", money(Some(self.order.amount_minor), Some(&self.order.currency))),
            self.order.id.to_string(),
        )];
        if let Some(at) = self.order.paid_at.as_deref() {
            entries.push(entry(
                read(at),
                "order",
                if self.order.status == "paid" {
                    format!("paid (version {})", self.order.version)
                } else {
                    format!("paid; now {} (version {})", self.order.status, self.order.version)
                },
                &self.order.reference,
            ));
        }
        self.deliveries(&mut entries);
        self.money(&mut entries);
        self.places(&mut entries);
        for event in &self.published {
            self.event(&mut entries, event);
        }
        for (id, topic) in &self.past {
            entries.push(entry(None, "outbox", format!("{topic}: its outbox row is past retention"), id.to_string()));
            self.effects_of(&mut entries, *id, topic);
        }
        for receipt in &self.receipts {
            entries.push(entry(read(&receipt.sent_at), "mail", format!("{} sent", receipt.kind), &receipt.message_id));
        }
        for line in &self.booked {
            let amount = money(Some(line.amount_minor), Some(&line.currency));
            entries.push(entry(read(&line.recorded_at), "books", format!("{} {amount}", line.account), line.source_event_id.to_string()));
        }
        for letter in &self.dead {
            let topic = letter.topic.as_deref().unwrap_or_default();
            let what = format!("{topic} dead-lettered as d_{}: {} after {} attempts [{}]", letter.id, letter.error, letter.attempts, state_words(letter));
            entries.push(entry(Some(letter.died_at), &letter.consumer, what, letter.event_id.map(|id| id.to_string()).unwrap_or_default()));
        }
        for action in &self.actions {
            entries.push(entry(
                Some(action.at),
                "person",
                format!("{} {}: {} ({})", action.person, action.action, action.outcome, action.reason),
                &action.object,
            ));
        }
        entries.sort_by_key(|entry| (entry.at.is_none(), entry.at));
        entries
    }

    fn deliveries(&self, entries: &mut Vec<Entry>) {
        for seen in &self.deliveries {
            let times = if seen.deliveries == 1 { String::new() } else { format!(" × {} deliveries, 1 event", seen.deliveries) };
            let late = if seen.late_deliveries == 0 { String::new() } else { format!(", {} of them late", seen.late_deliveries) };
            let why = seen.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            let at = read(&seen.received_at);
            let sent = seen.made_at.as_deref().and_then(read).filter(|made| at.is_some_and(|at| (at - *made).whole_seconds().abs() > 5));
            let sent = sent.map(|made| format!("; made {}", crate::instant(made))).unwrap_or_default();
            entries.push(entry(at, "provider", format!("{} {}{times}{late}: {}{why}{sent}", seen.provider, seen.event_type, seen.outcome), &seen.event_id));
        }
    }

    fn money(&self, entries: &mut Vec<Entry>) {
        for payment in &self.payments {
            let why = payment.held_reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            let amount = money(payment.amount_minor, payment.currency.as_deref());
            entries.push(entry(
                read(&payment.created_at),
                "payment",
                format!("{} {}, {}{why}: {amount}", payment.provider, payment.status, payment.disposition),
                &payment.payment_id,
            ));
        }
        for refund in &self.refunds {
            let why = refund.held_reason.as_ref().map(|why| format!(" (held: {why})"));
            let why = why.or_else(|| refund.last_error.as_ref().filter(|_| refund.status == "failed").map(|error| format!(" ({error})"))).unwrap_or_default();
            let amount = money(Some(refund.amount_minor), Some(&refund.currency));
            let theirs = refund.provider_refund_id.clone().unwrap_or_else(|| refund.id.to_string());
            let what = format!("refund of {}, asked for by {}: {}{why}, {amount}", refund.payment_id, refund.origin, refund.status);
            entries.push(entry(read(&refund.created_at), "payment", what, theirs));
        }
        for dispute in &self.disputes {
            let amount = money(Some(dispute.amount_minor), Some(&dispute.currency));
            entries.push(entry(
                read(&dispute.created_at),
                "payment",
                format!("dispute of {}: {}, {amount}", dispute.payment_id, dispute.status),
                &dispute.dispute_id,
            ));
        }
    }

    fn places(&self, entries: &mut Vec<Entry>) {
        for place in &self.reservations {
            let why = place.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            let until = if place.status == "held" { format!(" until {}", place.expires_at) } else { String::new() };
            let what = format!("line {}: {} of draw {}, {}{until}{why}", place.line, place.quantity, place.draw_id, place.status);
            entries.push(entry(read(&self.order.created_at), "place", what, place.id.to_string()));
        }
        for ticket in &self.tickets {
            let void = ticket.voided_at.as_ref().map(|at| format!(" since {at}")).unwrap_or_default();
            let what = format!("line {}: {} to {} of draw {}, {}{void}", ticket.line, ticket.first_number, ticket.last_number, ticket.draw_id, ticket.status);
            entries.push(entry(read(&ticket.issued_at), "tickets", what, format!("{}#{}", ticket.draw_id, ticket.first_number)));
        }
    }

    fn event(&self, entries: &mut Vec<Entry>, event: &counterfoil_outbox::Published) {
        let id = event.event_id.to_string();
        if event.published_at.is_some() && event.last_error.is_some() {
            let why = event.last_error.as_deref().unwrap_or_default();
            entries.push(entry(Some(event.created_at), "outbox", format!("{}: effects not expected (backfill): {why}", event.topic), id));
            return;
        }
        let queue = if event.exchange.is_empty() { format!(" to {} again", event.routing_key) } else { String::new() };
        let state = match (event.published_at, &event.last_error) {
            (Some(at), _) => format!("published {} ms later", (at - event.created_at).whole_milliseconds()),
            (None, Some(why)) => why.clone(),
            (None, None) => "waiting for the relay".to_owned(),
        };
        let mut row = entry(Some(event.created_at), "outbox", format!("{}{queue}: {state}", event.topic), id);
        row.missing = event.published_at.is_none();
        entries.push(row);
        if !event.exchange.is_empty() {
            self.effects_of(entries, event.event_id, &event.topic);
        }
    }

    fn effects_of(&self, entries: &mut Vec<Entry>, event_id: Uuid, topic: &str) {
        for (consumer, effect, dead) in self.expected(event_id, topic) {
            let mut row = effect_row(consumer, topic, effect, dead);
            row.id = event_id.to_string();
            entries.push(row);
        }
    }

    /// One line for the customer's call.
    #[must_use]
    pub fn words(&self) -> String {
        let order = &self.order;
        let amount = money(Some(order.amount_minor), Some(&order.currency));
        let mut said = vec![order.paid_at.as_deref().and_then(read).map_or_else(
            || format!("{amount}, {}.", order.status),
            |at| format!("Paid {amount} at {}{}.", crate::instant(at), if order.status == "paid" { String::new() } else { format!("; now {}", order.status) }),
        )];
        if let Some(receipt) = self.receipts.iter().find(|receipt| receipt.kind == "receipt") {
            said.push(format!("Receipt sent {}.", read(&receipt.sent_at).map(crate::instant).unwrap_or_default()));
        }
        for payment in self.payments.iter().filter(|payment| matches!(payment.disposition.as_str(), "extra" | "held")) {
            said.push(format!("Another payment of {} is {}.", money(payment.amount_minor, payment.currency.as_deref()), payment.disposition));
        }
        for refund in &self.refunds {
            let amount = money(Some(refund.amount_minor), Some(&refund.currency));
            said.push(if refund.status == "failed" {
                format!("A refund of {amount} failed: {}.", refund.last_error.as_deref().unwrap_or("the provider says so"))
            } else {
                format!("A refund of {amount} is {}.", refund.status)
            });
        }
        let mut lanes: Vec<String> = Vec::new();
        for entry in self.entries().into_iter().filter(|entry| entry.missing) {
            if !lanes.contains(&entry.lane) {
                lanes.push(entry.lane);
            }
        }
        if !lanes.is_empty() {
            said.push(format!("Outstanding: {}.", lanes.join(", ")));
        }
        said.join(" ")
    }

    /// As JSON: `order`, `summary`, `entries`, `dead_letters`.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "order": self.order, "summary": self.words(), "entries": self.entries(), "dead_letters": self.dead, "payments": self.payments, "refunds": self.refunds })
    }
}

fn effect_row(consumer: &str, topic: &str, effect: Option<&Effect>, dead: Option<&DeadLetter>) -> Entry {
    let attempts = |n: i32| if n == 1 { "1 attempt".to_owned() } else { format!("{n} attempts") };
    let mut row = match (effect, dead) {
        (Some(effect), _) if effect.state == "done" => {
            let more = effect.external_ref.as_deref().map(|reference| format!(": {reference}")).unwrap_or_default();
            return entry(effect.done_at.as_deref().and_then(read), consumer, format!("{topic} done after {}{more}", attempts(effect.attempts)), "");
        }
        (_, Some(letter)) if matches!(letter.state.as_str(), "discarded" | "resolved") => {
            entry(None, consumer, format!("{topic} not expected any more: d_{} {}", letter.id, state_words(letter)), "")
        }
        (_, Some(letter)) => entry(None, consumer, format!("{topic} dead-lettered as d_{}: {} [{}]", letter.id, letter.error, state_words(letter)), ""),
        (Some(effect), None) => {
            let why = effect.last_error.as_deref().unwrap_or_default();
            let what = match (effect.state.as_str(), &effect.lease_until) {
                ("claimed", Some(until)) => format!("in progress (lease until {until})"),
                ("unknown", _) | ("claimed", None) => format!("outcome unknown after {}: {why}", attempts(effect.attempts)),
                _ if effect.attempts == 0 => format!("waiting, no attempt counts yet: {why}"),
                _ => format!("retrying after {}: {why}", attempts(effect.attempts)),
            };
            entry(None, consumer, format!("{topic} {what}"), "")
        }
        (None, None) => entry(None, consumer, format!("{topic} waiting: no attempt is known"), ""),
    };
    row.missing = dead.is_none_or(|letter| !matches!(letter.state.as_str(), "discarded" | "resolved"));
    row
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = &self.order;
        writeln!(
            f,
            "order {}  {}  {} (version {})  {}",
            order.id,
            order.reference,
            order.status,
            order.version,
            money(Some(order.amount_minor), Some(&order.currency))
        )?;
        writeln!(f, "{}\n", self.words())?;
        let mut before: Option<OffsetDateTime> = None;
        for entry in self.entries() {
            let at = entry.at.map_or_else(|| "(not yet)               ".to_owned(), precise);
            let gap = match (before, entry.at) {
                (Some(before), Some(at)) => gap((at - before).as_seconds_f64()),
                _ => String::new(),
            };
            before = entry.at.or(before);
            writeln!(f, "{at} {gap:>9}  {:<8} {}  {}", entry.lane, entry.what, entry.id)?;
        }
        Ok(())
    }
}

/// To the millisecond, always as wide.
fn precise(at: OffsetDateTime) -> String {
    let text = crate::instant(at);
    format!("{}.{:03}Z", text.trim_end_matches('Z'), at.millisecond())
}

fn gap(seconds: f64) -> String {
    if seconds < 1.0 { format!("+{:.0} ms", seconds * 1000.0) } else { format!("+{}", crate::status::seconds(seconds)) }
}
