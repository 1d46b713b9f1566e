//! CRM contacts: the customer's current state, read when it is sent. Outside, so at least once; upserted by a stable id.

mod http;
mod hubspot;
mod webhook;

use std::time::Duration;

use anyhow::Context;
use counterfoil_chassis::Problems;
use counterfoil_payments::Event;
use counterfoil_payments::event::Body;
use counterfoil_settlement::{CustomerState, customer_state};
use reqwest::Client;
use ring::digest;
use sqlx::PgPool;

use crate::runner::{Deliver, Effect, Failure};

/// How often a contact is sent when it changes while it is being sent.
const SENDS_MAX: usize = 3;

/// What speaks to which CRM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrmKind {
    /// JSON to a URL, upserted there by `external_id`.
    Webhook,
    /// HubSpot's contact batch upsert by e-mail.
    Hubspot,
}

/// Where contacts go.
#[derive(Clone)]
pub struct CrmSettings {
    /// Which protocol.
    pub kind: CrmKind,
    /// The URL, or the API's base.
    pub url: url::Url,
    /// Bearer token.
    pub token: Option<String>,
}

impl std::fmt::Debug for CrmSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {}", self.kind, self.url.host_str().unwrap_or_default())
    }
}

impl CrmSettings {
    pub(crate) fn read(problems: &mut Problems, kind: &str, url: Option<&String>, token: Option<&String>) -> Option<Self> {
        let kind = match kind {
            "webhook" => Some(CrmKind::Webhook),
            "hubspot" => Some(CrmKind::Hubspot),
            _ => {
                problems.note("COUNTERFOIL_CRM_KIND", "must be webhook or hubspot");
                None
            }
        };
        let url = problems.required("COUNTERFOIL_CRM_URL", url).and_then(|url| problems.parsed::<url::Url>("COUNTERFOIL_CRM_URL", &url));
        if kind == Some(CrmKind::Hubspot) {
            problems.required("COUNTERFOIL_CRM_TOKEN", token);
        }
        Some(Self { kind: kind?, url: url?, token: token.filter(|token| !token.is_empty()).cloned() })
    }
}

/// The consumer `crm`.
#[derive(Debug)]
pub struct Crm {
    settings: CrmSettings,
    client: Client,
    pool: PgPool,
}

impl Crm {
    /// Sends to `settings`, reading customers through `pool`.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(settings: CrmSettings, pool: PgPool) -> anyhow::Result<Self> {
        let client = http::client().context("the HTTP client cannot be made")?;
        Ok(Self { settings, client, pool })
    }

    async fn send(&self, event: &Event, external_id: &str, state: &CustomerState) -> Result<(), Failure> {
        match self.settings.kind {
            CrmKind::Webhook => http::send(webhook::request(&self.client, &self.settings, event, external_id, state)).await.map(|_| ()),
            CrmKind::Hubspot => hubspot::judge(http::send(hubspot::request(&self.client, &self.settings, event, external_id, state)).await?),
        }
    }

    /// Sends the state as it is, and again when it has changed meanwhile: two orders' versions cannot be compared,
    /// current state can. One replica at a time for each contact.
    async fn bring_up_to_date(&self, event: &Event, email: &str, external_id: &str) -> Result<(), Failure> {
        let database = |error: sqlx::Error| Failure::outage(format!("the database: {error}"));
        let mut claim = self.pool.begin().await.map_err(database)?;
        let free: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock(hashtextextended('crm:' || $1, 0))")
            .bind(external_id)
            .fetch_one(&mut *claim)
            .await
            .map_err(database)?;
        if !free {
            return Err(Failure::Busy { reason: "another replica brings this contact up to date".into() });
        }
        let mut sent = None;
        for _ in 0..SENDS_MAX {
            let state = customer_state(&mut claim, email).await.map_err(database)?;
            let state = state.ok_or_else(|| Failure::permanent("no order has this address any more"))?;
            if sent.as_ref() == Some(&state) {
                break;
            }
            self.send(event, external_id, &state).await?;
            sent = Some(state);
        }
        claim.commit().await.map_err(database)
    }
}

/// A contact's id at the CRM: its lower-cased address, hashed.
#[must_use]
pub fn external_id(email: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, email.to_lowercase().as_bytes()))
}

impl Deliver for Crm {
    const NAME: &'static str = "crm";
    const DEADLINE: Duration = Duration::from_secs(60);

    async fn deliver(&self, event: &Event) -> Result<Effect, Failure> {
        let (Body::OrderPaid(order) | Body::OrderContactKnown(order)) = &event.body else {
            return Ok(Effect::NotNeeded("not an event about a contact"));
        };
        let Some(email) = &order.customer.email else {
            return Ok(Effect::NotNeeded("no address is known yet; order.contact_known will bring it"));
        };
        let external_id = external_id(email);
        self.bring_up_to_date(event, email, &external_id).await?;
        Ok(Effect::Made(Some(external_id)))
    }
}
