//! RabbitMQ: topology, publishing under confirms, connections that are supervised by us.
//!
//! Facts that decide this code were seen with lapin 4.12.3 on RabbitMQ 3.10, 4.0 and 4.3: a returned message rides on
//! whichever confirm completes next; two tasks publishing on one channel get each other's confirms; automatic recovery
//! can hang for ever. Hence one publishing task for each channel, returns matched by a header of ours, no recovery by
//! the library, and a deadline on every await.

pub mod link;
pub mod publish;
pub mod supervise;
pub mod topology;

pub use lapin;
pub use link::{Link, broker_error};
pub use publish::{Fate, Outgoing, Window, publish_window, publish_window_unless};
pub use supervise::{Pace, supervise};
pub use topology::{ConsumerTopics, Rung, TOPOLOGY_VERSION};
