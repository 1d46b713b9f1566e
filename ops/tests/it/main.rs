//! The on-call's tool as a real process.

mod backfill;
mod books;
mod housekeep;
mod reconcile;
