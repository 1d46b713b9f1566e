//! `counterfoil draws`: the proof on the command line, and the entry list as an auditor verifies it.

use std::process::Command;

use counterfoil_tests::{Fleet, Stage};
use serde_json::Value;

/// A draw of five tickets that were paid for, by SQL; the order's reference needs quoting.
const SOLD: &str = "
INSERT INTO draws (reference, name, capacity, reserved, minted, charity_numerator, charity_denominator) VALUES ('D', 'Autumn draw', 10, 5, 5, 1, 3);
INSERT INTO orders (id, reference, amount_minor, currency, status, version, paid_provider, paid_account, paid_payment_id, paid_at, lines, updated_at)
    SELECT gen_random_uuid(), 'A \"' || n || '\", first', 1000 * n + 1, 'EUR', 'paid', 2, 'stripe', '', 'pi_' || n, now(),
        jsonb_build_array(jsonb_build_object('description', 'Tickets', 'quantity', n, 'amount_minor', 1000 * n + 1, 'draw', d.id)), now() - interval '1 hour' FROM generate_series(2, 3) AS n, draws d;
INSERT INTO payments (provider, account, payment_id, order_id, status, disposition, amount_minor, currency, settled_minor, booked_captured_minor, booked_settled_minor)
    SELECT 'stripe', '', paid_payment_id, id, 'captured', 'settled', amount_minor, currency, amount_minor, amount_minor, amount_minor FROM orders;
INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at) SELECT gen_random_uuid(), o.id, 0, d.id, (lines -> 0 ->> 'quantity')::bigint, 'confirmed', now() FROM orders o, draws d;
INSERT INTO tickets (order_id, line, draw_id, draw_ordinal, first_number, last_number)
    SELECT r.order_id, 0, d.id, d.ordinal, CASE quantity WHEN 2 THEN 1 ELSE 3 END, CASE quantity WHEN 2 THEN 2 ELSE 5 END FROM reservations r, draws d;
";

/// What docs/tickets.md tells an auditor to run, in the folder of the three files.
fn verify() -> String {
    let page = std::fs::read_to_string(counterfoil_tests::stage::root().join("docs/tickets.md")).unwrap();
    let block = page.split("```").find(|block| block.contains("pkeyutl")).unwrap();
    format!("set -e\n{block}")
}

fn shell(folder: &std::path::Path, script: &str) -> (bool, String) {
    let out = Command::new("bash").args(["-c", script]).current_dir(folder).output().unwrap();
    (out.status.success(), format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)))
}

#[tokio::test]
async fn the_audit_prints_its_proof_as_a_table_and_as_json_and_its_exit_code_says_whether_it_holds() {
    let stage = Stage::with_schema().await;
    stage.execute(SOLD).await;
    let fleet = Fleet::on(&stage);
    let (code, table) = fleet.counterfoil(&["draws", "audit", "D"]).await;
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("everything adds up") && table.contains("16.67 EUR") && table.contains("33.35 EUR"), "{table}");
    let (code, json) = fleet.counterfoil(&["draws", "audit", "D", "--json"]).await;
    let proof: Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(
        (code, &proof["ok"], &proof["proceeds"][0]["net_minor"], &proof["proceeds"][0]["charity_minor"]),
        (Some(0), &true.into(), &5002.into(), &1667.into())
    );
    stage.execute("DELETE FROM tickets WHERE first_number = 1").await;
    let (code, table) = fleet.counterfoil(&["draws", "audit", "D"]).await;
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("WRONG") && table.contains("it is paid for, and has no tickets") && table.contains("does not add up"), "{table}");
    let (code, json) = fleet.counterfoil(&["draws", "audit", "D", "--json"]).await;
    assert!(code == Some(1) && json.contains("\"ok\": false"));
    let (code, said) = fleet.counterfoil(&["draws", "audit", "E"]).await;
    assert!(code == Some(1) && said.contains("no draw has this id or reference"), "{said}");
}

#[tokio::test]
async fn the_entry_list_is_verified_by_openssl_and_sha256sum_and_every_change_of_it_shows() {
    let stage = Stage::with_schema().await;
    stage.execute(SOLD).await;
    let folder = std::env::temp_dir().join(format!("counterfoil-entries-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&folder).unwrap();
    assert!(shell(&folder, "openssl genpkey -algorithm ed25519 -out key.pem").0);
    let key = std::fs::read_to_string(folder.join("key.pem")).unwrap();
    let fleet = Fleet::on(&stage).with("COUNTERFOIL_EXPORT_KEY", key);
    let to = folder.join("list");
    let (code, said) = fleet.counterfoil(&["draws", "export", "D", "--to", to.to_str().unwrap()]).await;
    assert_eq!(code, Some(0), "{said}");
    let (sound, told) = shell(&to, &verify());
    assert!(sound && told.contains("unbroken"), "{told}");
    let last = told.split("last hash ").nth(1).unwrap().trim().to_owned();
    assert!(said.contains(&last), "the command names the last hash, too");
    let list = std::fs::read_to_string(to.join("entries.csv")).unwrap();
    assert_eq!(list.lines().count(), 4);
    assert!(list.lines().skip(1).all(|line| line.starts_with("D,")) && list.lines().last().unwrap().starts_with("D,,,5,,,end,20"), "{list}");
    let (again, refused) = fleet.counterfoil(&["draws", "export", "D", "--to", to.to_str().unwrap()]).await;
    assert!(again == Some(1) && refused.contains("not overwritten"), "{refused}");
    for changed in [
        list.replace("D,3,5,3", "D,3,6,4"),
        list.replace("D,", "E,"),
        list.lines().rev().collect::<Vec<_>>().join("\n"),
        list.lines().take(2).map(|line| format!("{line}\n")).collect(),
    ] {
        std::fs::write(to.join("entries.csv"), changed).unwrap();
        assert!(!shell(&to, &verify()).0, "a change shows");
    }
    let chain_alone: String = verify().lines().filter(|line| !line.contains("openssl")).map(|line| format!("{line}\n")).collect();
    std::fs::write(to.join("entries.csv"), list.replace("valid", "void")).unwrap();
    assert!(shell(&to, &chain_alone).1.contains("broken at"), "by the chain alone");
    let wrong = Fleet::on(&stage).with("COUNTERFOIL_EXPORT_KEY", "not a key");
    let (code, said) = wrong.counterfoil(&["draws", "export", "D", "--to", "x"]).await;
    assert!(code == Some(64) && said.contains("openssl genpkey"), "{code:?} {said}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn secrets_of_the_tool_read_from_files_in_front_of_a_subcommand() {
    let stage = Stage::with_schema().await;
    stage.execute(SOLD).await;
    let file = std::env::temp_dir().join(format!("counterfoil-url-{}", uuid::Uuid::new_v4()));
    std::fs::write(&file, format!("{}\n", stage.database_url)).unwrap();
    let mut fleet = Fleet::on(&stage).with("COUNTERFOIL_DATABASE_URL_FILE", file.to_str().unwrap());
    fleet.without.push("COUNTERFOIL_DATABASE_URL");
    assert_eq!(fleet.counterfoil(&["draws", "audit", "D"]).await.0, Some(0));
    std::fs::remove_file(file).unwrap();
}
