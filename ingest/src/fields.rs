//! Reads fields of a JSON body: each proven, every problem named with its field.

use serde_json::{Map, Value, json};

/// Longest name or description, in characters.
const TEXT_CHARS_MAX: usize = 2000;

/// What is wrong with which field.
pub(crate) type FieldProblems = Vec<Value>;

/// An object whose fields are read.
pub(crate) struct Fields<'a> {
    pub(crate) object: &'a Map<String, Value>,
    pub(crate) prefix: String,
    pub(crate) problems: &'a mut FieldProblems,
}

impl Fields<'_> {
    /// Reads an object whole; `read` gives `None` only where it has noted a problem.
    pub(crate) fn read<T>(body: &Value, read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Result<T, FieldProblems> {
        let Some(object) = body.as_object() else { return Err(vec![json!({ "field": "", "problem": "must be an object" })]) };
        let mut problems = Vec::new();
        let value = read(&mut Fields { object, prefix: String::new(), problems: &mut problems });
        value.filter(|_| problems.is_empty()).ok_or(problems)
    }

    /// Notes fields that nobody reads: a misspelt limit would be none.
    pub(crate) fn only(&mut self, known: &[&str]) {
        for field in self.object.keys().filter(|field| !known.contains(&field.as_str())) {
            self.note(field, format!("is not known: there are {}", known.join(", ")));
        }
    }

    /// Whether a field is there and not null.
    pub(crate) fn named(&self, field: &str) -> bool {
        self.object.get(field).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn note(&mut self, field: &str, problem: impl Into<String>) {
        self.problems.push(json!({ "field": format!("{}{field}", self.prefix), "problem": problem.into() }));
    }

    pub(crate) fn text(&mut self, field: &str, required: bool) -> Option<String> {
        match self.object.get(field) {
            Some(Value::String(text)) if text.is_empty() => self.note(field, "must not be empty"),
            Some(Value::String(text)) if text.chars().count() > TEXT_CHARS_MAX => self.note(field, format!("must have at most {TEXT_CHARS_MAX} characters")),
            Some(Value::String(text)) => return Some(text.replace('\0', "\u{FFFD}")),
            None | Some(Value::Null) if required => self.note(field, "is required"),
            None | Some(Value::Null) => {}
            Some(_) => self.note(field, "must be a text"),
        }
        None
    }

    pub(crate) fn integer(&mut self, field: &str, least: i64, default: Option<i64>) -> Option<i64> {
        match (self.object.get(field), default) {
            (None | Some(Value::Null), Some(default)) => return Some(default),
            (None | Some(Value::Null), None) => self.note(field, "is required"),
            (Some(value), _) => match value.as_i64() {
                Some(number) if number >= least => return Some(number),
                Some(_) => self.note(field, format!("must be at least {least}")),
                None => self.note(field, "must be a whole number that fits 64 bits; amounts are in minor units"),
            },
        }
        None
    }

    pub(crate) fn parsed<T: std::str::FromStr>(&mut self, field: &str) -> Option<T>
    where
        T::Err: std::fmt::Display,
    {
        let text = self.text(field, true)?;
        text.parse().map_err(|error: T::Err| self.note(field, error.to_string())).ok()
    }
}
