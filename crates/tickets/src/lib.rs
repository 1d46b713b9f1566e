//! Tickets: `draws`, `reservations` and `tickets`.
//!
//! A draw's row counts what is reserved, under one conditional update, and the last number that was given out. Numbers are given
//! out by [`apply`], once for each order line, as consecutive ranges; whoever counts locks the draws' rows in the order of their
//! ids. A confirmed place never comes back, so that no number is ever given out twice.

#![warn(clippy::float_arithmetic)] // money is integers

pub mod audit;
mod draws;
pub mod entries;
mod mint;
mod reserve;
mod standings;
mod state;

pub use draws::{Change, Draw, DrawRefused, NewDraw, change_draw, create_draw, find_draw};
pub use mint::{SESSION, apply};
pub use reserve::{Reservation, Ticket, Unreserved, Wanted, hold, orders_of_place, release_due, release_of, reservations_of, reserve, settle_owed, tickets_of};
pub use state::{Happening, ReservationStatus};
