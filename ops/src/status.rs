//! `counterfoil status` and `counterfoil providers`: one screen.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use counterfoil_chassis::process::Exit;
use serde_json::json;
use sqlx::PgPool;

use crate::facts::{BrokerAt, Consumer, Facts};
use crate::gather::Gatherer;
use crate::words::{amounts, counted};
use crate::{instant, print};

/// Pause between two screens.
const AGAIN: Duration = Duration::from_secs(2);

pub(crate) async fn run(pool: &PgPool, broker: Option<BrokerAt>, watch: bool, as_json: bool) -> anyhow::Result<()> {
    let gatherer = Gatherer::new(broker);
    loop {
        let facts = gatherer.gather(pool).await?;
        if as_json {
            print(format_args!("{}\n", crate::facts::json(&facts)))?;
        } else {
            let clear = if watch && std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            print(format_args!("{clear}{}", screen(&facts)))?;
        }
        if !watch {
            let message = if as_json { facts.needs.join("; ") } else { format!("{} above", counted(facts.needs.len(), "reason", "reasons")) };
            return if facts.needs.is_empty() { Ok(()) } else { Err(Exit::with(1, format!("a person is needed: {message}")).into()) };
        }
        tokio::time::sleep(AGAIN).await; // until interrupted
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "  ?".into(), |share| format!("{:3.0}%", share * 100.0))
}

/// Seconds for people.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.05 => "-".into(),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

fn screen(facts: &Facts) -> String {
    let mut text = format!("{}\nas of {}\n\n", facts.verdict, instant(facts.at));
    let outbox = &facts.outbox;
    let _ = writeln!(text, "{:<10} {:>8} {:>5} {:>9} {:>9} {:>8}  advice", "stage", "replicas", "busy", "a minute", "waiting", "oldest");
    let _ = writeln!(text, "{:<10} {:>8} {:>5} {:>9} {:>9} {:>8}", "ingest", facts.ingest.replicas, "", facts.ingest.last_minute, "", "");
    let _ = writeln!(
        text,
        "{:<10} {:>8} {:>5} {:>9} {:>9} {:>8}  {}",
        "relay",
        outbox.stage.replicas,
        percent(outbox.stage.busy),
        outbox.stage.last_minute,
        outbox.unpublished,
        seconds(outbox.oldest_s),
        outbox.advice.words()
    );
    for consumer in &facts.consumers {
        let stage = &consumer.stage;
        let _ = writeln!(
            text,
            "{:<10} {:>8} {:>5} {:>9} {:>9} {:>8}  {}",
            consumer.name,
            stage.replicas,
            percent(stage.busy),
            stage.last_minute,
            consumer.waiting,
            seconds(consumer.oldest_s),
            consumer.advice.words()
        );
    }
    let empty = outbox.empty_in_s.map_or_else(String::new, |s| format!(", empty in {}", seconds(s)));
    let _ = writeln!(text, "\noutbox     {} appended a minute{empty}; {} unroutable, {} parked", outbox.appended_last_minute, outbox.unroutable, outbox.parked);
    queues(&mut text, facts);
    for group in &facts.groups {
        let _ = writeln!(
            text,
            "dead       {} × {} {} ({}), oldest {}, {} came back",
            group.letters,
            group.consumer,
            group.kind,
            amounts(&group.amounts),
            instant(group.first_died_at),
            group.came_back
        );
    }
    for waiting in &facts.attention {
        let _ = writeln!(text, "attention  {} × {} ({})", waiting.count, waiting.kind, amounts(&json!(waiting.amounts)));
    }
    providers(&mut text, facts);
    for need in &facts.needs {
        let _ = writeln!(text, "NEEDED     {need}");
    }
    if facts.needs.is_empty() {
        text.push_str("nobody is needed\n");
    }
    text
}

fn queues(text: &mut String, facts: &Facts) {
    if let Some(why) = &facts.broker_unknown {
        let _ = writeln!(text, "queues     unknown: {why}");
    }
    for Consumer { name, queues, work, .. } in &facts.consumers {
        let Some(queues) = queues else { continue };
        let work_queue = queues.work.map_or_else(|| "missing".to_owned(), |(ready, consumers)| format!("{ready} ready, {consumers} consumers"));
        let rungs: Vec<String> = queues
            .rungs
            .iter()
            .filter(|(_, ready)| *ready != Some(0))
            .map(|(rung, ready)| format!("{rung}: {}", ready.map_or("missing".into(), |ready| ready.to_string())))
            .collect();
        let rungs = if rungs.is_empty() { "none retrying".to_owned() } else { rungs.join(", ") };
        let unknown = work.as_ref().filter(|work| work.unknown > 0).map_or_else(String::new, |work| format!("; {} of unknown outcome", work.unknown));
        let _ =
            writeln!(text, "queue      {name:<8} {work_queue}; {rungs}; {} to be kept{unknown}", queues.dead.map_or("missing".into(), |dead| dead.to_string()));
    }
}

fn providers(text: &mut String, facts: &Facts) {
    for provider in &facts.providers {
        let health = &provider.health;
        let _ = writeln!(
            text,
            "provider   {:<9} last {} ago; today {} events in {} deliveries, {} late, {} failed; {} bad signatures since start",
            health.provider,
            seconds(health.ago_s.max(0.1)),
            health.events,
            health.deliveries,
            health.late,
            health.failed,
            provider.refused
        );
    }
}

pub(crate) async fn show_providers(pool: &PgPool, as_json: bool) -> anyhow::Result<()> {
    let facts = Gatherer::default().gather(pool).await?;
    if as_json {
        return Ok(print(format_args!("{}\n", json!({ "providers": facts.providers })))?);
    }
    let mut text = String::new();
    providers(&mut text, &facts);
    if text.is_empty() {
        text.push_str("no provider has sent anything within a day\n");
    }
    Ok(print(format_args!("{text}"))?)
}
