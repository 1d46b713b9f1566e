//! The options of `counterfoil-relay`.

use std::time::Duration;

use counterfoil_chassis::{Common, Configure, Problems};

/// Publishes the outbox to RabbitMQ under publisher confirms. Run as many as you like: they share the rows.
#[derive(Debug, clap::Parser)]
#[command(name = "counterfoil-relay", version)]
pub struct Options {
    /// PostgreSQL, as postgres://user:password@host:port/database. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// RabbitMQ, as amqp://user:password@host:port/vhost (the vhost / is written %2f). Also _FILE.
    #[arg(long, env = "COUNTERFOIL_AMQP_URL", hide_env_values = true)]
    amqp_url: Option<String>,
    /// Messages a batch, 1 to 256. More than 256 unconfirmed gain nothing and can wedge the client.
    #[arg(long, env = "COUNTERFOIL_RELAY_BATCH", default_value = "256")]
    batch: String,
    /// How long a batch waits for its confirms, in seconds, 1 to 20; after that its rows are free and go out
    /// again.
    #[arg(long, env = "COUNTERFOIL_RELAY_CONFIRM_DEADLINE_S", default_value = "10")]
    confirm_deadline_s: String,
    #[command(flatten)]
    common: Common,
}

/// Proven options.
#[derive(Debug)]
pub struct Settings {
    /// PostgreSQL.
    pub database_url: String,
    /// RabbitMQ.
    pub amqp_url: String,
    /// Messages a batch.
    pub batch: usize,
    /// How long a batch waits for its confirms.
    pub confirm_deadline: Duration,
}

impl Configure for Options {
    type Checked = Settings;
    const NAME: &'static str = "counterfoil-relay";

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, problems: &mut Problems) -> Option<Settings> {
        let database_url = problems.required("COUNTERFOIL_DATABASE_URL", self.database_url.as_ref());
        let amqp_url = problems.required("COUNTERFOIL_AMQP_URL", self.amqp_url.as_ref());
        let batch = problems.bounded("COUNTERFOIL_RELAY_BATCH", &self.batch, 1..=counterfoil_broker::publish::WINDOW_MAX);
        let confirm_deadline = problems.bounded("COUNTERFOIL_RELAY_CONFIRM_DEADLINE_S", &self.confirm_deadline_s, 1..=20);
        Some(Settings { database_url: database_url?, amqp_url: amqp_url?, batch: batch?, confirm_deadline: Duration::from_secs(confirm_deadline? as u64) })
    }
}
