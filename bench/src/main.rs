//! Measurements as ratios in one run: `make bench`. Medians of several rounds; absolute numbers are this machine's alone.

mod ingest;
mod relay;

use std::io::Write;

/// Rounds of each measurement.
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    ingest::measure().await?;
    relay::measure().await
}

/// The middle of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
