//! The whole fleet, and the shape of the workspace.

mod attention;
mod deploy;
mod money_back;
mod plans;
mod restarts;
mod shops;
mod signals;
mod tickets;
mod tidy;
mod traces;
mod whole;
