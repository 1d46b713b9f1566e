//! What the alerts are made of: the fleet's facts as gauges, and the runs of replays that somebody has confirmed.

use counterfoil_inbox::replay::resolve;
use counterfoil_inbox::upkeep::oldest_open_seconds;
use counterfoil_settlement::ATTENTION_KINDS;

use super::jobs::{Jobs, gauge};
use crate::facts::Facts;
use crate::replays;

impl Jobs {
    /// One step of one run of replays. At once again while something was released.
    pub(super) async fn replay(&self) -> anyhow::Result<usize> {
        Ok(replays::step(&self.pool, None, self.rhythm.processed_s).await?.unwrap_or(0))
    }

    /// Closes dead letters whose replay has had its effect, whichever run they were of.
    pub(super) async fn resolve(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let resolved = resolve(&mut tx).await?;
        tx.commit().await?;
        Ok(usize::try_from(resolved)?)
    }

    /// Gathers the facts, says them as gauges, and tells a human what needs one.
    pub(super) async fn watch(&self) -> anyhow::Result<usize> {
        let facts = self.gatherer.gather(&self.pool).await?;
        say(&facts);
        counterfoil_chassis::replica::forget_gone(&mut *self.pool.acquire().await?).await?;
        let horizon = oldest_open_seconds(&mut *self.pool.acquire().await?).await?;
        metrics::gauge!("counterfoil_dedupe_horizon_used").set(horizon.max(facts.outbox.oldest_s) / seconds(self.rhythm.processed_s));
        self.notifier.tell(&self.pool, &facts).await?;
        Ok(0)
    }
}

fn seconds(whole: i64) -> f64 {
    f64::from(i32::try_from(whole).unwrap_or(i32::MAX))
}

fn say(facts: &Facts) {
    for consumer in &facts.consumers {
        let name = consumer.name;
        let dead = consumer.dead.as_ref();
        let set = |metric: &'static str, value: f64| metrics::gauge!(metric, "consumer" => name).set(value);
        set("counterfoil_dead_letters_open", seconds(dead.map_or(0, |dead| dead.open)));
        set("counterfoil_dead_letters_oldest_seconds", dead.map_or(0.0, |dead| dead.oldest_seconds));
        set("counterfoil_consumer_waiting", seconds(consumer.waiting));
        set("counterfoil_consumer_oldest_seconds", consumer.oldest_s);
        set("counterfoil_effects_outcome_unknown", seconds(consumer.work.as_ref().map_or(0, |work| work.unknown)));
        set("counterfoil_retrying_oldest_seconds", consumer.work.as_ref().map_or(0.0, |work| work.retrying_oldest_s));
        set("counterfoil_consumer_replicas", seconds(i64::try_from(consumer.stage.replicas).unwrap_or(0)));
        if let Some(queues) = &consumer.queues {
            set("counterfoil_queue_missing", seconds(i64::try_from(queues.missing().len()).unwrap_or(0)));
            set("counterfoil_queue_ready", queues.work.map_or(0.0, |(ready, _)| f64::from(ready)));
            set("counterfoil_queue_on_rungs", f64::from(queues.on_rungs()));
        }
    }
    for check in ["one_order_paid", "version_order"] {
        let found = facts.violations.iter().find(|(name, _)| name == check).map_or(0, |(_, count)| *count);
        metrics::gauge!("counterfoil_invariant_violations", "check" => check).set(seconds(found));
    }
    for task in &facts.tasks {
        metrics::gauge!("counterfoil_task_last_success_timestamp_seconds", "task" => task.task.clone()).set(task.succeeded_s);
        metrics::gauge!("counterfoil_task_interval_seconds", "task" => task.task.clone()).set(task.interval_s);
    }
    let count = |kind: &str| facts.attention.iter().find(|waiting| waiting.kind == kind).map_or(0, crate::facts::Waiting::needing);
    for kind in ATTENTION_KINDS {
        metrics::gauge!("counterfoil_attention", "kind" => kind).set(seconds(i64::try_from(count(kind)).unwrap_or(i64::MAX)));
    }
    metrics::gauge!("counterfoil_replay_stuck_seconds").set(facts.replay_stuck_s);
    metrics::gauge!("counterfoil_database_connections_share").set(facts.connections);
    gauge("counterfoil_needs_a_person", i64::try_from(facts.needs.len()).unwrap_or(i64::MAX));
}
