//! What a fact does to an order: `webhook_events`, `orders`, `payments` and `idempotency_keys`.
//!
//! [`settle()`] takes a batch of deliveries in one transaction. Its happy path is one statement for each round
//! ([`statement`]); what that leaves over is classified afterwards ([`classify`]).

#![warn(clippy::float_arithmetic)] // money is integers

mod classify;
mod customer;
mod delivery;
mod events;
mod failure;
mod keys;
mod orders;
mod rounds;
mod settle;
mod statement;

pub use customer::{CustomerState, customer_state};
pub use delivery::{Delivery, Outcome, Settled, Verdict};
pub use events::{Seen, deliveries_of_order, store_failed};
pub use failure::Failure;
pub use keys::{Begun, Stored, begin_key, complete_key};
pub use orders::{LineText, NewOrder, Order, Payment, Refused, create, find, find_by_payment, find_id, payments_of};
pub use settle::{lock_orders, settle, settle_or_wait};
