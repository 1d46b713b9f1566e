//! Webhooks a second accepted over HTTP, against the classic handler's transaction run by pgbench on the same database.

use counterfoil_tests::fleet::stripe_signature;
use counterfoil_tests::{Fleet, Stage};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::load::{Script, pgbench, send_all};
use crate::{ROUNDS, median, say};

/// Webhooks a round.
const WEBHOOKS: usize = 40_000;

/// How long pgbench runs, in seconds, at each number of connections.
const CLASSIC_SECONDS: u64 = 4;

/// The handler that everybody writes first: five statements, the same tables, bodies of the same size.
const CLASSIC: &str = "\\set n random(1, 2000000000)
BEGIN;
INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome) VALUES ('stripe', 'evt_' || :client_id || '_' || :n || '_' || random(), 'payment_intent.succeeded', convert_to(repeat('x', 1300), 'UTF8'), 0, 'applied') ON CONFLICT DO NOTHING;
SELECT id FROM orders WHERE reference = 'classic-' || (1 + :n % 100000) \\gset
INSERT INTO payments (provider, payment_id, order_id, status, amount_minor, currency) VALUES ('stripe', 'pi_' || :n || '_' || random(), :id, 'captured', 1099, 'EUR') ON CONFLICT (provider, account, payment_id) DO UPDATE SET status = excluded.status;
UPDATE orders SET version = version + 1, updated_at = now() WHERE id = :id;
INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload) VALUES (gen_random_uuid(), 'order.paid', :id, 2, 'order.paid', '{\"order\": 1, \"customer\": {\"email\": \"ann@example.com\"}, \"lines\": []}');
COMMIT;
";

pub(crate) async fn measure() -> anyhow::Result<()> {
    let stage = Stage::with_schema().await;
    let mut database = PgConnection::connect(&stage.database_url).await?;
    make_orders(&mut database, "classic", 100_000).await?;
    let script = Script::write(CLASSIC)?;
    let script_name = script.path();
    let mut best = (0, 0.0);
    for connections in [4, 8, 16, 32] {
        let rate = pgbench(&stage, script_name, connections, CLASSIC_SECONDS)?;
        say(&format!("classic handler, {connections} connections: {rate:.0}/s"));
        best = if rate > best.1 { (connections, rate) } else { best };
    }
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_LOG", "warn").with("COUNTERFOIL_LOG_FORMAT", "json");
    let (_ingest, shop) = fleet.ingest().await;
    let address = shop.base.trim_start_matches("http://").to_owned();
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let classic = pgbench(&stage, script_name, best.0, CLASSIC_SECONDS)?;
        let ids = make_orders(&mut database, &format!("round-{round}"), WEBHOOKS).await?;
        let ours = webhooks(&address, &ids).await?;
        let paid: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE order_id = ANY ($1)").bind(&ids).fetch_one(&mut database).await?;
        anyhow::ensure!(paid == i64::try_from(ids.len())?, "{paid} of {} orders were paid", ids.len());
        say(&format!("round {round}: webhooks over HTTP {ours:.0}/s, classic handler {classic:.0}/s, ratio {:.2}", ours / classic));
        rates.push(ours);
        ratios.push(ours / classic);
        // Both add rows; the tables keep their size from round to round.
        sqlx::raw_sql("TRUNCATE outbox, webhook_events, payments, refunds, disputes").execute(&mut database).await?;
    }
    say(&format!(
        "ingest: {:.0} webhooks/s, {:.2} times the classic handler at its best ({} connections), medians of {ROUNDS} rounds",
        median(rates),
        median(ratios),
        best.0
    ));
    Ok(())
}

async fn make_orders(database: &mut PgConnection, prefix: &str, count: usize) -> anyhow::Result<Vec<Uuid>> {
    let insert = format!(
        "INSERT INTO orders (reference, amount_minor, currency, customer_email, customer_name) SELECT '{prefix}-' || n, 1099, 'EUR', 'ann' || n || '@example.com', 'Ann' FROM generate_series(1, {count}) AS n RETURNING id"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(insert)).fetch_all(database).await?)
}

/// A signed request of 1.3 kB for an order, as bytes.
fn request(order: Uuid, time: u64) -> Vec<u8> {
    let padding = "x".repeat(900);
    let body = serde_json::json!({ "id": format!("evt_{}", Uuid::new_v4().simple()), "object": "event", "type": "payment_intent.succeeded", "livemode": false,
        "data": { "object": { "id": format!("pi_{}", order.simple()), "amount": 1099, "amount_received": 1099, "currency": "eur", "description": padding, "metadata": { "order_id": order } } } })
    .to_string();
    let head = format!(
        "POST /webhooks/stripe HTTP/1.1\r\nHost: bench\r\nStripe-Signature: {}\r\nContent-Length: {}\r\n\r\n",
        stripe_signature(body.as_bytes(), time),
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Sends one webhook for each order; the rate at which they were answered 200.
async fn webhooks(address: &str, orders: &[Uuid]) -> anyhow::Result<f64> {
    let time = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH)?.as_secs();
    send_all(address, orders.iter().map(|order| request(*order, time)).collect(), "200").await
}
