//! A real browser in front of a real console.

use std::fs::File;
use std::process::{Child as Process, Command, Stdio};
use std::time::Duration;

use counterfoil_tests::fleet::free_port;
use counterfoil_tests::stage::root;
use counterfoil_tests::{Child, Fleet, Stage, until};
use fantoccini::wd::{Capabilities, WebDriverCompatibleCommand};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

/// Who signs in: name and token.
pub(crate) const VIEWER: (&str, &str) = ("vera", "vera-token-0123456789abcdef");
pub(crate) const OPERATOR: (&str, &str) = ("otto", "otto-token-0123456789abcdef");
pub(crate) const ADMIN: (&str, &str) = ("ada", "ada-token-0123456789abcdef");

/// How a browser is started.
#[derive(Default, Clone)]
pub(crate) struct Look {
    pub(crate) zone: Option<&'static str>,
    pub(crate) no_script: bool,
}

pub(crate) struct Page {
    pub(crate) client: Client,
    pub(crate) stage: Stage,
    pub(crate) base: String,
    pub(crate) console: Option<Child>,
    pub(crate) fleet: Fleet,
    driver: Process,
    _turn: File,
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = Command::new("pkill").args(["-KILL", "-P", &self.driver.id().to_string()]).status();
    }
}

/// Commands of the browser's own protocol.
#[derive(Debug)]
struct Devtools(&'static str, Value);

impl WebDriverCompatibleCommand for Devtools {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(json!({ "cmd": self.0, "params": self.1 }).to_string()))
    }
}

/// What the browser has complained about.
#[derive(Debug)]
struct Complaints;

impl WebDriverCompatibleCommand for Complaints {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(json!({ "type": "browser" }).to_string()))
    }
}

impl Page {
    /// A console on `fleet`'s stage, and a browser. One browser at a time runs on this machine.
    pub(crate) async fn on(fleet: Fleet, look: &Look) -> Self {
        let turn = File::create(root().join(".local/browser.turn")).unwrap();
        turn.lock().unwrap();
        let listen = format!("127.0.0.1:{}", free_port());
        let tokens = [(VIEWER, "viewer"), (OPERATOR, "operator"), (ADMIN, "admin")].map(|((person, token), role)| format!("{person}:{role}:{token}")).join(",");
        let fleet = fleet.with("COUNTERFOIL_CONSOLE_LISTEN", &listen).with("COUNTERFOIL_CONSOLE_TOKENS", tokens);
        let console = fleet.run_long("console").ready().await;
        let (driver, client) = browser(look).await;
        Self { client, stage: fleet.stage.clone(), base: format!("http://{listen}"), console: Some(console), fleet, driver, _turn: turn }
    }

    /// On a database of its own, without a broker.
    pub(crate) async fn alone() -> Self {
        Self::on(Fleet::on(&Stage::with_schema().await), &Look::default()).await
    }

    pub(crate) async fn devtools(&self, command: &'static str, parameters: Value) {
        self.client.issue_cmd(Devtools(command, parameters)).await.unwrap();
    }

    /// What the browser complained about: violated policies, errors of scripts. Refused requests apart, which are ours to refuse.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.client.issue_cmd(Complaints).await.unwrap();
        let entries = log.as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .filter_map(|entry| entry["message"].as_str())
            .filter(|message| !message.contains("the server responded with a status of") && !message.contains("[DOM]"))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) async fn go(&self, path: &str) {
        self.client.goto(&format!("{}{path}", self.base)).await.unwrap();
    }

    /// Signs in where it is asked for, and comes back to `path`.
    pub(crate) async fn sign_in(&self, who: (&str, &str), path: &str) {
        self.client.delete_all_cookies().await.unwrap();
        self.go(path).await;
        self.fill("input[name=secret]", who.1).await;
        self.click("button.primary").await;
        self.wait("header.top").await;
    }

    pub(crate) async fn wait(&self, css: &str) {
        self.client.wait().at_most(Duration::from_secs(15)).for_element(Locator::Css(css)).await.unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    pub(crate) async fn click(&self, css: &str) {
        self.wait(css).await;
        self.client.find(Locator::Css(css)).await.unwrap().click().await.unwrap();
    }

    pub(crate) async fn fill(&self, css: &str, text: &str) {
        self.wait(css).await;
        let field = self.client.find(Locator::Css(css)).await.unwrap();
        let _ = field.clear().await;
        field.send_keys(text).await.unwrap();
    }

    pub(crate) async fn js(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// All that can be read on the page.
    pub(crate) async fn text(&self) -> String {
        self.js("return document.body.innerText").await.as_str().unwrap().to_owned()
    }

    pub(crate) async fn source(&self) -> String {
        self.client.source().await.unwrap()
    }

    pub(crate) async fn path(&self) -> String {
        self.js("return location.pathname + location.search + location.hash").await.as_str().unwrap().to_owned()
    }

    /// Waits until the page says so.
    pub(crate) async fn says(&self, what: &str) {
        until(&format!("the page says {what:?}"), 30, true, async || self.text().await.contains(what)).await;
    }

    /// A form as anybody could send it; the answer's status.
    pub(crate) async fn post_by_hand(&self, path: &str, fields: &str) -> i64 {
        let script = format!(
            "const done = arguments[0]; fetch('{path}', {{method:'POST', redirect:'manual', headers:{{'Content-Type':'application/x-www-form-urlencoded'}}, body:{fields:?}}}).then(r => done(r.type === 'opaqueredirect' ? 303 : r.status))"
        );
        self.client.execute_async(&script, Vec::new()).await.unwrap().as_i64().unwrap()
    }

    /// The token that this session's forms carry.
    pub(crate) async fn form_token(&self) -> String {
        self.js("return document.querySelector('input[name=token]').value").await.as_str().unwrap().to_owned()
    }
}

async fn browser(look: &Look) -> (Process, Client) {
    let port = free_port();
    let mut driver = Command::new("chromedriver");
    driver.arg(format!("--port={port}")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(zone) = look.zone {
        driver.env("TZ", zone);
    }
    let driver = driver.spawn().expect("chromedriver is missing: deploy/local/services browser brings it");
    let address = format!("http://127.0.0.1:{port}");
    until("chromedriver answers", 20, true, async || reqwest::get(format!("{address}/status")).await.is_ok()).await;
    let mut options = json!({ "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"] });
    if look.no_script {
        options["prefs"] = json!({ "profile.managed_default_content_settings.javascript": 2 });
    }
    let mut capabilities = Capabilities::new();
    capabilities.insert("goog:chromeOptions".into(), options);
    capabilities.insert("goog:loggingPrefs".into(), json!({ "browser": "ALL" }));
    let client = ClientBuilder::new(HttpConnector::new()).capabilities(capabilities).connect(&address).await.unwrap();
    (driver, client)
}

/// The seed of the checks: crm 180 × http_404, email 60 × smtp_550, ledger 10 × transient.
pub(crate) const SEED: &str = "
    INSERT INTO dead_letters (consumer, event_id, identity, topic, order_id, version, amount_minor, currency, body, kind, error, attempts, first_failed_at, died_at)
    SELECT CASE WHEN n <= 180 THEN 'crm' WHEN n <= 240 THEN 'email' ELSE 'ledger' END, e, e::text, 'order.paid', gen_random_uuid(), 2, 1000 + n, 'EUR',
        convert_to(jsonb_build_object('specversion', '1.0', 'id', e, 'type', 'order.paid', 'data', jsonb_build_object('reference', 'A-' || n,
            'customer', jsonb_build_object('email', 'ann.secret@example.com', 'name', 'Ann Secret', 'phone', '+4915112345678')))::text, 'UTF8'),
        CASE WHEN n <= 180 THEN 'http_404' WHEN n <= 240 THEN 'smtp_550' ELSE 'transient' END,
        CASE WHEN n <= 180 THEN 'HTTP 404 from the CRM' WHEN n <= 240 THEN '550 at RCPT TO' ELSE 'the database refuses it' END,
        7, now() - interval '62 minutes', now() - n * interval '10 seconds'
    FROM (SELECT n, gen_random_uuid() AS e FROM generate_series(1, 250) AS n) s";
