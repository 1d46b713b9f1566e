//! Settlement against a real PostgreSQL.

mod concurrency;
mod disputes;
mod golden;
mod housekeeping;
mod keys;
mod lives;
mod money;
mod odd;
mod property;
mod refunds;
mod states;
mod support;
