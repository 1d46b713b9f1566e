//! Tickets: gives out numbers for paid orders, voids them when the money went back. Inside the database, so exactly once.

use counterfoil_payments::Event;
use sqlx::PgTransaction;

use crate::runner::Apply;

/// The consumer `tickets`.
#[derive(Debug)]
pub struct Tickets;

impl Apply for Tickets {
    const NAME: &'static str = "tickets";

    async fn apply(&self, tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<()> {
        counterfoil_tickets::apply(tx, events).await
    }
}
