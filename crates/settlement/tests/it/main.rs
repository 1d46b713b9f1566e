//! Settlement against a real PostgreSQL.

mod concurrency;
mod golden;
mod keys;
mod money;
mod property;
mod states;
mod support;
