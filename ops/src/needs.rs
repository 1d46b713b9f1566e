//! What needs a person, and whether money moves: the fleet's facts in words.

use crate::advice::Advice;
use crate::depths::Depths;
use crate::facts::Facts;
use crate::words::counted;

/// Waiting for longer than this at a consumer, or in the outbox, needs a person, in seconds: the promises of the alert catalogue.
const BEHIND_S: f64 = 300.0;
const OUTBOX_BEHIND_S: f64 = 60.0;

/// What needs a person, in words.
pub(crate) fn needs(facts: &Facts) -> Vec<String> {
    let mut needs = Vec::new();
    for consumer in &facts.consumers {
        if let Some(dead) = consumer.dead.as_ref().filter(|dead| dead.open > 0) {
            needs.push(format!(
                "{}: {}: counterfoil dead-letters list --consumer {}",
                consumer.name,
                counted(dead.open, "dead letter needs a decision", "dead letters need a decision"),
                consumer.name
            ));
        }
        if consumer.advice.needs_a_person() || (consumer.oldest_s > BEHIND_S && consumer.pause.is_none()) {
            // Doctor looks at our side; who runs the other one is not in it.
            let lead = if matches!(consumer.advice, Advice::OtherSideIsDown(_)) {
                "call whoever runs it; nothing is lost, and it goes on by itself"
            } else {
                "counterfoil doctor"
            };
            needs.push(format!("{}: {}; the oldest has waited {:.0} s: {lead}", consumer.name, consumer.advice.words(), consumer.oldest_s));
        }
        for queue in consumer.queues.iter().flat_map(Depths::missing) {
            needs.push(format!("the queue {queue} does not exist: run counterfoil-migrate"));
        }
        if let Some(depths) = consumer.queues.as_ref().filter(|depths| depths.dead.is_some_and(|dead| dead > 0)) {
            needs.push(format!("{} messages wait in {}'s terminal queue: does the keeper run?", depths.dead.unwrap_or_default(), consumer.name));
        }
    }
    if facts.outbox.advice.needs_a_person() || (facts.outbox.oldest_s > OUTBOX_BEHIND_S && facts.outbox.unpublished > facts.outbox.unroutable) {
        needs.push(format!("relay: {}; the oldest has waited {:.0} s: counterfoil doctor", facts.outbox.advice.words(), facts.outbox.oldest_s));
    }
    if facts.ingest.replicas == 0 {
        needs.push("ingest: no process runs: start one".into());
    }
    if facts.outbox.unroutable > 0 {
        needs.push(format!(
            "{} unroutable: counterfoil outbox list --unroutable, then counterfoil-migrate",
            counted(facts.outbox.unroutable, "outbox row is", "outbox rows are")
        ));
    }
    if facts.outbox.parked > 0 {
        needs.push(format!("{} parked: counterfoil outbox list --parked", counted(facts.outbox.parked, "outbox row is", "outbox rows are")));
    }
    for waiting in facts.attention.iter().filter(|waiting| waiting.needing() > 0) {
        needs.push(format!("{} × {}: counterfoil attention", waiting.needing(), waiting.kind));
    }
    needs.extend(facts.violations.iter().map(|(check, count)| format!("{count} × {check} must never be: counterfoil doctor --check {check}")));
    if facts.lost > 0 {
        needs.push(format!("{} messages that a queue lost have no effect yet; they were sent again", facts.lost));
    }
    for task in facts.tasks.iter().filter(|task| task.silent()) {
        needs.push(format!("{} has not succeeded for {:.0} s: does its process run?", task.task, task.ago_s));
    }
    if facts.replay_stuck_s > 600.0 {
        needs.push("a replay makes no progress: counterfoil replays list".into());
    }
    needs
}

/// Whether money moves, in one sentence.
pub(crate) fn verdict(facts: &Facts) -> String {
    let stuck = facts.outbox.oldest_s > OUTBOX_BEHIND_S && facts.outbox.unpublished > facts.outbox.unroutable;
    let behind: Vec<&str> = facts.consumers.iter().filter(|consumer| consumer.oldest_s > BEHIND_S).map(|consumer| consumer.name).collect();
    let moving = match (facts.ingest.replicas, stuck, behind.is_empty()) {
        (0, ..) => "Money is not taken: no ingest process runs.".to_owned(),
        (_, true, _) => format!("Money is taken and waits: the oldest event has waited {:.0} s for the relay.", facts.outbox.oldest_s),
        (_, _, false) => format!("Money is moving, and {} behind.", and_are(&behind)),
        (_, false, true) => "Money is moving.".to_owned(),
    };
    let open: i64 = facts.consumers.iter().filter_map(|consumer| consumer.dead.as_ref()).map(|dead| dead.open).sum();
    let oldest = facts.consumers.iter().filter_map(|consumer| consumer.dead.as_ref()).map(|dead| dead.oldest_seconds).fold(0.0, f64::max);
    let moving = match facts.outbox.unroutable + facts.outbox.parked {
        0 => moving,
        stuck => format!("{moving} {} out.", counted(stuck, "outbox row does not go", "outbox rows do not go")),
    };
    match open {
        0 => moving,
        1 => format!("{moving} 1 dead letter needs a decision, {:.0} min old.", oldest / 60.0),
        _ => format!("{moving} {open} dead letters need a decision, oldest {:.0} min.", oldest / 60.0),
    }
}

fn and_are(names: &[&str]) -> String {
    format!("{} {}", names.join(" and "), if names.len() == 1 { "is" } else { "are" })
}
