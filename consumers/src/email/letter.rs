//! Writes a mail to a customer: its head, and the two forms of its body. Customer text cannot reach a header.

use std::time::SystemTime;

use counterfoil_payments::Event;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};
use lettre::{Address, Message};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::runner::Failure;

/// Longest piece of customer text in a header, in characters.
const HEADER_CHARS_MAX: usize = 120;

/// A mail ready to be sent.
#[derive(Debug)]
pub(crate) struct Mail {
    pub(crate) from: Address,
    pub(crate) to: Address,
    /// With its brackets.
    pub(crate) message_id: String,
    pub(crate) bytes: Vec<u8>,
}

/// What a mail says.
#[derive(Debug)]
pub(crate) struct Letter<'a> {
    /// Part of its Message-ID.
    pub(crate) kind: &'static str,
    pub(crate) subject: String,
    /// Whom it greets.
    pub(crate) name: Option<&'a str>,
    pub(crate) text: String,
    pub(crate) html: String,
}

/// Puts a letter into its envelope; its Message-ID and date follow from the event, so that a repeat is the same mail.
pub(crate) fn letter(event: &Event, address: &str, from: &Mailbox, letter: &Letter<'_>) -> Result<Mail, Failure> {
    let to = mailable(address)?;
    let message_id = format!("<{}.{}@{}>", event.id, letter.kind, from.email.domain());
    let date = OffsetDateTime::parse(&event.time, &Rfc3339).map_err(|error| Failure::permanent(format!("the event's time: {error}")))?;
    let event_header = HeaderValue::new(HeaderName::new_from_ascii_str("X-Counterfoil-Event"), event.id.to_string());
    let name = letter.name.map(header_text).filter(|name| !name.is_empty());
    let message = Message::builder()
        .from(from.clone())
        .to(Mailbox::new(name, to.clone()))
        .subject(header_text(&letter.subject))
        .message_id(Some(message_id.clone()))
        .date(SystemTime::from(date))
        .raw_header(event_header)
        .multipart(MultiPart::alternative_plain_html(letter.text.clone(), letter.html.clone()))
        .map_err(|error| Failure::permanent(format!("the mail cannot be built: {error}")))?;
    Ok(Mail { from: from.email.clone(), to, message_id, bytes: message.formatted() })
}

/// An address that SMTP can carry: a domain beyond ASCII as punycode, the local part as it is.
fn mailable(address: &str) -> Result<Address, Failure> {
    let invalid = || Failure::permanent("the customer's address is not a mail address");
    let (local, domain) = address.rsplit_once('@').ok_or_else(invalid)?;
    let domain = if domain.is_ascii() { domain.to_owned() } else { url::Host::parse(domain).map_err(|_| invalid())?.to_string() };
    Address::new(local, domain).map_err(|_| invalid())
}

/// Customer text made fit for a header: no line ends or other controls, no marks that turn the reading direction, no
/// encoded word of the customer's own, not too long.
pub(crate) fn header_text(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}');
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let clean: String = text.chars().filter(|c| !turns(*c)).map(|c| if breaks(c) { ' ' } else { c }).take(HEADER_CHARS_MAX).collect();
    clean.replace("=?", "= ?").trim().to_owned()
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}
