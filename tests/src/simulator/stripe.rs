//! Stripe's paths.

use std::collections::HashMap;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Form, Router};
use serde_json::{Value, json};

use super::{Asked, Payment, Refund, Simulator, answer, key, problem};

pub(super) fn routes() -> Router<Simulator> {
    Router::new()
        .route("/v1/payment_intents/{id}", get(intent))
        .route("/v1/checkout/sessions", get(sessions))
        .route("/v1/checkout/sessions/{id}", get(session))
        .route("/v1/refunds", post(refund).get(refunds))
}

async fn intent(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    let Some((payment, refunded)) = simulator.payment("stripe", &id) else { return problem(404, "resource_missing") };
    let status = match payment.status.as_str() {
        "captured" => "succeeded",
        "authorised" => "requires_capture",
        "pending" => "processing",
        _ => "canceled",
    };
    let currency = payment.currency.to_lowercase();
    let received = if payment.status == "captured" { payment.amount } else { 0 };
    let order = if payment.session.is_some() { json!({}) } else { json!({ "order_id": payment.order }) };
    answer(
        200,
        json!({ "id": id, "object": "payment_intent", "status": status, "amount": payment.authorised.max(payment.amount), "amount_received": received, "currency": currency, "metadata": order,
            "latest_charge": { "id": format!("ch_{id}"), "amount_refunded": refunded } }),
    )
}

fn session_of(payment: &Payment) -> Value {
    let paid = payment.status == "captured";
    json!({ "id": payment.session, "object": "checkout.session", "status": if paid { "complete" } else { "open" }, "payment_status": if paid { "paid" } else { "unpaid" },
        "payment_intent": payment.id, "amount_total": payment.authorised.max(payment.amount), "currency": payment.currency.to_lowercase(), "client_reference_id": payment.order, "metadata": {} })
}

fn by_session(simulator: &Simulator, wanted: impl Fn(&Payment) -> bool) -> Vec<Value> {
    let mut state = simulator.state.lock().unwrap();
    state.reads += 1;
    state.payments.values().filter(|payment| payment.provider == "stripe" && payment.session.is_some() && wanted(payment)).map(session_of).collect()
}

async fn sessions(State(simulator): State<Simulator>, Query(query): Query<HashMap<String, String>>) -> Response {
    let intent = query.get("payment_intent").cloned().unwrap_or_default();
    answer(200, json!({ "object": "list", "data": by_session(&simulator, |payment| payment.id == intent) }))
}

async fn session(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    match by_session(&simulator, |payment| payment.session.as_deref() == Some(&id)).pop() {
        Some(session) => answer(200, session),
        None => problem(404, "resource_missing"),
    }
}

pub(super) fn show(payment: &Payment, refund: &Refund) -> Value {
    let mut shown = json!({ "id": refund.id, "object": "refund", "payment_intent": refund.payment, "charge": format!("ch_{}", refund.payment), "amount": refund.amount,
        "currency": payment.currency.to_lowercase(), "status": "succeeded", "metadata": {} });
    if !refund.mark.is_empty() {
        shown["metadata"] = json!({ "counterfoil_refund": refund.mark });
    }
    shown
}

async fn refund(State(simulator): State<Simulator>, headers: HeaderMap, Form(form): Form<HashMap<String, String>>) -> Response {
    let field = |name: &str| form.get(name).cloned().unwrap_or_default();
    let asked = Asked {
        provider: "stripe",
        payment: field("payment_intent"),
        amount: field("amount").parse().unwrap_or(0),
        key: key(&headers, "Idempotency-Key"),
        mark: field("metadata[counterfoil_refund]"),
    };
    simulator.refund(asked, show).await
}

async fn refunds(State(simulator): State<Simulator>, Query(query): Query<HashMap<String, String>>) -> Response {
    let intent = query.get("payment_intent").cloned().unwrap_or_default();
    let Some((payment, _)) = simulator.payment("stripe", &intent) else { return problem(404, "resource_missing") };
    let list: Vec<Value> = simulator.refunds_of("stripe", &intent).iter().map(|refund| show(&payment, refund)).collect();
    answer(200, json!({ "object": "list", "data": list }))
}
