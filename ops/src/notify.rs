//! Telling a human directly: dead letters, held money, rows that do not go out, what must never be. Once each, and again only when it has
//! grown after an hour, or a day has passed; all that is new in one message.

use std::time::Duration;

use anyhow::Context;
use counterfoil_chassis::Problems;
use lettre::message::Mailbox;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use serde_json::json;
use sqlx::{PgPool, PgTransaction};

use crate::facts::Facts;
use crate::words::counted;

/// Longest time for telling somebody.
const DEADLINE: Duration = Duration::from_secs(15);

/// One at a time tells: whoever holds this lock.
const LOCK: i64 = 0x636f_756e_7465_726e;

/// Where humans are told.
#[derive(Debug, Clone, clap::Args)]
pub struct NotifyOptions {
    /// housekeep: a Slack-compatible incoming webhook that is told what needs a person. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_NOTIFY_SLACK_URL", hide_env_values = true)]
    notify_slack_url: Option<String>,
    /// housekeep: an address that is mailed what needs a person.
    #[arg(long, env = "COUNTERFOIL_NOTIFY_EMAIL")]
    notify_email: Option<String>,
    /// housekeep: the mail server for that, as for the email consumer. Also _FILE.
    #[arg(long, env = "COUNTERFOIL_SMTP_URL", hide_env_values = true)]
    smtp_url: Option<String>,
    /// housekeep: the sender.
    #[arg(long, env = "COUNTERFOIL_MAIL_FROM")]
    mail_from: Option<String>,
    /// The console's public address, for links.
    #[arg(long, env = "COUNTERFOIL_CONSOLE_URL")]
    pub(crate) console_url: Option<String>,
}

/// Tells humans.
#[derive(Clone, Default)]
pub struct Notifier {
    slack: Option<reqwest::Url>,
    mail: Option<Mail>,
    console_url: String,
}

#[derive(Clone)]
struct Mail {
    url: String,
    from: Mailbox,
    to: Mailbox,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").field("slack", &self.slack.is_some()).field("mail", &self.mail.as_ref().map(|mail| &mail.to)).finish_non_exhaustive()
    }
}

impl NotifyOptions {
    pub(crate) fn check(&self, problems: &mut Problems) -> Notifier {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let slack =
            given(&self.notify_slack_url).and_then(|url| reqwest::Url::parse(&url).map_err(|error| problems.note("COUNTERFOIL_NOTIFY_SLACK_URL", error)).ok());
        let mail = given(&self.notify_email).and_then(|to| {
            let to = problems.parsed("COUNTERFOIL_NOTIFY_EMAIL", &to);
            let from = problems.required("COUNTERFOIL_MAIL_FROM", self.mail_from.as_ref()).and_then(|from| problems.parsed("COUNTERFOIL_MAIL_FROM", &from));
            let url = problems.required("COUNTERFOIL_SMTP_URL", self.smtp_url.as_ref())?;
            if AsyncSmtpTransport::<Tokio1Executor>::from_url(&url).is_err() {
                problems.note("COUNTERFOIL_SMTP_URL", "is no URL of a mail server");
                return None;
            }
            Some(Mail { url, from: from?, to: to? })
        });
        Notifier { slack, mail, console_url: self.console_url.clone().unwrap_or_default().trim_end_matches('/').to_owned() }
    }
}

/// Something that a human should know, and how much of it there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) key: String,
    pub(crate) count: i64,
    pub(crate) text: String,
}

/// What of the facts a human is told.
fn subjects(facts: &Facts, console_url: &str) -> Vec<Subject> {
    let link = |path: &str| if console_url.is_empty() { String::new() } else { format!(" {console_url}{path}") };
    let mut subjects = Vec::new();
    let mut say = |key: String, count: i64, text: String| {
        if count > 0 {
            subjects.push(Subject { key, count, text });
        }
    };
    for consumer in &facts.consumers {
        let open = consumer.dead.as_ref().map_or(0, |dead| dead.open);
        let kind = facts.groups.iter().find(|group| group.consumer == consumer.name).map_or_else(String::new, |group| format!(", most of them {}", group.kind));
        let text = format!(
            "{}: {}{kind}.{}",
            consumer.name,
            counted(open, "dead letter needs a decision", "dead letters need a decision"),
            link(&format!("/dead?consumer={}&state=open", consumer.name))
        );
        say(format!("dead:{}", consumer.name), open, text);
    }
    for waiting in &facts.attention {
        let sums: Vec<String> = waiting.amounts.iter().map(|(currency, minor)| crate::words::money(Some(*minor), Some(currency))).collect();
        let sums = if sums.is_empty() { String::new() } else { format!(" ({})", sums.join(" + ")) };
        let text = format!("{} × {}{sums}: counterfoil attention.{}", waiting.needing(), waiting.kind, link("/attention"));
        say(format!("attention:{}", waiting.kind), i64::try_from(waiting.needing()).unwrap_or(i64::MAX), text);
    }
    say(
        "outbox:unroutable".into(),
        facts.outbox.unroutable,
        format!("{} unroutable: run counterfoil-migrate.{}", counted(facts.outbox.unroutable, "outbox row is", "outbox rows are"), link("/flow")),
    );
    say(
        "outbox:parked".into(),
        facts.outbox.parked,
        format!("{} parked: the broker refuses.{}", counted(facts.outbox.parked, "outbox row is", "outbox rows are"), link("/flow")),
    );
    say("lost".into(), facts.lost, format!("{} lost by a queue, and sent again.{}", counted(facts.lost, "message was", "messages were"), link("/flow")));
    for (check, count) in &facts.violations {
        say(format!("invariant:{check}"), *count, format!("{count} × {check}, which must never be: counterfoil doctor --check {check}.{}", link("/")));
    }
    subjects
}

impl Notifier {
    /// Tells what is new, has grown, or is over. Nothing is configured: nobody is told.
    pub(crate) async fn tell(&self, pool: &PgPool, facts: &Facts) -> anyhow::Result<()> {
        if self.slack.is_none() && self.mail.is_none() {
            return Ok(());
        }
        let subjects = subjects(facts, &self.console_url);
        // Each channel by itself: one that is down neither silences the other nor makes it say everything again.
        if let Some(url) = &self.slack {
            told("slack", self.tell_by(pool, "slack", &facts.verdict, &subjects, async |text| post(url, text).await).await)?;
        }
        if let Some(mail) = &self.mail {
            told("mail", self.tell_by(pool, "mail", &facts.verdict, &subjects, async |text| mail.send(text).await).await)?;
        }
        Ok(())
    }

    /// Told first, then written down: a crash between the two tells twice, never not at all.
    async fn tell_by(
        &self,
        pool: &PgPool,
        channel: &str,
        verdict: &str,
        subjects: &[Subject],
        send: impl AsyncFnOnce(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut tx = pool.begin().await?;
        if !sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "locked!""#, LOCK).fetch_one(&mut *tx).await? {
            return Ok(false); // another process tells
        }
        let news = news(&mut tx, channel, subjects).await?;
        if !news.is_empty() {
            send(&format!("Counterfoil: {verdict}\n{}", news.join("\n"))).await?;
        }
        tx.commit().await?;
        Ok(!news.is_empty())
    }
}

/// Counts what was told; a channel that is down is tried again, and said in the log.
fn told(channel: &'static str, told: anyhow::Result<bool>) -> anyhow::Result<()> {
    match told {
        Ok(true) => metrics::counter!("counterfoil_notifications_total", "channel" => channel, "outcome" => "sent").increment(1),
        Ok(false) => {}
        Err(error) if error.downcast_ref::<sqlx::Error>().is_some() => return Err(error),
        Err(error) => {
            metrics::counter!("counterfoil_notifications_total", "channel" => channel, "outcome" => "failed").increment(1);
            tracing::error!(channel, error = format!("{error:#}"), "nobody could be told; it is tried again");
        }
    }
    Ok(())
}

async fn post(url: &reqwest::Url, text: &str) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().timeout(DEADLINE).build()?;
    let answer =
        client.post(url.clone()).json(&json!({ "text": text })).send().await.map_err(reqwest::Error::without_url).context("the webhook cannot be reached")?;
    anyhow::ensure!(answer.status().is_success(), "the webhook answers {}", answer.status());
    Ok(())
}

impl Mail {
    async fn send(&self, text: &str) -> anyhow::Result<()> {
        let subject = text.lines().next().unwrap_or("Counterfoil").to_owned();
        let message = Message::builder().from(self.from.clone()).to(self.to.clone()).subject(subject).body(text.to_owned())?;
        let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(&self.url)?.timeout(Some(DEADLINE)).build();
        transport.send(message).await.context("the mail was not taken")?;
        Ok(())
    }
}

/// What is to be told of these subjects, which are written down as told; and what is over.
async fn news(tx: &mut PgTransaction<'_>, channel: &str, subjects: &[Subject]) -> sqlx::Result<Vec<String>> {
    let mut news = Vec::new();
    for subject in subjects {
        let told = sqlx::query_scalar!(
            "INSERT INTO notifications AS n (subject, text, count) VALUES ($1, $2, $3)
             ON CONFLICT (subject) DO UPDATE SET told_at = now(), times = n.times + 1, text = excluded.text, count = excluded.count, over_at = NULL
                WHERE (n.over_at IS NOT NULL AND n.told_at < now() - interval '10 minutes') OR (excluded.count > n.count AND n.told_at < now() - interval '1 hour') OR n.told_at < now() - interval '1 day'
             RETURNING subject",
            format!("{channel} {}", subject.key),
            subject.text,
            subject.count,
        );
        if told.fetch_optional(&mut **tx).await?.is_some() {
            news.push(format!("• {}", subject.text));
        }
    }
    let keys: Vec<String> = subjects.iter().map(|subject| format!("{channel} {}", subject.key)).collect();
    let over = sqlx::query_scalar!(
        "UPDATE notifications SET over_at = now() WHERE over_at IS NULL AND split_part(subject, ' ', 1) = $2 AND subject <> ALL ($1) RETURNING subject",
        &keys,
        channel
    );
    news.extend(over.fetch_all(&mut **tx).await?.into_iter().map(|subject| format!("• over: {}", subject.split_once(' ').map_or("", |(_, key)| key))));
    Ok(news)
}
