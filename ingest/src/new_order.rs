//! Reads the body of `POST /orders`: every field proven, every problem named with its field.

use counterfoil_payments::event::{Customer, Line};
use counterfoil_payments::{Currency, Money, PaymentKey, Provider, Reference};
use counterfoil_settlement::NewOrder;
use serde_json::{Map, Value, json};

/// Lines of an order, at the most.
const LINES_MAX: usize = 500;

/// Longest name or description, in characters.
const TEXT_CHARS_MAX: usize = 2000;

/// Longest time that an order may wait for its payment: ten years.
const EXPIRES_IN_S_MAX: i64 = 315_360_000;

/// Longest id of a checkout session, in bytes.
const SESSION_BYTES_MAX: usize = 255;

/// Longest e-mail address, in characters (RFC 5321, 4.5.3.1.3, less the brackets).
const EMAIL_CHARS_MAX: usize = 254;

/// What is wrong with which field.
pub(crate) type FieldProblems = Vec<Value>;

struct Fields<'a> {
    object: &'a Map<String, Value>,
    prefix: String,
    problems: &'a mut FieldProblems,
}

impl Fields<'_> {
    fn note(&mut self, field: &str, problem: impl Into<String>) {
        self.problems.push(json!({ "field": format!("{}{field}", self.prefix), "problem": problem.into() }));
    }

    fn text(&mut self, field: &str, required: bool) -> Option<String> {
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

    fn integer(&mut self, field: &str, least: i64, default: Option<i64>) -> Option<i64> {
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

    fn parsed<T: std::str::FromStr>(&mut self, field: &str) -> Option<T>
    where
        T::Err: std::fmt::Display,
    {
        let text = self.text(field, true)?;
        text.parse().map_err(|error: T::Err| self.note(field, error.to_string())).ok()
    }
}

/// Reads an order, or says everything that is wrong with it.
pub(crate) fn read(body: &Value) -> Result<NewOrder, FieldProblems> {
    let mut problems = Vec::new();
    let Some(object) = body.as_object() else { return Err(vec![json!({ "field": "", "problem": "must be an object" })]) };
    let mut fields = Fields { object, prefix: String::new(), problems: &mut problems };
    let reference: Option<Reference> = fields.parsed("reference");
    let amount_minor = fields.integer("amount_minor", 0, None);
    let currency: Option<Currency> = fields.parsed("currency");
    let customer = match object.get("customer") {
        Some(Value::Object(customer)) => read_customer(&mut Fields { object: customer, prefix: "customer.".into(), problems: fields.problems }),
        _ => {
            fields.note("customer", "is required: an object with email and name");
            None
        }
    };
    let expires_in_s = object.get("expires_in_s").filter(|value| !value.is_null()).and_then(|_| fields.integer("expires_in_s", 1, None));
    if expires_in_s.is_some_and(|seconds| seconds > EXPIRES_IN_S_MAX) {
        fields.note("expires_in_s", format!("must be at most {EXPIRES_IN_S_MAX} seconds"));
    }
    let session = match object.get("session") {
        None | Some(Value::Null) => None,
        Some(session) => read_session(session).map_err(|more| fields.problems.extend(more)).ok(),
    };
    let lines = read_lines(object.get("lines"), &mut problems);
    match (reference, amount_minor, currency, customer) {
        (Some(reference), Some(amount_minor), Some(currency), Some(customer)) if problems.is_empty() => {
            let money = Money::new(amount_minor, currency);
            Ok(NewOrder { reference, money, customer, lines: json!(lines), expires_in_s, session, made_by: None })
        }
        _ => Err(problems),
    }
}

/// Reads a checkout session: `{"provider", "id", "account"?}`.
pub(crate) fn read_session(body: &Value) -> Result<PaymentKey, FieldProblems> {
    let mut problems = Vec::new();
    let Some(object) = body.as_object() else { return Err(vec![json!({ "field": "session", "problem": "must be an object with provider and id" })]) };
    let mut fields = Fields { object, prefix: "session.".into(), problems: &mut problems };
    let provider: Option<Provider> = fields.parsed("provider");
    let payment_id = fields.text("id", true).filter(|id| id.len() <= SESSION_BYTES_MAX);
    let account = fields.text("account", false).unwrap_or_default();
    match (provider, payment_id) {
        (Some(provider), Some(payment_id)) if problems.is_empty() => Ok(PaymentKey { provider, account, payment_id }),
        _ if problems.is_empty() => Err(vec![json!({ "field": "session.id", "problem": format!("must have at most {SESSION_BYTES_MAX} bytes") })]),
        _ => Err(problems),
    }
}

fn read_customer(fields: &mut Fields<'_>) -> Option<Customer> {
    let email = fields.text("email", true).filter(|email| {
        let sound = plausible_email(email);
        if !sound {
            fields.note("email", "is not an e-mail address");
        }
        sound
    });
    let name = fields.text("name", true);
    let phone = fields.text("phone", false);
    Some(Customer { email: Some(email?), name: Some(name?), phone })
}

/// One `@` with something on both sides, and nothing that could end a header.
fn plausible_email(email: &str) -> bool {
    let Some((local, domain)) = email.rsplit_once('@') else { return false };
    !local.is_empty() && !domain.is_empty() && email.chars().count() <= EMAIL_CHARS_MAX && !email.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn read_lines(lines: Option<&Value>, problems: &mut FieldProblems) -> Vec<Line> {
    let lines = match lines {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Array(lines)) if lines.len() <= LINES_MAX => lines,
        Some(_) => {
            problems.push(json!({ "field": "lines", "problem": format!("must be a list of at most {LINES_MAX} lines") }));
            return Vec::new();
        }
    };
    let empty = Map::new();
    let mut read = Vec::new();
    for (nth, line) in lines.iter().enumerate() {
        let mut fields = Fields { object: line.as_object().unwrap_or(&empty), prefix: format!("lines[{nth}]."), problems };
        let description = fields.text("description", true);
        let quantity = fields.integer("quantity", 1, Some(1));
        let amount_minor = fields.integer("amount_minor", i64::MIN, None);
        if let (Some(description), Some(quantity), Some(amount_minor)) = (description, quantity, amount_minor) {
            read.push(Line { description, quantity, amount_minor });
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem_fields(body: Value) -> Vec<String> {
        read(&body).unwrap_err().iter().map(|problem| problem["field"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_problem_is_named_with_its_field() {
        assert_eq!(problem_fields(json!({})), ["reference", "amount_minor", "currency", "customer"]);
        let order = json!({ "reference": "67e55044-10b1-426f-9247-bb680e5fe0c8", "amount_minor": 10.5, "currency": "EURO",
            "customer": { "email": "a b@c", "name": 7 }, "lines": [{ "description": "x", "amount_minor": 1 }, { "quantity": 0 }] });
        assert_eq!(
            problem_fields(order),
            ["reference", "amount_minor", "currency", "customer.email", "customer.name", "lines[1].description", "lines[1].quantity", "lines[1].amount_minor"]
        );
    }

    #[test]
    fn a_sound_order_is_read() {
        let order = read(&json!({ "reference": "A-1", "amount_minor": 1099, "currency": "eur", "customer": { "email": "a@b.example", "name": "A" } })).unwrap();
        assert_eq!(order.money.to_string(), "10.99 EUR");
    }
}
