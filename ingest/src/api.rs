//! The routes, and the order API: `POST /orders`, `GET /orders/{id or reference}`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use axum::routing::{any, get, post};
use counterfoil_payments::OrderKey;
use counterfoil_settlement::{Begun, NewOrder, Order, Payment, Refused, Stored, begin_key, complete_key, create, find, payments_of};
use ring::digest;
use serde::Serialize;
use serde_json::{Value, json};

use crate::Ingest;
use crate::answers::{Problem, json_bytes};
use crate::new_order;
use crate::webhooks::{read_body, receive};

/// Longest idempotency key, in characters.
const KEY_CHARS_MAX: usize = 255;

/// All public routes. Both slash forms are routed: a redirect is a failed delivery for most providers.
pub(crate) fn router(ingest: Arc<Ingest>) -> Router {
    Router::new()
        .route("/webhooks/{provider}", any(receive))
        .route("/webhooks/{provider}/", any(receive))
        .route("/orders", post(create_order))
        .route("/orders/{key}", get(read_order))
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "nothing is here: see POST /webhooks/{provider}, POST /orders, GET /orders/{id or reference}")
        })
        .method_not_allowed_fallback(|| async { Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method: see the Allow header") })
        .with_state(ingest)
}

#[derive(Serialize)]
struct OrderAnswer {
    #[serde(flatten)]
    order: Order,
    payments: Vec<Payment>,
}

/// The scope of the caller's idempotency keys.
fn caller<'a>(ingest: &'a Ingest, headers: &HeaderMap) -> Result<&'a str, Problem> {
    if ingest.tokens.none() {
        return Err(Problem::new(StatusCode::NOT_FOUND, "the order API is off: COUNTERFOIL_API_TOKENS names no token"));
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    ingest.tokens.name_of(authorization).ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "a bearer token of the order API is needed"))
}

async fn read_order(State(ingest): State<Arc<Ingest>>, key: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Result<Response, Problem> {
    caller(&ingest, &headers)?;
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "no order has this id or reference");
    let key = key.ok().and_then(|Path(key)| OrderKey::read(&key)).ok_or_else(not_found)?;
    let answer = answer_of(&ingest, &key).await.map_err(|error| database_trouble(&error))?.ok_or_else(not_found)?;
    Ok(json_bytes(StatusCode::OK, json!(answer).to_string().into_bytes()))
}

async fn answer_of(ingest: &Ingest, key: &OrderKey) -> sqlx::Result<Option<OrderAnswer>> {
    let mut connection = ingest.api_pool.acquire().await?;
    let Some(order) = find(&mut connection, key).await? else { return Ok(None) };
    let payments = payments_of(&mut connection, order.id).await?;
    Ok(Some(OrderAnswer { order, payments }))
}

fn database_trouble(error: &sqlx::Error) -> Problem {
    tracing::error!(%error, "the order API cannot reach the database");
    Problem::unavailable("the database cannot take it now")
}

async fn create_order(State(ingest): State<Arc<Ingest>>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let scope = format!("{}:POST /orders", caller(&ingest, &parts.headers)?);
    let key = idempotency_key(&parts.headers)?;
    let body = read_body(&parts.headers, body).await?;
    let body: Value = serde_json::from_slice(&body).map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")))?;
    let order = new_order::read(&body).map_err(|problems| {
        let fields: Vec<_> = problems
            .iter()
            .map(|problem| format!("{} {}", problem["field"].as_str().unwrap_or_default(), problem["problem"].as_str().unwrap_or_default()))
            .collect();
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, fields.join("; ")).with("errors", Value::Array(problems))
    })?;
    // In a task of its own: a client that hangs up must not leave a half-finished transaction in the pool.
    let tracker = ingest.tracker.clone();
    let made = tracker.spawn(async move {
        let made = create_once(&ingest, &scope, key.as_deref(), &order).await;
        ingest.wake.raise(); // events that came first may have paid it
        made
    });
    made.await.unwrap_or_else(|_| Err(Problem::unavailable("making the order failed")))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("Idempotency-Key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= KEY_CHARS_MAX);
    key.map(|key| Some(key.to_owned()))
        .ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, format!("an Idempotency-Key has 1 to {KEY_CHARS_MAX} visible ASCII characters")))
}

async fn create_once(ingest: &Ingest, scope: &str, key: Option<&str>, order: &NewOrder) -> Result<Response, Problem> {
    let trouble = |error: sqlx::Error| database_trouble(&error);
    let mut tx = ingest.api_pool.begin().await.map_err(trouble)?;
    if let Some(key) = key {
        match begin_key(&mut tx, scope, key, meaning(order).as_ref()).await.map_err(trouble)? {
            Begun::First => {}
            Begun::Answered(stored) => return Ok(replayed(stored)),
            Begun::OtherRequest => {
                return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used with another order: take a new key"));
            }
            Begun::Running => return Err(Problem::running("a call with this Idempotency-Key is running: try again in a moment")),
        }
    }
    let made = create(&mut tx, order).await.map_err(|refused| match refused {
        Refused::ReferenceTaken(_) => {
            Problem::new(StatusCode::CONFLICT, refused.to_string()).with("errors", json!([{ "field": "reference", "problem": "is taken" }]))
        }
        Refused::Database(error) => database_trouble(&error),
    })?;
    let payments = payments_of(&mut tx, made.id).await.map_err(trouble)?;
    let body = json!(OrderAnswer { order: made, payments }).to_string().into_bytes();
    if let Some(key) = key {
        complete_key(&mut tx, scope, key, &Stored { status: StatusCode::CREATED.as_u16(), body: body.clone() }).await.map_err(trouble)?;
    }
    tx.commit().await.map_err(trouble)?;
    Ok(json_bytes(StatusCode::CREATED, body))
}

fn replayed(stored: Stored) -> Response {
    let mut response = json_bytes(StatusCode::from_u16(stored.status).unwrap_or(StatusCode::CREATED), stored.body);
    response.headers_mut().insert("Idempotency-Replayed", HeaderValue::from_static("true"));
    response
}

/// A hash over what an order means: the same however its JSON was spelled.
fn meaning(order: &NewOrder) -> digest::Digest {
    let meaning = json!([order.reference, order.money, order.customer, order.lines]);
    digest::digest(&digest::SHA256, meaning.to_string().as_bytes())
}
