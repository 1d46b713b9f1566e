//! The options of `counterfoil-migrate`.

use counterfoil_broker::topology;
use counterfoil_chassis::{Common, Configure, Problems};
use counterfoil_migrate::Target;

/// Brings the database schema and the broker topology of this release. Idempotent; run it before the processes of a
/// release start. Refuses a database that is newer than itself and queues whose arguments differ.
#[derive(Debug, clap::Parser)]
#[command(name = "counterfoil-migrate", version)]
pub(crate) struct Options {
    /// PostgreSQL, as postgres://user:password@host:port/database. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// RabbitMQ, as amqp://user:password@host:port/vhost (the vhost / is written %2f). Also _FILE.
    #[arg(long, env = "COUNTERFOIL_AMQP_URL", hide_env_values = true)]
    amqp_url: Option<String>,
    /// The retry ladder: delays, shortest first. A new ladder adds queues; old ones stay until they are removed.
    #[arg(long, env = "COUNTERFOIL_RETRY_RUNGS", default_value = "5s,15s,1m,4m,15m,1h")]
    retry_rungs: String,
    /// Changes nothing; exits with 1 and says why when the schema or a queue is missing. Bindings AMQP does not tell: run it without
    /// this to bring missing ones.
    #[arg(long)]
    check: bool,
    /// Brings the schema and leaves the broker alone; relays claim nothing until the topology is brought, too.
    #[arg(long, conflicts_with = "check")]
    schema_only: bool,
    #[command(flatten)]
    common: Common,
}

/// What to do.
pub(crate) enum Step {
    Everything,
    SchemaOnly,
    Check,
}

/// Proven options.
pub(crate) struct Checked {
    pub(crate) target: Target,
    pub(crate) step: Step,
}

impl Configure for Options {
    type Checked = Checked;
    const NAME: &'static str = "counterfoil-migrate";

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, problems: &mut Problems) -> Option<Checked> {
        let database_url = problems.required("COUNTERFOIL_DATABASE_URL", self.database_url.as_ref());
        let amqp_url = if self.schema_only { Some(String::new()) } else { problems.required("COUNTERFOIL_AMQP_URL", self.amqp_url.as_ref()) };
        let rungs = topology::rungs(&self.retry_rungs).map_err(|error| problems.note("COUNTERFOIL_RETRY_RUNGS", error)).ok();
        let step = if self.check {
            Step::Check
        } else if self.schema_only {
            Step::SchemaOnly
        } else {
            Step::Everything
        };
        Some(Checked { target: Target { database_url: database_url?, amqp_url: amqp_url?, rungs: rungs? }, step })
    }
}
