//! Makes orders: those that wait share one commit, as webhooks do, so that a hot draw's row is locked once for many.
//!
//! A maker takes all that is waiting whenever its last commit is done. Orders of one draw meet in one maker of a process; of one
//! reference or key there is one in a batch, and the others come with the next.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use counterfoil_chassis::postgres::within;
use counterfoil_payments::event::Line;
use counterfoil_settlement::{
    Begun, Failure, KeyAsk, NewOrder, Order, OrderView, Refused, Stored, begin_keys, begin_orders, complete_keys, insert_orders, settle_early,
};
use counterfoil_tickets::{Reservation, Unreserved, Wanted, hold, reserve};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool, PgTransaction};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::answers::{Problem, json_bytes};
use crate::api::{refusal, with_tickets};
use crate::keyed::{database_trouble, refused_key, replayed};
use crate::wake::Wake;

/// Makers, and so connections.
pub(crate) const MAKERS: u32 = 2;

/// Orders of one commit: as many as deliveries of one, for the same reason.
const BATCH_MAX: usize = 64;

/// Orders that wait for one maker, at the most; more are answered 503.
const QUEUE_MAX: usize = 1024;

/// Longest time for a batch, its commit included.
const COMMIT_DEADLINE: Duration = Duration::from_secs(8);

/// How often a batch that met a deadlock, or somebody else's INSERT, is tried again.
const AGAIN_MAX: u32 = 5;

/// An order that somebody asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Its lines are not in it yet: a draw that was named by reference is written down by id.
    pub(crate) order: NewOrder,
    pub(crate) lines: Vec<Line>,
    pub(crate) wanted: Vec<Wanted>,
    /// How long its places are held, in seconds.
    pub(crate) reserve_for_s: i64,
    pub(crate) key: Option<KeyAsk>,
}

impl Asked {
    fn name(&self) -> &str {
        self.order.reference.as_str()
    }

    fn lane(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self.wanted.first() {
            Some(wanted) => wanted.draw.hash(&mut hasher),
            None => self.name().hash(&mut hasher),
        }
        hasher.finish() % u64::from(MAKERS)
    }
}

type Answer = Result<Response, Problem>;

type Job = (Asked, oneshot::Sender<Answer>);

/// Where orders are asked for.
#[derive(Debug)]
pub(crate) struct Checkout {
    lanes: Vec<mpsc::Sender<Job>>,
}

/// Starts the makers on `tracker`; they end when [`Checkout`] is dropped and their queues are empty.
pub(crate) fn start(pool: &PgPool, wake: &Arc<Wake>, tracker: &TaskTracker) -> Checkout {
    let lanes = (0..MAKERS).map(|_| {
        let (sender, jobs) = mpsc::channel(QUEUE_MAX);
        tracker.spawn(run(pool.clone(), Arc::clone(wake), jobs));
        sender
    });
    Checkout { lanes: lanes.collect() }
}

impl Checkout {
    /// Makes an order, or answers why not. A caller who hangs up cancels nothing that has begun.
    pub(crate) async fn make(&self, asked: Asked) -> Answer {
        let (reply, answer) = oneshot::channel();
        let lane = usize::try_from(asked.lane()).unwrap_or_default();
        if self.lanes[lane].try_send((asked, reply)).is_err() {
            return Err(Problem::unavailable("too many orders are being made: try again in a moment"));
        }
        answer.await.unwrap_or_else(|_| Err(Problem::unavailable("the call failed half way; nothing of it was kept")))
    }
}

async fn run(pool: PgPool, wake: Arc<Wake>, mut jobs: mpsc::Receiver<Job>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while jobs.recv_many(&mut batch, BATCH_MAX).await > 0 {
        batch.retain(|(_, reply): &Job| !reply.is_closed()); // nobody would learn of these orders, and their places would be kept for nobody
        metrics::histogram!("counterfoil_checkout_batch_size").record(f64::from(u32::try_from(batch.len()).unwrap_or(u32::MAX)));
        let mut parts = rounds(std::mem::take(&mut batch));
        while let Some(part) = parts.pop() {
            let (asked, replies): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            match make_all(&pool, &asked).await {
                Ok(answers) => {
                    wake.raise(); // there may be something to relay
                    replies.into_iter().zip(answers).for_each(|(reply, answer)| drop(reply.send(answer)));
                }
                Err((Failure::Culprit, _)) if asked.len() > 1 => {
                    let mut front: Vec<Job> = asked.into_iter().zip(replies).collect();
                    let back = front.split_off(front.len() / 2);
                    parts.extend([back, front]);
                }
                Err((_, error)) => replies.into_iter().for_each(|reply| drop(reply.send(Err(database_trouble(&error))))),
            }
        }
    }
}

/// Cuts a batch so that in each part every reference and every key stands once; the last part comes first off the end.
fn rounds(mut jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut rounds = Vec::new();
    while !jobs.is_empty() {
        let (mut references, mut keys) = (HashSet::new(), HashSet::new());
        let (round, rest): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|(asked, _)| {
            let fresh = !references.contains(asked.name()) && asked.key.as_ref().is_none_or(|key| !keys.contains(&(key.scope.clone(), key.key.clone())));
            if fresh {
                references.insert(asked.name().to_owned());
                keys.extend(asked.key.as_ref().map(|key| (key.scope.clone(), key.key.clone())));
            }
            fresh
        });
        rounds.push(round);
        jobs = rest;
    }
    rounds.reverse();
    rounds
}

/// One transaction; after a deadlock, or when somebody has inserted one of the references by SQL meanwhile, the whole again.
async fn make_all(pool: &PgPool, asked: &[Asked]) -> Result<Vec<Answer>, (Failure, sqlx::Error)> {
    let mut tries = 0;
    loop {
        let error = match within(pool, COMMIT_DEADLINE, async |connection: &mut PgConnection| make_on(connection, asked).await).await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        let failure = Failure::of(&error);
        let inserted = error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation);
        if tries >= AGAIN_MAX || !(failure == Failure::Again || inserted) {
            return Err((failure, error));
        }
        tries += 1;
        tokio::time::sleep(Duration::from_millis(2 << tries)).await;
    }
}

async fn make_on(connection: &mut PgConnection, asked: &[Asked]) -> sqlx::Result<Vec<Answer>> {
    let mut tx = connection.begin().await?;
    let answers = make(&mut tx, asked).await?;
    counterfoil_chassis::fault::point("keyed.before_commit");
    tx.commit().await?;
    counterfoil_chassis::fault::point("keyed.after_commit");
    Ok(answers)
}

/// What is still to be made: positions in the batch.
type Open = Vec<usize>;

async fn make(tx: &mut PgTransaction<'_>, asked: &[Asked]) -> sqlx::Result<Vec<Answer>> {
    let mut answers: Vec<Option<Answer>> = asked.iter().map(|_| None).collect();
    begin(tx, asked, &mut answers).await?;
    let open = still(&answers);
    let wanted: Vec<&[Wanted]> = open.iter().map(|nth| asked[*nth].wanted.as_slice()).collect();
    let mut places = Vec::new();
    for (nth, reserved) in open.iter().zip(reserve(tx, &wanted).await?) {
        match reserved {
            Ok(draws) => places.push(draws),
            Err(refused) => answers[*nth] = Some(Err(unreserved(&refused))),
        }
    }
    let open = still(&answers);
    let orders: Vec<NewOrder> = open.iter().zip(&places).map(|(nth, draws)| with_lines(&asked[*nth], draws)).collect();
    let made = if orders.is_empty() { Vec::new() } else { insert_orders(tx, &orders.iter().collect::<Vec<_>>()).await? };
    let reservations = hold_places(tx, asked, &open, &places, &made).await?;
    let sessions = orders.iter().any(|order| order.session.is_some());
    let views = if made.is_empty() { Vec::new() } else { settle_early(tx, made, sessions).await? };
    let mut stored = Vec::with_capacity(views.len());
    for view in &views {
        stored.push(Stored { status: StatusCode::CREATED.as_u16(), body: body(tx, view, &reservations).await? });
    }
    let keyed: Vec<(&KeyAsk, &Stored)> = open.iter().zip(&stored).filter_map(|(nth, stored)| Some((asked[*nth].key.as_ref()?, stored))).collect();
    complete_keys(tx, &keyed).await?;
    for (nth, stored) in open.into_iter().zip(stored) {
        answers[nth] = Some(Ok(json_bytes(StatusCode::CREATED, stored.body)));
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(Problem::unavailable("the call was not answered")))).collect())
}

fn still(answers: &[Option<Answer>]) -> Open {
    answers.iter().enumerate().filter(|(_, answer)| answer.is_none()).map(|(nth, _)| nth).collect()
}

/// Answers calls whose key or reference is not new.
async fn begin(tx: &mut PgTransaction<'_>, asked: &[Asked], answers: &mut [Option<Answer>]) -> sqlx::Result<()> {
    let (keyed, keys): (Open, Vec<&KeyAsk>) = asked.iter().enumerate().filter_map(|(nth, asked)| Some((nth, asked.key.as_ref()?))).unzip();
    if !keys.is_empty() {
        for (nth, begun) in keyed.into_iter().zip(begin_keys(tx, &keys).await?) {
            answers[nth] = match begun {
                Begun::First => None,
                Begun::Answered(stored) => Some(Ok(replayed(stored))),
                refused @ (Begun::OtherRequest | Begun::Running) => Some(Err(refused_key(&refused))),
            };
        }
    }
    let open = still(answers);
    let orders: Vec<&NewOrder> = open.iter().map(|nth| &asked[*nth].order).collect();
    for (nth, refused) in open.into_iter().zip(begin_orders(tx, &orders).await?) {
        answers[nth] = refused.map(|refused: Refused| Err(refusal(&refused)));
    }
    Ok(())
}

fn with_lines(asked: &Asked, draws: &[Uuid]) -> NewOrder {
    let mut lines = asked.lines.clone();
    for (wanted, draw) in asked.wanted.iter().zip(draws) {
        if let Some(line) = usize::try_from(wanted.line).ok().and_then(|nth| lines.get_mut(nth)) {
            line.draw = Some(*draw);
        }
    }
    NewOrder { lines: json!(lines), ..asked.order.clone() }
}

async fn hold_places(tx: &mut PgTransaction<'_>, asked: &[Asked], open: &Open, places: &[Vec<Uuid>], made: &[Order]) -> sqlx::Result<Vec<Reservation>> {
    let (mut lines, mut seconds) = (Vec::new(), Vec::new());
    for ((nth, draws), order) in open.iter().zip(places).zip(made) {
        for (wanted, draw) in asked[*nth].wanted.iter().zip(draws) {
            lines.push((order.id, wanted.line, *draw, wanted.quantity));
            seconds.push(asked[*nth].reserve_for_s);
        }
    }
    hold(tx, &lines, &seconds).await
}

async fn body(tx: &mut PgTransaction<'_>, view: &OrderView, reservations: &[Reservation]) -> sqlx::Result<Vec<u8>> {
    if !view.payments.is_empty() {
        return Ok(with_tickets(&mut *tx, view).await?.to_string().into_bytes()); // its payment came before it
    }
    let mut body = json!(view);
    let own: Vec<&Reservation> = reservations.iter().filter(|reservation| reservation.order_id == view.order.id).collect();
    if !own.is_empty() {
        body["reservations"] = json!(own);
        body["tickets"] = json!([]);
    }
    Ok(body.to_string().into_bytes())
}

/// Why there is no place, and what is left.
fn unreserved(refused: &Unreserved) -> Problem {
    let field = |line: i32| json!([{ "field": format!("lines[{line}].draw"), "problem": refused.to_string() }]);
    let of_draw = |status, draw: &str, why: &str| Problem::new(status, refused.to_string()).with("draw", json!(draw)).with("reason", json!(why));
    match refused {
        Unreserved::NoDraw { line } => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("lines[{line}].draw: {refused}")).with("errors", field(*line)),
        Unreserved::NotOpenYet { draw, opens_at } => of_draw(StatusCode::CONFLICT, draw, "not_open_yet").with("opens_at", Value::from(opens_at.as_str())),
        Unreserved::Closed { draw, closes_at } => of_draw(StatusCode::CONFLICT, draw, "closed").with("closes_at", Value::from(closes_at.as_str())),
        Unreserved::OverLimit { draw, limit, .. } => of_draw(StatusCode::UNPROCESSABLE_ENTITY, draw, "order_limit").with("order_limit", json!(limit)),
        Unreserved::SoldOut { draw, left, .. } => of_draw(StatusCode::CONFLICT, draw, "sold_out").with("left", json!(left)),
    }
}
