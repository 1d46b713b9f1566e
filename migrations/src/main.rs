//! `counterfoil-migrate`: brings schema and broker topology, once, and exits.

mod options;

use std::process::ExitCode;

use counterfoil_chassis::process::one_shot;
use options::Step;

fn main() -> ExitCode {
    one_shot::<options::Options, _, _>(|asked| async move {
        match asked.step {
            Step::Everything => counterfoil_migrate::migrate(&asked.target).await,
            Step::SchemaOnly => counterfoil_migrate::migrate_schema(&mut counterfoil_migrate::connect(&asked.target.database_url).await?).await,
            Step::Check => counterfoil_migrate::check(&asked.target).await,
        }
    })
}
