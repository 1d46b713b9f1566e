//! The processes on a payment's way go by index, though they planned their statements when the tables were empty.

use counterfoil_tests::{CrmStub, Fleet, Shop, Simulator, SmtpStub, Stage, stripe_event, until};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};

/// Orders that come after the plans were made.
const GROWN: i64 = 20_000;

/// What a shop of some months has, before autovacuum has looked at any of it.
const GROW: &str = "
    SET session_replication_role = replica;
    INSERT INTO orders (reference, amount_minor, currency, made_by_scope, made_by_key) SELECT 'old-' || n, 500, 'EUR', 'old', 'k-' || n FROM generate_series(1, 20000) n;
    INSERT INTO payments (provider, payment_id, order_id, status) SELECT 'stripe', 'pi_' || id, id, 'pending' FROM orders WHERE reference LIKE 'old-%';
    INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome) SELECT 'stripe', 'evt_' || id, 't', '', 0, 'applied' FROM orders WHERE reference LIKE 'old-%';
    INSERT INTO outbox (event_id, topic, order_id, routing_key, payload, published_at) SELECT id, 'order.paid', id, 'order.paid', '{}', now() FROM orders WHERE reference LIKE 'old-%';
    INSERT INTO draws (reference, name, capacity) SELECT 'old-' || n, 'Old', 10 FROM generate_series(1, 20000) n;
    INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at)
        SELECT gen_random_uuid(), o.id, 0, d.id, 1, 'confirmed', now() FROM orders o JOIN draws d USING (reference) WHERE reference LIKE 'old-%';
    INSERT INTO tickets (order_id, line, draw_id, draw_ordinal, first_number, last_number) SELECT r.order_id, 0, d.id, d.ordinal, 1, 1 FROM reservations r JOIN draws d ON d.id = r.draw_id WHERE d.reference LIKE 'old-%';
    INSERT INTO ticket_standings (order_id, version, order_status) SELECT id, 2, 'refunded' FROM orders WHERE reference LIKE 'old-%';
    INSERT INTO idempotency_keys (scope, key, request_hash, status, response_status, response_body, completed_at)
        SELECT 'old', 'k-' || n, '', 'completed', 201, '{}', now() FROM generate_series(1, 20000) n;
    INSERT INTO processed_events (consumer, event_id, state, done_at) SELECT c, o.id, 'done', now() FROM orders o, unnest(ARRAY['email', 'crm', 'ledger', 'tickets', 'refunds']) c WHERE reference LIKE 'old-%';
    INSERT INTO ledger_entries (source_event_id, order_id, payment_provider, payment_account, payment_id, topic, occurred_at) SELECT id, id, 'stripe', '', 'pi_' || id, 'order.paid', now() FROM orders WHERE reference LIKE 'old-%';
    INSERT INTO ledger_lines (entry_id, account, amount_minor, currency) SELECT e.id, a, 0, 'EUR' FROM ledger_entries e, unnest(ARRAY['a', 'b']) a WHERE topic = 'order.paid' AND payment_id = 'pi_' || order_id;
    INSERT INTO receipts (event_id, order_id, kind, message_id) SELECT id, id, 'receipt', 'm' FROM orders WHERE reference LIKE 'old-%';
    INSERT INTO refunds (id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, provider_key)
        SELECT id, id, 'stripe', '', 'pi_' || id, 're_' || id, 'api', 'succeeded', 1, 'EUR', 'k' || id FROM orders WHERE reference LIKE 'old-%'";

/// Rows that were read of each table whole, and of each index.
async fn read_by_index(stage: &Stage) -> Vec<(String, i64)> {
    let rows = sqlx::query(
        "SELECT relname::text AS name, seq_tup_read AS read FROM pg_stat_user_tables
         UNION ALL SELECT relname || ' by ' || indexrelname, idx_tup_read FROM pg_stat_user_indexes ORDER BY 1",
    );
    rows.fetch_all(&stage.pool()).await.unwrap().into_iter().map(|row| (row.get("name"), row.get("read"))).collect()
}

/// Twenty orders of one ticket, paid once by three event types and once by a payment that is one too many; one is sent back.
async fn sell(stage: &Stage, shop: &Shop, simulator: &Simulator, prefix: &str) {
    let after = stage.count("SELECT COALESCE(max(id), 0) FROM outbox").await;
    for nth in 0..20 {
        let reference = format!("{prefix}-{nth}");
        let lines = json!([{ "description": "Ticket", "quantity": 1, "amount_minor": 1099, "draw": "D" }]);
        let body = json!({ "reference": reference, "amount_minor": 1099, "currency": "EUR", "lines": lines, "customer": { "email": "ann@example.com", "name": "Ann" } });
        let made = shop.post_order(&body, Some(&reference)).await;
        assert_eq!(made.status(), 201);
        let made: Value = made.json().await.unwrap();
        let order = made["id"].as_str().unwrap();
        let (first, second) = (format!("pi_{reference}_1"), format!("pi_{reference}_2"));
        simulator.captured("stripe", &first, order, 1099);
        simulator.captured("stripe", &second, order, 1099);
        for (kind, name, payment) in [
            ("payment_intent.payment_failed", order, &first),
            ("payment_intent.succeeded", &reference, &first),
            ("charge.succeeded", order, &first),
            ("charge.succeeded", order, &second),
            ("charge.succeeded", "of an order that is not here", &format!("pi_{reference}_3")),
        ] {
            assert_eq!(shop.stripe(&stripe_event(kind, name, payment, &json!({}))).await.0, 200);
        }
        if nth == 0 {
            assert_eq!(shop.refund(order, 1099, &reference).await.0, 201);
        }
    }
    // By index, too: what this test reads is counted with the rest.
    let mut database = PgConnection::connect(&stage.database_url).await.unwrap();
    sqlx::raw_sql("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off").execute(&mut database).await.unwrap();
    for consumer in ["email", "crm", "ledger", "tickets", "refunds"] {
        let topics = counterfoil_broker::topology::CONSUMERS.iter().find(|known| known.name == consumer).unwrap().topics;
        until(&format!("{consumer} has done everything"), 60, 0, async || {
            sqlx::query_scalar::<_, i64>("SELECT count(*) FROM outbox o WHERE id > $3 AND topic = ANY ($1) AND NOT EXISTS (SELECT FROM processed_events p WHERE p.consumer = $2 AND p.event_id = o.event_id AND p.state = 'done')")
                .bind(topics).bind(consumer).bind(after).fetch_one(&mut database).await.unwrap()
        })
        .await;
    }
}

/// Rows that were read of each table, whole or by an index.
async fn read(stage: &Stage) -> Vec<(String, i64)> {
    let rows = sqlx::query(
        "SELECT t.relname::text AS name, (t.seq_tup_read + COALESCE(sum(i.idx_tup_read), 0))::bigint AS read
         FROM pg_stat_user_tables t LEFT JOIN pg_stat_user_indexes i USING (relid) GROUP BY t.relid, t.relname, t.seq_tup_read ORDER BY 1",
    );
    rows.fetch_all(&stage.pool()).await.unwrap().into_iter().map(|row| (row.get("name"), row.get("read"))).collect()
}

#[tokio::test]
async fn no_process_reads_a_table_whole_for_a_payment_though_it_was_empty_when_its_statements_were_planned() {
    let (stage, simulator, smtp, crm) = (Stage::new().await, Simulator::start().await, SmtpStub::start().await, CrmStub::start().await);
    stage
        .execute(
            "DO $$ DECLARE t text; BEGIN FOR t IN SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
                EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', t); END LOOP; END $$;
            INSERT INTO draws (reference, name) VALUES ('D', 'Draw')",
        )
        .await;
    let fleet = Fleet::on(&stage).with_simulator(&simulator).with("COUNTERFOIL_SMTP_URL", smtp.url.clone()).with("COUNTERFOIL_CRM_URL", crm.url.clone());
    let (ingest, shop) = fleet.ingest().await;
    let mut processes = vec![ingest, fleet.relay().ready().await];
    for consumer in ["email", "crm", "ledger", "tickets", "refunds"] {
        processes.push(fleet.consumer(consumer).ready().await);
    }
    sell(&stage, &shop, &simulator, "first").await;
    stage.execute(GROW).await;
    let before = read(&stage).await;
    sell(&stage, &shop, &simulator, "then").await;
    processes.iter_mut().for_each(|process| process.kill());
    // A session tells what it has read when it ends.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'counterfoil%'";
    until("their sessions have ended", 20, 0, async || stage.count(sessions).await).await;
    let deltas = before.into_iter().zip(read(&stage).await).map(|((table, before), (_, after))| (table, after - before));
    let much: Vec<(String, i64)> = deltas.filter(|(_, rows)| *rows > GROWN * 10).collect();
    assert_eq!(much, [], "so many rows of these tables were read for 20 orders: what a payment costs would grow with them");
}

/// Settled payments that a shop has, and what they left behind.
const SETTLED: &str = "
    SET session_replication_role = replica;
    INSERT INTO orders (id, reference, status, version, amount_minor, currency, paid_provider, paid_account, paid_payment_id, paid_at, created_at, updated_at)
        SELECT gen_random_uuid(), 'old-' || n, 'paid', 2, 500, 'EUR', 'stripe', '', 'pi_' || n, now() - interval '30 days', now() - interval '30 days', now() - interval '30 days' FROM generate_series(1, 200000) n;
    INSERT INTO payments (provider, payment_id, order_id, status, disposition, amount_minor, currency, settled_minor, fits, booked_captured_minor, booked_settled_minor, created_at, updated_at)
        SELECT 'stripe', paid_payment_id, id, 'captured', 'settled', 500, 'EUR', 500, true, 500, 500, paid_at, paid_at FROM orders;
    INSERT INTO webhook_events (provider, event_id, event_type, body, secret_position, outcome, payment_account, payment_id, received_at, processed_at)
        SELECT 'stripe', 'evt_' || id, 't', '', 0, 'applied', '', paid_payment_id, paid_at, paid_at FROM orders;
    INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, created_at, published_at) SELECT id, 'order.paid', id, 2, 'order.paid', '{}', paid_at, paid_at FROM orders;
    INSERT INTO processed_events (consumer, event_id, state, done_at, created_at, updated_at) SELECT c, id, 'done', paid_at, paid_at, paid_at FROM orders, unnest(ARRAY['ledger', 'email']) c;
    INSERT INTO ledger_entries (source_event_id, order_id, payment_provider, payment_account, payment_id, topic, occurred_at) SELECT id, id, 'stripe', '', paid_payment_id, 'order.paid', paid_at FROM orders;
    INSERT INTO ledger_lines (entry_id, account, amount_minor, currency) SELECT e.id, l.account, l.minor, 'EUR' FROM ledger_entries e, (VALUES ('assets:receivable:stripe', 500), ('income:sales', -500)) l (account, minor);
    INSERT INTO refunds (id, order_id, provider, account, payment_id, provider_refund_id, origin, status, amount_minor, currency, provider_key, answered, created_at, updated_at)
        SELECT id, id, 'stripe', '', paid_payment_id, 're_' || reference, 'api', CASE WHEN reference LIKE '%0' THEN 'failed' ELSE 'succeeded' END, 1, 'EUR', 'k' || reference, true, paid_at, paid_at FROM orders WHERE reference LIKE '%0' OR reference LIKE '%5';
    INSERT INTO disputes (provider, account, dispute_id, order_id, payment_id, status, amount_minor, currency, created_at, updated_at)
        SELECT 'stripe', '', 'dp_' || reference, id, paid_payment_id, 'won', 1, 'EUR', paid_at, paid_at FROM orders WHERE reference LIKE '%00';
    INSERT INTO provider_reads (order_id, reads, next_read_at) SELECT id, 1, now() - interval '20 days' FROM orders WHERE reference LIKE '%0';
    INSERT INTO ticket_standings (order_id, version, order_status) SELECT id, 3, 'paid' FROM orders WHERE reference LIKE '%0';
    INSERT INTO idempotency_keys (scope, key, request_hash, status, response_status, response_body, created_at, completed_at) SELECT 'old', reference, '', 'completed', 201, '{}', now() - interval '9 days', now() - interval '9 days' FROM orders;
    UPDATE audit_marks SET outbox_id = (SELECT max(id) FROM outbox);
    UPDATE books_compared SET outbox_id = (SELECT max(id) FROM outbox);
    SET session_replication_role = origin;
    SELECT brin_summarize_new_values('outbox_by_age'), brin_summarize_new_values('orders_by_paid_at');
    ANALYZE";

/// Rows of each table that all looks together may read: what is open, a few pages of an index, and 500 orders in turn.
const LOOKED_AT: i64 = 20_000;

/// What housekeeping, the console, status, attention and the watches look at again and again is what is open: a shop with
/// 200,000 settled payments costs them no more than one with none.
#[tokio::test]
async fn what_recurs_costs_what_is_open_not_what_has_been() {
    let stage = Stage::new().await;
    stage.execute(SETTLED).await;
    let listen = format!("127.0.0.1:{}", counterfoil_tests::fleet::free_port());
    let fleet = Fleet::on(&stage)
        .with("COUNTERFOIL_HOUSEKEEP_SELDOM_S", "2")
        .with("COUNTERFOIL_CONSOLE_LISTEN", &listen)
        .with("COUNTERFOIL_CONSOLE_TOKENS", "ann:operator:operator-token-canary-0123456789");
    let before = read_by_index(&stage).await;
    let mut processes = [fleet.housekeep().ready().await, fleet.run_long("console").ready().await, fleet.relay().ready().await, fleet.ingest().await.0];
    for task in ["waiting", "retention", "books", "reads", "refunds", "watch", "lost", "places", "expiry", "keys", "deferred"] {
        until(&format!("{task} has run"), 60, true, async || {
            let ran = format!("SELECT count(*) FROM task_runs WHERE task = '{task}'");
            sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(ran)).fetch_one(&stage.pool()).await.unwrap() > 0
        })
        .await;
    }
    for command in [["status"].as_slice(), &["attention"], &["outbox", "list"], &["dead-letters", "list"], &["providers"]] {
        let (code, said) = fleet.counterfoil(command).await;
        assert!(code.is_some_and(|code| code <= 1), "{command:?}: {said}");
    }
    processes.iter_mut().for_each(|process| process.kill());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'counterfoil%'";
    until("their sessions have ended", 20, 0, async || stage.count(sessions).await).await;
    let deltas = before.into_iter().zip(read_by_index(&stage).await).map(|((table, before), (_, after))| (table, after - before));
    let much: Vec<(String, i64)> = deltas.filter(|(_, rows)| *rows > LOOKED_AT).collect();
    assert_eq!(much, [], "so many rows of these tables were read again and again: what is looked at would grow with what has been");
}
