//! A mail server and a CRM that do as a test says, over real sockets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Answers = Arc<Mutex<VecDeque<String>>>;

/// A mail server. It takes every mail, unless a phase has answers waiting, which are given first.
#[derive(Debug, Clone)]
pub struct SmtpStub {
    /// `smtp://127.0.0.1:port`
    pub url: String,
    mails: Arc<Mutex<Vec<String>>>,
    banner: Answers,
    recipient: Answers,
    dot: Answers,
    auth: Answers,
}

impl SmtpStub {
    /// Starts it.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stub = Self {
            url: format!("smtp://{}", listener.local_addr().unwrap()),
            mails: Arc::default(),
            banner: Arc::default(),
            recipient: Arc::default(),
            dot: Arc::default(),
            auth: Arc::default(),
        };
        let serving = stub.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stub = serving.clone();
                tokio::spawn(async move { stub.converse(stream).await });
            }
        });
        stub
    }

    /// The mails it has taken, whole.
    #[must_use]
    pub fn mails(&self) -> Vec<String> {
        self.mails.lock().unwrap().clone()
    }

    /// How many mails it has taken for this address.
    #[must_use]
    pub fn mails_to(&self, address: &str) -> usize {
        self.mails().iter().filter(|mail| mail.contains(&format!("RCPT TO:<{address}>"))).count()
    }

    /// Answers the next greetings so; `drop` closes the connection, `take-and-drop` at the dot takes the mail first.
    pub fn at_banner(&self, answers: &[&str]) {
        self.banner.lock().unwrap().extend(answers.iter().map(|answer| (*answer).to_owned()));
    }

    /// Answers the next recipients so.
    pub fn at_recipient(&self, answers: &[&str]) {
        self.recipient.lock().unwrap().extend(answers.iter().map(|answer| (*answer).to_owned()));
    }

    /// Answers the next final dots so.
    pub fn at_dot(&self, answers: &[&str]) {
        self.dot.lock().unwrap().extend(answers.iter().map(|answer| (*answer).to_owned()));
    }

    /// Answers left unused.
    #[must_use]
    pub fn answers_left(&self) -> usize {
        [&self.banner, &self.recipient, &self.dot, &self.auth].iter().map(|answers| answers.lock().unwrap().len()).sum()
    }

    async fn converse(&self, stream: TcpStream) -> Option<()> {
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).split(b'\n');
        let next = |answers: &Answers| answers.lock().unwrap().pop_front();
        writer.write_all(answer(next(&self.banner), "220 stub ESMTP")?.as_bytes()).await.ok()?;
        let mut envelope = String::new();
        while let Ok(Some(line)) = lines.next_segment().await {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let reply = match line.get(..4).unwrap_or_default().to_ascii_uppercase().as_str() {
                "EHLO" => "250-stub\r\n250-8BITMIME\r\n250 SIZE 1000000\r\n".to_owned(),
                "RCPT" => {
                    envelope.push_str(&line);
                    envelope.push('\n');
                    answer(next(&self.recipient), "250 ok")?
                }
                "DATA" => {
                    writer.write_all(b"354 go on\r\n").await.ok()?;
                    let mut mail = std::mem::take(&mut envelope);
                    while let Ok(Some(line)) = lines.next_segment().await {
                        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                        if line == "." {
                            break;
                        }
                        mail.push_str(&line);
                        mail.push('\n');
                    }
                    let reply = next(&self.dot);
                    if reply.as_deref().is_none_or(|reply| ["250", "take", "hang"].iter().any(|taken| reply.starts_with(taken))) {
                        self.mails.lock().unwrap().push(mail);
                    }
                    if reply.as_deref() == Some("hang") {
                        tokio::time::sleep(Duration::from_secs(60)).await;
                    }
                    answer(reply, "250 taken")?
                }
                "QUIT" => "221 bye\r\n".to_owned(),
                _ => "250 ok\r\n".to_owned(),
            };
            writer.write_all(reply.as_bytes()).await.ok()?;
        }
        Some(())
    }
}

/// The reply to give; `None` closes the connection.
fn answer(asked: Option<String>, usual: &str) -> Option<String> {
    let reply = asked.unwrap_or_else(|| usual.to_owned());
    (reply != "drop" && reply != "take-and-drop").then(|| format!("{reply}\r\n"))
}

/// A request that the CRM has seen.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Head, with the request line.
    pub head: String,
    /// Body, as text.
    pub body: String,
    /// Body, as bytes.
    pub bytes: Vec<u8>,
}

/// A CRM. It answers 200, unless answers are waiting, which are given first.
#[derive(Debug, Clone)]
pub struct CrmStub {
    /// `http://127.0.0.1:port/contacts`
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    answers: Answers,
    delay: Arc<Mutex<Duration>>,
}

impl CrmStub {
    /// Starts it.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stub =
            Self { url: format!("http://{}/contacts", listener.local_addr().unwrap()), seen: Arc::default(), answers: Arc::default(), delay: Arc::default() };
        let serving = stub.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stub = serving.clone();
                tokio::spawn(async move { stub.answer(stream).await });
            }
        });
        stub
    }

    /// Answers the next requests so: a status line's end and further headers, such as `503 Busy\r\nRetry-After: 1`.
    pub fn next(&self, answers: &[&str]) {
        self.answers.lock().unwrap().extend(answers.iter().map(|answer| (*answer).to_owned()));
    }

    /// Answers each request only after this long.
    pub fn slow(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }

    /// The requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    async fn answer(&self, mut stream: TcpStream) -> Option<()> {
        let mut read = Vec::new();
        let head_end = loop {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
            read.extend_from_slice(&piece[..count]);
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = String::from_utf8_lossy(&read[..head_end]).into_owned();
        let length: usize =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").and_then(|length| length.trim().parse().ok())).unwrap_or(0);
        while read.len() < head_end + length {
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
            read.extend_from_slice(&piece[..count]);
        }
        let body = String::from_utf8_lossy(&read[head_end..]).into_owned();
        self.seen.lock().unwrap().push(Seen { head, body, bytes: read[head_end..].to_vec() });
        let delay = *self.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_else(|| "200 OK".to_owned());
        stream.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}").as_bytes()).await.ok()
    }
}
