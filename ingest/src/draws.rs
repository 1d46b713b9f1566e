//! Draws over HTTP: make and change them with the shop's token, read what is left without.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use counterfoil_payments::OrderKey;
use counterfoil_tickets::{Change, Draw, DrawRefused, NewDraw, change_draw, create_draw, find_draw};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Ingest;
use crate::answers::{Problem, json_bytes};
use crate::api::{caller, field_problems, in_task, read_json};
use crate::fields::{FieldProblems, Fields};
use crate::keyed::{self, Keyed, database_trouble};

/// Numbers are whole up to 2^53.
const TICKETS_MAX: i64 = (1 << 53) - 1;

fn key_in_path(path: Result<Path<String>, PathRejection>) -> Result<OrderKey, Problem> {
    path.ok().and_then(|Path(key)| OrderKey::read(&key)).ok_or_else(no_draw)
}

fn no_draw() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no draw has this id or reference")
}

fn refusal(refused: &DrawRefused) -> Problem {
    match refused {
        DrawRefused::ReferenceTaken(_) | DrawRefused::BelowReserved => Problem::new(StatusCode::CONFLICT, refused.to_string()),
        DrawRefused::Times => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, refused.to_string()),
        DrawRefused::Database(error) => database_trouble(error),
    }
}

/// `GET /draws/{id}`: what is left. Nothing personal is in it, so that a shop's page may ask by itself.
pub(crate) async fn show(State(ingest): State<Arc<Ingest>>, path: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
    let key = key_in_path(path)?;
    let trouble = |error: sqlx::Error| database_trouble(&error);
    let mut connection = ingest.api_pool.acquire().await.map_err(trouble)?;
    let draw: Draw = find_draw(&mut connection, &key).await.map_err(trouble)?.ok_or_else(no_draw)?;
    Ok(json_bytes(StatusCode::OK, json!(draw).to_string().into_bytes()))
}

/// `POST /draws`.
pub(crate) async fn create(State(ingest): State<Arc<Ingest>>, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let scope = format!("{}:POST /draws", caller(&ingest, &parts.headers)?);
    let key = keyed::key_of(&parts.headers)?;
    let body = read_json(&parts.headers, body).await?;
    let new = read_new(&body).map_err(field_problems)?;
    keyed::once(ingest, Keyed { scope, key, meaning: body }, move |tx| {
        Box::pin(async move { create_draw(&mut *tx, &new).await.map(|draw| json!(draw).to_string().into_bytes()).map_err(|refused| refusal(&refused)) })
    })
    .await
}

/// `PATCH /draws/{id}`: what is named is changed, null lifts a limit.
pub(crate) async fn change(
    State(ingest): State<Arc<Ingest>>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    caller(&ingest, &headers)?;
    let key = key_in_path(path)?;
    let change = read_change(&read_json(&headers, body).await?).map_err(field_problems)?;
    in_task(ingest, move |tx| {
        Box::pin(async move {
            let changed = change_draw(tx, &key, &change).await.map_err(|refused| refusal(&refused))?;
            changed.map(|draw| json!(draw)).ok_or_else(no_draw)
        })
    })
    .await
}

impl Fields<'_> {
    /// An instant, RFC 3339; absent and null are none.
    fn instant(&mut self, field: &str) -> Option<OffsetDateTime> {
        let text = self.text(field, false)?;
        let read = OffsetDateTime::parse(&text, &Rfc3339);
        if read.is_err() {
            self.note(field, "must be an instant such as 2026-12-31T18:00:00Z");
        }
        read.ok()
    }

    /// A whole number from `least`; absent and null are none.
    fn limit(&mut self, field: &str, least: i64) -> Option<i64> {
        let number = self.named(field).then(|| self.integer(field, least, None)).flatten();
        if number.is_some_and(|number| number > TICKETS_MAX) {
            self.note(field, format!("must be at most {TICKETS_MAX}; leave it out for no limit"));
        }
        number
    }

    fn charity(&mut self) -> (i64, i64) {
        let Some(text) = self.text("charity", false) else { return (0, 1) };
        let parts = text.split_once('/').and_then(|(numerator, denominator)| Some((numerator.trim().parse().ok()?, denominator.trim().parse().ok()?)));
        match parts {
            Some((numerator, denominator)) if (1..=1_000_000_000).contains(&denominator) && (0..=denominator).contains(&numerator) => (numerator, denominator),
            _ => {
                self.note("charity", "must be a fraction from 0/1 to 1/1, such as 20/100, its denominator at most 1000000000");
                (0, 1)
            }
        }
    }
}

fn read_new(body: &Value) -> Result<NewDraw, FieldProblems> {
    Fields::read(body, |fields| {
        fields.only(&["reference", "name", "capacity", "order_limit", "opens_at", "closes_at", "charity"]);
        let reference = fields.parsed("reference");
        let name = fields.text("name", true);
        let (capacity, order_limit) = (fields.limit("capacity", 0), fields.limit("order_limit", 1));
        let (opens_at, closes_at) = (fields.instant("opens_at"), fields.instant("closes_at"));
        let charity = fields.charity();
        Some(NewDraw { reference: reference?, name: name?, capacity, order_limit, opens_at, closes_at, charity })
    })
}

fn read_change(body: &Value) -> Result<Change, FieldProblems> {
    Fields::read(body, |fields| {
        fields.only(&["name", "capacity", "order_limit", "opens_at", "closes_at", "reference", "charity"]);
        let there = |field: &str| body.get(field).is_some();
        for fixed in ["reference", "charity"].into_iter().filter(|field| there(field)) {
            fields.note(fixed, "cannot be changed: make another draw");
        }
        Some(Change {
            name: there("name").then(|| fields.text("name", true)).flatten(),
            capacity: there("capacity").then(|| fields.limit("capacity", 0)),
            order_limit: there("order_limit").then(|| fields.limit("order_limit", 1)),
            opens_at: there("opens_at").then(|| fields.instant("opens_at")),
            closes_at: there("closes_at").then(|| fields.instant("closes_at")),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_is_read_and_every_problem_is_named() {
        let draw = read_new(&json!({ "reference": "D", "name": "Draw", "capacity": 10, "charity": "20/100", "closes_at": "2026-12-31T18:00:00Z" })).unwrap();
        assert_eq!((draw.capacity, draw.order_limit, draw.charity), (Some(10), None, (20, 100)));
        let wrong = read_new(&json!({ "name": 1, "capacity": -1, "order_limit": 0, "opens_at": "today", "charity": "3/2", "capcity": 5 })).unwrap_err();
        let fields: Vec<&str> = wrong.iter().map(|problem| problem["field"].as_str().unwrap()).collect();
        assert_eq!(fields, ["capcity", "reference", "name", "capacity", "order_limit", "opens_at", "charity"]);
    }

    #[test]
    fn a_change_tells_null_from_nothing() {
        let change = read_change(&json!({ "capacity": null, "order_limit": 3 })).unwrap();
        assert_eq!((change.capacity, change.order_limit, change.opens_at), (Some(None), Some(Some(3)), None));
        assert!(read_change(&json!({ "charity": "1/2" })).is_err());
    }
}
