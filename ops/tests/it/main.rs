//! The on-call's tool as a real process.

mod backfill;
mod books;
mod browser;
mod dead;
mod draws;
mod housekeep;
mod oncall;
mod reconcile;
