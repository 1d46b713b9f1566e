//! Real processes, and a shop and a provider that talk to them over HTTP.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use base64::Engine;
use reqwest::{Client, Response};
use ring::hmac;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::simulator::{Simulator, Webhooks};
use crate::stage::{RUNGS, Stage, root, until};

/// The secrets of every test fleet.
pub const STRIPE_SECRET: &str = "whsec_test_of_counterfoil";
const STANDARD_SECRET: &str = "whsec_Y291bnRlcmZvaWwtdGVzdC1zZWNyZXQtMDEyMw==";
/// The bearer token of every test fleet.
pub const TOKEN: &str = "0123456789abcdef0123";

/// The secret of Razorpay's API key, which signs what a browser brings back.
pub const RAZORPAY_KEY_SECRET: &str = "razorpay-key-secret";

/// A running process. Killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    child: std::process::Child,
    /// Its admin port.
    pub admin: u16,
    /// Its log.
    pub log: PathBuf,
}

/// A port that was free a moment ago.
#[must_use]
pub fn free_port() -> u16 {
    loop {
        let port = 10_000 + (Uuid::new_v4().as_u128() % 22_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn binary(name: &str) -> PathBuf {
    root().join(std::env::var("COUNTERFOIL_TEST_BIN").unwrap_or_else(|_| "target/debug".to_owned())).join(name)
}

impl Child {
    /// Starts a binary with these arguments and settings.
    #[must_use]
    pub fn start(binary: &str, arguments: &[&str], settings: &[(&str, String)]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let admin = free_port();
        let logs = root().join(".local/test-log");
        std::fs::create_dir_all(&logs).unwrap();
        let log = logs.join(format!("{binary}-{}.log", Uuid::new_v4().simple()));
        let mut command = Command::new(self::binary(binary));
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("COUNTERFOIL_")) {
            command.env_remove(variable);
        }
        command.args(arguments).env("COUNTERFOIL_ADMIN_LISTEN", format!("127.0.0.1:{admin}")).env("COUNTERFOIL_LOG_FORMAT", "pretty");
        command.envs(settings.iter().map(|(name, value)| (*name, value))).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        Self { name: format!("{binary} {}", arguments.join(" ")), child: command.spawn().unwrap(), admin, log }
    }

    /// The status and body of `/readyz`, once it answers.
    pub async fn readyz(&self) -> Option<(u16, String)> {
        let response = reqwest::get(format!("http://127.0.0.1:{}/readyz", self.admin)).await.ok()?;
        Some((response.status().as_u16(), response.text().await.ok()?))
    }

    /// Waits until it is ready.
    pub async fn ready(self) -> Self {
        let what = format!("{} is ready ({})", self.name, self.log.display());
        until(&what, 30, Some(200), async || self.readyz().await.map(|(status, _)| status)).await;
        self
    }

    /// The metrics as text.
    pub async fn metrics(&self) -> String {
        reqwest::get(format!("http://127.0.0.1:{}/metrics", self.admin)).await.unwrap().text().await.unwrap()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Any signal, by name.
    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Whether it has ended.
    pub fn over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its exit code once it has ended; `None` when a signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        let what = format!("{} ends", self.name);
        until(&what, 40, true, async || self.child.try_wait().unwrap().is_some()).await;
        self.child.wait().unwrap().code()
    }

    /// What it has logged so far.
    #[must_use]
    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A fleet on a stage.
#[derive(Debug)]
pub struct Fleet {
    /// Where it runs.
    pub stage: Stage,
    /// Settings of its own, in front of the usual ones.
    pub more: Vec<(&'static str, String)>,
    /// Usual settings that it goes without.
    pub without: Vec<&'static str>,
}

impl Fleet {
    /// On `stage`, with the usual settings.
    #[must_use]
    pub fn on(stage: &Stage) -> Self {
        Self { stage: stage.clone(), more: Vec::new(), without: Vec::new() }
    }

    /// With another setting.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.more.push((name, value.into()));
        self
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("COUNTERFOIL_DATABASE_URL", self.stage.database_url.clone()),
            ("COUNTERFOIL_AMQP_URL", self.stage.amqp_url.clone()),
            ("COUNTERFOIL_MODE", "test".into()),
            ("COUNTERFOIL_RETRY_RUNGS", RUNGS.into()),
            ("COUNTERFOIL_API_TOKENS", format!("shop:{TOKEN}")),
            ("COUNTERFOIL_CLAIM_KEYS", "test:0123456789abcdef0123456789abcdef".into()),
            ("COUNTERFOIL_STRIPE_SECRETS", STRIPE_SECRET.into()),
            ("COUNTERFOIL_RAZORPAY_SECRETS", "razorpay-secret".into()),
            ("COUNTERFOIL_SQUARE_SECRETS", "square-key".into()),
            ("COUNTERFOIL_SQUARE_NOTIFICATION_URL", "https://shop.example/webhooks/square".into()),
            ("COUNTERFOIL_STANDARD_SECRETS", STANDARD_SECRET.into()),
            ("COUNTERFOIL_MAIL_FROM", "receipts@shop.example".into()),
            ("COUNTERFOIL_PERSON", "ann".into()),
        ];
        settings.extend(self.more.iter().cloned());
        settings.retain(|(name, _)| !self.without.contains(name));
        settings
    }

    /// Starts `counterfoil-ingest`; the shop that talks to it comes with it.
    pub async fn ingest(&self) -> (Child, Shop) {
        let port = free_port();
        let mut settings = self.settings();
        settings.push(("COUNTERFOIL_LISTEN", format!("127.0.0.1:{port}")));
        (Child::start("counterfoil-ingest", &[], &settings).ready().await, Shop::at(port))
    }

    /// Starts `counterfoil-relay`.
    #[must_use]
    pub fn relay(&self) -> Child {
        Child::start("counterfoil-relay", &[], &self.settings())
    }

    /// Starts `counterfoil-consumers <name>`.
    #[must_use]
    pub fn consumer(&self, name: &str) -> Child {
        Child::start("counterfoil-consumers", &[name], &self.settings())
    }

    /// Starts `counterfoil housekeep`, looking every second.
    #[must_use]
    pub fn housekeep(&self) -> Child {
        let mut settings = vec![("COUNTERFOIL_HOUSEKEEP_OFTEN_S", "1".to_owned()), ("COUNTERFOIL_HOUSEKEEP_SELDOM_S", "1".to_owned())];
        settings.extend(self.settings());
        Child::start("counterfoil", &["housekeep"], &settings)
    }

    /// Starts a long-running command of `counterfoil`, such as `console`.
    #[must_use]
    pub fn run_long(&self, command: &str) -> Child {
        Child::start("counterfoil", &[command], &self.settings())
    }

    /// Runs a command of `counterfoil` to its end; its exit code and what it printed.
    pub async fn counterfoil(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = tokio::process::Command::new(binary("counterfoil"));
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("COUNTERFOIL_")) {
            command.env_remove(variable);
        }
        let out = command.args(arguments).envs(self.settings()).stdin(Stdio::null()).output().await.unwrap();
        (out.status.code(), format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)))
    }

    /// With a provider simulator as Stripe, Razorpay and Square.
    #[must_use]
    pub fn with_simulator(self, simulator: &Simulator) -> Self {
        let fleet = self.with("COUNTERFOIL_STRIPE_API_URL", &simulator.url).with("COUNTERFOIL_STRIPE_API_KEY", "sk_test_canary");
        let fleet = fleet.with("COUNTERFOIL_RAZORPAY_API_URL", &simulator.url).with("COUNTERFOIL_RAZORPAY_API_KEY", format!("rzp_test:{RAZORPAY_KEY_SECRET}"));
        fleet.with("COUNTERFOIL_SQUARE_API_URL", &simulator.url).with("COUNTERFOIL_SQUARE_API_KEY", "square-canary")
    }

    /// Starts `counterfoil-migrate`.
    #[must_use]
    pub fn migrate(&self) -> Child {
        Child::start("counterfoil-migrate", &[], &self.settings())
    }
}

/// A shop and its providers, as clients of ingest.
#[derive(Debug, Clone)]
pub struct Shop {
    /// Where ingest listens.
    pub base: String,
    /// An HTTP client.
    pub client: Client,
}

impl Shop {
    /// Of the ingest on this port.
    #[must_use]
    pub fn at(port: u16) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(Duration::from_secs(20)).redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { base: format!("http://127.0.0.1:{port}"), client }
    }

    /// Where and how a simulated provider sends its webhooks to this shop's ingest.
    #[must_use]
    pub fn webhooks(&self) -> Webhooks {
        Webhooks {
            ingest: self.base.clone(),
            stripe: STRIPE_SECRET.into(),
            razorpay: "razorpay-secret".into(),
            square: "square-key".into(),
            square_url: "https://shop.example/webhooks/square".into(),
            delay: Duration::from_millis(20),
        }
    }

    /// `POST /orders` with any body.
    pub async fn post_order(&self, body: &Value, key: Option<&str>) -> Response {
        let mut request = self.client.post(format!("{}/orders", self.base)).bearer_auth(TOKEN).json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        request.send().await.unwrap()
    }

    /// A POST below an order; its status and body. With the token, where `bearer`.
    pub async fn post(&self, order: &str, what: &str, body: &Value, key: Option<&str>, bearer: bool) -> (u16, Value) {
        let mut request = self.client.post(format!("{}/orders/{order}/{what}", self.base)).json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        if bearer {
            request = request.bearer_auth(TOKEN);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    }

    /// `POST /orders/{id}/refunds`.
    pub async fn refund(&self, order: &str, amount_minor: i64, key: &str) -> (u16, Value) {
        self.post(order, "refunds", &json!({ "amount_minor": amount_minor, "reason": "customer asked" }), Some(key), true).await
    }

    /// Makes an order of 10.99 EUR; its id.
    pub async fn order(&self) -> String {
        self.order_named(&format!("ref-{}", Uuid::new_v4())).await
    }

    /// Makes an order of 10.99 EUR with this reference; its id.
    pub async fn order_named(&self, reference: &str) -> String {
        let body = json!({ "reference": reference, "amount_minor": 1099, "currency": "EUR", "customer": { "email": format!("{reference}@example.com"), "name": "Ann Example" } });
        let response = self.post_order(&body, None).await;
        assert_eq!(response.status(), 201);
        response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    }

    /// `GET /orders/{key}`.
    pub async fn read(&self, key: &str) -> Response {
        self.client.get(format!("{}/orders/{key}", self.base)).bearer_auth(TOKEN).send().await.unwrap()
    }

    /// Sends a signed Stripe event; the status and the outcome.
    pub async fn stripe(&self, event: &Value) -> (u16, String) {
        self.stripe_bytes(event.to_string().into_bytes()).await
    }

    /// Sends signed bytes to Stripe's endpoint; the status and the outcome.
    pub async fn stripe_bytes(&self, body: Vec<u8>) -> (u16, String) {
        let signature = stripe_signature(&body, now());
        let sent = self.client.post(format!("{}/webhooks/stripe", self.base)).header("Stripe-Signature", signature).body(body).send().await;
        let Ok(response) = sent else { return (0, String::new()) };
        let status = response.status().as_u16();
        let answer: Value = response.json().await.unwrap_or_default();
        (status, answer["outcome"].as_str().unwrap_or_default().to_owned())
    }

    /// Sends a signed event by Standard Webhooks; the status and the outcome.
    pub async fn standard(&self, id: &str, data: Value) -> (u16, String) {
        let body = json!({ "type": "payment", "timestamp": "2026-11-29T00:00:00Z", "data": data }).to_string();
        let engine = base64::engine::general_purpose::STANDARD;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &engine.decode(STANDARD_SECRET.trim_start_matches("whsec_")).unwrap());
        let time = now();
        let tag = engine.encode(hmac::sign(&key, format!("{id}.{time}.{body}").as_bytes()));
        let request = self.client.post(format!("{}/webhooks/standard", self.base)).header("webhook-id", id).header("webhook-timestamp", time);
        let response = request.header("webhook-signature", format!("v1,{tag}")).body(body).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap_or_default()["outcome"].as_str().unwrap_or_default().to_owned())
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A `Stripe-Signature` for a body.
#[must_use]
pub fn stripe_signature(body: &[u8], time: u64) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, STRIPE_SECRET.as_bytes());
    let message = [time.to_string().as_bytes(), b".", body].concat();
    format!("t={time},v1={}", hex::encode(hmac::sign(&key, &message)))
}

/// A Stripe event of one payment, as one of its types tells it. `more` replaces fields of the object.
#[must_use]
pub fn stripe_event(kind: &str, order: &str, intent: &str, more: &Value) -> Value {
    let mut object = json!({ "metadata": { "order_id": order }, "currency": "eur" });
    let own = match kind.split('.').next().unwrap() {
        "checkout" => {
            json!({ "id": format!("cs_{intent}"), "client_reference_id": order, "amount_total": 1099, "payment_intent": intent, "payment_status": "paid" })
        }
        "payment_intent" => json!({ "id": intent, "amount": 1099, "amount_received": 1099 }),
        _ => json!({ "id": format!("ch_{intent}"), "amount": 1099, "amount_captured": 1099, "captured": true, "payment_intent": intent }),
    };
    for (name, value) in own.as_object().unwrap().iter().chain(more.as_object().into_iter().flatten()) {
        object[name] = value.clone();
    }
    json!({ "id": format!("evt_{}", Uuid::new_v4().simple()), "object": "event", "type": kind, "livemode": false, "data": { "object": object } })
}
