//! The ledger: books every movement of money once. Inside the database, so exactly once.

use counterfoil_payments::Event;
use sqlx::PgTransaction;

use crate::runner::Apply;

/// The consumer `ledger`.
#[derive(Debug)]
pub struct Ledger;

impl Apply for Ledger {
    const NAME: &'static str = "ledger";

    async fn apply(&self, tx: &mut PgTransaction<'_>, events: &[&Event]) -> sqlx::Result<()> {
        counterfoil_ledger::post(tx, events).await
    }
}
