//! The process's one publishing task: copies for rungs and dead letters, each confirmed before its original is acked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_broker::{Fate, Link, Outgoing, Pace, publish_window, supervise};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Copies published together, at the most.
const WINDOW: usize = 64;

/// How long a window waits for its confirms.
const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);

/// How long a copy waits for its turn and its confirm; after that its original stays with the broker.
const PATIENCE: Duration = Duration::from_secs(20);

type Request = (Outgoing, oneshot::Sender<Fate>);

/// Where copies are handed in.
#[derive(Debug, Clone)]
pub(crate) struct Handover {
    requests: mpsc::Sender<Request>,
    /// Whether copies can be published now. While they cannot, nothing should be taken that may need one.
    usable: Arc<AtomicBool>,
}

impl Handover {
    /// Whether copies can be published now.
    pub(crate) fn usable(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    /// Publishes a copy; anything but `Confirmed` means that the original must not be acked.
    pub(crate) async fn publish(&self, copy: Outgoing) -> Fate {
        let (reply, fate) = oneshot::channel();
        let published = async {
            self.requests.send((copy, reply)).await.ok()?;
            fate.await.ok()
        };
        timeout(PATIENCE, published).await.ok().flatten().unwrap_or(Fate::Unknown)
    }
}

/// The handover and its task, on a connection of its own: a broker that blocks publishers must not block acks.
pub(crate) fn start(amqp_url: &str, consumer: &'static str, stop: CancellationToken) -> (Handover, impl Future<Output = ()> + use<>) {
    let (sender, mut requests) = mpsc::channel(WINDOW);
    let amqp_url = amqp_url.to_owned();
    let usable = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&usable);
    let task = async move {
        let name = format!("counterfoil-consumers {consumer} handover");
        supervise(
            &amqp_url,
            &name,
            Pace::default(),
            &stop,
            |_| {},
            async |link| {
                let ended = publish(link, &mut requests, &told, &stop).await;
                told.store(false, Ordering::Relaxed);
                ended
            },
        )
        .await;
    };
    (Handover { requests: sender, usable }, task)
}

async fn publish(link: &Link, requests: &mut mpsc::Receiver<Request>, usable: &AtomicBool, stop: &CancellationToken) -> anyhow::Result<()> {
    let channel = link.confirming_channel().await?;
    let mut window = Vec::with_capacity(WINDOW);
    loop {
        usable.store(!link.blocked(), Ordering::Relaxed);
        tokio::select! {
            taken = requests.recv_many(&mut window, WINDOW) => if taken == 0 { return Ok(()) },
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_secs(1)) => anyhow::ensure!(link.connected(), "the broker has closed the connection"),
        }
        window.retain(|(_, reply): &Request| !reply.is_closed()); // nobody waits for it: its original goes back
        let (mut copies, replies): (Vec<Outgoing>, Vec<_>) = std::mem::take(&mut window).into_iter().unzip();
        for (correlation, copy) in (1..).zip(&mut copies) {
            copy.correlation = correlation;
        }
        let published = publish_window(&channel, &copies, CONFIRM_DEADLINE).await;
        let clean = published.clean();
        for (reply, fate) in replies.into_iter().zip(published.fates) {
            let _ = reply.send(fate);
        }
        anyhow::ensure!(clean, "copies are undecided");
    }
}
