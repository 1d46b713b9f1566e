//! Kind `webhook`: a contact as JSON, posted to one URL, upserted there by `external_id`.

use counterfoil_payments::Event;
use counterfoil_settlement::CustomerState;
use reqwest::{Client, RequestBuilder};
use serde_json::json;

use super::CrmSettings;

/// `{"external_id", "email", "name", "phone", "orders_paid", "spent_minor": {"EUR": 1099}, "last_paid_at", "last_event_id"}`.
pub(crate) fn request(client: &Client, settings: &CrmSettings, event: &Event, external_id: &str, state: &CustomerState) -> RequestBuilder {
    let mut contact = json!(state);
    contact["external_id"] = json!(external_id);
    contact["last_event_id"] = json!(event.id);
    super::http::authorised(client.post(settings.url.clone()), settings, event, state).json(&contact)
}
