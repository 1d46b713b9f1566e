//! Wraps an outbox row into a message: CloudEvents 1.0 in JSON, structured mode (`application/cloudevents+json`).

use counterfoil_broker::Outgoing;
use counterfoil_broker::lapin::BasicProperties;
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_outbox::Claimed;
use serde::Serialize;
use serde_json::value::RawValue;
use time::format_description::well_known::Rfc3339;

/// Largest message that any supported broker takes by default: RabbitMQ 4 has 16 MiB.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Longest name of an exchange or routing key: AMQP's short string.
const NAME_BYTES_MAX: usize = 255;

/// All headers of a message together; a frame must hold them.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// The version of every `data` shape, the end of `dataschema`.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Envelope<'a> {
    specversion: &'static str,
    id: String,
    source: &'static str,
    #[serde(rename = "type")]
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    time: String,
    datacontenttype: &'static str,
    dataschema: String,
    data: &'a RawValue,
}

/// The message of a row, or why no broker would take it.
pub(crate) fn message(row: &Claimed) -> Result<Outgoing, String> {
    if row.exchange.len() > NAME_BYTES_MAX || row.routing_key.len() > NAME_BYTES_MAX || row.topic.len() > NAME_BYTES_MAX {
        return Err(format!("exchange, routing key and topic have at most {NAME_BYTES_MAX} bytes"));
    }
    let body = row.body.clone().map_or_else(|| wrap(row), Ok)?;
    if body.len() > BODY_BYTES_MAX {
        return Err(format!("the message has {} bytes, the broker takes at most {BODY_BYTES_MAX}", body.len()));
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(row.event_id.to_string().into())
        .with_type(row.topic.as_str().into())
        .with_timestamp(u64::try_from(row.created_at.unix_timestamp()).unwrap_or(0))
        .with_content_type("application/cloudevents+json".into())
        .with_app_id("counterfoil-relay".into())
        .with_headers(headers(row)?);
    Ok(Outgoing { correlation: row.id, exchange: row.exchange.clone(), routing_key: row.routing_key.clone(), body, properties })
}

fn wrap(row: &Claimed) -> Result<Vec<u8>, String> {
    let data: &RawValue = serde_json::from_str(&row.data).map_err(|error| format!("the payload is not JSON: {error}"))?;
    let envelope = Envelope {
        specversion: "1.0",
        id: row.event_id.to_string(),
        source: "/counterfoil",
        topic: &row.topic,
        subject: row.order_id.map(|id| id.to_string()),
        time: row.created_at.format(&Rfc3339).map_err(|error| format!("created_at cannot be written: {error}"))?,
        datacontenttype: "application/json",
        dataschema: format!("urn:counterfoil:{}/{SCHEMA_VERSION}", row.topic),
        data,
    };
    serde_json::to_vec(&envelope).map_err(|error| format!("the event cannot be written: {error}"))
}

fn headers(row: &Claimed) -> Result<FieldTable, String> {
    let mut table = FieldTable::default();
    let object = row.headers.as_object().ok_or("the headers are not an object")?;
    let mut bytes = 0;
    for (name, value) in object {
        let text = value.as_str().ok_or_else(|| format!("the header {name:?} is not a text"))?;
        bytes += name.len() + text.len();
        if name.is_empty() || name.len() > 128 || name.contains('\0') || text.contains('\0') || bytes > HEADER_BYTES_MAX {
            return Err(format!("the header {:?} does not fit a message", name.chars().take(40).collect::<String>()));
        }
        table.insert(name.as_str().into(), AMQPValue::LongString(text.into()));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row() -> Claimed {
        Claimed {
            id: 7,
            event_id: uuid::Uuid::from_u128(1),
            topic: "order.paid".into(),
            order_id: Some(uuid::Uuid::from_u128(2)),
            exchange: "counterfoil.events".into(),
            routing_key: "order.paid".into(),
            data: r#"{"a": 1}"#.into(),
            headers: json!({ "traceparent": "00-1" }),
            created_at: time::OffsetDateTime::UNIX_EPOCH,
            body: None,
        }
    }

    #[test]
    fn an_event_is_a_cloudevent_in_json() {
        let body = message(&row()).unwrap().body;
        let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            read,
            json!({ "specversion": "1.0", "id": "00000000-0000-0000-0000-000000000001", "source": "/counterfoil", "type": "order.paid",
                "subject": "00000000-0000-0000-0000-000000000002", "time": "1970-01-01T00:00:00Z", "datacontenttype": "application/json",
                "dataschema": "urn:counterfoil:order.paid/1", "data": { "a": 1 } })
        );
    }

    #[test]
    fn bytes_that_died_go_out_as_they_were() {
        let died = b"{ \"specversion\" : \"1.0\", \"n\": 1.0 }".to_vec();
        assert_eq!(message(&Claimed { body: Some(died.clone()), ..row() }).unwrap().body, died);
    }

    #[test]
    fn what_no_broker_would_take_is_refused_before_it_is_sent() {
        assert!(message(&Claimed { routing_key: "k".repeat(256), ..row() }).is_err());
        assert!(message(&Claimed { headers: json!({ "a": "\0" }), ..row() }).is_err());
        assert!(message(&Claimed { headers: json!({ "a": ["nested"] }), ..row() }).is_err());
        assert!(message(&Claimed { data: format!("\"{}\"", "x".repeat(16 << 20)), ..row() }).is_err());
    }
}
