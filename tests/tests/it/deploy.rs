//! The files that operators start from: every variable and port in them is one that a binary knows.

use std::collections::BTreeMap;
use std::process::Command;

use counterfoil_tests::stage::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// What a binary says of itself, its subcommands included.
fn help(words: &[&str]) -> String {
    let out = Command::new(root().join("target/debug").join(words[0])).args(&words[1..]).arg("--help").output().unwrap();
    let own = String::from_utf8(out.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" "); // whatever the width

    if words.len() > 1 && words[0] == "counterfoil" { own + &help(&words[..1]) } else { own }
}

/// Each service of compose.yaml: its command and the lines that are its own.
fn services() -> BTreeMap<String, Vec<String>> {
    let text = read("deploy/compose.yaml");
    let body = text.split("\nservices:\n").nth(1).unwrap().split("\nconfigs:\n").next().unwrap();
    let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in body.lines() {
        if let Some(own) = line.strip_prefix("  ").filter(|own| !own.starts_with(' ') && own.ends_with(':')) {
            name = own.trim_end_matches(':').to_owned();
        } else if !name.is_empty() {
            services.entry(name.clone()).or_default().push(line.trim().to_owned());
        }
    }
    services
}

/// The environment that all processes share.
fn shared() -> String {
    read("deploy/compose.yaml").split("x-environment: &environment\n").nth(1).unwrap().split("\n\n").next().unwrap().to_owned()
}

/// Names of our variables in a text.
fn variables(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text
        .split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')
        .filter(|word| word.starts_with("COUNTERFOIL_"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn every_variable_of_the_compose_file_is_one_that_its_service_knows() {
    let mut checked = 0;
    for (name, lines) in services() {
        let Some(command) = lines.iter().find_map(|line| line.strip_prefix("command: [counterfoil")) else { continue };
        let command = format!("counterfoil{}", command.trim_end_matches(']'));
        let words: Vec<&str> = command.split(", ").collect();
        let help = help(if words[0] == "counterfoil-consumers" { &words[..1] } else { &words });
        let text = lines.join("\n") + &shared();
        for variable in variables(&text) {
            // What all share need not concern each.
            let known = variable.trim_end_matches("_FILE");
            assert!(
                help.contains(&format!("[env: {known}")) || (shared().contains(&variable) && known == "COUNTERFOIL_AMQP_URL"),
                "{name}: {variable} is no variable of {}",
                words[0]
            );
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn every_process_is_in_the_compose_file_and_its_ports_are_those_that_the_image_and_prometheus_name() {
    let services = services();
    for (name, process) in [
        ("migrate", "counterfoil-migrate"),
        ("ingest", "counterfoil-ingest"),
        ("relay", "counterfoil-relay"),
        ("housekeep", "counterfoil, housekeep"),
        ("console", "counterfoil, console"),
        ("keeper", "counterfoil-consumers, dead-letters"),
    ] {
        assert!(services[name].iter().any(|line| line == &format!("command: [{process}]")), "{name}");
    }
    let scraped = read("deploy/prometheus/prometheus.yml");
    for consumer in counterfoil_broker::topology::CONSUMERS {
        assert!(services[consumer.name].iter().any(|line| line == &format!("command: [counterfoil-consumers, {}]", consumer.name)), "{}", consumer.name);
        assert!(scraped.contains(&format!(" {},", consumer.name)), "{} is not scraped", consumer.name);
    }
    let image = read("deploy/Dockerfile");
    for (port, place) in
        [("8080", "COUNTERFOIL_LISTEN: 0.0.0.0:8080"), ("9600", "COUNTERFOIL_ADMIN_LISTEN: 0.0.0.0:9600"), ("9700", "COUNTERFOIL_CONSOLE_LISTEN: 0.0.0.0:9700")]
    {
        assert!(read("deploy/compose.yaml").contains(place) && image.lines().any(|line| line.starts_with("EXPOSE") && line.contains(port)), "{port}");
    }
    assert!(scraped.contains("port: 9600"));
    for binary in ["counterfoil", "counterfoil-ingest", "counterfoil-relay", "counterfoil-consumers", "counterfoil-migrate"] {
        assert!(image.contains(&format!("target/release/{binary}")), "{binary} is not in the image");
    }
    for secret in read("deploy/compose.yaml").lines().filter_map(|line| line.split("file: ./secrets/").nth(1)) {
        let secret = secret.trim_end_matches([' ', '}']);
        assert!(read("deploy/make-secrets").contains(&format!("put {secret} ")), "deploy/make-secrets writes no {secret}");
    }
}

#[test]
fn the_compose_file_is_what_a_current_compose_understands() {
    let programs = [vec!["docker", "compose"], vec![".local/compose/docker-compose"], vec!["docker-compose"]];
    let current = programs.iter().find(|program| {
        let out = Command::new(program[0]).args(&program[1..]).args(["version", "--short"]).current_dir(root()).output();
        out.is_ok_and(|out| out.status.success() && String::from_utf8_lossy(&out.stdout).trim().trim_start_matches('v').starts_with(['2', '3', '4', '5']))
    });
    let Some(program) = current else {
        eprintln!("skipped: no current Compose on this machine (deploy/local/services compose fetches Debian trixie's where it can)");
        return;
    };
    let out = Command::new(program[0]).args(&program[1..]).args(["-f", "deploy/compose.yaml", "config", "--quiet"]).current_dir(root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
