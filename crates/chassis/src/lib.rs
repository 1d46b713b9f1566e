//! What every process has: start, stop, health, telemetry, a PostgreSQL pool.
//!
//! A process is a configuration ([`config::Configure`]) and a `run` function; [`process::main`] does the rest.

pub mod admin;
pub mod busy;
pub mod config;
pub mod fault;
pub mod postgres;
pub mod process;
pub mod readiness;
pub mod replica;
pub mod telemetry;
pub mod trace;

pub use config::{Common, Configure, Problems};
pub use process::{Process, main};
pub use readiness::Readiness;
pub use trace::TraceParent;
