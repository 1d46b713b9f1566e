//! The options that lead to providers' APIs, for every process that asks a provider or sends money back.

use counterfoil_payments::Provider;
use url::Url;

use crate::api::Api;
use crate::secret::Secret;

/// Keys and addresses. A provider without a key is not asked, and what would be refunded there is held and visible.
#[derive(Clone, clap::Args)]
pub struct ApiOptions {
    /// Stripe's secret or restricted API key: payment intents, charges, checkout sessions read; refunds written. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_STRIPE_API_KEY", hide_env_values = true)]
    stripe_api_key: Option<String>,
    /// Where Stripe's API is, if not at <https://api.stripe.com>.
    #[arg(long, env = "COUNTERFOIL_STRIPE_API_URL")]
    stripe_api_url: Option<String>,
    /// Razorpay's API key, as id:secret. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_RAZORPAY_API_KEY", hide_env_values = true)]
    razorpay_api_key: Option<String>,
    /// Where Razorpay's API is, if not at <https://api.razorpay.com>.
    #[arg(long, env = "COUNTERFOIL_RAZORPAY_API_URL")]
    razorpay_api_url: Option<String>,
    /// Square's access token. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_SQUARE_API_KEY", hide_env_values = true)]
    square_api_key: Option<String>,
    /// Where Square's API is, if not at <https://connect.squareup.com>; the sandbox is <https://connect.squareupsandbox.com>.
    #[arg(long, env = "COUNTERFOIL_SQUARE_API_URL")]
    square_api_url: Option<String>,
}

impl std::fmt::Debug for ApiOptions {
    /// Never a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiOptions")
    }
}

/// The APIs that are configured.
#[derive(Debug, Clone, Default)]
pub struct Apis(Vec<Api>);

impl Apis {
    /// Whether no provider can be asked.
    #[must_use]
    pub fn none(&self) -> bool {
        self.0.is_empty()
    }

    /// A provider's API, if there is a key for it.
    #[must_use]
    pub fn of(&self, provider: Provider) -> Option<&Api> {
        self.0.iter().find(|api| api.provider() == provider)
    }
}

impl ApiOptions {
    /// Makes the APIs; hands every problem, with the name of its variable, to `note`.
    pub fn apis(&self, mut note: impl FnMut(&str, String)) -> Apis {
        let table = [
            (Provider::Stripe, &self.stripe_api_key, &self.stripe_api_url),
            (Provider::Razorpay, &self.razorpay_api_key, &self.razorpay_api_url),
            (Provider::Square, &self.square_api_key, &self.square_api_url),
        ];
        let mut apis = Vec::new();
        for (provider, key, url) in table {
            let variable = format!("COUNTERFOIL_{}_API", provider.name().to_ascii_uppercase());
            let Some(key) = key.as_ref().filter(|key| !key.is_empty()) else { continue };
            let key = Secret::new(key).map_err(|why| why.to_string()).and_then(|key| shape(provider, key));
            let base = url.as_ref().filter(|url| !url.is_empty()).map(|url| base(url)).transpose();
            match (key, base) {
                (Ok(key), Ok(base)) => match Api::new(provider, key, base) {
                    Ok(api) => apis.extend(api),
                    Err(error) => note(&format!("{variable}_URL"), format!("no HTTP client can be made: {error}")),
                },
                (key, base) => {
                    if let Err(why) = key {
                        note(&format!("{variable}_KEY"), why);
                    }
                    if let Err(why) = base {
                        note(&format!("{variable}_URL"), why);
                    }
                }
            }
        }
        Apis(apis)
    }

    /// The secret that signs what a browser brings back from Razorpay's checkout: that of the API key.
    #[must_use]
    pub fn razorpay_return_secret(&self) -> Option<Secret> {
        let (_, secret) = self.razorpay_api_key.as_ref()?.split_once(':')?;
        Secret::new(secret).ok()
    }
}

fn shape(provider: Provider, key: Secret) -> Result<Secret, String> {
    if provider == Provider::Razorpay && !key.expose().contains(':') {
        return Err("must be the key's id and its secret, as id:secret".into());
    }
    Ok(key)
}

fn base(url: &str) -> Result<Url, String> {
    let url: Url = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    if url.cannot_be_a_base() || !matches!(url.scheme(), "http" | "https") {
        return Err("must be an http or https URL".into());
    }
    Ok(url)
}
