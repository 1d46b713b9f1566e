//! One connection to the broker, with a deadline on every step.

use std::time::Duration;

use anyhow::{Context, bail};
use lapin::options::ConfirmSelectOptions;
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind};
use tokio::time::{sleep, timeout};

/// Longest wait for a connection; lapin itself has none.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Longest wait for the broker's answer to one method.
pub const METHOD_DEADLINE: Duration = Duration::from_secs(5);

/// Seconds between heartbeats: a dead peer is found within twice that.
const HEARTBEAT_S: u16 = 10;

/// Pause between two looks whether it is blocked.
const BLOCKED_LOOK: Duration = Duration::from_millis(100);

/// A connection.
#[derive(Debug)]
pub struct Link(Connection);

impl Link {
    /// Connects; the name is resolved anew each time.
    ///
    /// # Errors
    /// When the broker cannot be reached, refuses us, or does not answer in time.
    pub async fn connect(uri: &str, name: &str) -> anyhow::Result<Self> {
        let separator = if uri.contains('?') { '&' } else { '?' };
        let uri = if uri.contains("heartbeat=") { uri.to_owned() } else { format!("{uri}{separator}heartbeat={HEARTBEAT_S}") };
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connection = timeout(CONNECT_DEADLINE, Connection::connect(&uri, properties)).await.context("the broker does not answer")?;
        Ok(Self(connection.context("the broker cannot be reached")?))
    }

    /// Whether it is still there, blocked or not.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.0.status().connected()
    }

    /// Whether the broker has stopped reading from it: a memory or disk alarm.
    #[must_use]
    pub fn blocked(&self) -> bool {
        self.0.status().blocked()
    }

    /// Returns once the broker has not read from it for `grace`: what was sent before may still be confirmed meanwhile.
    pub async fn blocked_for(&self, grace: Duration) {
        let mut blocked = Duration::ZERO;
        while blocked < grace {
            sleep(BLOCKED_LOOK).await;
            blocked = if self.blocked() { blocked + BLOCKED_LOOK } else { Duration::ZERO };
        }
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// When the broker refuses or does not answer in time.
    pub async fn channel(&self) -> anyhow::Result<Channel> {
        if self.blocked() {
            bail!("the broker has blocked the connection (memory or disk alarm)");
        }
        timeout(METHOD_DEADLINE, self.0.create_channel()).await.context("no answer to channel.open")?.context("no channel")
    }

    /// Opens a channel in confirm mode.
    ///
    /// # Errors
    /// When the broker refuses or does not answer in time.
    pub async fn confirming_channel(&self) -> anyhow::Result<Channel> {
        let channel = self.channel().await?;
        timeout(METHOD_DEADLINE, channel.confirm_select(ConfirmSelectOptions::default())).await.context("no answer to confirm.select")??;
        Ok(channel)
    }

    /// Closes it; a broker that does not answer is left alone after two seconds.
    pub async fn close(self) {
        let _ = timeout(Duration::from_secs(2), self.0.close(200, "done".into())).await;
    }
}

/// The broker's code and text, when it was the broker that refused.
#[must_use]
pub fn broker_error(error: &lapin::Error) -> Option<(u16, String)> {
    if let ErrorKind::ProtocolError(refusal) = error.kind() { Some((refusal.get_id(), refusal.get_message().to_string())) } else { None }
}
