//! `counterfoil-ingest`: HTTP in, one transaction, outbox row out.

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil_chassis::main::<counterfoil_ingest::Options, _, _>(counterfoil_ingest::run)
}
