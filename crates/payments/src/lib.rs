//! What a payment is: money, ids, states, facts and events. Pure: no I/O, no async.

#![warn(clippy::float_arithmetic)] // money is integers
#![warn(clippy::wildcard_enum_match_arm)] // a new state or topic must be decided everywhere

mod books;
mod data;
pub mod event;
pub mod fact;
pub mod ids;
pub mod money;
pub mod state;
mod tickets;

pub use books::{Books, Position};
pub use event::{Event, Topic, event_id};
pub use fact::{Contact, Fact, News, PaymentDetails};
pub use ids::{OrderId, OrderKey, PaymentKey, Provider, Reference};
pub use money::{Currency, Money};
pub use state::{Disposition, DisputeStatus, Move, OrderStatus, PaymentStatus, RefundStatus, Standing};
