//! The shape of the workspace: who depends on whom, and the house rules that no compiler enforces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};
use counterfoil_tests::stage::root;

/// Package, what of ours it may use, what must never appear in its tree.
const TABLE: &[(&str, &[&str], &[&str])] = &[
    ("payments", &[], &["tokio", "sqlx", "axum", "lapin", "reqwest"]),
    ("providers", &["payments"], &["sqlx", "axum", "lapin"]),
    ("settlement", &["payments", "outbox"], &["axum", "lapin", "reqwest"]),
    ("outbox", &[], &["lapin", "axum", "counterfoil-payments"]),
    ("inbox", &[], &["lapin", "axum", "counterfoil-payments"]),
    ("ledger", &["payments", "outbox"], &["lapin", "axum", "reqwest"]),
    ("tickets", &["payments", "outbox"], &["lapin", "axum", "reqwest"]),
    ("broker", &[], &["sqlx", "axum", "counterfoil-payments"]),
    ("chassis", &[], &["lapin", "counterfoil-payments"]),
    ("ingest", &["payments", "providers", "settlement", "outbox", "tickets", "chassis"], &["lapin", "counterfoil-broker"]),
    ("relay", &["outbox", "broker", "chassis"], &["counterfoil-payments", "counterfoil-settlement", "counterfoil-providers"]),
    ("consumers", &["payments", "providers", "settlement", "outbox", "inbox", "ledger", "tickets", "broker", "chassis"], &["counterfoil-ingest"]),
    (
        "ops",
        &["payments", "providers", "settlement", "outbox", "inbox", "ledger", "tickets", "broker", "chassis"],
        &["counterfoil-ingest", "counterfoil-relay", "counterfoil-consumers"],
    ),
    ("migrate", &["broker", "chassis"], &["counterfoil-payments", "counterfoil-settlement", "counterfoil-consumers"]),
];

/// Of this platform alone: the others' packages need not be on this machine.
fn metadata() -> Metadata {
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let host = String::from_utf8(version.stdout).unwrap().lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned)).unwrap();
    let options = vec!["--offline".to_owned(), "--filter-platform".to_owned(), host];
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).other_options(options).exec().unwrap()
}

/// Everything that a package reaches over normal edges.
fn tree(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let names: BTreeMap<&PackageId, String> = metadata.packages.iter().map(|package| (&package.id, package.name.to_string())).collect();
    let nodes: BTreeMap<&PackageId, _> = metadata.resolve.as_ref().unwrap().nodes.iter().map(|node| (&node.id, node)).collect();
    let start = metadata.packages.iter().find(|package| package.name.as_str() == name).unwrap_or_else(|| panic!("no package {name}"));
    let (mut seen, mut next) = (BTreeSet::new(), vec![&start.id]);
    while let Some(id) = next.pop() {
        for dependency in &nodes[id].deps {
            let normal = dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
            if normal && seen.insert(names[&dependency.pkg].clone()) {
                next.push(&dependency.pkg);
            }
        }
    }
    seen
}

#[test]
fn the_dependency_table_of_the_design_holds() {
    let metadata = metadata();
    for (name, may_use, never) in TABLE {
        let package = metadata.packages.iter().find(|package| package.name.as_str() == format!("counterfoil-{name}")).unwrap();
        for dependency in package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal) {
            if let Some(ours) = dependency.name.strip_prefix("counterfoil-") {
                assert!(may_use.contains(&ours), "{name} may not use {ours}");
            }
        }
        let tree = tree(&metadata, &format!("counterfoil-{name}"));
        for banned in *never {
            assert!(!tree.contains(*banned), "{banned} must never appear in the tree of {name}");
        }
    }
}

#[test]
fn one_tls_provider_is_in_the_tree_and_it_is_ring() {
    let names: BTreeSet<String> = metadata().packages.iter().map(|package| package.name.to_string()).collect();
    for process in ["ingest", "relay", "consumers", "migrate", "ops"] {
        let tree = tree(&metadata(), &format!("counterfoil-{process}"));
        assert!(!tree.contains("aws-lc-rs") && !tree.contains("openssl-sys"), "{process}");
    }
    assert!(names.contains("ring"));
}

/// Tracked and new files of the workspace, by git.
fn files(suffix: &str) -> Vec<String> {
    let out = Command::new("git").args(["ls-files", "-co", "--exclude-standard"]).current_dir(root()).output().unwrap();
    String::from_utf8(out.stdout).unwrap().lines().filter(|path| path.ends_with(suffix) && root().join(path).exists()).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn source_files_open_with_their_purpose_and_stay_within_their_budgets() {
    // In two halves, so that this file does not hold what it looks for.
    let unfinished = [["TO", "DO"], ["FIX", "ME"], ["todo", "!("], ["unimplemented", "!("], ["#[", "ignore"]].map(|halves| halves.concat());
    for path in files(".rs") {
        let text = read(&path);
        assert!(text.starts_with("//! "), "{path} does not say what it is for");
        let production = !path.contains("tests/");
        assert!(!production || text.lines().count() <= 400, "{path} has more than 400 lines");
        assert!(!path.ends_with("main.rs") || !production || text.lines().count() <= 25, "{path} is more than a thin main");
        for banned in &unfinished {
            assert!(!text.contains(banned), "{path} holds {banned}");
        }
    }
}

#[test]
fn sql_is_text_in_the_source_tests_apart() {
    for path in files(".rs").into_iter().filter(|path| !path.contains("tests/") && !path.starts_with("bench/")) {
        assert!(!read(&path).contains("AssertSqlSafe"), "{path} builds SQL: bind values instead");
    }
}

#[test]
fn no_path_has_a_word_that_says_nothing() {
    for path in files("") {
        for word in Path::new(&path).iter().flat_map(|part| part.to_str().unwrap().split(['.', '_', '-'])) {
            assert!(!["common", "core", "shared", "util", "utils", "helper", "helpers", "misc", "types", "models", "manager"].contains(&word), "{path}");
        }
    }
}

#[test]
fn each_tables_name_stands_in_one_crate_tests_and_settlements_statement_apart() {
    let owners = [
        ("outbox", "crates/outbox"),
        ("processed_events", "crates/inbox"),
        ("ledger_entries", "crates/ledger"),
        ("ledger_lines", "crates/ledger"),
        ("webhook_events", "crates/settlement"),
        ("orders", "crates/settlement"),
        ("payments", "crates/settlement"),
        ("idempotency_keys", "crates/settlement"),
        ("refunds", "crates/settlement"),
        ("disputes", "crates/settlement"),
        ("payment_claims", "crates/settlement"),
        ("attention_decisions", "crates/settlement"),
        ("books_compared", "crates/ledger"),
        ("books_differing", "crates/ledger"),
        ("provider_reads", "crates/settlement"),
        ("claim_tokens", "crates/settlement"),
        ("receipts", "crates/settlement"),
        ("draws", "crates/tickets"),
        ("reservations", "crates/tickets"),
        ("tickets", "crates/tickets"),
        ("ticket_standings", "crates/tickets"),
        ("deployment", "crates/chassis"),
        ("task_runs", "crates/chassis"),
        ("replicas", "crates/chassis"),
        ("dead_letters", "crates/inbox"),
        ("replay_items", "crates/inbox"),
        ("audit_marks", "crates/inbox"),
        ("lost_messages", "crates/inbox"),
        ("consumer_pauses", "crates/inbox"),
        ("actions", "ops"),
        ("notifications", "ops"),
    ];
    for path in files(".rs").into_iter().filter(|path| !path.contains("tests/") && !path.starts_with("bench/")) {
        let text = read(&path);
        for (table, owner) in owners {
            let named = ["FROM ", "INTO ", "UPDATE ", "JOIN "]
                .iter()
                .any(|verb| text.contains(&format!("{verb}{table} ")) || text.contains(&format!("{verb}{table}\n")));
            assert!(!named || path.starts_with(owner), "{path} touches {table}, which {owner} owns");
        }
    }
}

#[test]
fn one_place_acks_one_handles_signals_and_one_claims_the_outbox() {
    for (what, place) in [
        (".ack(", "consumers/src/runner/settle.rs"),
        ("SignalKind::terminate", "crates/chassis/src/process.rs"),
        ("FROM outbox WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0 AND next_attempt_at", "crates/outbox/src/claim.rs"),
    ] {
        let found: Vec<String> =
            files(".rs").into_iter().filter(|path| !path.contains("tests/") && !path.starts_with("bench/") && read(path).contains(what)).collect();
        assert_eq!(found, [place], "{what}");
    }
}

#[test]
fn the_schema_version_that_the_relay_writes_is_the_one_that_consumers_read() {
    let wanted = format!("const SCHEMA_VERSION: u32 = {};", counterfoil_payments::event::SCHEMA_VERSION);
    assert!(read("relay/src/message.rs").contains(&wanted));
}

#[test]
fn every_relative_link_of_a_document_leads_somewhere() {
    for path in files(".md") {
        let folder = root().join(&path).parent().unwrap().to_owned();
        for link in read(&path).split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.contains("://") && !link.starts_with('#')) {
            assert!(folder.join(link).exists(), "{path} links {link}");
        }
    }
}

#[test]
fn every_case_from_the_field_names_tests_that_exist() {
    let sources: String = files(".rs").iter().map(|path| read(path)).collect();
    let cases = read("docs/cases.md");
    let names: Vec<&str> = cases.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 30);
    for name in names {
        assert!(sources.contains(&format!("fn {name}()")), "docs/cases.md names {name}, which is no test");
    }
}

/// The query around a place in a text: from the SELECT of the innermost parentheses that hold one, or from the start of its
/// statement, to its end.
fn query_around(text: &str, at: usize) -> &str {
    let (bytes, mut from) = (text.as_bytes(), at);
    loop {
        let mut depth = 0;
        while from > 0 && !(bytes[from - 1] == b'(' && depth == 0) && bytes[from - 1] != b'"' && bytes[from - 1] != b';' {
            from -= 1;
            depth += i32::from(bytes[from] == b')') - i32::from(bytes[from] == b'(');
        }
        if from == 0 || bytes[from - 1] != b'(' || text[from..].trim_start().starts_with("SELECT") {
            break;
        }
        from -= 1; // of a function or an expression: further out
    }
    let mut depth = 0;
    let length = bytes[from..].iter().position(|byte| {
        depth += i32::from(*byte == b'(') - i32::from(*byte == b')');
        depth < 0 || *byte == b';' || (depth == 0 && *byte == b'#')
    });
    &text[from..length.map_or(text.len(), |length| from + length)]
}

/// Minor units of two currencies are no sum. Views of earlier migrations that a later one replaced are left out.
#[test]
fn no_statement_sums_minor_units_without_their_currency() {
    let mut sums = 0;
    let sources = files(".rs").into_iter().filter(|path| !path.contains("tests/") && !path.starts_with("bench/"));
    for path in sources.chain(files(".sql").into_iter().filter(|path| !["0001", "0002", "0003", "0004"].iter().any(|old| path.contains(old)))) {
        let text = read(&path);
        for (at, _) in text.match_indices("sum(") {
            let inner = &text[at + 4..at + text[at..].find(')').unwrap_or(4)];
            // Lines of one order are all of its currency.
            if inner.contains("_minor") && !inner.starts_with("line_worth(") {
                sums += 1;
                let query = query_around(&text, at);
                assert!(query.contains("currency"), "{path} sums {inner} without its currency: {query}");
            }
        }
    }
    assert!(sums > 15, "{sums} sums were found");
}
