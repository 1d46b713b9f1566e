//! The audit of the outbox against what the consumers did: what a queue lost is found here, and sent again to that queue alone.
//!
//! An event is lost to a consumer when it was published a while ago, has neither an effect nor a dead letter nor an attempt under way, and
//! nothing waits in any of that consumer's queues. While something waits, it may be among it: then it counts as lost once the consumer
//! has dealt with events that were published later by more than the whole retry ladder, since queues are first in, first out. Dedupe
//! makes a message that was not lost after all harmless.

use std::collections::HashMap;

use counterfoil_broker::topology::{CONSUMERS, ConsumerTopics, work_queue};
use counterfoil_inbox::lost::{mark, move_mark, send_lost, send_lost_again, settle_lost, unaccounted};
use counterfoil_inbox::upkeep::open_lost_replays;
use counterfoil_outbox::{newest, send_again, unaccounted_from};
use uuid::Uuid;

use super::jobs::Jobs;
use crate::depths::{Depths, depths};

/// Outbox rows looked at in one step for one consumer.
const LOOK: i64 = 2_000;

/// Rows looked at behind a row that holds the mark.
const LOOK_MAX: i64 = 50_000;

impl Jobs {
    /// One look at every consumer. Returns how many messages were sent again.
    pub(super) async fn find_lost(&self) -> anyhow::Result<usize> {
        let queues = match &self.broker {
            Some(at) => depths(&at.amqp_url, &at.rungs)
                .await
                .map_err(|error| {
                    tracing::warn!(error = format!("{error:#}"), "queues cannot be asked; only what is older than the retry ladder counts as lost")
                })
                .ok(),
            None => None,
        };
        let mut sent = 0;
        for consumer in CONSUMERS {
            let depths = queues.as_ref().and_then(|queues| queues.iter().find(|depths| depths.consumer == consumer.name));
            sent += self.find_lost_of(consumer, depths).await?;
        }
        let mut tx = self.pool.begin().await?;
        let (_, open) = settle_lost(&mut tx).await?;
        let reopened = open_lost_replays(&mut tx, self.rhythm.lost_after_s.saturating_add(self.ladder_s())).await?;
        if reopened > 0 {
            tracing::error!(reopened, "replays were lost on their way; their dead letters are open again");
        }
        tx.commit().await?;
        super::jobs::gauge("counterfoil_lost_messages", open);
        Ok(sent)
    }

    async fn find_lost_of(&self, consumer: &ConsumerTopics, depths: Option<&Depths>) -> anyhow::Result<usize> {
        if depths.is_some_and(|depths| depths.work.is_none()) {
            tracing::error!(consumer = consumer.name, "its queue does not exist: run counterfoil-migrate; what it lost is sent again afterwards");
            return Ok(0);
        }
        let nothing_waits = depths.is_some_and(Depths::empty);
        let settled_s = if nothing_waits { self.rhythm.lost_after_s } else { self.rhythm.lost_after_s.saturating_add(self.ladder_s()) };
        let topics: Vec<String> = consumer.topics.iter().map(|topic| (*topic).to_owned()).collect();
        let queue = work_queue(consumer.name);
        let mut tx = self.pool.begin().await?;
        let newest = newest(&mut tx).await?;
        let from = mark(&mut tx, consumer.name, newest).await?; // its row is the lease: one process looks at a consumer at a time
        let mut behind = unaccounted_from(&mut tx, from, &topics, &queue, self.rhythm.lost_after_s, LOOK).await?;
        if behind.mark < behind.last {
            behind = unaccounted_from(&mut tx, from, &topics, &queue, self.rhythm.lost_after_s, LOOK_MAX).await?; // something holds the mark
        }
        let ids: Vec<Uuid> = behind.rows.iter().map(|row| row.event_id).collect();
        let open: HashMap<Uuid, f64> = unaccounted(&mut tx, consumer.name, &ids).await?.into_iter().map(|open| (open.event_id, open.idle_s)).collect();
        let (mut lost, mut upto) = (Vec::new(), behind.mark);
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let settled = settled_s as f64;
        let youngest_dealt_with = behind.rows.iter().filter(|row| !open.contains_key(&row.event_id)).map(|row| row.age_s).fold(f64::INFINITY, f64::min);
        for row in &behind.rows {
            let Some(idle_s) = open.get(&row.event_id) else { continue };
            let overtaken = nothing_waits || row.age_s >= youngest_dealt_with + settled;
            if overtaken && row.age_s.min(*idle_s) >= settled {
                lost.push((row.id, row.event_id)); // from here on it is remembered by itself
            } else {
                upto = upto.min(row.id - 1); // it stays in sight until it is dealt with, or lost
            }
        }
        move_mark(&mut tx, consumer.name, upto).await?;
        let mut rows = if nothing_waits { send_lost_again(&mut tx, consumer.name, settled_s).await? } else { Vec::new() };
        rows.extend(send_lost(&mut tx, consumer.name, &lost, settled_s).await?);
        send_again(&mut tx, &rows, &queue).await?;
        tx.commit().await?;
        if !rows.is_empty() {
            metrics::counter!("counterfoil_lost_sent_again_total", "consumer" => consumer.name).increment(rows.len() as u64);
            tracing::error!(consumer = consumer.name, messages = rows.len(), "a queue lost messages; they are sent to it again");
        }
        Ok(if behind.last - from >= LOOK && upto > from { rows.len().max(1) } else { 0 })
    }

    /// The whole retry ladder, in seconds: as long as a message can be under way.
    fn ladder_s(&self) -> i64 {
        let rungs = self.broker.as_ref().map_or(&[][..], |at| &at.rungs);
        let seconds: u64 = rungs.iter().map(|rung| rung.delay.as_secs() + 1).sum();
        i64::try_from(seconds).unwrap_or(i64::MAX).max(if rungs.is_empty() { 4_820 } else { 1 })
    }
}
