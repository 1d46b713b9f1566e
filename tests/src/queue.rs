//! Queues as a test looks at them, and events as a relay would publish them.

use std::time::Duration;

use counterfoil_broker::lapin::BasicProperties;
use counterfoil_broker::lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions, QueueDeleteOptions};
use counterfoil_broker::lapin::types::{AMQPValue, FieldTable};
use counterfoil_broker::publish::text_header;
use counterfoil_broker::{Fate, Link, Outgoing, publish_window};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stage::Stage;

/// A message taken from a queue.
#[derive(Debug, Clone)]
pub struct Taken {
    /// Its message id.
    pub id: String,
    /// Its bytes.
    pub body: Vec<u8>,
    /// Its headers.
    pub headers: FieldTable,
}

impl Taken {
    /// A header's text or number, as text.
    #[must_use]
    pub fn header(&self, name: &str) -> String {
        text_header(Some(&self.headers), name)
            .or_else(|| counterfoil_broker::publish::number_header(Some(&self.headers), name).map(|number| number.to_string()))
            .unwrap_or_default()
    }
}

impl Stage {
    /// Publishes bodies straight into a queue, confirmed.
    pub async fn put(&self, queue: &str, bodies: &[Vec<u8>]) {
        let link = Link::connect(&self.amqp_url, "test").await.unwrap();
        let channel = link.confirming_channel().await.unwrap();
        for window in bodies.chunks(200) {
            let message = |(n, body): (usize, &Vec<u8>)| {
                let mut headers = FieldTable::default();
                headers.insert("traceparent".into(), AMQPValue::LongString("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()));
                let id = serde_json::from_slice::<Value>(body).ok().and_then(|event| event["id"].as_str().map(str::to_owned)).unwrap_or_default();
                let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(id.into()).with_headers(headers);
                Outgoing { correlation: i64::try_from(n).unwrap(), exchange: String::new(), routing_key: queue.into(), body: body.clone(), properties }
            };
            let messages: Vec<Outgoing> = window.iter().enumerate().map(message).collect();
            let published = publish_window(&channel, &messages, Duration::from_secs(10)).await;
            assert!(published.fates.iter().all(|fate| *fate == Fate::Confirmed), "{:?}", published.fates);
        }
        link.close().await;
    }

    /// Publishes one body straight into a queue, with headers.
    pub async fn put_with(&self, queue: &str, body: &[u8], more: &[(&str, &str)]) {
        let link = Link::connect(&self.amqp_url, "test").await.unwrap();
        let channel = link.confirming_channel().await.unwrap();
        let mut headers = FieldTable::default();
        for (name, value) in more {
            headers.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let message = Outgoing { correlation: 1, exchange: String::new(), routing_key: queue.into(), body: body.to_vec(), properties };
        assert_eq!(publish_window(&channel, &[message], Duration::from_secs(10)).await.fates, [Fate::Confirmed]);
        link.close().await;
    }

    /// Publishes events straight into a consumer's queue.
    pub async fn put_events(&self, consumer: &str, events: &[Value]) {
        let bodies: Vec<Vec<u8>> = events.iter().map(|event| event.to_string().into_bytes()).collect();
        self.put(&format!("counterfoil.{consumer}"), &bodies).await;
    }

    /// Takes a binding away.
    pub async fn unbind(&self, queue: &str, topic: &str) {
        let link = Link::connect(&self.amqp_url, "test").await.unwrap();
        link.channel().await.unwrap().queue_unbind(queue.into(), "counterfoil.events".into(), topic.into(), FieldTable::default()).await.unwrap();
        link.close().await;
    }

    /// Deletes a queue with all that is in it.
    pub async fn delete_queue(&self, queue: &str) {
        let link = Link::connect(&self.amqp_url, "test").await.unwrap();
        link.channel().await.unwrap().queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        link.close().await;
    }

    /// How many messages wait in a queue.
    pub async fn waiting(&self, queue: &str) -> u32 {
        let link = Link::connect(&self.amqp_url, "test").await.unwrap();
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::durable() };
        let queue = link.channel().await.unwrap().queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap();
        let count = queue.message_count();
        link.close().await;
        count
    }

    /// Takes everything that waits in a queue.
    pub async fn take_all(&self, queue: &str) -> Vec<Taken> {
        let link = Link::connect(&self.amqp_url, "test").await.unwrap();
        let channel = link.channel().await.unwrap();
        let mut taken = Vec::new();
        while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: false }).await.unwrap() {
            message.acker.ack(BasicAckOptions::default()).await.unwrap();
            let properties = &message.properties;
            taken.push(Taken {
                id: properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
                headers: properties.headers().clone().unwrap_or_default(),
                body: message.data.clone(),
            });
        }
        link.close().await;
        taken
    }
}

/// An `order.paid` event of 10.99 EUR.
#[must_use]
pub fn paid_event(order: Uuid, email: &str) -> Value {
    event("order.paid", order, &paid_data(order, email))
}

/// `data` of `order.paid`.
#[must_use]
pub fn paid_data(order: Uuid, email: &str) -> Value {
    json!({ "order_id": order, "reference": format!("ref-{order}"), "version": 2, "amount_minor": 1099, "currency": "EUR",
        "customer": { "email": email, "name": "Ann Example", "phone": null }, "lines": [{ "description": "Tea", "quantity": 1, "amount_minor": 1099 }],
        "paid_at": "2026-11-29T10:00:00.000000Z",
        "payment": { "provider": "stripe", "account": "", "payment_id": format!("pi_{order}"), "amount_minor": 1099, "currency": "EUR", "settled_minor": 1099 },
        "books": { "currency": "EUR", "before": position(0), "after": position(1099) } })
}

fn position(minor: i64) -> Value {
    json!({ "captured_minor": minor, "settled_minor": minor, "tip_minor": 0, "refund_pending_minor": 0, "refunded_minor": 0, "disputed_minor": 0, "charged_back_minor": 0 })
}

/// An event as the relay wraps it.
#[must_use]
pub fn event(topic: &str, order: Uuid, data: &Value) -> Value {
    json!({ "specversion": "1.0", "id": Uuid::new_v4(), "source": "/counterfoil", "type": topic, "subject": order, "time": "2026-11-29T10:00:00Z",
        "datacontenttype": "application/json", "dataschema": format!("urn:counterfoil:{topic}/1"), "data": data })
}
