//! The checks of the environment block: secrets that are missing or hold blanks, Square's URL.

use super::{Finding, Health};

/// Variables that hold secrets. Each also reads from a file.
const SECRETS: [&str; 11] = [
    "COUNTERFOIL_STRIPE_SECRETS",
    "COUNTERFOIL_RAZORPAY_SECRETS",
    "COUNTERFOIL_SQUARE_SECRETS",
    "COUNTERFOIL_STANDARD_SECRETS",
    "COUNTERFOIL_API_TOKENS",
    "COUNTERFOIL_CLAIM_KEYS",
    "COUNTERFOIL_STRIPE_API_KEY",
    "COUNTERFOIL_RAZORPAY_API_KEY",
    "COUNTERFOIL_SQUARE_API_KEY",
    "COUNTERFOIL_CRM_TOKEN",
    "COUNTERFOIL_CONSOLE_TOKENS",
];

/// Looks at the environment that this command runs in: run it with the fleet's environment block.
pub(super) fn examine(env: &dyn Fn(&str) -> Option<String>) -> Vec<Finding> {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for name in SECRETS {
        let file = env(&format!("{name}_FILE"));
        let value = match &file {
            Some(path) => match std::fs::read_to_string(path) {
                Ok(text) => Some(text.trim_end_matches(['\n', '\r']).to_owned()),
                Err(error) => {
                    wrong.push(format!("{name}_FILE names {path}: {error}"));
                    continue;
                }
            },
            None => env(name),
        };
        let Some(value) = value else { continue };
        seen += 1;
        if value.trim().is_empty() {
            wrong.push(format!("{name} is empty"));
        } else if value.split(',').any(|secret| secret.is_empty() || secret.chars().any(char::is_whitespace)) {
            wrong.push(format!("{name} holds a blank, or an empty place between commas"));
        }
    }
    let url = env("COUNTERFOIL_SQUARE_NOTIFICATION_URL");
    let square = env("COUNTERFOIL_SQUARE_SECRETS").is_some() || env("COUNTERFOIL_SQUARE_SECRETS_FILE").is_some();
    match (square, url.as_deref()) {
        (true, None) => wrong.push("COUNTERFOIL_SQUARE_NOTIFICATION_URL is missing: Square signs the URL, so that nothing of it would verify".into()),
        (_, Some(url)) if !url.starts_with("https://") || url.trim() != url => {
            wrong.push(format!("COUNTERFOIL_SQUARE_NOTIFICATION_URL is {url:?}: it must be the https URL of the subscription, letter by letter"));
        }
        _ => {}
    }
    if let Some(mode) = env("COUNTERFOIL_MODE").filter(|mode| mode != "live" && mode != "test") {
        wrong.push(format!("COUNTERFOIL_MODE is {mode:?}: live or test"));
    }
    wrong.extend(retention(env));
    if !wrong.is_empty() {
        return vec![Finding::bad(
            "secrets",
            Health::Fail,
            wrong.join("; "),
            "correct it in the environment block, newest secret first, and restart what reads it",
        )];
    }
    if seen == 0 {
        return vec![Finding::bad(
            "secrets",
            Health::Unknown,
            "no secret is in this environment",
            "run doctor with the fleet's environment block to have them checked",
        )];
    }
    vec![Finding::ok("secrets", format!("{seen} secrets, none with blanks"))]
}

/// Retention that is shorter than a way by which an event comes back, or than what can be replayed.
fn retention(env: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let days = |name: &str, default: u32| env(name).and_then(|text| text.trim().parse().ok()).unwrap_or(default);
    let (events, outbox, processed) =
        (days("COUNTERFOIL_RETENTION_EVENTS_DAYS", 90), days("COUNTERFOIL_RETENTION_OUTBOX_DAYS", 90), days("COUNTERFOIL_RETENTION_PROCESSED_DAYS", 120));
    let mut wrong = Vec::new();
    if events.min(outbox) <= 30 {
        wrong.push("COUNTERFOIL_RETENTION_EVENTS_DAYS and _OUTBOX_DAYS must be more than the 30 days for which providers send an event again".to_owned());
    }
    if processed <= outbox {
        wrong.push(format!("COUNTERFOIL_RETENTION_PROCESSED_DAYS ({processed}) must be more than _OUTBOX_DAYS ({outbox}): a replay must find its dedupe row"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Finding {
        let variables: Vec<(String, String)> = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        examine(&move |name| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())).remove(0)
    }

    #[test]
    fn secrets_with_blanks_and_squares_url_are_named_with_their_variable() {
        assert_eq!(found(&[("COUNTERFOIL_STRIPE_SECRETS", "whsec_1,whsec_2")]).health, Health::Ok);
        for (name, value) in [
            ("COUNTERFOIL_STRIPE_SECRETS", "whsec_1, whsec_2"),
            ("COUNTERFOIL_STRIPE_SECRETS", "whsec_1 "),
            ("COUNTERFOIL_RAZORPAY_SECRETS", "a,,b"),
            ("COUNTERFOIL_CRM_TOKEN", ""),
        ] {
            let finding = found(&[(name, value)]);
            assert!(finding.health == Health::Fail && finding.found.contains(name) && !finding.found.contains("whsec"), "{finding:?}");
        }
        assert!(found(&[("COUNTERFOIL_SQUARE_SECRETS", "k")]).found.contains("NOTIFICATION_URL"));
        assert!(found(&[("COUNTERFOIL_SQUARE_SECRETS", "k"), ("COUNTERFOIL_SQUARE_NOTIFICATION_URL", "http://shop.example/")]).found.contains("https"));
        assert_eq!(
            found(&[("COUNTERFOIL_SQUARE_SECRETS", "k"), ("COUNTERFOIL_SQUARE_NOTIFICATION_URL", "https://shop.example/webhooks/square")]).health,
            Health::Ok
        );
        assert_eq!(found(&[]).health, Health::Unknown);
        assert!(found(&[("COUNTERFOIL_RETENTION_PROCESSED_DAYS", "60")]).found.contains("must be more than _OUTBOX_DAYS"));
        assert!(found(&[("COUNTERFOIL_RETENTION_EVENTS_DAYS", "10")]).found.contains("30 days"));
    }
}
