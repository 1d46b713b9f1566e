//! The whole fleet, and the shape of the workspace.

mod restarts;
mod tidy;
mod traces;
mod whole;
