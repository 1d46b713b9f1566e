//! Ingest as a real process, over real sockets.

mod answers;
mod durability;
mod event_types;
mod orders;
mod process;
mod refunds;
mod returns;
