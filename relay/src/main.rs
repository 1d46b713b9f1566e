//! `counterfoil-relay`: outbox rows in, confirmed messages out.

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil_chassis::main::<counterfoil_relay::Options, _, _>(counterfoil_relay::run)
}
