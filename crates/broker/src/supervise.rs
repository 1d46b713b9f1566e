//! The one loop that connects, works, tears down and backs off, for ever.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::link::Link;

/// Pauses between connections.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The first pause, at the most.
    pub least: Duration,
    /// The longest pause.
    pub most: Duration,
    /// A connection that lived this long was a good one: the pauses begin anew.
    pub healthy: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { least: Duration::from_millis(200), most: Duration::from_secs(15), healthy: Duration::from_secs(60) }
    }
}

impl Pace {
    /// A pause with full jitter: anything up to the doubled bound, so that a fleet does not come back all at once.
    fn pause(&self, failures: u32) -> Duration {
        let bound = self.least.saturating_mul(1 << failures.min(10)).min(self.most);
        bound.mul_f64(rand::random::<f64>())
    }
}

/// Keeps `work` supplied with connections until `stop`. `work` ends when it is told to stop, or when anything about its
/// connection is wrong; then everything of the connection is dropped and made anew. `told` hears why, each time.
pub async fn supervise<Work>(uri: &str, name: &str, pace: Pace, stop: &CancellationToken, mut told: impl FnMut(&anyhow::Error), mut work: Work)
where
    Work: AsyncFnMut(&Link) -> anyhow::Result<()>,
{
    let mut failures = 0;
    while !stop.is_cancelled() {
        let begun = Instant::now();
        let connected = tokio::select! {
            connected = Link::connect(uri, name) => connected,
            () = stop.cancelled() => return,
        };
        let ended = match connected {
            Ok(link) => {
                let ended = work(&link).await;
                link.close().await;
                ended
            }
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            told(&error);
            failures = if begun.elapsed() > pace.healthy { 0 } else { failures + 1 };
            let pause = pace.pause(failures);
            tracing::warn!(error = format!("{error:#}"), pause_ms = pause.as_millis(), "broker connection lost");
            metrics::counter!("counterfoil_broker_reconnects_total").increment(1);
            let _ = tokio::time::timeout(pause, stop.cancelled()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_never_beyond() {
        let pace = Pace::default();
        for failures in 0..200 {
            assert!(pace.pause(failures) <= pace.most);
        }
        assert!(pace.pause(0) <= pace.least);
    }
}
