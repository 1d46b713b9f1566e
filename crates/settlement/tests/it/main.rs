//! Settlement against a real PostgreSQL.

mod concurrency;
mod disputes;
mod golden;
mod housekeeping;
mod keys;
mod money;
mod property;
mod refunds;
mod states;
mod support;
