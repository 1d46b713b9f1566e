//! Logs, metrics and spans: set up once, flushed at the end.

use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Bucket bounds of all durations, in seconds: from a commit to a provider's patience.
const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Bucket bounds of batch sizes.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Libraries that would write customer data or secrets at their lower levels, or say twice what our own code says once.
const QUIET: &str = "lapin=off,sqlx=warn,hyper=info,hyper_util=info,h2=info,reqwest=info,rustls=info,lettre=info,opentelemetry=info,tower=info,axum=info";

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

impl std::str::FromStr for LogFormat {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "pretty" => Ok(Self::Pretty),
            _ => Err("must be json or pretty"),
        }
    }
}

/// What must be flushed at the end.
pub(crate) struct Telemetry {
    pub(crate) metrics: PrometheusHandle,
    spans: Option<SdkTracerProvider>,
}

/// Sets up logs, metrics and, where `OTEL_EXPORTER_OTLP_ENDPOINT` or its traces variant is set, the export of spans.
pub(crate) fn start(name: &'static str, filter: &str, format: LogFormat) -> anyhow::Result<Telemetry> {
    let spans = exporting().then(|| tracer(name)).transpose()?;
    let filter = EnvFilter::try_new(format!("{filter},{QUIET}")).context("COUNTERFOIL_LOG")?;
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = match format {
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
        LogFormat::Pretty => logs.with_ansi(false).boxed(),
    };
    let spans_of = EnvFilter::try_new(format!("info,{QUIET}")).context("the filter of spans")?;
    let export = spans.as_ref().map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(name)).with_filter(spans_of));
    tracing_subscriber::registry().with(export).with(logs.with_filter(filter)).try_init().context("logging is set up already")?;
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(metrics_exporter_prometheus::Matcher::Suffix("_seconds".into()), SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(metrics_exporter_prometheus::Matcher::Suffix("_size".into()), SIZES))
        .and_then(PrometheusBuilder::install_recorder)
        .context("metrics cannot be set up")?;
    Ok(Telemetry { metrics, spans })
}

fn exporting() -> bool {
    let set = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    (set("OTEL_EXPORTER_OTLP_ENDPOINT") || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) && std::env::var("OTEL_SDK_DISABLED").as_deref() != Ok("true")
}

fn tracer(name: &'static str) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_http().build().context("OTEL_EXPORTER_OTLP_ENDPOINT: the exporter cannot be built")?;
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name(name);
    }
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build())
}

impl Telemetry {
    /// Keeps histograms from growing without a scrape.
    pub(crate) async fn upkeep(metrics: PrometheusHandle) {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            metrics.run_upkeep();
        }
    }

    /// Sends what spans are left, within five seconds.
    pub(crate) fn flush(self) {
        if let Some(provider) = self.spans
            && let Err(error) = provider.shutdown_with_timeout(Duration::from_secs(5))
        {
            tracing::warn!(%error, "spans were lost at the end");
        }
    }
}
