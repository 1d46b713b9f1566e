//! Orders minted a second on one hot draw, against the procedure that everybody writes first, on the same database.

use std::time::Instant;

use counterfoil_inbox::insert_done;
use counterfoil_payments::Event;
use counterfoil_tests::{Fleet, Stage, event, until};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::load::{Script, pgbench};
use crate::{ROUNDS, median, say};

/// Orders a round: of the transaction alone, and through the consumer.
const ORDERS: usize = 20_000;

/// Events of one transaction: what the consumer takes by default.
const BATCH: usize = 200;

/// Connections that mint: one for each of two replicas.
const CONNECTIONS: usize = 2;

/// Connections and seconds of pgbench.
const PROCEDURE: (usize, u64) = (16, 4);

/// Sessions for the procedure to complete, a round.
const SESSIONS: i64 = 60_000;

/// The procedure of the well-known kind: locks the session, counts the draw up, inserts the entry, completes the session.
const SCHEMA: &str = "
CREATE SCHEMA legacy;
CREATE TABLE legacy.draws (id bigint PRIMARY KEY, tickets_sold bigint NOT NULL DEFAULT 0);
CREATE TABLE legacy.checkout_sessions (id bigint PRIMARY KEY, draw_id bigint NOT NULL, quantity bigint NOT NULL, email text NOT NULL, amount_minor bigint NOT NULL,
    status text NOT NULL DEFAULT 'pending', completed_at timestamptz);
CREATE TABLE legacy.entries (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session_id bigint NOT NULL UNIQUE REFERENCES legacy.checkout_sessions (id),
    draw_id bigint NOT NULL REFERENCES legacy.draws (id), first_number bigint NOT NULL, last_number bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE SEQUENCE legacy.next;
INSERT INTO legacy.draws (id) SELECT generate_series(1, 1000);
CREATE FUNCTION legacy.complete_checkout(session bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    s legacy.checkout_sessions;
    last bigint;
BEGIN
    SELECT * INTO s FROM legacy.checkout_sessions WHERE id = session FOR UPDATE;
    IF NOT FOUND THEN RAISE EXCEPTION 'no session %', session; END IF;
    IF s.status = 'completed' THEN RETURN NULL; END IF;
    UPDATE legacy.draws SET tickets_sold = tickets_sold + s.quantity WHERE id = s.draw_id RETURNING tickets_sold INTO last;
    INSERT INTO legacy.entries (session_id, draw_id, first_number, last_number) VALUES (session, s.draw_id, last - s.quantity + 1, last);
    UPDATE legacy.checkout_sessions SET status = 'completed', completed_at = now() WHERE id = session;
    RETURN last;
END $$;
";

pub(crate) async fn measure() -> anyhow::Result<()> {
    let stage = Stage::new().await;
    let mut database = PgConnection::connect(&stage.database_url).await?;
    sqlx::raw_sql(SCHEMA).execute(&mut database).await?;
    sqlx::raw_sql("INSERT INTO draws (reference, name) SELECT 'd-' || n, 'Draw ' || n FROM generate_series(1, 1000) AS n").execute(&mut database).await?;
    let script = Script::write("SELECT legacy.complete_checkout(nextval('legacy.next'));\n")?;
    for (what, draws) in [("one hot draw", 1), ("1,000 draws", 1000)] {
        let (mut alone, mut through) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            sessions(&mut database, draws).await?;
            let procedure = pgbench(&stage, script.path(), PROCEDURE.0, PROCEDURE.1)?;
            let events = paid(&mut database, draws).await?;
            let bare = transactions(&stage, &events).await?;
            let events = paid(&mut database, draws).await?;
            let consumer = consumed(&stage, &mut database, &events).await?;
            say(&format!(
                "round {round}, {what}: procedure {procedure:.0}/s; minting transaction {bare:.0}/s ({:.1} times); consumer {consumer:.0}/s ({:.1} times)",
                bare / procedure,
                consumer / procedure
            ));
            alone.push(bare / procedure);
            through.push(consumer / procedure);
            sqlx::raw_sql("TRUNCATE outbox, processed_events").execute(&mut database).await?;
        }
        say(&format!(
            "tickets, {what}: {:.1} times the procedure by the transaction alone, {:.1} times through the consumer, medians of {ROUNDS} rounds",
            median(alone),
            median(through)
        ));
    }
    Ok(())
}

/// Fresh sessions for the procedure.
async fn sessions(database: &mut PgConnection, draws: i64) -> anyhow::Result<()> {
    sqlx::raw_sql("TRUNCATE legacy.checkout_sessions, legacy.entries; ALTER SEQUENCE legacy.next RESTART").execute(&mut *database).await?;
    sqlx::query("INSERT INTO legacy.checkout_sessions (id, draw_id, quantity, email, amount_minor) SELECT n, 1 + n % $2, 1 + n % 5, 'ann@example.com', 500 FROM generate_series(1, $1) AS n")
        .bind(SESSIONS)
        .bind(draws)
        .execute(&mut *database)
        .await?;
    sqlx::raw_sql("ANALYZE legacy.checkout_sessions").execute(database).await?;
    Ok(())
}

/// Paid orders of one ticket line each, with confirmed reservations; their events, whose ids are as good as random.
async fn paid(database: &mut PgConnection, draws: i64) -> anyhow::Result<Vec<Value>> {
    let orders: Vec<(Uuid, Uuid, i64)> = sqlx::query_as(
        "WITH made AS (SELECT o.id, d.id AS draw, 1 + n % 5 AS quantity FROM unnest($1::uuid[]) WITH ORDINALITY AS o (id, n) JOIN draws d ON d.reference = 'd-' || (1 + n % $2)),
        o AS (INSERT INTO orders (id, reference, amount_minor, currency, customer_email, status, version, paid_provider, paid_account, paid_payment_id, paid_at, lines)
            SELECT id, 'b-' || id, 500 * quantity, 'EUR', 'ann@example.com', 'paid', 2, 'stripe', '', 'pi_' || id, now(),
                jsonb_build_array(jsonb_build_object('description', 'Tickets', 'quantity', quantity, 'amount_minor', 500 * quantity, 'draw', draw)) FROM made),
        r AS (INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at) SELECT gen_random_uuid(), id, 0, draw, quantity, 'confirmed', now() FROM made),
        c AS (UPDATE draws d SET reserved = d.reserved + s.quantity FROM (SELECT draw, sum(quantity) AS quantity FROM made GROUP BY draw) s WHERE d.id = s.draw)
        SELECT id, draw, quantity::bigint FROM made",
    )
    .bind((0..ORDERS).map(|_| Uuid::now_v7()).collect::<Vec<_>>())
    .bind(draws)
    .fetch_all(&mut *database)
    .await?;
    // Before the clock starts, so that autovacuum does not do it on one of two cores meanwhile.
    sqlx::raw_sql("VACUUM ANALYZE orders, reservations, tickets, draws").execute(database).await?;
    Ok(orders.into_iter().map(|(order, draw, quantity)| paid_event(order, draw, quantity)).collect())
}

fn paid_event(order: Uuid, draw: Uuid, quantity: i64) -> Value {
    let data = json!({ "order_id": order, "reference": format!("b-{order}"), "version": 2, "amount_minor": 500 * quantity, "currency": "EUR",
        "customer": { "email": "ann@example.com", "name": "Ann", "phone": null },
        "lines": [{ "description": "Tickets", "quantity": quantity, "amount_minor": 500 * quantity, "draw": draw }], "paid_at": "2026-11-29T10:00:00.000000Z",
        "payment": { "provider": "stripe", "account": "", "payment_id": format!("pi_{order}"), "amount_minor": 500 * quantity, "currency": "EUR", "settled_minor": 500 * quantity } });
    event("order.paid", order, &data)
}

/// The minting transaction alone: dedupe rows, ranges and `tickets.issued`, committed, from as many connections as two replicas have.
async fn transactions(stage: &Stage, events: &[Value]) -> anyhow::Result<f64> {
    let mut events: Vec<Event> = events.iter().map(|event| Event::read(event.to_string().as_bytes())).collect::<Result<_, _>>()?;
    events.sort_by_key(|event| event.id);
    let count = events.len();
    let mut parts: Vec<Vec<Vec<Event>>> = (0..CONNECTIONS).map(|_| Vec::new()).collect();
    for (nth, batch) in events.chunks(BATCH).enumerate() {
        parts[nth % CONNECTIONS].push(batch.to_vec());
    }
    let mut ready = Vec::new();
    for part in parts {
        let mut database = PgConnection::connect(&stage.database_url).await?;
        for (setting, value) in counterfoil_chassis::postgres::BY_INDEX.into_iter().chain(counterfoil_tickets::SESSION) {
            sqlx::query("SELECT set_config($1, $2, false)").bind(setting).bind(value).execute(&mut database).await?;
        }
        ready.push((database, part));
    }
    let begun = Instant::now();
    let minters: Vec<_> = ready.into_iter().map(|(database, part)| tokio::spawn(mint(database, part))).collect();
    for minter in minters {
        minter.await??;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

async fn mint(mut database: PgConnection, batches: Vec<Vec<Event>>) -> anyhow::Result<()> {
    for batch in batches {
        let mut tx = database.begin().await?;
        let ids: Vec<Uuid> = batch.iter().map(|event| event.id).collect();
        anyhow::ensure!(insert_done(&mut tx, "tickets", &ids).await?.len() == batch.len(), "some of the events were done already");
        counterfoil_tickets::apply(&mut tx, &batch.iter().collect::<Vec<_>>()).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The real consumer on a full queue: the rate between its first and its last batch.
async fn consumed(stage: &Stage, database: &mut PgConnection, events: &[Value]) -> anyhow::Result<f64> {
    sqlx::raw_sql("TRUNCATE outbox, processed_events").execute(&mut *database).await?;
    stage.put_events("tickets", events).await;
    let _consumer = Fleet::on(stage).with("COUNTERFOIL_LOG", "warn").consumer("tickets");
    let count = i64::try_from(events.len())?;
    until("all are minted", 300, count, async || stage.count("SELECT count(*) FROM processed_events").await).await;
    until("all are acked", 60, 0, async || stage.waiting("counterfoil.tickets").await).await;
    let issued = stage.count("SELECT count(*) FROM outbox WHERE topic = 'tickets.issued'").await;
    anyhow::ensure!(issued == count, "{issued} of {count} orders were told their numbers");
    let (seconds, first): (f64, i64) = sqlx::query_as(
        "SELECT extract(epoch FROM max(done_at) - min(done_at))::float8, count(*) FILTER (WHERE done_at = (SELECT min(done_at) FROM processed_events)) FROM processed_events",
    )
    .fetch_one(database)
    .await?;
    Ok((count - first) as f64 / seconds)
}
