//! Load: pgbench with a script of ours, and prepared HTTP requests over keep-alive connections.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use counterfoil_tests::Stage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

/// Connections of the HTTP clients.
const CONNECTIONS: usize = 96;

/// A pgbench script in a file of its own, removed when dropped.
pub(crate) struct Script(PathBuf);

impl Script {
    pub(crate) fn write(text: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("counterfoil-bench-{}.sql", Uuid::new_v4()));
        std::fs::write(&path, text)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Transactions a second of a script, prepared, from so many connections.
pub(crate) fn pgbench(stage: &Stage, script: &str, connections: usize, seconds: u64) -> anyhow::Result<f64> {
    let out = Command::new("pgbench")
        .args(["-n", "-M", "prepared", "-f", script, "-c", &connections.to_string(), "-j", "2", "-T", &seconds.to_string(), &stage.database_url])
        .output()
        .context("pgbench (it comes with PostgreSQL)")?;
    let text = String::from_utf8(out.stdout)?;
    let rate = text
        .lines()
        .find_map(|line| line.strip_prefix("tps = "))
        .and_then(|rest| rest.split(' ').next())
        .with_context(|| format!("{text}\n{}", String::from_utf8_lossy(&out.stderr)))?;
    anyhow::ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(rate.parse()?)
}

/// Sends all requests over keep-alive connections, again after a 503; the rate at which they were answered with `status`.
pub(crate) async fn send_all(address: &str, requests: Vec<Vec<u8>>, status: &'static str) -> anyhow::Result<f64> {
    let count = requests.len();
    let parts: Vec<Vec<Vec<u8>>> = (0..CONNECTIONS).map(|nth| requests.iter().skip(nth).step_by(CONNECTIONS).cloned().collect()).collect();
    let begun = Instant::now();
    let senders: Vec<_> = parts.into_iter().map(|part| tokio::spawn(send(address.to_owned(), part, status))).collect();
    for sender in senders {
        sender.await??;
    }
    Ok(count as f64 / begun.elapsed().max(Duration::from_millis(1)).as_secs_f64())
}

async fn send(address: String, requests: Vec<Vec<u8>>, status: &'static str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let wanted = format!("HTTP/1.1 {status}");
    let mut answer = vec![0; 4096];
    for request in requests {
        loop {
            stream.write_all(&request).await?;
            let mut read = 0;
            // Answers are small; the body follows its head in one segment and ends with a brace.
            while read == 0 || answer[read - 1] != b'}' {
                let count = stream.read(&mut answer[read..]).await?;
                anyhow::ensure!(count > 0, "ingest closed the connection");
                read += count;
            }
            if answer.starts_with(wanted.as_bytes()) {
                break;
            }
            anyhow::ensure!(answer.starts_with(b"HTTP/1.1 503"), "{}", String::from_utf8_lossy(&answer[..read]));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}
