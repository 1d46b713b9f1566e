//! Amounts, states and ages as people read them.

use counterfoil_inbox::dead::DeadLetter;
use counterfoil_payments::{Currency, Money};
use serde_json::Value;
use time::OffsetDateTime;

/// An amount for people; the bare numbers where the currency is unknown.
pub(crate) fn money(minor: Option<i64>, currency: Option<&str>) -> String {
    match (minor, currency.map(str::parse::<Currency>)) {
        (Some(minor), Some(Ok(currency))) => Money::new(minor, currency).to_string(),
        (Some(minor), Some(Err(_))) => format!("{minor} {}", currency.unwrap_or_default()),
        _ => "-".into(),
    }
}

/// Amounts by currency, for people.
pub(crate) fn amounts(amounts: &Value) -> String {
    let each = amounts.as_object().into_iter().flatten().map(|(currency, minor)| money(minor.as_i64(), Some(currency)));
    let text = each.collect::<Vec<_>>().join(" + ");
    if text.is_empty() { "-".into() } else { text }
}

/// A state as people read it.
pub(crate) fn state_words(letter: &DeadLetter) -> String {
    match letter.state.as_str() {
        "open" if letter.came_back > 0 => format!("Came back ({})", nth(letter.came_back)),
        "open" => "Open".into(),
        "queued" => "Replay queued".into(),
        "replaying" => "Replaying".into(),
        "resolved" => format!("Resolved ({})", letter.closed_reason.as_deref().unwrap_or("its effect is done")),
        "discarded" => format!("Discarded ({})", letter.closed_reason.as_deref().unwrap_or_default()),
        other => other.to_owned(),
    }
}

/// A number with its noun.
pub(crate) fn counted(n: impl ToString, one: &str, more: &str) -> String {
    let n = n.to_string();
    format!("{n} {}", if n == "1" { one } else { more })
}

fn nth(n: i32) -> String {
    match n {
        1 => "once".into(),
        2 => "twice".into(),
        n => format!("{n} times"),
    }
}

/// Now, for those who print times beside ages.
pub(crate) fn age(since: OffsetDateTime, now: OffsetDateTime) -> String {
    let seconds = (now - since).whole_seconds().max(0);
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}
