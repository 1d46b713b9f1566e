//! How deep the broker's queues are, asked by passive declares: no plugin is needed, and looking takes no message.

use counterfoil_broker::lapin::options::QueueDeclareOptions;
use counterfoil_broker::lapin::types::FieldTable;
use counterfoil_broker::link::METHOD_DEADLINE;
use counterfoil_broker::topology::{CONSUMERS, Rung, dead_queue, rung_queue, work_queue};
use counterfoil_broker::{Link, broker_error};
use serde::Serialize;
use tokio::time::timeout;

/// A consumer's queues. `None` where a queue does not exist.
#[derive(Debug, Clone, Serialize)]
pub struct Depths {
    /// The consumer.
    pub consumer: &'static str,
    /// Messages that wait in its work queue, and consumers on it.
    pub work: Option<(u32, u32)>,
    /// Messages on each rung, by the rung's name.
    pub rungs: Vec<(String, Option<u32>)>,
    /// Messages in the terminal queue that the keeper has not taken yet.
    pub dead: Option<u32>,
}

impl Depths {
    /// Whether all its queues exist and nothing waits in any of them.
    #[must_use]
    pub fn empty(&self) -> bool {
        matches!(self.work, Some((0, _))) && self.dead == Some(0) && self.rungs.iter().all(|(_, ready)| *ready == Some(0))
    }

    /// The queues that do not exist.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let rungs = self.rungs.iter().filter(|(_, ready)| ready.is_none()).map(|(rung, _)| rung_queue(self.consumer, rung));
        self.work.is_none().then(|| work_queue(self.consumer)).into_iter().chain(rungs).chain(self.dead.is_none().then(|| dead_queue(self.consumer))).collect()
    }

    /// Messages on all rungs.
    #[must_use]
    pub fn on_rungs(&self) -> u32 {
        self.rungs.iter().filter_map(|(_, ready)| *ready).sum()
    }
}

/// Asks for the depths of every consumer's queues.
///
/// # Errors
/// When the broker cannot be reached or does not answer in time.
pub async fn depths(amqp_url: &str, rungs: &[Rung]) -> anyhow::Result<Vec<Depths>> {
    let link = Link::connect(amqp_url, "counterfoil status").await?;
    let mut all = Vec::new();
    for consumer in CONSUMERS {
        let work = ask(&link, &work_queue(consumer.name)).await?;
        let dead = ask(&link, &dead_queue(consumer.name)).await?.map(|(ready, _)| ready);
        let mut steps = Vec::new();
        for rung in rungs {
            steps.push((rung.name.clone(), ask(&link, &rung_queue(consumer.name, &rung.name)).await?.map(|(ready, _)| ready)));
        }
        all.push(Depths { consumer: consumer.name, work, rungs: steps, dead });
    }
    link.close().await;
    Ok(all)
}

/// Ready messages and consumers of a queue. A missing one closes the channel, so each is asked on one of its own.
async fn ask(link: &Link, queue: &str) -> anyhow::Result<Option<(u32, u32)>> {
    let channel = link.channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::durable() };
    let asked = timeout(METHOD_DEADLINE, channel.queue_declare(queue.into(), passive, FieldTable::default())).await?;
    match asked {
        Ok(found) => {
            let depth = (found.message_count(), found.consumer_count());
            let _ = timeout(METHOD_DEADLINE, channel.close(200, "seen".into())).await;
            Ok(Some(depth))
        }
        Err(error) if matches!(broker_error(&error), Some((404, _))) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
