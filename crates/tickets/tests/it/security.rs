//! Row-level security: a customer-facing reader sees its customer's rows and nothing else, through whatever it tries.

use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::support::Shop;

/// A word that stands in every row of the other customer.
const CANARY: &str = "canary-of-bob";

async fn become_reader(connection: &mut PgConnection, customer: &str) {
    sqlx::query("SET ROLE counterfoil_customer").execute(&mut *connection).await.unwrap();
    sqlx::query("SELECT set_config('counterfoil.customer_id', $1, false)").bind(customer).execute(connection).await.unwrap();
}

/// An order of a customer with tickets, receipt and claim token; the other's names carry the canary.
async fn bought(shop: &Shop, draw: &counterfoil_tickets::Draw, customer: &str, mark: &str) -> Uuid {
    let order = shop.sold(draw, 2).await;
    shop.stage.execute(&format!("UPDATE orders SET customer_id = '{customer}', customer_name = '{mark}', customer_email = '{mark}@example.com', reference = '{mark}-{order}' WHERE id = '{order}';
        INSERT INTO receipts (event_id, order_id, kind, message_id) VALUES ('{order}', '{order}', 'receipt', '<{mark}@shop>');
        INSERT INTO claim_tokens (id, order_id, meant_for, expires_at) VALUES ('{order}', '{order}', '{mark}', now())")).await;
    order
}

#[tokio::test]
async fn a_reader_sees_its_own_customers_rows_and_others_through_no_table_and_no_view() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    let anns = bought(&shop, &draw, "ann", "mark-of-ann").await;
    let bobs = bought(&shop, &draw, "bob", CANARY).await;
    let nobodys = shop.sold(&draw, 1).await;
    let mut connection = shop.pool.acquire().await.unwrap();
    let relations: Vec<String> = sqlx::query_scalar(
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind IN ('r', 'v', 'm', 'p', 'f') ORDER BY 1",
    )
    .fetch_all(&mut *connection)
    .await
    .unwrap();
    assert!(relations.len() > 18, "{relations:?}");
    become_reader(&mut connection, "ann").await;
    let mut readable = Vec::new();
    for relation in &relations {
        let columns: Vec<String> = sqlx::query_scalar("SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND has_column_privilege(attrelid, attnum, 'SELECT')")
            .bind(relation)
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        let refused = sqlx::query(AssertSqlSafe(format!("SELECT * FROM {relation}"))).fetch_all(&mut *connection).await.is_err();
        assert!(refused || !columns.is_empty());
        if columns.is_empty() {
            continue;
        }
        readable.push(relation.trim_start_matches("public.").to_owned());
        let rows =
            sqlx::query(AssertSqlSafe(format!("SELECT concat_ws('|', {}) FROM {relation}", columns.join(", ")))).fetch_all(&mut *connection).await.unwrap();
        for row in &rows {
            let text: String = row.get(0);
            assert!(!text.contains(CANARY) && !text.contains(&bobs.to_string()) && !text.contains(&nobodys.to_string()), "{relation}: {text}");
        }
        let own = rows.iter().filter(|row| row.get::<String, _>(0).contains(&anns.to_string())).count();
        assert_eq!(own, usize::from(relation != "public.draws"), "{relation}: ann's own row is there");
    }
    assert_eq!(readable, ["draws", "orders", "receipts", "reservations", "tickets"]);
}

#[tokio::test]
async fn a_reader_without_a_customer_sees_nothing_and_may_write_nothing() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    bought(&shop, &draw, "ann", "mark-of-ann").await;
    let mut connection = shop.pool.acquire().await.unwrap();
    for customer in ["", "eve", "' OR true --", "%"] {
        become_reader(&mut connection, customer).await;
        for table in ["orders", "reservations", "tickets", "receipts"] {
            let column = if table == "orders" { "id" } else { "order_id" };
            let rows = sqlx::query(AssertSqlSafe(format!("SELECT {column} FROM {table}"))).fetch_all(&mut *connection).await.unwrap();
            assert!(rows.is_empty(), "{customer:?} reads {table}");
        }
    }
    become_reader(&mut connection, "ann").await;
    for statement in [
        "UPDATE orders SET customer_id = 'eve'",
        "DELETE FROM tickets",
        "INSERT INTO receipts DEFAULT VALUES",
        "SELECT made_by_key FROM orders",
        "TRUNCATE reservations",
        "SELECT * FROM payment_chain",
        "SELECT * FROM draw_lines",
    ] {
        let error = sqlx::query(statement).execute(&mut *connection).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("42501"), "{statement}");
    }
}

#[tokio::test]
async fn a_process_whose_role_does_not_own_the_tables_still_sees_and_writes_all_rows() {
    let shop = Shop::open().await;
    let draw = shop.draw(None).await;
    bought(&shop, &draw, "ann", "mark-of-ann").await;
    bought(&shop, &draw, "bob", CANARY).await;
    let role = format!("fleet_{}", Uuid::new_v4().simple());
    let mut connection = shop.pool.acquire().await.unwrap();
    let all = format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}");
    for statement in [format!("CREATE ROLE {role}"), all, format!("SET ROLE {role}")] {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut *connection).await.unwrap();
    }
    for table in ["orders", "reservations", "tickets", "receipts"] {
        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {table}"))).fetch_one(&mut *connection).await.unwrap();
        assert_eq!(rows, 2, "{table}");
    }
    let written = "WITH o AS (INSERT INTO orders (reference, amount_minor, currency) VALUES ('by-the-fleet', 1, 'EUR') RETURNING id),
        r AS (INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at) SELECT id, id, 0, (SELECT id FROM draws), 1, 'held', now() FROM o)
        UPDATE tickets SET status = 'void', voided_at = now()";
    assert_eq!(sqlx::query(written).execute(&mut *connection).await.unwrap().rows_affected(), 2, "and writes");
    sqlx::query("RESET ROLE").execute(&mut *connection).await.unwrap();
    for statement in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        sqlx::query(AssertSqlSafe(statement)).execute(&mut *connection).await.unwrap();
    }
}
