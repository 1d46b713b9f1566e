//! `POST /orders/{id}/return`: the browser coming back from checkout, which may be faster than the webhook.
//!
//! No bearer: what lets it in is the provider's signed return (Razorpay), or the checkout session that the shop told us of. It
//! reads the payment from the provider, at most once in five seconds for each order, settles it as a webhook would be, and
//! answers what the customer should see. It never says more about an order than paid, processing or failed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use counterfoil_payments::{OrderStatus, PaymentKey, PaymentStatus, Provider};
use counterfoil_providers::api::{Api, CallError, PaymentState};
use counterfoil_providers::verify_razorpay_return;
use counterfoil_settlement::{Delivery, Order, OrderView, claim_read, find, session_of, view};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Ingest;
use crate::answers::{Problem, json_bytes};
use crate::api::{key_in_path, read_json};
use crate::keyed::database_trouble;
use crate::webhooks;

/// Seconds between two reads of one order.
const READ_GAP_S: i64 = 5;

/// Longest wait for the provider: the customer is looking at a blank page.
const READ_DEADLINE: Duration = Duration::from_secs(3);

/// What the browser brought, proven to belong to the order or to the provider.
enum Proof {
    Payment(PaymentKey),
    Session(PaymentKey),
}

pub(crate) async fn take(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let key = key_in_path(path)?;
    let body = read_json(&parts.headers, body).await?;
    let trouble = |error: sqlx::Error| database_trouble(&error);
    let mut connection = ingest.api_pool.acquire().await.map_err(trouble)?;
    let order = find(&mut connection, &key).await.map_err(trouble)?.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "no order has this id or reference"))?;
    let known = session_of(&mut connection, order.id).await.map_err(trouble)?;
    drop(connection);
    let proof = prove(&ingest, &body, known)?;
    if !OrderStatus::read(&order.status).is_some_and(OrderStatus::was_paid) {
        // In a task of its own: a browser that goes away leaves no half-finished transaction in a pool.
        let (tracker, read) = (ingest.tracker.clone(), Arc::clone(&ingest));
        let _ = tracker.spawn(async move { freshen(&read, &order, &proof).await }).await;
    }
    let mut connection = ingest.api_pool.acquire().await.map_err(trouble)?;
    let seen = view(&mut connection, &key).await.map_err(trouble)?.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "no order has this id or reference"))?;
    let status = shown(&seen);
    metrics::counter!("counterfoil_returns_total", "status" => status).increment(1);
    Ok(json_bytes(StatusCode::OK, json!({ "order_id": seen.order.id, "reference": seen.order.reference, "status": status }).to_string().into_bytes()))
}

fn prove(ingest: &Ingest, body: &Value, known: Option<PaymentKey>) -> Result<Proof, Problem> {
    let refused = |why: &str| Problem::new(StatusCode::FORBIDDEN, why.to_owned());
    let text = |field: &str| body[field].as_str().filter(|text| !text.is_empty());
    if let (Some(order), Some(payment), Some(signature)) = (text("razorpay_order_id"), text("razorpay_payment_id"), text("razorpay_signature")) {
        let secret = ingest.razorpay_return.as_ref().ok_or_else(|| refused("Razorpay's return cannot be verified: COUNTERFOIL_RAZORPAY_API_KEY is not set"))?;
        verify_razorpay_return(secret, &[order, payment], signature).map_err(|_| refused("the signature of the return does not match"))?;
        return Ok(Proof::Payment(PaymentKey { provider: Provider::Razorpay, account: String::new(), payment_id: payment.to_owned() }));
    }
    let known = known.ok_or_else(|| refused("the order knows no checkout session: tell it by POST /orders/{id}/session, or bring Razorpay's signed return"))?;
    match text("session") {
        Some(session) if session == known.payment_id => Ok(Proof::Session(known)),
        Some(_) => Err(refused("this is not the order's checkout session")),
        None => Err(refused("bring the order's checkout session, as {\"session\": …}, or Razorpay's signed return")),
    }
}

/// Reads from the provider and settles what it says. Whatever goes wrong, the webhook will still come.
async fn freshen(ingest: &Ingest, order: &Order, proof: &Proof) {
    let (Proof::Payment(key) | Proof::Session(key)) = proof;
    let Some(api) = ingest.apis.of(key.provider) else { return };
    let claimed = async {
        let mut connection = ingest.api_pool.acquire().await?;
        claim_read(&mut connection, order.id, READ_GAP_S).await
    };
    match claimed.await {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => return tracing::warn!(%error, "a return cannot claim its read"),
    }
    match timeout(READ_DEADLINE, read(api, proof)).await {
        Ok(Ok(state)) => {
            if matches!(proof, Proof::Payment(_)) && state.order().is_none() {
                return; // a signature proves the payment, not whose order it is
            }
            let delivery = Delivery::of_read(key.provider, &key.account, state.fact).about(order.id);
            if let Err(problem) = webhooks::settle(ingest, delivery).await {
                tracing::warn!(?problem, order_id = %order.id, "what a return read could not be settled; the webhook will");
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, order_id = %order.id, "a return could not read its payment"),
        Err(_) => tracing::warn!(order_id = %order.id, "the provider did not answer a return in time"),
    }
}

async fn read(api: &Api, proof: &Proof) -> Result<PaymentState, CallError> {
    match proof {
        Proof::Payment(key) => api.payment(key).await,
        Proof::Session(key) => api.session(key).await,
    }
}

/// What the customer should see.
fn shown(seen: &OrderView) -> &'static str {
    match OrderStatus::read(&seen.order.status) {
        Some(OrderStatus::Paid | OrderStatus::PartiallyRefunded | OrderStatus::Refunded) => "paid",
        Some(OrderStatus::Cancelled | OrderStatus::Expired | OrderStatus::FailedFinal) => "failed",
        Some(OrderStatus::PendingPayment | OrderStatus::PaymentPending) | None => {
            let over = |payment: &counterfoil_settlement::Payment| {
                matches!(PaymentStatus::read(&payment.status), Some(PaymentStatus::Failed | PaymentStatus::Cancelled | PaymentStatus::Expired))
            };
            if !seen.payments.is_empty() && seen.payments.iter().all(over) { "failed" } else { "processing" }
        }
    }
}
