//! Ingest as a real process, over real sockets.

mod announcements;
mod answers;
mod durability;
mod orders;
mod process;
mod refunds;
mod returns;
mod tickets;
