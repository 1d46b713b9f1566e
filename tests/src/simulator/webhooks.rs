//! The webhooks that a simulated provider sends, signed.

use std::time::{Duration, SystemTime};

use base64::Engine;
use reqwest::{Client, RequestBuilder};
use ring::hmac;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Payment, Refund, razorpay, square, stripe};

/// Where webhooks go, and the secrets that sign them.
#[derive(Debug, Clone)]
pub struct Webhooks {
    /// Ingest's address, such as `http://127.0.0.1:8600`.
    pub ingest: String,
    /// Stripe's endpoint secret.
    pub stripe: String,
    /// Razorpay's webhook secret.
    pub razorpay: String,
    /// Square's signature key.
    pub square: String,
    /// The URL that Square signs.
    pub square_url: String,
    /// How long they take.
    pub delay: Duration,
}

fn mac(secret: &str, parts: &[&[u8]]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), &parts.concat())
}

impl Webhooks {
    /// What follows a refund.
    pub(super) async fn refunded(&self, payment: &Payment, refund: &Refund, refunded: i64) {
        tokio::time::sleep(self.delay).await;
        match refund.provider.as_str() {
            "stripe" => {
                // The cumulative event first, as it often comes.
                let charge = json!({ "id": format!("ch_{}", payment.id), "payment_intent": payment.id, "amount": payment.amount, "amount_captured": payment.amount,
                    "amount_refunded": refunded, "captured": true, "currency": payment.currency.to_lowercase() });
                self.stripe("charge.refunded", &charge).await;
                self.stripe("refund.created", &stripe::show(payment, refund)).await;
            }
            "razorpay" => {
                let payload = json!({ "refund": { "entity": razorpay::show(payment, refund) }, "payment": { "entity": razorpay::entity(payment, refunded) } });
                self.razorpay("refund.processed", &payload).await;
            }
            _ => self.square("refund.updated", &square::show(payment, refund)).await,
        }
    }

    async fn stripe(&self, kind: &str, object: &Value) {
        let id = format!("evt_{}", Uuid::new_v4().simple());
        let body = json!({ "id": id, "object": "event", "type": kind, "livemode": false, "created": now(), "data": { "object": object } }).to_string();
        let time = now().to_string();
        let tag = hex::encode(mac(&self.stripe, &[time.as_bytes(), b".", body.as_bytes()]));
        self.deliver("stripe", |request| request.header("Stripe-Signature", format!("t={time},v1={tag}")), body.clone()).await;
    }

    async fn razorpay(&self, kind: &str, payload: &Value) {
        let body = json!({ "entity": "event", "event": kind, "created_at": now(), "payload": payload }).to_string();
        let tag = hex::encode(mac(&self.razorpay, &[body.as_bytes()]));
        self.deliver("razorpay", |request| request.header("X-Razorpay-Signature", tag.as_str()), body.clone()).await;
    }

    async fn square(&self, kind: &str, object: &Value) {
        let body = json!({ "event_id": Uuid::new_v4(), "type": kind, "created_at": "2026-11-29T10:00:00Z", "data": { "object": object } }).to_string();
        let tag = base64::engine::general_purpose::STANDARD.encode(mac(&self.square, &[self.square_url.as_bytes(), body.as_bytes()]));
        self.deliver("square", |request| request.header("x-square-hmacsha256-signature", tag.as_str()), body.clone()).await;
    }

    /// Until it is taken, a few times.
    async fn deliver(&self, provider: &str, sign: impl Fn(RequestBuilder) -> RequestBuilder, body: String) {
        for _ in 0..20 {
            let request = sign(Client::new().post(format!("{}/webhooks/{provider}", self.ingest))).body(body.clone());
            if request.send().await.is_ok_and(|response| response.status().is_success()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}
