//! Writes a customer their ticket numbers, that these are void, or that there were none left, in text and HTML.

use std::fmt::Write;

use counterfoil_payments::event::{TicketRange, TicketsData, UnavailableData};
use counterfoil_payments::{Event, Money};
use lettre::message::Mailbox;

use super::letter::{Letter, Mail, escape, header_text, letter};
use crate::runner::Failure;

/// The words around the numbers.
struct Words {
    kind: &'static str,
    subject: String,
    what: &'static str,
    close: &'static str,
}

/// The numbers of an order.
pub(crate) fn issued(event: &Event, data: &TicketsData, address: &str, from: &Mailbox) -> Result<Mail, Failure> {
    let subject = format!("Your tickets for order {}", data.reference);
    write(event, data, address, from, Words { kind: "tickets", subject, what: "These are your tickets", close: "Please keep this mail." })
}

/// That the numbers of an order are void.
pub(crate) fn voided(event: &Event, data: &TicketsData, address: &str, from: &Mailbox) -> Result<Mail, Failure> {
    let subject = format!("Your tickets for order {} are void", data.reference);
    let (what, close) = ("Your money goes back, so these tickets are void", "The numbers will not be given to anybody else.");
    write(event, data, address, from, Words { kind: "void", subject, what, close })
}

/// That there was no place left when the payment came. Whether the money goes back by itself is the shop's policy.
pub(crate) fn unavailable(event: &Event, data: &UnavailableData, address: &str, from: &Mailbox) -> Result<Mail, Failure> {
    let subject = format!("No tickets were left for order {}", data.reference);
    let (what, close) =
        ("We could not give you these tickets: no place was left when your payment came", "Your payment for them is sent back, or we get in touch with you.");
    let rows: Vec<_> =
        data.lines.iter().map(|line| (format!("{} ticket(s)", line.quantity), Money::new(line.amount_minor, data.currency).to_string())).collect();
    let who = Whom { name: data.customer.name.as_deref(), reference: &data.reference, address };
    compose(event, &who, &rows, from, Words { kind: "unavailable", subject, what, close })
}

fn write(event: &Event, data: &TicketsData, address: &str, from: &Mailbox, words: Words) -> Result<Mail, Failure> {
    let rows: Vec<_> = data.tickets.iter().map(|range| (header_text(&range.name), numbers(range))).collect();
    let who = Whom { name: data.customer.name.as_deref(), reference: &data.reference, address };
    compose(event, &who, &rows, from, words)
}

/// Who gets the mail, about which order.
struct Whom<'a> {
    name: Option<&'a str>,
    reference: &'a str,
    address: &'a str,
}

fn compose(event: &Event, who: &Whom<'_>, rows: &[(String, String)], from: &Mailbox, words: Words) -> Result<Mail, Failure> {
    let Words { kind, subject, what, close } = words;
    let greeting = who.name.map(|name| format!("Dear {},", header_text(name)));
    let mut text = greeting.as_ref().map(|greeting| format!("{greeting}\n\n")).unwrap_or_default();
    let mut html = String::from("<!DOCTYPE html><html><body style=\"font-family: sans-serif\">");
    if let Some(greeting) = &greeting {
        let _ = write!(html, "<p>{}</p>", escape(greeting));
    }
    let reference = header_text(who.reference);
    let _ = write!(text, "{what}, order {reference}:\n\n");
    let _ = write!(html, "<p>{what}, order <strong>{}</strong>:</p><table>", escape(&reference));
    for (left, right) in rows {
        let _ = writeln!(text, "  {left}: {right}");
        let _ = write!(html, "<tr><td>{}</td><td style=\"text-align: right\">{}</td></tr>", escape(left), escape(right));
    }
    let _ = write!(text, "\n{close}\n");
    let _ = write!(html, "</table><p>{close}</p></body></html>");
    letter(event, who.address, from, &Letter { kind, subject, name: who.name, text, html })
}

fn numbers(range: &TicketRange) -> String {
    if range.first_number == range.last_number {
        format!("number {}", range.first_number)
    } else {
        format!("numbers {} to {}", range.first_number, range.last_number)
    }
}
