//! Takes providers' webhooks and the shop's orders: verify, translate, settle, answer.
//!
//! Nothing is called over the network before the answer but PostgreSQL, and a client that hangs up cancels nothing:
//! deliveries are settled by tasks of their own ([`lanes`]), not in the connection's future.

mod answers;
mod api;
mod checkout;
mod claims;
mod draws;
mod fields;
mod keyed;
mod lanes;
mod new_order;
mod options;
mod refunds;
mod returns;
mod server;
mod slow;
mod tokens;
mod wake;
mod webhooks;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use counterfoil_chassis::postgres::{self, BY_INDEX, PoolSettings};
use counterfoil_chassis::{Process, replica};
use counterfoil_payments::Provider;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

pub use claims::ClaimKeys;
pub use options::{Options, Settings};

/// What the handlers share.
pub(crate) struct Ingest {
    pub(crate) providers: Vec<Box<dyn counterfoil_providers::Adapter>>,
    pub(crate) mode: counterfoil_providers::Mode,
    pub(crate) tokens: tokens::Tokens,
    /// Providers that can be asked.
    pub(crate) apis: counterfoil_providers::Apis,
    /// Verifies what a browser brings back from Razorpay.
    pub(crate) razorpay_return: Option<counterfoil_providers::Secret>,
    pub(crate) lanes: lanes::Lanes,
    pub(crate) checkout: checkout::Checkout,
    pub(crate) claim_keys: ClaimKeys,
    pub(crate) api_pool: PgPool,
    pub(crate) wake: Arc<wake::Wake>,
    pub(crate) refused: Arc<Refused>,
    /// What must end before the process does.
    pub(crate) tracker: TaskTracker,
}

/// Deliveries refused for their signature since the start, by provider.
#[derive(Debug, Default)]
pub(crate) struct Refused([AtomicU64; Provider::ALL.len()]);

impl Refused {
    pub(crate) fn count(&self, provider: Provider) {
        self.0[provider as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self) -> Value {
        let counts = Provider::ALL.iter().map(|provider| (provider.name().to_owned(), json!(self.0[*provider as usize].load(Ordering::Relaxed))));
        json!({ "refused": Value::Object(counts.collect()), "connections": lanes::COMMITTERS + slow::WORKERS + checkout::MAKERS + API_CONNECTIONS + 1 })
    }
}

/// Sessions that settle or make orders plan their statements once: planned anew each time, a single delivery costs twice as much.
fn batch_pool(url: &str, application_name: &'static str, connections_max: u32, lock_timeout: &str, statement_timeout: &str) -> anyhow::Result<PgPool> {
    let session = [
        ("plan_cache_mode", "force_generic_plan"),
        ("lock_timeout", lock_timeout),
        ("statement_timeout", statement_timeout),
        ("idle_in_transaction_session_timeout", "10s"),
    ];
    postgres::pool(
        url,
        &PoolSettings {
            application_name,
            connections_max,
            acquire_timeout: Duration::from_secs(2),
            session: session.into_iter().chain(BY_INDEX).map(|(name, value)| (name, value.to_owned())).collect(),
        },
    )
}

/// Connections of the order API.
const API_CONNECTIONS: u32 = 8;

fn api_pool(url: &str) -> anyhow::Result<PgPool> {
    let session = [("lock_timeout", "2s"), ("statement_timeout", "5s"), ("idle_in_transaction_session_timeout", "10s")];
    postgres::pool(
        url,
        &PoolSettings {
            application_name: "counterfoil-ingest orders",
            connections_max: API_CONNECTIONS,
            acquire_timeout: Duration::from_secs(2),
            session: session.into_iter().chain(BY_INDEX).map(|(name, value)| (name, value.to_owned())).collect(),
        },
    )
}

/// Runs until told to stop: then it takes no more requests, settles what it has taken, and ends.
///
/// # Errors
/// When the public address cannot be had.
pub async fn run(settings: Settings, process: Process) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen).await.with_context(|| format!("cannot listen on {} (COUNTERFOIL_LISTEN)", settings.listen))?;
    let api_pool = api_pool(&settings.database_url)?;
    let wake = Arc::new(wake::Wake::default());
    let tracker = TaskTracker::new();
    let url = &settings.database_url;
    let settlement = batch_pool(url, "counterfoil-ingest settlement", lanes::COMMITTERS + slow::WORKERS, "400ms", "1500ms")?;
    let lanes = lanes::start(settlement, Arc::clone(&wake), &tracker);
    let checkout = checkout::start(&batch_pool(url, "counterfoil-ingest checkout", checkout::MAKERS, "2s", "3s")?, &wake, &tracker);
    tracing::info!(providers = ?settings.providers.iter().map(|provider| provider.provider().name()).collect::<Vec<_>>(), "providers that are on");
    if settings.tokens.none() {
        tracing::warn!("the order API is off: COUNTERFOIL_API_TOKENS names no token");
    }
    process.readiness.fails("database", "not asked yet");
    tracker.spawn(postgres::watch(api_pool.clone(), process.clone()));
    tracker.spawn(wake::send(settings.database_url, Arc::clone(&wake), process.shutdown.clone()));
    let refused = Arc::new(Refused::default());
    let told = Arc::clone(&refused);
    tracker.spawn(replica::report(api_pool.clone(), "ingest".into(), process.clone(), move || told.report()));
    let ingest = Arc::new(Ingest {
        refused,
        providers: settings.providers,
        mode: settings.mode,
        tokens: settings.tokens,
        apis: settings.apis,
        razorpay_return: settings.razorpay_return,
        lanes,
        checkout,
        claim_keys: settings.claim_keys,
        api_pool,
        wake,
        tracker: tracker.clone(),
    });
    server::serve(listener, api::router(ingest), &process.shutdown).await;
    tracker.close(); // the last handler has dropped the lanes' senders, so committers and makers end when their queues are empty
    tracker.wait().await;
    Ok(())
}
