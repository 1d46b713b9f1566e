//! A shop that had draws, sessions and the procedure of the well-known kind moves to Counterfoil, as docs/existing-shops.md says.

use counterfoil_tests::stage::root;
use counterfoil_tests::{Fleet, Stage, stripe_event, until};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

/// What such a shop has.
const LEGACY: &str = "
CREATE TABLE draws (id bigint PRIMARY KEY, title text NOT NULL, max_tickets bigint, tickets_sold bigint NOT NULL DEFAULT 0);
CREATE TABLE checkout_sessions (id bigint PRIMARY KEY, draw_id bigint NOT NULL REFERENCES draws (id), quantity bigint NOT NULL, amount_minor bigint NOT NULL, currency text NOT NULL,
    email text, name text, status text NOT NULL DEFAULT 'pending', expires_at timestamptz NOT NULL DEFAULT now() + interval '30 minutes', created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session_id bigint NOT NULL UNIQUE REFERENCES checkout_sessions (id), payment_intent_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session_id bigint NOT NULL UNIQUE REFERENCES checkout_sessions (id), draw_id bigint NOT NULL REFERENCES draws (id),
    first_number bigint NOT NULL, last_number bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE FUNCTION complete_checkout(session bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE s checkout_sessions; last bigint;
BEGIN
    SELECT * INTO s FROM checkout_sessions WHERE id = session FOR UPDATE;
    IF s.status = 'completed' THEN RETURN NULL; END IF;
    UPDATE draws SET tickets_sold = tickets_sold + s.quantity WHERE id = s.draw_id RETURNING tickets_sold INTO last;
    INSERT INTO entries (session_id, draw_id, first_number, last_number) VALUES (session, s.draw_id, last - s.quantity + 1, last);
    INSERT INTO orders (session_id, payment_intent_id) VALUES (session, 'pi_' || session);
    UPDATE checkout_sessions SET status = 'completed' WHERE id = session;
    RETURN last;
END $$;
INSERT INTO draws (id, title, max_tickets) VALUES (1, 'Old draw', 40), (2, 'Open end', NULL);
INSERT INTO checkout_sessions (id, draw_id, quantity, amount_minor, currency, email, name)
    SELECT n, 1 + n % 2, 3, 1500, 'eur', 'buyer' || n || '@example.com', 'Buyer ' || n FROM generate_series(1, 30) AS n;
UPDATE checkout_sessions SET status = 'expired', expires_at = now() - interval '1 day' WHERE id > 28;
SELECT complete_checkout(n) FROM generate_series(1, 20) AS n;
";

fn script(name: &str) -> String {
    let text = std::fs::read_to_string(root().join("deploy/existing-shop").join(name)).unwrap();
    assert!(text.contains("\n\\set ON_ERROR_STOP on\n"), "psql must not go on, nor end with 0, after an error");
    text.replace("\\set ON_ERROR_STOP on", "")
}

#[tokio::test]
async fn a_shop_with_sessions_and_a_procedure_moves_keeps_every_number_and_its_open_sessions_are_paid_here() {
    let stage = Stage::empty().await;
    stage.execute(LEGACY).await;
    // A session of the shop's, which lasts through the move.
    let mut shop = PgConnection::connect(&stage.database_url).await.unwrap();
    sqlx::raw_sql("SET search_path = legacy, public; SELECT complete_checkout(20)").execute(&mut shop).await.unwrap();
    stage.execute(&script("1-before.sql")).await;
    let last: i64 = sqlx::query_scalar("SELECT complete_checkout(21)").fetch_one(&mut shop).await.unwrap();
    assert_eq!(last, 33, "until the switch the shop goes on selling");
    counterfoil_migrate::migrate(&stage.target()).await.unwrap();
    // What a call of the procedure does that has begun when the switch comes: its old body goes on afterwards.
    stage.execute(&script("2-switch.sql")).await;
    let under_way = "UPDATE draws SET tickets_sold = tickets_sold + 3 WHERE id = 2; INSERT INTO entries (session_id, draw_id, first_number, last_number) VALUES (23, 2, 34, 36)";
    let refused = sqlx::raw_sql(under_way).execute(&mut shop).await.unwrap_err();
    assert!(refused.to_string().contains("sold by Counterfoil now"), "{refused}");
    let counts = async || {
        let mut counts = Vec::new();
        for query in [
            "SELECT count(*) FROM orders WHERE status = 'paid'",
            "SELECT count(*) FROM orders WHERE status = 'pending_payment'",
            "SELECT count(*) FROM tickets",
            "SELECT count(*) FROM reservations WHERE status = 'held'",
            "SELECT sum(reserved)::bigint FROM draws",
            "SELECT count(*) FROM outbox",
        ] {
            counts.push(stage.count(query).await);
        }
        counts
    };
    // Draw 1 has 40, of which 30 are sold: of its four open sessions of three, three have their place; two are over, and have none.
    assert_eq!(counts().await, [21, 9, 21, 6, 63 + 18, 0]);
    stage.execute(&script("2-switch.sql")).await;
    assert_eq!(counts().await, [21, 9, 21, 6, 63 + 18, 0], "again, it adds nothing");
    let same = "SELECT count(*) FROM legacy.entries e JOIN orders o ON o.reference = e.session_id::text JOIN tickets t ON t.order_id = o.id AND t.first_number = e.first_number AND t.last_number = e.last_number";
    assert_eq!(stage.count(same).await, 21, "every number is whose it was");
    let sold = sqlx::query_scalar::<_, i64>("SELECT legacy.complete_checkout(22)").fetch_one(&stage.pool()).await.unwrap_err();
    assert!(sold.to_string().contains("sold by Counterfoil now"), "{sold}");
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let _processes = [fleet.relay().ready().await, fleet.consumer("tickets").ready().await];
    let amount = json!({ "amount": 1500, "amount_received": 1500 });
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", "5", "pi_5", &amount)).await.1, "superseded", "paid before the move: known");
    for session in 22..=29 {
        assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", &session.to_string(), &format!("pi_{session}"), &amount)).await.1, "applied");
    }
    until("the open sessions are served, and one that was over", 30, 28, async || stage.count("SELECT count(*) FROM tickets").await).await;
    until("the one without a place is told", 30, 1, async || stage.count("SELECT count(*) FROM outbox WHERE topic = 'tickets.unavailable'").await).await;
    for draw in ["draw-1", "draw-2"] {
        let (code, said) = fleet.counterfoil(&["draws", "audit", draw, "--settled-s", "3600"]).await;
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(stage.count("SELECT count(*) FROM outbox WHERE topic = 'order.paid'").await, 8, "nothing is announced for what was sold before");
    let read: Value = shop.read("5").await.json().await.unwrap();
    assert_eq!((&read["status"], &read["tickets"][0]["status"]), (&json!("paid"), &json!("valid")));
}

#[tokio::test]
async fn a_shop_with_an_entry_that_nobody_paid_for_is_refused_the_switch_and_nothing_is_changed() {
    let stage = Stage::empty().await;
    stage.execute(LEGACY).await;
    stage.execute(&script("1-before.sql")).await;
    counterfoil_migrate::migrate(&stage.target()).await.unwrap();
    stage.execute("DELETE FROM legacy.orders WHERE session_id = 3").await;
    let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(script("2-switch.sql"))).execute(&stage.pool()).await.unwrap_err();
    assert_eq!(refused.as_database_error().and_then(|error| error.constraint()), Some("orders_paid_names_its_payment"), "{refused}");
    assert_eq!(stage.count("SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM draws)").await, 0);
}
