//! Calls with an `Idempotency-Key`: one mechanism for whatever makes an order or moves money.
//!
//! Key, work and stored answer commit together, in a task of its own: a client that hangs up leaves no half of them.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use counterfoil_settlement::{Begun, KeyAsk, Stored, begin_keys, complete_keys};
use futures_util::future::BoxFuture;
use ring::digest;
use serde_json::Value;
use sqlx::PgTransaction;

use crate::Ingest;
use crate::answers::{Problem, json_bytes};

/// Longest idempotency key, in characters.
const KEY_CHARS_MAX: usize = 255;

/// A call's key and what it means.
pub(crate) struct Keyed {
    /// Who calls what.
    pub(crate) scope: String,
    pub(crate) key: Option<String>,
    /// What the call means, however its JSON was spelled.
    pub(crate) meaning: Value,
}

impl Keyed {
    /// Scope and key, where there is a key: what the work leaves behind, so that housekeeping can find it.
    pub(crate) fn made_by(&self) -> Option<(String, String)> {
        self.key.clone().map(|key| (self.scope.clone(), key))
    }

    /// The key with the hash of what the call means.
    pub(crate) fn ask(&self) -> Option<KeyAsk> {
        let request_hash = digest::digest(&digest::SHA256, self.meaning.to_string().as_bytes()).as_ref().to_vec();
        self.key.clone().map(|key| KeyAsk { scope: self.scope.clone(), key, request_hash })
    }
}

/// The caller's key.
pub(crate) fn key_of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("Idempotency-Key") else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| !key.trim().is_empty() && key.len() <= KEY_CHARS_MAX);
    key.map(|key| Some(key.to_owned()))
        .ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, format!("an Idempotency-Key has 1 to {KEY_CHARS_MAX} visible ASCII characters")))
}

/// Does the work once for each key, and answers 201 with its body; a repeat gets the stored answer.
pub(crate) async fn once<W>(ingest: Arc<Ingest>, call: Keyed, work: W) -> Result<Response, Problem>
where
    W: for<'t> FnOnce(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<Vec<u8>, Problem>> + Send + 'static,
{
    let tracker = ingest.tracker.clone();
    let done = tracker.spawn(async move {
        let done = run(&ingest, &call, work).await;
        ingest.wake.raise(); // there may be something to relay
        done
    });
    done.await.unwrap_or_else(|_| Err(Problem::unavailable("the call failed half way; nothing of it was kept")))
}

async fn run<W>(ingest: &Ingest, call: &Keyed, work: W) -> Result<Response, Problem>
where
    W: for<'t> FnOnce(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<Vec<u8>, Problem>>,
{
    let trouble = |error: sqlx::Error| database_trouble(&error);
    let mut tx = ingest.api_pool.begin().await.map_err(trouble)?;
    let ask = call.ask();
    let answer = match begin_and_work(&mut tx, ask.as_ref(), work).await {
        Ok(Done::Made(body)) => {
            counterfoil_chassis::fault::point("keyed.before_commit");
            tx.commit().await.map_err(trouble)?;
            counterfoil_chassis::fault::point("keyed.after_commit");
            return Ok(json_bytes(StatusCode::CREATED, body));
        }
        Ok(Done::Before(stored)) => Ok(replayed(stored)),
        Err(problem) => Err(problem),
    };
    // The key's lock goes with it: who tries again at once must not hear that this call is running.
    let _ = tx.rollback().await;
    answer
}

/// What became of a keyed call.
enum Done {
    Made(Vec<u8>),
    Before(Stored),
}

async fn begin_and_work<W>(tx: &mut PgTransaction<'static>, ask: Option<&KeyAsk>, work: W) -> Result<Done, Problem>
where
    W: for<'t> FnOnce(&'t mut PgTransaction<'static>) -> BoxFuture<'t, Result<Vec<u8>, Problem>>,
{
    let trouble = |error: sqlx::Error| database_trouble(&error);
    if let Some(ask) = ask {
        match begin_keys(tx, &[ask]).await.map_err(trouble)?.remove(0) {
            Begun::First => {}
            Begun::Answered(stored) => return Ok(Done::Before(stored)),
            refused @ (Begun::OtherRequest | Begun::Running) => return Err(refused_key(&refused)),
        }
    }
    let body = work(tx).await?;
    if let Some(ask) = ask {
        complete_keys(tx, &[(ask, &Stored { status: StatusCode::CREATED.as_u16(), body: body.clone() })]).await.map_err(trouble)?;
    }
    Ok(Done::Made(body))
}

/// Why a key lets a call not begin.
pub(crate) fn refused_key(begun: &Begun) -> Problem {
    match begun {
        Begun::Running => Problem::running("a call with this Idempotency-Key is running: try again in a moment"),
        Begun::First | Begun::Answered(_) | Begun::OtherRequest => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used with another request: take a new key")
        }
    }
}

pub(crate) fn replayed(stored: Stored) -> Response {
    let mut response = json_bytes(StatusCode::from_u16(stored.status).unwrap_or(StatusCode::CREATED), stored.body);
    response.headers_mut().insert("Idempotency-Replayed", HeaderValue::from_static("true"));
    response
}

pub(crate) fn database_trouble(error: &sqlx::Error) -> Problem {
    tracing::error!(%error, "the order API cannot reach the database");
    Problem::unavailable("the database cannot take it now")
}
