//! Stripe: `Stripe-Signature` (docs.stripe.com/webhooks/signature), snapshot events of any API version.

pub(crate) mod object;

use counterfoil_payments::{Fact, OrderKey, Provider};
use http::HeaderMap;
use ring::hmac;
use serde::Deserialize;

use self::object::{Releases, Told, fact, ids_of};
use crate::json::{self, Raw, Unreadable};
use crate::secret::Secret;
use crate::signature::{self, Rejected};
use crate::{Adapter, ID_BYTES_MAX, Mode, Reading, TOLERANCE_SECONDS};

/// Stripe's wire format. Secrets are used verbatim, `whsec_` included.
#[derive(Debug)]
pub struct Stripe {
    keys: Vec<hmac::Key>,
    tolerance_seconds: i64,
}

impl Stripe {
    /// With these secrets, newest first.
    #[must_use]
    pub fn new(secrets: &[Secret]) -> Self {
        Self { keys: signature::keys(secrets), tolerance_seconds: TOLERANCE_SECONDS }
    }

    /// With another clock tolerance than 300 seconds.
    #[must_use]
    pub fn with_tolerance(mut self, seconds: i64) -> Self {
        self.tolerance_seconds = seconds;
        self
    }
}

impl Adapter for Stripe {
    fn provider(&self) -> Provider {
        Provider::Stripe
    }

    fn verify(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<usize, Rejected> {
        let header = signature::header(headers, "Stripe-Signature")?.filter(|text| !text.is_empty()).ok_or(Rejected::NotSigned)?;
        let (mut time, mut tags) = (None, Vec::new());
        for element in header.split(',') {
            let (name, value) = element.trim().split_once('=').filter(|(_, value)| !value.contains('=')).ok_or(Rejected::Header)?;
            match name {
                "t" => time = Some(value),
                "v1" => tags.extend(hex::decode(value)), // one that is not hex is skipped
                _ => {}
            }
        }
        let time = time.ok_or(Rejected::Header)?;
        let signed: i64 = time.parse().map_err(|_| Rejected::Header)?;
        let position = signature::matching(&self.keys, &[time.as_bytes(), b".", body], &tags)?;
        signature::fresh(signed, now, self.tolerance_seconds)?;
        Ok(position)
    }

    fn read(&self, _: &HeaderMap, body: &[u8], mode: Mode) -> Reading {
        let text = json::body_text(body);
        let envelope: Envelope<'_> = match serde_json::from_str(&text) {
            Ok(envelope) => envelope,
            Err(error) => return unreadable(body, "unknown", Unreadable::from(error)),
        };
        let event_type = json::text(envelope.event_type).unwrap_or_else(|| "unknown".into());
        let Some(event_id) = json::text(envelope.id).filter(|id| id.len() <= ID_BYTES_MAX) else {
            return unreadable(body, &event_type, Unreadable("it has no id".into()));
        };
        let thin = json::text(envelope.object).as_deref() == Some("v2.core.event");
        let account = json::text(if thin { envelope.context } else { envelope.account }).filter(|id| id.len() <= ID_BYTES_MAX).unwrap_or_default();
        let fact = if thin {
            Fact::Ignored { reason: "a thin event carries no object".into() }
        } else if let Some(ignored) = other_mode(json::boolean(envelope.livemode), mode) {
            ignored
        } else {
            let told = Told { event_type: &event_type, account: &account, releases: Releases::of(json::text(envelope.api_version).as_deref()) };
            fact(&told, envelope.data).unwrap_or_else(|error| Fact::Unreadable { reason: error.0 })
        };
        let ids = ids_of(envelope.data);
        Reading { account, event_id, provider_event_id: None, event_type, made_at: json::seconds(envelope.created), ids, fact }
    }
}

/// `Some` when the stated mode is not ours, or none is stated.
pub(crate) fn other_mode(livemode: Option<bool>, mode: Mode) -> Option<Fact> {
    let reason = match livemode {
        Some(live) if live == (mode == Mode::Live) => return None,
        Some(true) => "it is a live event, and this deployment is in test mode",
        Some(false) => "it is a test event, and this deployment is in live mode",
        None => "it states no mode",
    };
    Some(Fact::Ignored { reason: reason.into() })
}

/// An authentic delivery that has no id of its own.
pub(crate) fn unreadable(body: &[u8], event_type: &str, error: Unreadable) -> Reading {
    Reading {
        account: String::new(),
        event_id: json::digest_id(body),
        provider_event_id: None,
        event_type: event_type.to_owned(),
        made_at: None,
        ids: Vec::new(),
        fact: Fact::Unreadable { reason: error.0 },
    }
}

/// The order that an event names: the first name that can be one wins; a difference is remarked.
pub(crate) fn order_named(names: &[Option<String>]) -> (Option<OrderKey>, Option<String>) {
    let mut keys = names.iter().flatten().filter_map(|name| OrderKey::read(name));
    let first = keys.next();
    let differs = first.as_ref().is_some_and(|first| keys.any(|other| other != *first));
    (first, differs.then(|| "it names two different orders; the first was taken".to_owned()))
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Raw<'a>,
    #[serde(borrow)]
    object: Raw<'a>,
    #[serde(borrow, rename = "type")]
    event_type: Raw<'a>,
    #[serde(borrow)]
    account: Raw<'a>,
    #[serde(borrow)]
    context: Raw<'a>,
    #[serde(borrow)]
    livemode: Raw<'a>,
    #[serde(borrow)]
    api_version: Raw<'a>,
    #[serde(borrow)]
    created: Raw<'a>,
    #[serde(borrow)]
    data: Raw<'a>,
}
