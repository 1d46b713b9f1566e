//! `counterfoil-consumers <name>`: messages in, one effect out.

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil_chassis::main::<counterfoil_consumers::Options, _, _>(counterfoil_consumers::run)
}
