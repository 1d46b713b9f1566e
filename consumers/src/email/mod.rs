//! Receipts: one mail for each paid order. Outside, so at least once; a repeat carries the same Message-ID.

mod receipt;
mod smtp;

use std::time::Duration;

use counterfoil_payments::Event;
use counterfoil_payments::event::Body;
use lettre::message::Mailbox;

pub use smtp::Server;

use crate::runner::{Deliver, Effect, Failure};

/// The consumer `email`.
#[derive(Debug)]
pub struct Email {
    server: Server,
    from: Mailbox,
}

impl Email {
    /// Sends through `server` as `from`.
    #[must_use]
    pub fn new(server: Server, from: Mailbox) -> Self {
        Self { server, from }
    }
}

impl Deliver for Email {
    const NAME: &'static str = "email";
    const DEADLINE: Duration = Duration::from_secs(9 * 60); // 30 s to connect, three commands of 60 s, five minutes for the final dot

    async fn deliver(&self, event: &Event) -> Result<Effect, Failure> {
        let (Body::OrderPaid(order) | Body::OrderContactKnown(order)) = &event.body else {
            return Ok(Effect::NotNeeded("not an event that mails anything"));
        };
        let Some(address) = &order.customer.email else {
            return Ok(Effect::NotNeeded("no address is known yet; order.contact_known will bring it"));
        };
        let mail = receipt::mail(event, order, address, &self.from)?;
        self.server.send(&mail).await?;
        Ok(Effect::Made(Some(mail.message_id)))
    }
}
