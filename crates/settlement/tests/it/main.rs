//! Settlement against a real PostgreSQL.

mod concurrency;
mod keys;
mod money;
mod states;
mod support;
