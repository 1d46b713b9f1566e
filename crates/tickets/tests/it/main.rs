//! Tests of draws, reservations and tickets on a real PostgreSQL, with settlement beside them as in ingest.

mod auditing;
mod late;
mod minting;
mod places;
mod property;
mod security;
mod support;
