//! Orders of one ticket a second made over HTTP on one hot draw, against the plain conditional update run by pgbench.

use counterfoil_tests::fleet::TOKEN;
use counterfoil_tests::{Fleet, Stage};
use serde_json::json;
use uuid::Uuid;

use crate::load::{Script, pgbench, send_all};
use crate::{ROUNDS, median, say};

/// Orders a round.
const ORDERS: usize = 20_000;

/// Connections and seconds of pgbench.
const PLAIN: (usize, u64) = (16, 4);

/// All that the plain way does: no order, no reservation, no answer.
const UPDATE: &str = "UPDATE draws SET reserved = reserved + 1 WHERE reference = 'plain' AND reserved + 1 <= capacity;\n";

pub(crate) async fn measure() -> anyhow::Result<()> {
    let stage = Stage::with_schema().await;
    stage.execute("INSERT INTO draws (reference, name, capacity) VALUES ('plain', 'Plain', 1000000000), ('hot', 'Hot', 1000000000)").await;
    let script = Script::write(UPDATE)?;
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_LOG", "warn").with("COUNTERFOIL_LOG_FORMAT", "json");
    let (_ingest, shop) = fleet.ingest().await;
    let address = shop.base.trim_start_matches("http://").to_owned();
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let plain = pgbench(&stage, script.path(), PLAIN.0, PLAIN.1)?;
        let ours = send_all(&address, (0..ORDERS).map(|_| request()).collect(), "201").await?;
        let reserved = stage.count("SELECT reserved FROM draws WHERE reference = 'hot'").await;
        anyhow::ensure!(reserved == i64::try_from((round + 1) * ORDERS)?, "{reserved} places are reserved");
        say(&format!("round {round}: orders with a reservation over HTTP {ours:.0}/s, plain conditional update {plain:.0}/s, ratio {:.2}", ours / plain));
        rates.push(ours);
        ratios.push(ours / plain);
    }
    say(&format!("checkout: {:.0} orders/s, {:.2} times the plain conditional update, medians of {ROUNDS} rounds", median(rates), median(ratios)));
    Ok(())
}

fn request() -> Vec<u8> {
    let body = json!({ "reference": format!("b-{}", Uuid::new_v4().simple()), "amount_minor": 500, "currency": "EUR", "customer": { "email": "ann@example.com", "name": "Ann" },
        "lines": [{ "description": "Ticket", "quantity": 1, "amount_minor": 500, "draw": "hot" }] })
    .to_string();
    format!("POST /orders HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
