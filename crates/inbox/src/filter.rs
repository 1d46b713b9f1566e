//! Which dead letters: what a filter chooses.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Which dead letters. Everything that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Of this consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Of this kind of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In one of these states, with commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Of this topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Of this order, by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Of this event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Died within the last so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_s: Option<String>,
    /// Died before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_s: Option<String>,
    /// After at least so many attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_min: Option<String>,
    /// Came back after a replay, or not: `true` or `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came_back: Option<String>,
    /// Of this currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// With this text in the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// This one alone, by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Filter {
    /// Whether it chooses nothing but a state: everything that is open, say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Self { state: None, ..self.clone().sound() } == Self::default()
    }

    /// Without what chooses nothing: blanks, and zeroes of times and attempts.
    #[must_use]
    pub fn sound(mut self) -> Self {
        for field in [
            &mut self.consumer,
            &mut self.kind,
            &mut self.state,
            &mut self.topic,
            &mut self.order,
            &mut self.event,
            &mut self.currency,
            &mut self.text,
            &mut self.came_back,
        ] {
            if field.as_deref().is_some_and(|text| text.trim().is_empty()) {
                *field = None;
            }
        }
        for field in [&mut self.since_s, &mut self.until_s, &mut self.attempts_min] {
            if field.as_deref().is_some_and(|text| text.trim().trim_start_matches('0').is_empty()) {
                *field = None;
            }
        }
        self
    }

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!(self)
    }

    /// In words: `consumer=crm kind=http_404 state=open`.
    #[must_use]
    pub fn words(&self) -> String {
        let value = self.json();
        let parts = value.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
        parts.collect::<Vec<_>>().join(" ")
    }
}
