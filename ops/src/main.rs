//! `counterfoil`: the on-call's and operator's tool.

use std::process::ExitCode;

use counterfoil_ops::{Options, Settings, run, stay};

fn main() -> ExitCode {
    counterfoil_chassis::process::either::<Options, _, _, _, _>(Settings::long_running, stay, run)
}
