//! Writes a customer their ticket numbers, or that these are void, in text and HTML.

use std::fmt::Write;

use counterfoil_payments::Event;
use counterfoil_payments::event::{TicketRange, TicketsData};
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

fn write(event: &Event, data: &TicketsData, address: &str, from: &Mailbox, words: Words) -> Result<Mail, Failure> {
    let Words { kind, subject, what, close } = words;
    let name = data.customer.name.as_deref();
    let greeting = name.map(|name| format!("Dear {},", header_text(name)));
    let mut text = greeting.as_ref().map(|greeting| format!("{greeting}\n\n")).unwrap_or_default();
    let mut html = String::from("<!DOCTYPE html><html><body style=\"font-family: sans-serif\">");
    if let Some(greeting) = &greeting {
        let _ = write!(html, "<p>{}</p>", escape(greeting));
    }
    let reference = header_text(&data.reference);
    let _ = write!(text, "{what}, order {reference}:\n\n");
    let _ = write!(html, "<p>{what}, order <strong>{}</strong>:</p><table>", escape(&reference));
    for range in &data.tickets {
        let draw = header_text(&range.name);
        let _ = writeln!(text, "  {draw}: {}", numbers(range));
        let _ = write!(html, "<tr><td>{}</td><td style=\"text-align: right\">{}</td></tr>", escape(&draw), numbers(range));
    }
    let _ = write!(text, "\n{close}\n");
    let _ = write!(html, "</table><p>{close}</p></body></html>");
    letter(event, address, from, &Letter { kind, subject, name, text, html })
}

fn numbers(range: &TicketRange) -> String {
    if range.first_number == range.last_number {
        format!("number {}", range.first_number)
    } else {
        format!("numbers {} to {}", range.first_number, range.last_number)
    }
}
