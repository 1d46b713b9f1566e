//! `counterfoil draws`: the proof that a draw adds up, and its signed entry list.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use counterfoil_payments::{Currency, Money, OrderKey};
use counterfoil_tickets::audit::{Audit, audit};
use counterfoil_tickets::entries::{Chain, HEAD, page};
use counterfoil_tickets::{Draw, find_draw};
use ring::signature::{Ed25519KeyPair, KeyPair};
use sqlx::{PgConnection, PgPool, PgTransaction};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::print;
use crate::settings::Draws;

/// What a public key of Ed25519 begins with as SubjectPublicKeyInfo (RFC 8410, 4).
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Longest word in front of a number of the table, in characters.
const COLUMN: usize = 62;

/// The key that signs entry lists.
#[derive(Clone)]
pub struct Signer(Arc<Ed25519KeyPair>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// Reads PKCS#8 in PEM.
    ///
    /// # Errors
    /// Says what is wrong, never repeating the key.
    pub fn read(pem: &str) -> Result<Self, String> {
        let wrong = || "must be an Ed25519 key as PKCS#8 in PEM: openssl genpkey -algorithm ed25519".to_owned();
        let body: String = pem.lines().filter(|line| !line.starts_with("-----")).flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
        let der = STANDARD.decode(body).map_err(|_| wrong())?;
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map(|key| Self(Arc::new(key))).map_err(|_| wrong())
    }

    fn public_pem(&self) -> String {
        let der = [&SPKI_HEAD, self.0.public_key().as_ref()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }
}

/// Runs one of its commands, in one snapshot.
pub(crate) async fn run(pool: &PgPool, command: Draws) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *tx).await?;
    match command {
        Draws::Audit { draw, json, settled_s } => prove(&mut tx, &draw, json, settled_s).await,
        Draws::Export { draw, to, key } => export(&mut tx, &draw, &to, &key).await,
    }
}

async fn find(connection: &mut PgConnection, key: &OrderKey) -> anyhow::Result<Draw> {
    find_draw(connection, key).await?.context("no draw has this id or reference")
}

async fn prove(tx: &mut PgTransaction<'_>, key: &OrderKey, json: bool, settled_s: i64) -> anyhow::Result<()> {
    let draw = find(&mut *tx, key).await?;
    let audit = audit(&mut *tx, draw.id, settled_s).await?.context("the draw has just disappeared")?;
    if json {
        print(format_args!("{}\n", serde_json::to_string_pretty(&audit)?))?;
    } else {
        print(format_args!("{}", table(&audit)))?;
    }
    anyhow::ensure!(audit.ok, "the draw {} does not add up: {} equations fail, {} rows", audit.reference, failing(&audit), audit.findings.len());
    Ok(())
}

fn failing(audit: &Audit) -> usize {
    audit.checks.iter().filter(|check| !check.ok).count()
}

fn table(audit: &Audit) -> String {
    let mut lines = vec![format!("draw {}  {}  {}", audit.reference, audit.name, audit.draw_id), String::new()];
    for check in &audit.checks {
        let verdict = if check.ok { "ok   " } else { "WRONG" };
        lines.push(format!("{verdict} {:<COLUMN$} {:>12} {:>12}", check.what, check.expected, check.found));
    }
    for money in &audit.proceeds {
        let write = |minor: i64| money.currency.parse::<Currency>().map_or_else(|_| minor.to_string(), |currency| Money::new(minor, currency).to_string());
        lines.extend([String::new(), format!("{} orders paid, in {}", money.orders, money.currency)]);
        for (what, minor) in [
            ("captured for these orders", money.captured_minor),
            ("of that, still here", money.here_minor),
            ("what their lines of this draw cost", money.lines_minor),
            ("  void: went back whole", money.void_minor),
            ("  lost: sold out when paid for", money.lost_minor),
            ("  went back, or was charged back, in part", money.refunded_minor),
            ("what remains", money.net_minor),
            ("  for the house", money.house_minor),
        ] {
            lines.push(format!("      {what:<COLUMN$} {:>25}", write(minor)));
        }
        lines.push(format!("      {:<COLUMN$} {:>25}", format!("  for charity: {} of it, rounded down", audit.charity), write(money.charity_minor)));
    }
    for finding in &audit.findings {
        lines.push(format!("WRONG order {} line {}: {}", finding.order, finding.line, finding.problem));
    }
    lines.push(String::new());
    if audit.unsettled > 0 {
        lines.push(format!("{} orders changed just now and are not held to what their events have yet to do (--settled-s)", audit.unsettled));
    }
    lines.push(if audit.ok { "everything adds up".to_owned() } else { "this draw does not add up".to_owned() });
    lines.push(String::new());
    lines.join("\n")
}

fn fresh(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path).with_context(|| format!("cannot write {} (it is not overwritten)", path.display()))
}

async fn export(tx: &mut PgTransaction<'_>, key: &OrderKey, to: &Path, signer: &Signer) -> anyhow::Result<()> {
    let draw = find(&mut *tx, key).await?;
    std::fs::create_dir_all(to).with_context(|| format!("cannot make the folder {}", to.display()))?;
    let list = to.join("entries.csv");
    let mut out = BufWriter::new(fresh(&list)?);
    writeln!(out, "{HEAD}")?;
    let (mut chain, mut after, mut entries) = (Chain::of(&draw.reference), 0, 0_u64);
    loop {
        let entries_read = page(&mut *tx, draw.id, after).await?;
        let Some(last) = entries_read.last() else { break };
        after = last.first_number;
        for entry in &entries_read {
            writeln!(out, "{}", chain.line(entry))?;
        }
        entries += entries_read.len() as u64;
        tracing::info!(entries, "entries written so far");
    }
    let exported_at = OffsetDateTime::now_utc().format(&Rfc3339)?;
    writeln!(out, "{}", chain.end(draw.minted, &exported_at))?;
    out.into_inner()?.sync_all()?;
    let bytes = std::fs::read(&list)?;
    fresh(&to.join("entries.csv.sig"))?.write_all(signer.0.sign(&bytes).as_ref())?;
    fresh(&to.join("entries.pub.pem"))?.write_all(signer.public_pem().as_bytes())?;
    print(format_args!("{entries} entries of draw {}, numbers 1 to {}, last hash {}\n{}\n", draw.reference, draw.minted, chain.hash(), list.display()))?;
    Ok(())
}
