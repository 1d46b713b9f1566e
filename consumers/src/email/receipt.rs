//! Writes a receipt, in text and HTML.

use std::fmt::Write;

use counterfoil_payments::event::{Line, OrderData};
use counterfoil_payments::{Event, Money};
use lettre::message::Mailbox;

use super::letter::{Letter, Mail, escape, header_text, letter};
use crate::runner::Failure;

/// The receipt of a paid order.
pub(crate) fn mail(event: &Event, order: &OrderData, address: &str, from: &Mailbox) -> Result<Mail, Failure> {
    let subject = format!("Receipt for order {}", order.reference);
    letter(event, address, from, &Letter { kind: "receipt", subject, name: order.customer.name.as_deref(), text: text(order), html: html(order) })
}

fn money(order: &OrderData, amount_minor: i64) -> String {
    Money::new(amount_minor, order.currency).to_string()
}

fn quantity(line: &Line) -> String {
    if line.quantity == 1 { String::new() } else { format!("{} × ", line.quantity) }
}

/// When it was paid, to the minute.
fn paid_at(order: &OrderData) -> String {
    format!("{} UTC", order.paid_at.chars().take(16).collect::<String>().replace('T', " "))
}

fn text(order: &OrderData) -> String {
    let mut text = String::new();
    if let Some(name) = &order.customer.name {
        let _ = write!(text, "Dear {},\n\n", header_text(name));
    }
    let _ = write!(text, "thank you: we have received your payment for order {}.\n\n", header_text(&order.reference));
    for line in &order.lines {
        let _ = writeln!(text, "  {}{}: {}", quantity(line), header_text(&line.description), money(order, line.amount_minor));
    }
    if !order.lines.is_empty() {
        text.push('\n');
    }
    let _ = write!(text, "Paid: {} on {}\n\nThis is your receipt.\n", order.money(), paid_at(order));
    text
}

fn html(order: &OrderData) -> String {
    let mut html = String::from("<!DOCTYPE html><html><body style=\"font-family: sans-serif\">");
    if let Some(name) = &order.customer.name {
        let _ = write!(html, "<p>Dear {},</p>", escape(&header_text(name)));
    }
    let _ = write!(html, "<p>thank you: we have received your payment for order <strong>{}</strong>.</p><table>", escape(&header_text(&order.reference)));
    for line in &order.lines {
        let what = escape(&header_text(&line.description));
        let _ = write!(html, "<tr><td>{}{what}</td><td style=\"text-align: right\">{}</td></tr>", quantity(line), money(order, line.amount_minor));
    }
    let _ = write!(html, "<tr><th style=\"text-align: left\">Paid</th><th style=\"text-align: right\">{}</th></tr></table>", order.money());
    let _ = write!(html, "<p>Paid on {}. This is your receipt.</p></body></html>", paid_at(order));
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterfoil_payments::event::Body;
    use counterfoil_payments::event::{Customer, PaymentData};
    use counterfoil_payments::{OrderId, Provider};

    fn order(name: &str, reference: &str, amount_minor: i64, currency: &str) -> OrderData {
        let currency = currency.parse().unwrap();
        OrderData {
            order_id: OrderId(uuid::Uuid::from_u128(1)),
            reference: reference.into(),
            version: 2,
            amount_minor,
            currency,
            customer: Customer { email: Some("ann@example.com".into()), name: Some(name.into()), phone: None },
            lines: vec![Line { description: "Tea <&> pot".into(), quantity: 2, amount_minor, draw: None }],
            paid_at: "2026-11-29T10:11:12.000000Z".into(),
            payment: PaymentData {
                provider: Provider::Stripe,
                account: String::new(),
                payment_id: "pi_1".into(),
                amount_minor,
                currency,
                settled_minor: amount_minor,
            },
            books: None,
        }
    }

    fn sent(order: &OrderData, address: &str) -> Result<String, Failure> {
        let event = Event { id: uuid::Uuid::from_u128(7), order_id: order.order_id, time: "2026-11-29T10:11:13Z".into(), body: Body::OrderPaid(order.clone()) };
        mail(&event, order, address, &"Shop <receipts@shop.example>".parse().unwrap()).map(|mail| String::from_utf8(mail.bytes).unwrap())
    }

    #[test]
    fn a_receipt_has_the_amount_with_the_currencys_own_decimals_and_ids_derived_from_the_event() {
        for (amount, currency, written) in [(1099, "EUR", "10.99 EUR"), (1000, "JPY", "1000 JPY"), (1234, "KWD", "1.234 KWD")] {
            let mail = sent(&order("Ann", "A-1", amount, currency), "ann@example.com").unwrap();
            assert!(mail.contains(written), "{mail}");
            assert!(mail.contains("Message-ID: <00000000-0000-0000-0000-000000000007.receipt@shop.example>"));
            assert!(mail.contains("Date: Sun, 29 Nov 2026 10:11:13 +0000"));
        }
    }

    #[test]
    fn customer_text_cannot_reach_a_header() {
        let long = "x".repeat(2000);
        for name in [
            "Ann\r\nBcc: eve@example.net",
            "Ann\rBcc: eve@example.net",
            "Ann\nBcc: eve@example.net",
            "A\0nn",
            "A\u{2028}Bcc: eve@example.net",
            "=?utf-8?Q?A=0D=0ABcc:eve?=",
            "\u{202E}nnA",
            "\"Ann\" <eve@example.net>",
            &long,
        ] {
            let mail = sent(&order(name, name, 1, "EUR"), "ann@example.com").unwrap();
            let head = mail.split("\r\n\r\n").next().unwrap();
            let names: Vec<&str> = head.lines().filter(|line| !line.starts_with([' ', '\t'])).map(|line| line.split(':').next().unwrap()).collect();
            assert_eq!(names.iter().filter(|name| **name == "To").count(), 1, "{head}");
            assert!(!names.iter().any(|name| name.eq_ignore_ascii_case("bcc")), "{head}");
            assert!(head.lines().all(|line| line.len() < 998), "{head}");
        }
    }

    #[test]
    fn addresses_beyond_ascii_go_as_punycode_and_what_is_no_address_is_permanent() {
        assert!(sent(&order("A", "r", 1, "EUR"), "info@gråd.example").unwrap().contains("info@xn--grd-vla.example"));
        let long = format!("{}@example.com", "x".repeat(400));
        for address in ["", "ann", "a b@example.com", "@example.com", "ann@", "a\r\n@example.com", &long] {
            assert!(matches!(sent(&order("A", "r", 1, "EUR"), address), Err(Failure::Permanent { .. })), "{address:?}");
        }
    }

    #[test]
    fn html_escapes_what_text_shows() {
        assert!(html(&order("<b>", "r", 1, "EUR")).contains("Dear &lt;b&gt;"));
        assert!(html(&order("A", "r", 1, "EUR")).contains("Tea &lt;&amp;&gt; pot"));
        assert!(text(&order("A", "r", 1, "EUR")).contains("2 × Tea <&> pot"));
    }
}
