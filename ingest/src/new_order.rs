//! Reads the body of `POST /orders`: every field proven, every problem named with its field.

use counterfoil_payments::event::{Customer, Line};
use counterfoil_payments::{Currency, Money, OrderKey, PaymentKey, Provider};
use counterfoil_settlement::NewOrder;
use counterfoil_tickets::Wanted;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::checkout::Asked;
use crate::fields::{FieldProblems, Fields};

/// Lines of an order, at the most.
const LINES_MAX: usize = 500;

/// Longest time that an order may wait for its payment: ten years.
const EXPIRES_IN_S_MAX: i64 = 315_360_000;

/// How long places are held unless the order says otherwise, in seconds: a checkout with a second factor takes minutes.
const RESERVE_FOR_S: i64 = 15 * 60;

/// Tickets of one line, at the most.
const TICKETS_MAX: i64 = 1_000_000;

/// Longest id of a customer, in characters.
const CUSTOMER_ID_CHARS_MAX: usize = 200;

/// Longest id of a checkout session, in bytes.
const SESSION_BYTES_MAX: usize = 255;

/// Longest e-mail address, in characters (RFC 5321, 4.5.3.1.3, less the brackets).
const EMAIL_CHARS_MAX: usize = 254;

/// Reads an order, or says everything that is wrong with it. Its key is the caller's to add.
pub(crate) fn read(body: &Value) -> Result<Asked, FieldProblems> {
    Fields::read(body, |fields| {
        let reference = fields.parsed("reference");
        let amount_minor = fields.integer("amount_minor", 0, None);
        let currency: Option<Currency> = fields.parsed("currency");
        let (customer, customer_id) = read_customer(fields);
        let expires_in_s = fields.named("expires_in_s").then(|| fields.integer("expires_in_s", 1, None)).flatten();
        let reserve_for_s = fields.integer("reserve_for_s", 1, Some(RESERVE_FOR_S));
        for (field, seconds) in [("expires_in_s", expires_in_s), ("reserve_for_s", reserve_for_s)] {
            if seconds.is_some_and(|seconds| seconds > EXPIRES_IN_S_MAX) {
                fields.note(field, format!("must be at most {EXPIRES_IN_S_MAX} seconds"));
            }
        }
        let session = match fields.object.get("session") {
            None | Some(Value::Null) => None,
            Some(session) => read_session(session).map_err(|more| fields.problems.extend(more)).ok(),
        };
        let (lines, wanted) = read_lines(fields.object.get("lines"), fields.problems);
        let sum = lines.iter().try_fold(0_i64, |sum, line| sum.checked_add(line.amount_minor));
        if !wanted.is_empty() && fields.problems.is_empty() && sum != amount_minor {
            fields.note("lines", "must come to amount_minor when there are tickets among them");
        }
        let order = NewOrder {
            id: Uuid::now_v7(),
            reference: reference?,
            money: Money::new(amount_minor?, currency?),
            customer,
            customer_id,
            lines: Value::Null,
            expires_in_s,
            session,
            made_by: None,
        };
        let reserve_for_s = reserve_for_s?.min(expires_in_s.unwrap_or(i64::MAX));
        Some(Asked { order, lines, wanted, reserve_for_s, key: None })
    })
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

/// A guest's contact may be unknown: what the provider verified is taken later. One that is given must be whole.
fn read_customer(fields: &mut Fields<'_>) -> (Customer, Option<String>) {
    let customer = match fields.object.get("customer") {
        None | Some(Value::Null) => return (Customer::default(), None),
        Some(Value::Object(customer)) => customer,
        Some(_) => {
            fields.note("customer", "must be an object with email and name; leave it out for a guest");
            return (Customer::default(), None);
        }
    };
    let mut fields = Fields { object: customer, prefix: "customer.".into(), problems: fields.problems };
    let email = fields.text("email", true).filter(|email| {
        let sound = plausible_email(email);
        if !sound {
            fields.note("email", "is not an e-mail address");
        }
        sound
    });
    let name = fields.text("name", true);
    let phone = fields.text("phone", false);
    let id = fields.named("id").then(|| customer_id(&mut fields, "id")).flatten();
    (Customer { email, name, phone }, id)
}

/// The shop's id of a customer: 1 to 200 characters without controls.
pub(crate) fn customer_id(fields: &mut Fields<'_>, field: &str) -> Option<String> {
    let id = fields.text(field, true)?;
    if id.chars().count() > CUSTOMER_ID_CHARS_MAX || id.trim() != id || id.chars().any(char::is_control) {
        fields.note(field, format!("must have at most {CUSTOMER_ID_CHARS_MAX} characters, no controls, and no blank at an end"));
        return None;
    }
    Some(id)
}

/// One `@` with something on both sides, and nothing that could end a header.
fn plausible_email(email: &str) -> bool {
    let Some((local, domain)) = email.rsplit_once('@') else { return false };
    !local.is_empty() && !domain.is_empty() && email.chars().count() <= EMAIL_CHARS_MAX && !email.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn read_lines(lines: Option<&Value>, problems: &mut FieldProblems) -> (Vec<Line>, Vec<Wanted>) {
    let (mut read, mut wanted) = (Vec::new(), Vec::new());
    let lines = match lines {
        None | Some(Value::Null) => return (read, wanted),
        Some(Value::Array(lines)) if lines.len() <= LINES_MAX => lines,
        Some(_) => {
            problems.push(json!({ "field": "lines", "problem": format!("must be a list of at most {LINES_MAX} lines") }));
            return (read, wanted);
        }
    };
    let empty = Map::new();
    for (line, nth) in lines.iter().zip(0..) {
        let mut fields = Fields { object: line.as_object().unwrap_or(&empty), prefix: format!("lines[{nth}]."), problems };
        let description = fields.text("description", true);
        let quantity = fields.integer("quantity", 1, Some(1));
        let amount_minor = fields.integer("amount_minor", i64::MIN, None);
        let (Some(description), Some(quantity), Some(amount_minor)) = (description, quantity, amount_minor) else { continue };
        read.push(Line { description, quantity, amount_minor, draw: None });
        if fields.object.contains_key("draw") {
            wanted.extend(read_tickets(&mut fields, nth, quantity, amount_minor));
        }
    }
    (read, wanted)
}

/// The tickets that a line buys: `draw` names the draw by id or reference, `quantity` says how many.
fn read_tickets(fields: &mut Fields<'_>, line: i32, quantity: i64, amount_minor: i64) -> Option<Wanted> {
    let text = fields.text("draw", true)?;
    let draw = OrderKey::read(&text);
    if draw.is_none() {
        fields.note("draw", "must be a draw's id or reference");
    }
    if quantity > TICKETS_MAX {
        fields.note("quantity", format!("must be at most {TICKETS_MAX} tickets"));
    }
    if amount_minor < 0 {
        fields.note("amount_minor", "must not be negative where tickets are bought");
    }
    Some(Wanted { line, draw: draw?, quantity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem_fields(body: Value) -> Vec<String> {
        read(&body).unwrap_err().iter().map(|problem| problem["field"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_problem_is_named_with_its_field() {
        assert_eq!(problem_fields(json!({})), ["reference", "amount_minor", "currency"]);
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
        assert_eq!(order.order.money.to_string(), "10.99 EUR");
    }
}
