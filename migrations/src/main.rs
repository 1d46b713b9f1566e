//! `counterfoil-migrate`: brings schema and broker topology, once, and exits.

mod options;

use std::process::ExitCode;

use counterfoil_chassis::process::one_shot;

fn main() -> ExitCode {
    one_shot::<options::Options, _, _>(|target| async move {
        if target.check_only { counterfoil_migrate::check(&target.target).await } else { counterfoil_migrate::migrate(&target.target).await }
    })
}
