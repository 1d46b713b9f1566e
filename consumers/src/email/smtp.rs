//! Speaks SMTP phase by phase, since the phase of a refusal says whose it is (RFC 5321, 4.2).
//!
//! | refusal | means |
//! |---|---|
//! | no connection, TLS, 5xx at the banner, at EHLO or at authentication | an outage of ours |
//! | 4xx anywhere, a connection that breaks | transient |
//! | 5xx for recipient or content | permanent |
//! | no answer after the final dot | unknown: it may have been taken |

use std::time::Duration;

use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail as MailCommand, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailParameter};
use lettre::transport::smtp::response::{Response, Severity};
use tokio::time::timeout;
use url::Url;

use super::letter::Mail;
use crate::runner::Failure;

/// Longest wait for a connection, its TLS and greeting together.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// Longest wait for the reply to one command.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);

/// Longest wait for the reply to the final dot: servers scan content there. RFC 5321 (4.5.3.2.6) asks for ten minutes;
/// five keep the whole within this consumer's deadline.
const DOT_DEADLINE: Duration = Duration::from_secs(5 * 60);

const QUIT_DEADLINE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Security {
    Plain,
    /// STARTTLS where offered.
    Opportunistic,
    /// STARTTLS or nothing.
    StartTls,
    /// TLS from the first byte.
    Tls,
}

/// A mail server.
#[derive(Clone)]
pub struct Server {
    host: String,
    port: u16,
    security: Security,
    credentials: Option<Credentials>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} ({:?})", self.host, self.port, self.security)
    }
}

impl Server {
    /// Reads `smtp[s]://[user:password@]host[:port][?tls=required|opportunistic|none]`.
    ///
    /// # Errors
    /// Says what is wrong, without repeating a password.
    pub fn read(url: &str) -> Result<Self, String> {
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        let tls = url.query_pairs().find(|(name, _)| name == "tls").map(|(_, value)| value.into_owned());
        let with_password = !url.username().is_empty();
        let (security, port) = match (url.scheme(), tls.as_deref()) {
            ("smtps", _) => (Security::Tls, 465),
            // A password does not travel in the clear unless the URL says so.
            ("smtp", None) if with_password => (Security::StartTls, 587),
            ("smtp", None | Some("none")) => (Security::Plain, 25),
            ("smtp", Some("opportunistic")) => (Security::Opportunistic, 25),
            ("smtp", Some("required")) => (Security::StartTls, 587),
            ("smtp", Some(_)) => return Err("tls must be required, opportunistic or none".into()),
            _ => return Err("must begin with smtp:// or smtps://".into()),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or("names no host")?.to_owned();
        let decoded =
            |text: &str| url::form_urlencoded::parse(format!("v={}", text.replace('+', "%2B")).as_bytes()).next().map(|(_, value)| value.into_owned());
        let credentials = match (url.username(), url.password()) {
            ("", _) => None,
            (user, password) => Some(Credentials::new(decoded(user).unwrap_or_default(), decoded(password.unwrap_or_default()).unwrap_or_default())),
        };
        Ok(Self { host, port: url.port().unwrap_or(port), security, credentials })
    }

    /// Sends a mail to its one recipient.
    pub(crate) async fn send(&self, mail: &Mail) -> Result<(), Failure> {
        let mut connection = within("connect", CONNECT_DEADLINE, self.connect()).await??;
        let sent = converse(&mut connection, mail).await;
        // The reply to the dot has decided; QUIT is courtesy, and what was decided must be written down.
        let _ = timeout(QUIT_DEADLINE, connection.quit()).await;
        sent
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, Failure> {
        let hello = ClientId::default();
        let tls = || TlsParameters::new(self.host.clone()).map_err(|error| Failure::outage(format!("TLS for {}: {error}", self.host)));
        let implicit = if self.security == Security::Tls { Some(tls()?) } else { None };
        let address = (self.host.as_str(), self.port);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(address, Some(CONNECT_DEADLINE), &hello, implicit, None).await.map_err(|error| ours("the greeting", &error))?;
        if self.security == Security::StartTls || (self.security == Security::Opportunistic && connection.can_starttls()) {
            connection.starttls(tls()?, &hello).await.map_err(|error| ours("STARTTLS", &error))?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await.map_err(|error| ours("authentication", &error))?;
        }
        Ok(connection)
    }
}

async fn converse(connection: &mut AsyncSmtpConnection, mail: &Mail) -> Result<(), Failure> {
    let mut parameters = Vec::new();
    if !mail.to.to_string().is_ascii() {
        if !connection.server_info().supports_feature(Extension::SmtpUtfEight) {
            return Err(Failure::permanent("the address needs SMTPUTF8, which the mail server does not offer"));
        }
        parameters.push(MailParameter::SmtpUtfEight);
    }
    command(connection, "MAIL", MailCommand::new(Some(mail.from.clone()), parameters)).await?;
    command(connection, "RCPT", Rcpt::new(mail.to.clone(), Vec::new())).await?;
    command(connection, "DATA", Data).await?;
    match timeout(DOT_DEADLINE, connection.message(&mail.bytes)).await {
        Ok(Ok(reply)) => accepted("the final dot", &reply),
        Ok(Err(error)) if error.status().is_some() => Err(refused("the final dot", &error)),
        Ok(Err(error)) => Err(Failure::unknown(format!("the connection broke at the final dot: {error}"))),
        Err(_) => Err(Failure::unknown(format!("no reply to the final dot within {} s", DOT_DEADLINE.as_secs()))),
    }
}

async fn command(connection: &mut AsyncSmtpConnection, name: &str, command: impl std::fmt::Display) -> Result<(), Failure> {
    match within(name, COMMAND_DEADLINE, connection.command(command)).await? {
        Ok(reply) => accepted(name, &reply),
        Err(error) => Err(refused(name, &error)),
    }
}

async fn within<T>(what: &str, deadline: Duration, step: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(deadline, step).await.map_err(|_| Failure::transient(format!("no reply to {what} within {} s", deadline.as_secs())))
}

/// A reply that lettre gave back without an error may still be a refusal.
fn accepted(phase: &str, reply: &Response) -> Result<(), Failure> {
    if reply.is_positive() {
        return Ok(());
    }
    let reason = format!("{} at {phase}", reply.code());
    Err(if reply.code().severity == Severity::PermanentNegativeCompletion { Failure::permanent(reason) } else { Failure::transient(reason) })
}

/// A refusal of this mail: the code decides, not the text, which may repeat the customer's address.
fn refused(phase: &str, error: &Error) -> Failure {
    let reason = error.status().map_or_else(|| format!("the connection broke at {phase}"), |code| format!("{code} at {phase}"));
    match error.status().map(|code| code.to_string()).as_deref() {
        Some("530" | "534" | "535" | "538") => Failure::outage(reason), // authentication is asked for, or refused
        Some(_) if error.is_permanent() => Failure::permanent(reason),
        _ => Failure::transient(reason),
    }
}

/// A refusal of us, before any mail was named: nothing of the message's, unless the server only asks to come later.
fn ours(phase: &str, error: &Error) -> Failure {
    match error.status() {
        Some(code) if error.is_transient() => Failure::transient(format!("{code} at {phase}")),
        Some(code) => Failure::outage(format!("{code} at {phase}")),
        None => Failure::outage(format!("{phase}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_says_how_the_connection_is_secured() {
        let server = |url| Server::read(url).map(|server| (server.port, server.security, server.credentials.is_some()));
        assert_eq!(server("smtp://mail.example"), Ok((25, Security::Plain, false)));
        assert_eq!(server("smtp://u:p%40ss@mail.example?tls=required"), Ok((587, Security::StartTls, true)));
        assert_eq!(server("smtps://u:p@mail.example:4650"), Ok((4650, Security::Tls, true)));
        assert_eq!(server("smtp://u:p@mail.example"), Ok((587, Security::StartTls, true)));
        assert_eq!(server("smtp://u:p@127.0.0.1?tls=none"), Ok((25, Security::Plain, true)));
        for wrong in ["mail.example", "http://mail.example", "smtp:mail", "smtp://mail.example?tls=maybe"] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }
}
