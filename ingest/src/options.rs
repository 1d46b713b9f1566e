//! The options of `counterfoil-ingest`.

use std::net::SocketAddr;

use counterfoil_chassis::{Common, Configure, Problems};
use counterfoil_providers::{Adapter, ApiOptions, Apis, BadSecret, Mode, Razorpay, Secret, Square, Standard, Stripe, secrets};

use crate::claims::ClaimKeys;
use crate::tokens::Tokens;

/// Takes providers' webhooks (POST /webhooks/{stripe,razorpay,square,standard}) and the shop's orders: POST /orders,
/// GET /orders/{id or reference}, below it POST cancel, refunds, session, return, claim-token; POST /claims; POST /draws, GET and PATCH
/// /draws/{id or reference}. A delivery answered 2xx is durable; anything else the provider sends again.
#[derive(Debug, clap::Parser)]
#[command(name = "counterfoil-ingest", version)]
pub struct Options {
    /// PostgreSQL, as postgres://user:password@host:port/database. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Public address.
    #[arg(long, env = "COUNTERFOIL_LISTEN", default_value = "127.0.0.1:8600")]
    listen: String,
    /// Which events may change orders: live or test. Required.
    #[arg(long, env = "COUNTERFOIL_MODE")]
    mode: Option<String>,
    /// Bearer tokens of the order API, as name:token,name:token. The name is the scope of idempotency keys; two tokens
    /// may share one while rotating. None: the order API is off. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_API_TOKENS", hide_env_values = true)]
    api_tokens: Option<String>,
    /// Keys that sign claim tokens, as name:secret,name:secret, newest first: the first signs, all verify. None: claims are off.
    /// Also _FILE.
    #[arg(long, env = "COUNTERFOIL_CLAIM_KEYS", hide_env_values = true)]
    claim_keys: Option<String>,
    /// Stripe's endpoint secrets (whsec_…), comma-separated, newest first. None: Stripe is off. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_STRIPE_SECRETS", hide_env_values = true)]
    stripe_secrets: Option<String>,
    /// Razorpay's webhook secrets, comma-separated, newest first; keep an old one for 24 hours. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_RAZORPAY_SECRETS", hide_env_values = true)]
    razorpay_secrets: Option<String>,
    /// Square's signature keys, comma-separated, newest first. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_SQUARE_SECRETS", hide_env_values = true)]
    square_secrets: Option<String>,
    /// The notification URL exactly as registered at Square, which signs it. Required when Square is on.
    #[arg(long, env = "COUNTERFOIL_SQUARE_NOTIFICATION_URL")]
    square_notification_url: Option<String>,
    /// Secrets of Standard Webhooks senders (whsec_… or whpk_…), comma-separated, newest first. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_STANDARD_SECRETS", hide_env_values = true)]
    standard_secrets: Option<String>,
    #[command(flatten)]
    apis: ApiOptions,
    #[command(flatten)]
    common: Common,
}

/// Proven options.
#[derive(Debug)]
pub struct Settings {
    /// PostgreSQL.
    pub database_url: String,
    /// Public address; port 0 for any.
    pub listen: SocketAddr,
    /// Which events may change orders.
    pub mode: Mode,
    /// Who may use the order API.
    pub tokens: Tokens,
    /// The keys of claim tokens.
    pub claim_keys: ClaimKeys,
    /// The providers that are on.
    pub providers: Vec<Box<dyn Adapter>>,
    /// The providers that can be asked.
    pub apis: Apis,
    /// Verifies what a browser brings back from Razorpay.
    pub razorpay_return: Option<Secret>,
}

impl Configure for Options {
    type Checked = Settings;
    const NAME: &'static str = "counterfoil-ingest";

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, problems: &mut Problems) -> Option<Settings> {
        let database_url = problems.required("COUNTERFOIL_DATABASE_URL", self.database_url.as_ref());
        let listen = problems.parsed("COUNTERFOIL_LISTEN", &self.listen);
        let mode = problems.required("COUNTERFOIL_MODE", self.mode.as_ref()).and_then(|mode| match mode.as_str() {
            "live" => Some(Mode::Live),
            "test" => Some(Mode::Test),
            _ => {
                problems.note("COUNTERFOIL_MODE", "must be live or test");
                None
            }
        });
        let tokens = Tokens::read(self.api_tokens.as_deref().unwrap_or_default()).map_err(|why| problems.note("COUNTERFOIL_API_TOKENS", why)).ok();
        let claim_keys = ClaimKeys::read(self.claim_keys.as_deref().unwrap_or_default()).map_err(|why| problems.note("COUNTERFOIL_CLAIM_KEYS", why)).ok();
        let providers = self.providers(problems);
        let apis = self.apis.apis(|variable, why| problems.note(variable, why));
        let razorpay_return = self.apis.razorpay_return_secret();
        Some(Settings { database_url: database_url?, listen: listen?, mode: mode?, tokens: tokens?, claim_keys: claim_keys?, providers, apis, razorpay_return })
    }
}

impl Options {
    fn providers(&self, problems: &mut Problems) -> Vec<Box<dyn Adapter>> {
        let url = self.square_notification_url.as_deref().unwrap_or_default();
        [
            adapter(problems, "COUNTERFOIL_STRIPE_SECRETS", self.stripe_secrets.as_ref(), |keys| Ok(Stripe::new(keys))),
            adapter(problems, "COUNTERFOIL_RAZORPAY_SECRETS", self.razorpay_secrets.as_ref(), |keys| Ok(Razorpay::new(keys))),
            adapter(problems, "COUNTERFOIL_SQUARE_SECRETS", self.square_secrets.as_ref(), |keys| Square::new(keys, url)),
            adapter(problems, "COUNTERFOIL_STANDARD_SECRETS", self.standard_secrets.as_ref(), Standard::new),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// A provider is on when its variable holds secrets.
fn adapter<A: Adapter + 'static>(
    problems: &mut Problems,
    variable: &str,
    list: Option<&String>,
    make: impl Fn(&[Secret]) -> Result<A, BadSecret>,
) -> Option<Box<dyn Adapter>> {
    let list = list.filter(|list| !list.is_empty())?;
    match secrets(list).and_then(|keys| make(&keys)) {
        Ok(adapter) => Some(Box::new(adapter)),
        Err(why) => {
            problems.note(variable, format_args!("a secret {why}"));
            None
        }
    }
}
