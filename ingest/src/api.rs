//! The routes, and the order API: make, read, cancel, and tell the checkout session of an order.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::Response;
use axum::routing::{any, get, post};
use counterfoil_payments::OrderKey;
use counterfoil_settlement::{OrderView, Refused, cancel, find, set_session, view};
use counterfoil_tickets::{release_of, reservations_of, tickets_of};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use sqlx::{PgConnection, PgTransaction};

use crate::answers::{Problem, json_bytes};
use crate::fields::FieldProblems;
use crate::keyed::{self, Keyed, database_trouble};
use crate::new_order;
use crate::webhooks::{read_body, receive};
use crate::{Ingest, claims, draws, refunds, returns};

/// All public routes. Both slash forms are routed: a redirect is a failed delivery for most providers.
pub(crate) fn router(ingest: Arc<Ingest>) -> Router {
    Router::new()
        .route("/webhooks/{provider}", any(receive))
        .route("/webhooks/{provider}/", any(receive))
        .route("/orders", post(create_order))
        .route("/orders/{key}", get(read_order))
        .route("/orders/{key}/cancel", post(cancel_order))
        .route("/orders/{key}/session", post(set_order_session))
        .route("/orders/{key}/refunds", post(refunds::create))
        .route("/orders/{key}/return", post(returns::take))
        .route("/orders/{key}/claim-token", post(claims::issue))
        .route("/claims", post(claims::take))
        .route("/draws", post(draws::create))
        .route("/draws/{key}", get(draws::show).patch(draws::change))
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "nothing is here: see POST /webhooks/{provider}, POST /orders, GET /orders/{id or reference}, POST /orders/{id}/{cancel,refunds,session,return,claim-token}, POST /claims, POST /draws, GET /draws/{id or reference}")
        })
        .method_not_allowed_fallback(|| async { Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method: see the Allow header") })
        .with_state(ingest)
}

/// The scope of the caller's idempotency keys.
pub(crate) fn caller<'a>(ingest: &'a Ingest, headers: &HeaderMap) -> Result<&'a str, Problem> {
    if ingest.tokens.none() {
        return Err(Problem::new(StatusCode::NOT_FOUND, "the order API is off: COUNTERFOIL_API_TOKENS names no token"));
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    ingest.tokens.name_of(authorization).ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "a bearer token of the order API is needed"))
}

/// The order that a path names.
pub(crate) fn key_in_path(key: Result<Path<String>, PathRejection>) -> Result<OrderKey, Problem> {
    key.ok().and_then(|Path(key)| OrderKey::read(&key)).ok_or_else(not_found)
}

/// Reads a body as JSON; no body is an empty object.
pub(crate) async fn read_json(headers: &HeaderMap, body: Body) -> Result<Value, Problem> {
    let body = read_body(headers, body).await?;
    if body.is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice(&body).map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")))
}

pub(crate) fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no order has this id or reference")
}

async fn read_order(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Result<Response, Problem> {
    caller(&ingest, &headers)?;
    let key = key_in_path(path)?;
    let trouble = |error: sqlx::Error| database_trouble(&error);
    let mut connection = ingest.api_pool.acquire().await.map_err(trouble)?;
    let seen = view(&mut connection, &key).await.map_err(trouble)?.ok_or_else(not_found)?;
    let seen = with_tickets(&mut connection, &seen).await.map_err(trouble)?;
    Ok(json_bytes(StatusCode::OK, seen.to_string().into_bytes()))
}

/// An order with its places and numbers, where it has any.
pub(crate) async fn with_tickets(connection: &mut PgConnection, seen: &OrderView) -> sqlx::Result<Value> {
    let mut body = json!(seen);
    let reservations = reservations_of(&mut *connection, seen.order.id).await?;
    if !reservations.is_empty() {
        body["reservations"] = json!(reservations);
        body["tickets"] = json!(tickets_of(connection, seen.order.id).await?);
    }
    Ok(body)
}

async fn create_order(State(ingest): State<Arc<Ingest>>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let scope = format!("{}:POST /orders", caller(&ingest, &parts.headers)?);
    let key = keyed::key_of(&parts.headers)?;
    let body = read_json(&parts.headers, body).await?;
    let mut asked = new_order::read(&body).map_err(field_problems)?;
    let order = &asked.order;
    let mut meaning = vec![json!(order.reference), json!(order.money), json!(order.customer), json!(asked.lines)];
    // Only where there are any: keys of earlier releases stay valid.
    if order.expires_in_s.is_some() || order.session.is_some() {
        meaning.push(json!([order.expires_in_s, order.session]));
    }
    if !asked.wanted.is_empty() || order.customer_id.is_some() {
        let tickets: Vec<_> = asked.wanted.iter().map(|wanted| json!([wanted.line, wanted.draw])).collect();
        meaning.push(json!([order.customer_id, tickets, asked.reserve_for_s]));
    }
    let call = Keyed { scope, key, meaning: Value::Array(meaning) };
    asked.key = call.ask();
    asked.order.made_by = call.made_by();
    ingest.checkout.make(asked).await
}

pub(crate) fn field_problems(problems: FieldProblems) -> Problem {
    let fields: Vec<_> = problems
        .iter()
        .map(|problem| format!("{} {}", problem["field"].as_str().unwrap_or_default(), problem["problem"].as_str().unwrap_or_default()))
        .collect();
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, fields.join("; ")).with("errors", Value::Array(problems))
}

pub(crate) fn refusal(refused: &Refused) -> Problem {
    match refused {
        Refused::ReferenceTaken(_) => {
            Problem::new(StatusCode::CONFLICT, refused.to_string()).with("errors", json!([{ "field": "reference", "problem": "is taken" }]))
        }
        Refused::KeyUsed => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, refused.to_string()),
        Refused::NoOrder => not_found(),
        Refused::Status(status) => Problem::new(StatusCode::CONFLICT, format!("{refused}: it cannot be cancelled")).with("order_status", json!(status)),
        Refused::Database(error) => database_trouble(error),
    }
}

/// `POST /orders/{id}/cancel`: ends an unpaid order; again does no harm.
async fn cancel_order(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Result<Response, Problem> {
    caller(&ingest, &headers)?;
    let key = key_in_path(path)?;
    in_task(ingest, move |tx| {
        Box::pin(async move {
            let trouble = |error: sqlx::Error| database_trouble(&error);
            let id = cancel(tx, &key).await.map_err(|refused| refusal(&refused))?;
            release_of(tx, id.0).await.map_err(trouble)?;
            let seen = view(tx, &OrderKey::Id(id)).await.map_err(trouble)?.ok_or_else(not_found)?;
            with_tickets(tx, &seen).await.map_err(trouble)
        })
    })
    .await
}

/// `POST /orders/{id}/session` with `{"provider", "id", "account"?}`: the checkout session that the shop has opened.
async fn set_order_session(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    caller(&ingest, &parts.headers)?;
    let key = key_in_path(path)?;
    let body = read_json(&parts.headers, body).await?;
    let session = new_order::read_session(&body).map_err(field_problems)?;
    in_task(ingest, move |tx| {
        Box::pin(async move {
            let trouble = |error: sqlx::Error| database_trouble(&error);
            let order = find(&mut *tx, &key).await.map_err(trouble)?.ok_or_else(not_found)?;
            set_session(&mut *tx, order.id, &session).await.map_err(trouble)?;
            Ok(json!(view(tx, &key).await.map_err(trouble)?))
        })
    })
    .await
}

/// One transaction in a task of its own: a client that hangs up must not leave half of it in the pool.
pub(crate) async fn in_task<W>(ingest: Arc<Ingest>, work: W) -> Result<Response, Problem>
where
    W: for<'t> FnOnce(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<Value, Problem>> + Send + 'static,
{
    let tracker = ingest.tracker.clone();
    let done = tracker.spawn(async move {
        let mut tx = ingest.api_pool.begin().await.map_err(|error| database_trouble(&error))?;
        let body = work(&mut tx).await?;
        tx.commit().await.map_err(|error| database_trouble(&error))?;
        Ok(json_bytes(StatusCode::OK, body.to_string().into_bytes()))
    });
    done.await.unwrap_or_else(|_| Err(Problem::unavailable("the call failed half way; nothing of it was kept")))
}
