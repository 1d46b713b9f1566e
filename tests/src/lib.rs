//! What tests of several crates share: a stage of their own, real processes, and the outside as it misbehaves.

#![expect(clippy::unwrap_used, reason = "this is test code, in a library so that several crates can use it")]

pub mod fleet;
pub mod outside;
pub mod proxy;
pub mod queue;
pub mod simulator;
pub mod stage;

pub use fleet::{Child, Fleet, Shop, stripe_event};
pub use outside::{CrmStub, SmtpStub};
pub use proxy::Proxy;
pub use queue::{event, paid_data, paid_event};
pub use simulator::Simulator;
pub use stage::{Services, Stage, until};
