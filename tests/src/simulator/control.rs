//! How a script drives the simulator: make payments, look at refunds, let things go wrong.

use std::time::Duration;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::{Fault, Payment, Simulator};

pub(super) fn routes() -> Router<Simulator> {
    Router::new()
        .route("/simulator", get(|| async { "counterfoil's simulator of Stripe, Razorpay and Square\n" }))
        .route("/simulator/payments", post(put))
        .route("/simulator/refunds", get(list).post(by_hand))
        .route("/simulator/faults", post(fault))
}

fn text(body: &Value, field: &str) -> Option<String> {
    body[field].as_str().map(str::to_owned)
}

/// `{"provider", "id", "amount", "currency", "order", "status", "session", "authorised", "tip"}`
async fn put(State(simulator): State<Simulator>, Json(body): Json<Value>) -> Json<Value> {
    simulator.put(Payment {
        provider: text(&body, "provider").unwrap_or_else(|| "stripe".into()),
        id: text(&body, "id").unwrap_or_default(),
        amount: body["amount"].as_i64().unwrap_or(0),
        currency: text(&body, "currency").unwrap_or_else(|| "EUR".into()),
        order: text(&body, "order"),
        status: text(&body, "status").unwrap_or_else(|| "captured".into()),
        session: text(&body, "session"),
        authorised: body["authorised"].as_i64().unwrap_or(0),
        tip: body["tip"].as_i64().unwrap_or(0),
    });
    Json(json!({ "made": body["id"] }))
}

async fn list(State(simulator): State<Simulator>) -> Json<Value> {
    let shown = |refund: super::Refund| json!({ "id": refund.id, "provider": refund.provider, "payment": refund.payment, "amount": refund.amount, "key": refund.key, "mark": refund.mark });
    Json(json!({ "calls": simulator.refund_calls(), "reads": simulator.reads(), "refunds": simulator.refunds().into_iter().map(shown).collect::<Vec<_>>() }))
}

/// `{"provider", "payment", "amount"}`: a refund in the dashboard.
async fn by_hand(State(simulator): State<Simulator>, Json(body): Json<Value>) -> Json<Value> {
    let (provider, payment) = (text(&body, "provider").unwrap_or_default(), text(&body, "payment").unwrap_or_default());
    Json(json!({ "id": simulator.refund_by_hand(&provider, &payment, body["amount"].as_i64().unwrap_or(0)) }))
}

/// `{"refuse": 429}`, `{"answer_after": 500}`, `{"drop_after": true}`, `{"hold_ms": 1000}`
async fn fault(State(simulator): State<Simulator>, Json(body): Json<Value>) -> Json<Value> {
    let status = |value: &Value| value.as_u64().and_then(|status| u16::try_from(status).ok());
    let fault = if let Some(code) = status(&body["refuse"]) {
        Fault::Refuse(code)
    } else if let Some(code) = status(&body["answer_after"]) {
        Fault::AnswerAfter(code)
    } else if let Some(ms) = body["hold_ms"].as_u64() {
        Fault::Hold(Duration::from_millis(ms))
    } else {
        Fault::DropAfter
    };
    simulator.next([fault]);
    Json(json!({ "set": true }))
}
