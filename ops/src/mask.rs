//! Masking: what customers' data looks like to whoever may not see it.

use serde_json::Value;

/// What stands for something that is there and is not shown.
pub const MASK: &str = "•••";

/// Names of fields that hold customer data, wherever they stand, in lower case: by what they contain.
const PERSONAL: &[&str] = &["email", "phone", "address", "contact", "name", "vpa", "cardholder", "card", "receipt_url", "buyer", "billing", "shipping"];

/// A body as text for people: JSON with customer data masked, or none of it where it is no JSON. Of what has no known shape, every text is.
///
/// # Errors
/// Says why nothing can be shown.
pub fn masked(body: &[u8], known: bool) -> Result<String, &'static str> {
    let mut value: Value = serde_json::from_slice(body).map_err(|_| "not JSON: nobody can tell what of it is customer data")?;
    mask(&mut value, !known);
    serde_json::to_string_pretty(&value).map_err(|_| "it cannot be written")
}

/// A body as it is, for whoever may see it.
#[must_use]
pub fn revealed(body: &[u8]) -> String {
    serde_json::from_slice::<Value>(body)
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| String::from_utf8_lossy(body).replace('\0', "\u{2400}"))
}

/// Masks what is personal: `personal` for all that lies below.
fn mask(value: &mut Value, personal: bool) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let name = name.to_lowercase();
                let own = PERSONAL.iter().any(|part| name.contains(part));
                mask(field, personal || own || name == "customer");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, personal)),
        Value::String(text) if personal || looks_personal(text) => *text = MASK.into(),
        Value::Number(number) if personal => *number = 0.into(),
        _ => {}
    }
}

/// An e-mail address, or a telephone number, under whatever name.
fn looks_personal(text: &str) -> bool {
    let email = text.split_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty());
    let digits = text.chars().filter(char::is_ascii_digit).count();
    email || (text.starts_with('+') && digits >= 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn customer_data_is_masked_wherever_it_stands_and_what_on_call_needs_is_not() {
        let body = br#"{"id":"1","data":{"order_id":"o","reference":"A-1","customer":{"email":"ann@example.com","name":"Ann","phone":"+4912345678"},
            "lines":[{"description":"Tea for bob@example.com"}],"amount_minor":1099,"note":"+49 123 45678"},
            "payload":{"payment":{"entity":{"contact":"+911234567890","card":{"last4":"4242"},"billing_details":{"address":{"line1":"Street 1","zip":7}}}}}}"#;
        let text = masked(body, true).unwrap();
        for secret in ["ann@", "Ann", "4912345678", "bob@", "123 45678", "911234567890", "4242", "Street", "7"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(text.contains("A-1") && text.contains("1099"));
    }

    #[test]
    fn what_is_not_json_is_not_shown_at_all() {
        assert!(masked(b"Ann Example, ann@example.com", true).is_err());
        assert!(!masked(br#"{"a":["Ann Example"],"b":{"c":"12"}}"#, false).unwrap().contains("Ann"));
        assert!(!masked(br#"{"link":"https://x.example/?email=ann@example.com","first_name":"Ann","vpa":"ann@okbank"}"#, true).unwrap().contains("nn"));
        assert_eq!(revealed(b"a\0b"), "a\u{2400}b");
    }
}
