//! Measurements as ratios in one run: `make bench`. Medians of several rounds; one name of ingest, relay,
//! tickets, checkout measures that alone. Absolute numbers are this machine's.

mod checkout;
mod ingest;
mod load;
mod relay;
mod tickets;

use std::io::Write;

/// Rounds of each measurement.
const ROUNDS: usize = 5;

/// Measures one thing by its name, or everything.
///
/// # Errors
/// When a measurement cannot be made, or its result is not right.
pub async fn run(only: Option<&str>) -> anyhow::Result<()> {
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    if wanted("ingest") {
        ingest::measure().await?;
    }
    if wanted("relay") {
        relay::measure().await?;
    }
    if wanted("tickets") {
        tickets::measure().await?;
    }
    if wanted("checkout") {
        checkout::measure().await?;
    }
    Ok(())
}

/// The middle of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
