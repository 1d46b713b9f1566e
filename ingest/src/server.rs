//! The public HTTP server: HTTP/1.1 with deadlines, so that slow clients hold nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Longest time a client may take for the head of its request, idle keep-alive included.
const HEAD_DEADLINE: Duration = Duration::from_secs(15);

/// Connections at once; more wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 2048;

/// How long requests under way may take once the process stops.
const DRAIN_DEADLINE: Duration = Duration::from_secs(12);

/// Serves until `stop`, then finishes the requests under way.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: &CancellationToken) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        let Some((stream, place)) = accepted else { continue };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone())));
        tokio::spawn(async move {
            let _ = connection.await; // a client that breaks off is no trouble of ours
            drop(place);
        });
    }
    drop((listener, router));
    if tokio::time::timeout(DRAIN_DEADLINE, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            tracing::warn!(%error, "accept failed");
            tokio::time::sleep(Duration::from_millis(50)).await; // out of file descriptors, say
            None
        }
    }
}
