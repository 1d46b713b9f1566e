//! Razorpay's paths.

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::{Asked, Payment, Refund, Simulator, answer, key, problem};

pub(super) fn routes() -> Router<Simulator> {
    Router::new()
        .route("/v1/payments/{id}", get(payment))
        .route("/v1/payments/{id}/refund", post(refund))
        .route("/v1/payments/{id}/refunds", get(refunds))
        .route("/v1/orders/{id}", get(order))
        .route("/v1/orders/{id}/payments", get(payments_of_order))
}

pub(super) fn entity(payment: &Payment, refunded: i64) -> Value {
    let status = match payment.status.as_str() {
        "captured" if refunded == payment.amount => "refunded",
        "captured" => "captured",
        "authorised" => "authorized",
        "pending" => "created",
        "voided" => "refunded",
        _ => "failed",
    };
    let notes = if payment.session.is_some() { json!([]) } else { json!({ "order_id": payment.order }) };
    json!({ "id": payment.id, "entity": "payment", "amount": payment.amount, "currency": payment.currency, "status": status, "order_id": payment.session,
        "captured": payment.status == "captured", "amount_refunded": if payment.status == "voided" { payment.amount } else { refunded }, "notes": notes, "email": null, "contact": null })
}

async fn payment(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    match simulator.payment("razorpay", &id) {
        Some((payment, refunded)) => answer(200, entity(&payment, refunded)),
        None => problem(404, "BAD_REQUEST_ERROR"),
    }
}

fn of_order(simulator: &Simulator, order: &str) -> Vec<Payment> {
    simulator
        .state
        .lock()
        .unwrap()
        .payments
        .values()
        .filter(|payment| payment.provider == "razorpay" && payment.session.as_deref() == Some(order))
        .cloned()
        .collect()
}

async fn order(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    match of_order(&simulator, &id).pop() {
        Some(payment) => answer(200, json!({ "id": id, "entity": "order", "receipt": payment.order, "notes": [] })),
        None => problem(404, "BAD_REQUEST_ERROR"),
    }
}

async fn payments_of_order(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    let items: Vec<Value> = of_order(&simulator, &id).iter().map(|payment| entity(payment, 0)).collect();
    answer(200, json!({ "entity": "collection", "items": items }))
}

pub(super) fn show(payment: &Payment, refund: &Refund) -> Value {
    let notes = if refund.mark.is_empty() { json!([]) } else { json!({ "counterfoil_refund": refund.mark }) };
    json!({ "id": refund.id, "entity": "refund", "payment_id": refund.payment, "amount": refund.amount, "currency": payment.currency, "status": "processed", "notes": notes })
}

async fn refund(State(simulator): State<Simulator>, Path(id): Path<String>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = key(&headers, "X-Refund-Idempotency");
    if key.len() < 10 || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        return problem(400, "BAD_REQUEST_ERROR");
    }
    let mark = body["notes"]["counterfoil_refund"].as_str().unwrap_or_default().to_owned();
    simulator.refund(Asked { provider: "razorpay", payment: id, amount: body["amount"].as_i64().unwrap_or(0), key, mark }, show).await
}

async fn refunds(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    let Some((payment, _)) = simulator.payment("razorpay", &id) else { return problem(404, "BAD_REQUEST_ERROR") };
    let items: Vec<Value> = simulator.refunds_of("razorpay", &id).iter().map(|refund| show(&payment, refund)).collect();
    answer(200, json!({ "entity": "collection", "items": items }))
}
