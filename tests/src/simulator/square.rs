//! Square's paths.

use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::{Asked, Payment, Refund, Simulator, answer, problem};

pub(super) fn routes() -> Router<Simulator> {
    Router::new()
        .route("/v2/payments/{id}", get(payment))
        .route("/v2/orders/{id}", get(order))
        .route("/v2/refunds", post(refund))
        .route("/v2/refunds/{id}", get(read_refund))
}

fn money(amount: i64, payment: &Payment) -> Value {
    json!({ "amount": amount, "currency": payment.currency })
}

async fn payment(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    let Some((payment, refunded)) = simulator.payment("square", &id) else { return problem(404, "NOT_FOUND") };
    let status = match payment.status.as_str() {
        "captured" => "COMPLETED",
        "authorised" => "APPROVED",
        "pending" => "PENDING",
        "voided" => "CANCELED",
        _ => "FAILED",
    };
    let ids: Vec<String> = simulator.refunds_of("square", &id).into_iter().map(|refund| refund.id).collect();
    answer(
        200,
        json!({ "payment": { "id": id, "status": status, "reference_id": if payment.session.is_some() { None } else { payment.order.clone() }, "order_id": payment.session,
            "amount_money": money(payment.amount, &payment), "tip_money": money(payment.tip, &payment), "total_money": money(payment.amount + payment.tip, &payment),
            "refunded_money": money(refunded, &payment), "refund_ids": ids } }),
    )
}

/// A payment link's order: its tenders are its payments.
async fn order(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    let state = simulator.state.lock().unwrap();
    let of = state.payments.values().filter(|payment| payment.provider == "square" && payment.session.as_deref() == Some(&id));
    let tenders: Vec<Value> =
        of.map(|payment| json!({ "id": payment.id, "payment_id": payment.id, "amount_money": money(payment.amount + payment.tip, payment) })).collect();
    if tenders.is_empty() { problem(404, "NOT_FOUND") } else { answer(200, json!({ "order": { "id": id, "tenders": tenders } })) }
}

pub(super) fn show(payment: &Payment, refund: &Refund) -> Value {
    let reason = if refund.mark.is_empty() { String::new() } else { format!("counterfoil {}", refund.mark) };
    json!({ "refund": { "id": refund.id, "payment_id": refund.payment, "status": "COMPLETED", "amount_money": money(refund.amount, payment), "reason": reason } })
}

async fn refund(State(simulator): State<Simulator>, Json(body): Json<Value>) -> Response {
    let key = body["idempotency_key"].as_str().unwrap_or_default().to_owned();
    if key.is_empty() || key.len() > 45 {
        return problem(400, "VALUE_TOO_LONG");
    }
    let mark = body["reason"].as_str().and_then(|reason| reason.rsplit_once("counterfoil ")).map(|(_, mark)| mark.to_owned()).unwrap_or_default();
    let payment = body["payment_id"].as_str().unwrap_or_default().to_owned();
    simulator.refund(Asked { provider: "square", payment, amount: body["amount_money"]["amount"].as_i64().unwrap_or(0), key, mark }, show).await
}

async fn read_refund(State(simulator): State<Simulator>, Path(id): Path<String>) -> Response {
    let Some(refund) = simulator.refunds().into_iter().find(|refund| refund.provider == "square" && refund.id == id) else { return problem(404, "NOT_FOUND") };
    match simulator.payment("square", &refund.payment) {
        Some((payment, _)) => answer(200, show(&payment, &refund)),
        None => problem(404, "NOT_FOUND"),
    }
}
