//! Mail to customers: receipts, ticket numbers, that these are void, or that there were none left. Outside, so at least once; a repeat carries the same
//! Message-ID.

mod letter;
mod receipt;
mod smtp;
mod tickets;

use std::time::Duration;

use counterfoil_payments::Event;
use counterfoil_payments::event::{Body, OrderData, TicketsData, UnavailableData};
use counterfoil_settlement::{ReceiptKind, record_receipt};
use lettre::message::Mailbox;
use sqlx::PgPool;

use letter::Mail;
pub use smtp::Server;

use crate::runner::{Deliver, Effect, Failure};

/// The consumer `email`.
#[derive(Debug)]
pub struct Email {
    server: Server,
    from: Mailbox,
    pool: PgPool,
}

impl Email {
    /// Sends through `server` as `from`, and records in `pool` what was sent.
    #[must_use]
    pub fn new(server: Server, from: Mailbox, pool: PgPool) -> Self {
        Self { server, from, pool }
    }

    /// What customers see of it. Where it cannot be written down, the mail is sent again, with the same Message-ID.
    async fn record(&self, event: &Event, kind: ReceiptKind, message_id: &str) -> Result<(), Failure> {
        let database = |error: sqlx::Error| Failure::outage(format!("the database: {error}"));
        let mut connection = self.pool.acquire().await.map_err(database)?;
        record_receipt(&mut connection, event.id, event.order_id.0, kind, message_id).await.map_err(database)
    }
}

/// What a mail says, and to whom.
enum Words<'a> {
    Receipt(&'a OrderData),
    Tickets(&'a TicketsData),
    Void(&'a TicketsData),
    Unavailable(&'a UnavailableData),
}

impl<'a> Words<'a> {
    fn of(event: &'a Event) -> Option<Self> {
        match &event.body {
            Body::OrderPaid(order) | Body::OrderContactKnown(order) => Some(Self::Receipt(order)),
            Body::TicketsIssued(tickets) => Some(Self::Tickets(tickets)),
            Body::TicketsVoided(tickets) => Some(Self::Void(tickets)),
            Body::TicketsUnavailable(lost) => Some(Self::Unavailable(lost)),
            Body::PaymentExtra(_)
            | Body::PaymentHeld(_)
            | Body::OrderRefunded(_)
            | Body::OrderDisputed(_)
            | Body::RefundRequested(_)
            | Body::RefundFailed(_) => None,
        }
    }

    fn address(&self) -> Option<&'a str> {
        match self {
            Self::Receipt(order) => order.customer.email.as_deref(),
            Self::Tickets(tickets) | Self::Void(tickets) => tickets.customer.email.as_deref(),
            Self::Unavailable(lost) => lost.customer.email.as_deref(),
        }
    }

    fn mail(&self, event: &Event, address: &str, from: &Mailbox) -> Result<(ReceiptKind, Mail), Failure> {
        Ok(match self {
            Self::Receipt(order) => (ReceiptKind::Receipt, receipt::mail(event, order, address, from)?),
            Self::Tickets(data) => (ReceiptKind::Tickets, tickets::issued(event, data, address, from)?),
            Self::Void(data) => (ReceiptKind::Void, tickets::voided(event, data, address, from)?),
            Self::Unavailable(data) => (ReceiptKind::Unavailable, tickets::unavailable(event, data, address, from)?),
        })
    }
}

impl Deliver for Email {
    const NAME: &'static str = "email";
    const DEADLINE: Duration = Duration::from_secs(9 * 60); // 30 s to connect, three commands of 60 s, five minutes for the final dot

    async fn deliver(&self, event: &Event) -> Result<Effect, Failure> {
        let Some(words) = Words::of(event) else { return Ok(Effect::NotNeeded("not an event that mails anything")) };
        let Some(address) = words.address() else {
            return Ok(Effect::NotNeeded("no address is known yet; order.contact_known will bring it"));
        };
        let (kind, mail) = words.mail(event, address, &self.from)?;
        self.server.send(&mail).await?;
        self.record(event, kind, &mail.message_id).await?;
        Ok(Effect::Made(Some(mail.message_id)))
    }
}
