//! The life of a process: read the configuration, start, work, stop.

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{self, Configure, EXIT_USAGE, Problems, Unconfigured};
use crate::readiness::Readiness;
use crate::telemetry::{self, LogFormat, Telemetry};

/// What a running process is handed.
#[derive(Debug, Clone)]
pub struct Process {
    /// Cancelled by SIGTERM or SIGINT: stop taking work, finish what is in hand.
    pub shutdown: CancellationToken,
    /// Whether it can do its work now.
    pub readiness: Readiness,
    /// How long work in hand may take after `shutdown`.
    pub deadline: Duration,
}

/// An error that says with which code its tool ends.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Exit {
    /// The code.
    pub code: u8,
    /// What is wrong, and the way out.
    pub message: String,
}

impl Exit {
    /// With this code and these words.
    pub fn with(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Runs a process to its end: 0 after a clean stop, 1 after a failure, 64 for a configuration that cannot work.
pub fn main<C, Run, Work>(run: Run) -> ExitCode
where
    C: Configure,
    Run: FnOnce(C::Checked, Process) -> Work,
    Work: Future<Output = anyhow::Result<()>>,
{
    begin::<C>().map_or_else(ExitCode::from, |begun| {
        let process = Process { shutdown: CancellationToken::new(), readiness: Readiness::default(), deadline: begun.deadline };
        let ended = live(C::NAME, begun.address, &begun.telemetry, process, |process| run(begun.checked, process));
        end(C::NAME, begun.telemetry, &ended)
    })
}

/// Runs a tool of which some commands run until told to stop, as for [`main`], and the others end by themselves, as for
/// [`one_shot`].
pub fn either<C, Stay, Staying, Run, Work>(long_running: impl FnOnce(&C::Checked) -> bool, stay: Stay, run: Run) -> ExitCode
where
    C: Configure,
    Stay: FnOnce(C::Checked, Process) -> Staying,
    Staying: Future<Output = anyhow::Result<()>>,
    Run: FnOnce(C::Checked) -> Work,
    Work: Future<Output = anyhow::Result<()>>,
{
    begin::<C>().map_or_else(ExitCode::from, |begun| {
        if long_running(&begun.checked) {
            let process = Process { shutdown: CancellationToken::new(), readiness: Readiness::default(), deadline: begun.deadline };
            let ended = live(C::NAME, begun.address, &begun.telemetry, process, |process| stay(begun.checked, process));
            return end(C::NAME, begun.telemetry, &ended);
        }
        let ended = alone(run(begun.checked));
        begun.telemetry.flush();
        let Err(error) = ended else { return ExitCode::SUCCESS };
        let code = error.downcast_ref::<Exit>().map_or(1, |exit| exit.code);
        say(format_args!("{}: {error:#}", C::NAME)); // to a person, who sits in front of it
        ExitCode::from(code)
    })
}

/// Runs a step that ends by itself, such as a migration: no admin port, no signals; exit codes as for [`main`].
pub fn one_shot<C, Run, Work>(run: Run) -> ExitCode
where
    C: Configure,
    Run: FnOnce(C::Checked) -> Work,
    Work: Future<Output = anyhow::Result<()>>,
{
    begin::<C>().map_or_else(ExitCode::from, |begun| {
        let ended = alone(run(begun.checked));
        end(C::NAME, begun.telemetry, &ended)
    })
}

struct Begun<Checked> {
    checked: Checked,
    address: SocketAddr,
    deadline: Duration,
    telemetry: Telemetry,
}

/// Reads the configuration and sets up telemetry; says every problem and gives the exit code when that cannot be.
fn begin<C: Configure>() -> Result<Begun<C::Checked>, u8> {
    let refuse = |problems: String| {
        say(format_args!("{}: the configuration cannot work:\n{problems}\nSee --help.", C::NAME));
        EXIT_USAGE
    };
    // Many crates below bring a choice of TLS providers; one is named for all of them, before any can make a client.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (options, checked) = config::read::<C>().map_err(|unconfigured| match unconfigured {
        Unconfigured::Asked(text) => text.exit(),
        Unconfigured::Mistyped(error) => {
            say(format_args!("{error}"));
            EXIT_USAGE
        }
        Unconfigured::Wrong(problems) => refuse(problems),
    })?;
    let mut problems = Problems::default();
    let common = options.common();
    let address: Option<SocketAddr> = problems.parsed("COUNTERFOIL_ADMIN_LISTEN", &common.admin_listen);
    let format: Option<LogFormat> = problems.parsed("COUNTERFOIL_LOG_FORMAT", &common.log_format);
    let deadline = problems.seconds("COUNTERFOIL_SHUTDOWN_DEADLINE_S", &common.shutdown_deadline_s, 1);
    let (Some(address), Some(format), Some(deadline)) = (address, format, deadline) else {
        return Err(refuse(problems.said().unwrap_or_default()));
    };
    let telemetry = telemetry::start(C::NAME, &common.log, format).map_err(|error| refuse(format!("{error:#}")))?;
    Ok(Begun { checked, address, deadline, telemetry })
}

fn end(name: &str, telemetry: Telemetry, ended: &anyhow::Result<()>) -> ExitCode {
    if let Err(error) = ended {
        tracing::error!(error = format!("{error:#}"), "{name} failed");
    }
    telemetry.flush();
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[tokio::main]
async fn alone(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    work.await
}

#[tokio::main]
async fn live<Run, Work>(name: &'static str, address: SocketAddr, telemetry: &Telemetry, process: Process, run: Run) -> anyhow::Result<()>
where
    Run: FnOnce(Process) -> Work,
    Work: Future<Output = anyhow::Result<()>>,
{
    let listener = crate::admin::listen(address).await?;
    let admin_stop = CancellationToken::new();
    let admin = tokio::spawn(crate::admin::serve(listener, process.readiness.clone(), telemetry.metrics.clone(), admin_stop.clone()));
    let upkeep = tokio::spawn(Telemetry::upkeep(telemetry.metrics.clone()));
    let signals = tokio::spawn(watch_signals(process.clone())?);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %address, "{name} starts");
    let deadline = async {
        process.shutdown.cancelled().await;
        tokio::time::sleep(process.deadline).await;
    };
    let ended = tokio::select! {
        ended = run(process.clone()) => ended,
        () = deadline => {
            tracing::warn!(deadline_s = process.deadline.as_secs(), "work in hand did not end by the deadline; it is left to the next process");
            Ok(())
        }
    };
    upkeep.abort();
    signals.abort();
    admin_stop.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(1), admin).await;
    tracing::info!("{name} ends");
    ended
}

/// The first SIGTERM or SIGINT begins the shutdown, the second ends the process at once.
fn watch_signals(process: Process) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        let mut seen = false;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if seen {
                tracing::warn!("second signal: ending at once");
                std::process::exit(130);
            }
            seen = true;
            tracing::info!("stopping: work in hand is finished");
            process.readiness.stop();
            process.shutdown.cancel();
        }
    })
}

/// What is wrong before there is a log to write it to.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
