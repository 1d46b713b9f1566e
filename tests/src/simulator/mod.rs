//! Stripe, Razorpay and Square as their documentation says, over real HTTP: payments, refunds by idempotency key, 409 while one
//! is in flight, 429, work that is done although its answer is lost, and the webhooks that follow.

mod control;
mod razorpay;
mod square;
mod stripe;
mod webhooks;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use uuid::Uuid;

pub use webhooks::Webhooks;

/// What a payment is at its provider.
#[derive(Debug, Clone, Default)]
pub struct Payment {
    /// `stripe`, `razorpay` or `square`.
    pub provider: String,
    /// Its id.
    pub id: String,
    /// Minor units.
    pub amount: i64,
    /// Their currency, upper case.
    pub currency: String,
    /// The order that it names.
    pub order: Option<String>,
    /// `captured`, `authorised`, `voided` (given back before it was captured), `failed` or `pending`.
    pub status: String,
    /// What was authorised, where that was more than `amount`.
    pub authorised: i64,
    /// What the buyer paid on top, at Square.
    pub tip: i64,
    /// The checkout session or provider's order that it came of.
    pub session: Option<String>,
}

/// A refund at its provider.
#[derive(Debug, Clone)]
pub struct Refund {
    /// Its id.
    pub id: String,
    /// Which provider's.
    pub provider: String,
    /// Of which payment.
    pub payment: String,
    /// Minor units.
    pub amount: i64,
    /// The idempotency key that it was asked for under.
    pub key: String,
    /// Our mark on it.
    pub mark: String,
}

/// What goes wrong with the next refund that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Refused with this status; nothing is done. 429 asks for a second's pause.
    Refuse(u16),
    /// Done, and then this status is answered.
    AnswerAfter(u16),
    /// Done, and then the connection closes without an answer.
    DropAfter,
    /// Stays in flight for so long; the same key is answered 409 meanwhile.
    Hold(Duration),
}

#[derive(Debug, Clone)]
enum Key {
    Running,
    Answered { asked: String, status: u16, body: Value },
}

#[derive(Debug, Default)]
struct State {
    payments: BTreeMap<(String, String), Payment>,
    refunds: Vec<Refund>,
    keys: HashMap<(String, String), Key>,
    faults: VecDeque<Fault>,
    /// Calls that asked for a refund, repeats included.
    refund_calls: usize,
    reads: usize,
}

/// A running simulator.
#[derive(Debug, Clone)]
pub struct Simulator {
    /// `http://127.0.0.1:port`
    pub url: String,
    state: Arc<Mutex<State>>,
    webhooks: Arc<Mutex<Option<Webhooks>>>,
}

impl Simulator {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        Self::on("127.0.0.1:0").await
    }

    /// Starts it on this address.
    pub async fn on(address: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let simulator = Self { url, state: Arc::default(), webhooks: Arc::default() };
        let router =
            Router::new().merge(stripe::routes()).merge(razorpay::routes()).merge(square::routes()).merge(control::routes()).with_state(simulator.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        simulator
    }

    /// Sends webhooks from now on.
    pub fn send_webhooks(&self, webhooks: Webhooks) {
        *self.webhooks.lock().unwrap() = Some(webhooks);
    }

    /// Makes a captured payment that names an order.
    pub fn captured(&self, provider: &str, id: &str, order: &str, amount: i64) {
        self.put(Payment {
            provider: provider.into(),
            id: id.into(),
            amount,
            currency: "EUR".into(),
            order: Some(order.into()),
            status: "captured".into(),
            ..Payment::default()
        });
    }

    /// Makes a payment, or changes it.
    pub fn put(&self, payment: Payment) {
        self.state.lock().unwrap().payments.insert((payment.provider.clone(), payment.id.clone()), payment);
    }

    /// The next refunds that are asked for go wrong like this, one after the other.
    pub fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    /// Forgets idempotency keys, as providers do after a day.
    pub fn forget_keys(&self) {
        self.state.lock().unwrap().keys.clear();
    }

    /// A refund made in the provider's dashboard: without a key or a mark. Its webhook follows.
    pub fn refund_by_hand(&self, provider: &str, payment: &str, amount: i64) -> String {
        let refund = Refund {
            id: format!("re_{}", Uuid::new_v4().simple()),
            provider: provider.into(),
            payment: payment.into(),
            amount,
            key: String::new(),
            mark: String::new(),
        };
        self.state.lock().unwrap().refunds.push(refund.clone());
        self.announce(&refund);
        refund.id
    }

    /// The refunds that were made.
    #[must_use]
    pub fn refunds(&self) -> Vec<Refund> {
        self.state.lock().unwrap().refunds.clone()
    }

    /// How often a refund was asked for.
    #[must_use]
    pub fn refund_calls(&self) -> usize {
        self.state.lock().unwrap().refund_calls
    }

    /// How often payments were read.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.state.lock().unwrap().reads
    }

    fn payment(&self, provider: &str, id: &str) -> Option<(Payment, i64)> {
        let mut state = self.state.lock().unwrap();
        state.reads += 1;
        let payment = state.payments.get(&(provider.to_owned(), id.to_owned()))?.clone();
        let refunded = state.refunds.iter().filter(|refund| refund.provider == provider && refund.payment == id).map(|refund| refund.amount).sum();
        Some((payment, refunded))
    }

    fn refunds_of(&self, provider: &str, payment: &str) -> Vec<Refund> {
        self.refunds().into_iter().filter(|refund| refund.provider == provider && refund.payment == payment).collect()
    }

    fn announce(&self, refund: &Refund) {
        let Some(webhooks) = self.webhooks.lock().unwrap().clone() else { return };
        let Some((payment, refunded)) = self.payment(&refund.provider, &refund.payment) else { return };
        let refund = refund.clone();
        tokio::spawn(async move { webhooks.refunded(&payment, &refund, refunded).await });
    }

    /// Makes a refund once for each key; what `show` makes of it is the answer.
    async fn refund(&self, asked: Asked, show: fn(&Payment, &Refund) -> Value) -> Response {
        let what = format!("{} {} {}", asked.payment, asked.amount, asked.mark);
        let name = (asked.provider.to_owned(), asked.key.clone());
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.refund_calls += 1;
            match state.keys.get(&name) {
                Some(Key::Running) => return problem(409, "request_in_flight"),
                Some(Key::Answered { asked, status, body }) if *asked == what => return answer(*status, body.clone()),
                Some(Key::Answered { .. }) => return problem(400, "idempotency_error"),
                None => {}
            }
            let fault = state.faults.pop_front();
            if let Some(Fault::Refuse(status)) = fault {
                return problem(status, "simulated");
            }
            state.keys.insert(name.clone(), Key::Running);
            fault
        };
        // In a task of its own: a provider goes on when its client has given up.
        let (simulator, held) = (self.clone(), fault.clone());
        let work = tokio::spawn(async move {
            if let Some(Fault::Hold(time)) = held {
                tokio::time::sleep(time).await;
            }
            let (status, body) = simulator.make(&asked, show);
            simulator.state.lock().unwrap().keys.insert(name, Key::Answered { asked: what, status, body: body.clone() });
            (status, body)
        });
        let (status, body) = work.await.unwrap();
        match fault {
            Some(Fault::AnswerAfter(status)) => problem(status, "simulated"),
            // Dropping the connection: a body that breaks off at once.
            Some(Fault::DropAfter) => broken(),
            _ => answer(status, body),
        }
    }

    fn make(&self, asked: &Asked, show: fn(&Payment, &Refund) -> Value) -> (u16, Value) {
        let Some((payment, refunded)) = self.payment(asked.provider, &asked.payment) else { return (404, error("resource_missing")) };
        if payment.status != "captured" {
            return (400, error("charge_not_captured"));
        }
        if asked.amount <= 0 || refunded + asked.amount > payment.amount {
            return (400, error("charge_already_refunded"));
        }
        let refund = Refund {
            id: format!("re_{}", Uuid::new_v4().simple()),
            provider: asked.provider.into(),
            payment: asked.payment.clone(),
            amount: asked.amount,
            key: asked.key.clone(),
            mark: asked.mark.clone(),
        };
        self.state.lock().unwrap().refunds.push(refund.clone());
        self.announce(&refund);
        (200, show(&payment, &refund))
    }
}

/// A refund that is asked for.
struct Asked {
    provider: &'static str,
    payment: String,
    amount: i64,
    key: String,
    mark: String,
}

fn error(code: &str) -> Value {
    json!({ "error": { "code": code, "type": "invalid_request_error" }, "errors": [{ "code": code }] })
}

fn answer(status: u16, body: Value) -> Response {
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

fn problem(status: u16, code: &str) -> Response {
    let mut response = answer(status, error(code));
    if status == 429 {
        response.headers_mut().insert(header::RETRY_AFTER, "1".parse().unwrap());
    }
    response
}

/// An answer of which the connection breaks before a byte of its body has come.
fn broken() -> Response {
    let body = axum::body::Body::from_stream(futures_util::stream::once(async { Err::<Vec<u8>, _>(std::io::Error::other("dropped")) }));
    Response::new(body)
}

fn key(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}
