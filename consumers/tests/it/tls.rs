//! TLS and authentication on the wire: STARTTLS, TLS from the first byte, a certificate that nobody trusts.

use std::path::{Path, PathBuf};
use std::process::{Child as Server, Command};

use counterfoil_tests::fleet::free_port;
use counterfoil_tests::until;

use crate::support::Bench;

struct MailServer {
    server: Server,
    port: u16,
    folder: PathBuf,
}

impl MailServer {
    /// With a certificate of its own for localhost.
    async fn start(mode: &str) -> Self {
        let folder = counterfoil_tests::stage::root().join(format!(".local/tls-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
            ])
            .args([Path::new("-keyout"), &key, Path::new("-out"), &certificate])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mail_server.py");
        let python = if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" };
        let server = Command::new(python).args([script, mode, &port.to_string()]).args([&certificate, &key, &folder.join("mail")]).spawn().unwrap();
        until("the mail server listens", 20, true, async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Self { server, port, folder }
    }

    fn certificate(&self) -> String {
        self.folder.join("cert.pem").to_str().unwrap().to_owned()
    }

    fn mails(&self) -> usize {
        std::fs::read_dir(self.folder.join("mail/new")).map_or(0, Iterator::count)
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test]
async fn receipts_go_out_over_starttls_and_over_tls_with_the_urls_password() {
    for (mode, scheme) in [("starttls", "smtp"), ("tls", "smtps")] {
        let server = MailServer::start(mode).await;
        let bench = Bench::of("email").await;
        let url = format!("{scheme}://shop%40example.com:p%40ss%20word@localhost:{}", server.port);
        let _consumer = bench.fleet().with("COUNTERFOIL_SMTP_URL", url).with("SSL_CERT_FILE", server.certificate()).consumer("email");
        let (event, _) = bench.paid().await;
        bench.stage.put_events("email", std::slice::from_ref(&event)).await;
        bench.done(&event).await;
        assert_eq!(server.mails(), 1, "{mode}");
    }
}

#[tokio::test]
async fn a_wrong_password_and_an_untrusted_certificate_are_outages_of_ours_for_mail_and_crm() {
    let server = MailServer::start("tls").await;
    let bench = Bench::of("email").await;
    let wrong = format!("smtps://shop%40example.com:wrong@localhost:{}", server.port);
    let right = wrong.replace("wrong", "p%40ss%20word");
    let password = bench.fleet().with("COUNTERFOIL_SMTP_URL", wrong).with("SSL_CERT_FILE", server.certificate()).consumer("email");
    let (event, _) = bench.paid().await;
    bench.stage.put_events("email", std::slice::from_ref(&event)).await;
    until("the password is refused", 20, true, async || {
        password.logged().contains("535 at authentication") && password.logged().contains("outage: nothing is taken")
    })
    .await;
    assert!(!password.logged().contains("p%40ss"), "no password in a log");
    drop(password);
    let untrusting = bench.fleet().with("COUNTERFOIL_SMTP_URL", right).consumer("email");
    until("the certificate is refused", 20, true, async || untrusting.logged().contains("outage: nothing is taken")).await;
    let crm = Bench::of("crm").await;
    let consumer = crm.fleet().with("COUNTERFOIL_CRM_URL", format!("https://localhost:{}/contacts", server.port)).consumer("crm");
    let (contact, _) = crm.paid().await;
    crm.stage.put_events("crm", std::slice::from_ref(&contact)).await;
    until("the CRM's certificate is refused", 20, true, async || consumer.logged().contains("its TLS certificate is not trusted")).await;
    for (bench, name) in [(&bench, "email"), (&crm, "crm")] {
        assert_eq!(bench.stage.waiting(&format!("counterfoil.{name}.dead")).await, 0);
    }
    assert_eq!(server.mails(), 0);
}
