//! `counterfoil`: the on-call's and operator's tool.

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil_chassis::process::one_shot::<counterfoil_ops::Options, _, _>(counterfoil_ops::run)
}
