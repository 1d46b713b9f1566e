//! The relay: its step against a real broker and database, and real processes that are killed.

mod faults;
mod fleet;
mod step;
mod support;
