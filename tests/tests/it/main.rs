//! The whole fleet, and the shape of the workspace.

mod money_back;
mod restarts;
mod shops;
mod tickets;
mod tidy;
mod traces;
mod whole;
