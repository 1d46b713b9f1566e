//! The options of `counterfoil console`.

use std::net::SocketAddr;

use counterfoil_chassis::Problems;

use super::session::{Door, Proxy};

/// Options of `counterfoil console`.
#[derive(Debug, Clone, clap::Args)]
pub struct ConsoleOptions {
    /// The console's address.
    #[arg(long, env = "COUNTERFOIL_CONSOLE_LISTEN", default_value = "127.0.0.1:9700")]
    listen: String,
    /// The header in which an identity-aware proxy says who somebody is.
    #[arg(long, env = "COUNTERFOIL_CONSOLE_PROXY_HEADER")]
    proxy_header: Option<String>,
    /// The proxy's addresses, with commas: from elsewhere the header is ignored.
    #[arg(long, env = "COUNTERFOIL_CONSOLE_PROXY_ADDRESSES", default_value = "")]
    proxy_addresses: String,
    /// What people may do who come by the proxy: person:role,…; * for anybody. Roles: viewer, operator, admin.
    #[arg(long, env = "COUNTERFOIL_CONSOLE_PROXY_ROLES", default_value = "*:viewer")]
    proxy_roles: String,
}

/// Proven options.
#[derive(Debug, Clone)]
pub struct ConsoleSettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Who may come in.
    pub door: Door,
    /// `live` or `test`, for the badge.
    pub mode: &'static str,
}

impl ConsoleOptions {
    pub(crate) fn check(
        &self,
        problems: &mut Problems,
        tokens: Option<&String>,
        shared_secret: &str,
        console_url: Option<&String>,
        mode: &'static str,
    ) -> Option<ConsoleSettings> {
        let listen: Option<SocketAddr> = problems.parsed("COUNTERFOIL_CONSOLE_LISTEN", &self.listen);
        let proxy = match &self.proxy_header {
            Some(header) => {
                Some(Proxy::read(header, &self.proxy_addresses, &self.proxy_roles).map_err(|why| problems.note("COUNTERFOIL_CONSOLE_PROXY_HEADER", why)).ok()?)
            }
            None => None,
        };
        let secure = console_url.is_some_and(|url| url.starts_with("https://"));
        let door =
            Door::new(tokens.map_or("", String::as_str), proxy, shared_secret, secure).map_err(|why| problems.note("COUNTERFOIL_CONSOLE_TOKENS", why)).ok();
        Some(ConsoleSettings { listen: listen?, door: door?, mode })
    }
}
