//! Kind `hubspot`: `POST /crm/v3/objects/contacts/batch/upsert` by e-mail (developers.hubspot.com, CRM API, contacts).

use counterfoil_payments::Event;
use counterfoil_settlement::CustomerState;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use super::CrmSettings;
use crate::runner::Failure;

const PATH: &str = "crm/v3/objects/contacts/batch/upsert";

pub(crate) fn request(client: &Client, settings: &CrmSettings, event: &Event, external_id: &str, state: &CustomerState) -> RequestBuilder {
    let url = format!("{}/{PATH}", settings.url.as_str().trim_end_matches('/'));
    let name = state.name.as_deref().unwrap_or_default().trim();
    let (first, last) = name.rsplit_once(' ').unwrap_or((name, ""));
    let mut properties = json!({ "email": state.email, "firstname": first, "lastname": last });
    if let Some(phone) = &state.phone {
        properties["phone"] = json!(phone);
    }
    let input = json!({ "id": state.email, "idProperty": "email", "objectWriteTraceId": external_id, "properties": properties });
    super::http::authorised(client.post(url), settings, event, state).json(&json!({ "inputs": [input] }))
}

/// A batch may be answered 207 with errors inside.
pub(crate) fn judge(body: Vec<u8>) -> Result<(), Failure> {
    let answer: Value = serde_json::from_slice(&body).map_err(|_| Failure::unknown("HubSpot's answer is not JSON"))?;
    let errors = answer["errors"].as_array().map_or(0, Vec::len);
    let category = answer["errors"][0]["category"].as_str().unwrap_or_default();
    match (errors, category) {
        (0, _) => Ok(()),
        (_, "RATE_LIMITS") => Err(Failure::outage("HubSpot limits the rate")),
        (_, category) => Err(Failure::permanent(format!("HubSpot refuses the contact: {category}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_with_errors_inside_is_no_success() {
        assert_eq!(judge(br#"{"status":"COMPLETE","results":[{"id":"1"}]}"#.to_vec()), Ok(()));
        assert!(matches!(judge(br#"{"status":"COMPLETE","numErrors":1,"errors":[{"category":"VALIDATION_ERROR"}]}"#.to_vec()), Err(Failure::Permanent { .. })));
        assert!(matches!(judge(br#"{"errors":[{"category":"RATE_LIMITS"}]}"#.to_vec()), Err(Failure::Outage { .. })));
    }
}
