//! `POST /orders/{id}/refunds`: asks for money to go back. The answer is the refund as it was asked for; the refunds
//! consumer sends it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use counterfoil_payments::Provider;
use counterfoil_settlement::{NewRefund, PaymentName, RefundRefused, find, request_refund};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Ingest;
use crate::answers::Problem;
use crate::api::{caller, key_in_path, read_json};
use crate::keyed::{self, Keyed, database_trouble};

/// Longest reason, in characters.
const REASON_CHARS_MAX: usize = 500;

struct Asked {
    amount_minor: i64,
    reason: Option<String>,
    payment: Option<PaymentName>,
}

pub(crate) async fn create(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let scope = format!("{}:POST /orders/{{id}}/refunds", caller(&ingest, &parts.headers)?);
    let key = keyed::key_of(&parts.headers)?;
    let key =
        key.ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, "an Idempotency-Key is required: money must not go back twice because a call was sent twice"))?;
    let order_key = key_in_path(path)?;
    let asked = read(&read_json(&parts.headers, body).await?)?;
    let mut connection = ingest.api_pool.acquire().await.map_err(|error| database_trouble(&error))?;
    let order = find(&mut connection, &order_key).await.map_err(|error| database_trouble(&error))?.ok_or_else(|| refusal(&RefundRefused::NoOrder))?;
    drop(connection);
    let named = asked.payment.as_ref().map(|payment| json!([payment.provider, payment.account, payment.payment_id]));
    let meaning = json!([order.id, asked.amount_minor, asked.reason, named]);
    let call = Keyed { scope, key: Some(key), meaning };
    let id = Uuid::now_v7();
    let new = NewRefund {
        id,
        order_id: order.id,
        payment: asked.payment,
        amount_minor: Some(asked.amount_minor),
        origin: "api",
        reason: asked.reason,
        provider_key: format!("refund:{id}"),
        made_by: call.made_by(),
    };
    keyed::once(ingest, call, move |tx| {
        Box::pin(async move {
            let refund = request_refund(tx, &new, None).await.map_err(|refused| refusal(&refused))?;
            Ok(json!(refund).to_string().into_bytes())
        })
    })
    .await
}

fn read(body: &Value) -> Result<Asked, Problem> {
    let mut problems = Vec::new();
    let amount_minor = body["amount_minor"].as_i64().filter(|amount| *amount > 0);
    if amount_minor.is_none() {
        problems.push(json!({ "field": "amount_minor", "problem": "must be a whole number of minor units above 0" }));
    }
    let mut text = |field: &str| match &body[field] {
        Value::Null => None,
        Value::String(text) if !text.is_empty() && text.chars().count() <= REASON_CHARS_MAX => Some(text.replace('\0', "\u{FFFD}")),
        _ => {
            problems.push(json!({ "field": field, "problem": format!("must be a text of 1 to {REASON_CHARS_MAX} characters") }));
            None
        }
    };
    let (reason, payment_id, provider, account) = (text("reason"), text("payment_id"), text("provider"), body.get("account").and_then(Value::as_str));
    let provider = provider.map(|name| name.parse::<Provider>()).transpose().unwrap_or_else(|unknown| {
        problems.push(json!({ "field": "provider", "problem": unknown.to_string() }));
        None
    });
    if payment_id.is_none() && (provider.is_some() || account.is_some()) {
        problems.push(json!({ "field": "payment_id", "problem": "must be there when provider or account is" }));
    }
    let payment = payment_id.map(|payment_id| PaymentName { payment_id, provider, account: account.map(str::to_owned) });
    match amount_minor {
        Some(amount_minor) if problems.is_empty() => Ok(Asked { amount_minor, reason, payment }),
        _ => Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "the refund cannot be read: see errors").with("errors", Value::Array(problems))),
    }
}

fn refusal(refused: &RefundRefused) -> Problem {
    let status = match refused {
        RefundRefused::NoOrder => StatusCode::NOT_FOUND,
        RefundRefused::NoPayment | RefundRefused::Ambiguous | RefundRefused::Disputed | RefundRefused::NoApi(_) => StatusCode::CONFLICT,
        RefundRefused::TooMuch { .. } | RefundRefused::KeyUsed => StatusCode::UNPROCESSABLE_ENTITY,
        RefundRefused::Database(error) => return database_trouble(error),
    };
    let problem = Problem::new(status, refused.to_string());
    if let RefundRefused::TooMuch { left, .. } = refused { problem.with("refundable_minor", json!(left)) } else { problem }
}
