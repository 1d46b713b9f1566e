//! The admin port: `/livez`, `/readyz`, `/metrics`.

use std::net::SocketAddr;

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

#[derive(Clone)]
struct Admin {
    readiness: Readiness,
    metrics: PrometheusHandle,
}

/// Serves the admin port until `stop`; first up and last down.
///
/// # Errors
/// When the address cannot be had.
pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} (COUNTERFOIL_ADMIN_LISTEN)"))
}

pub(crate) async fn serve(listener: TcpListener, readiness: Readiness, metrics: PrometheusHandle, stop: CancellationToken) {
    let admin = Admin { readiness, metrics };
    let router = Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(|State(admin): State<Admin>| async move { admin.metrics.render() }))
        .with_state(admin);
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await {
        tracing::error!(%error, "the admin port failed");
    }
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let (ready, report) = admin.readiness.report();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}
