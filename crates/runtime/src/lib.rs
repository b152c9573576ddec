//! The operating-system interface of the data path: reactors, drivers, sockets, the clock, files.
//!
//! A reactor is one thread with its own connections. It runs a [`Service`] to completion, turn by
//! turn: input, mail, timers, output, then at most one quantum of background work. The crate
//! decides the service order, when background work is due, and how to wait: see
//! `docs/design/reactor.md`.
//!
//! Start at [`Service`], then [`Io`] and [`Input`].
//!
//! **Invariant:** no byte and no behaviour of a peer can make this crate panic.
//! **Invariant:** the crate knows no protocol, neither Redis's nor the bus's.
//! **Invariant:** only `driver/ring.rs` and `descriptors.rs` contain `unsafe`.

#![warn(clippy::expect_used, clippy::unwrap_used)]

mod batching;
mod buffers;
mod clock;
mod connection;
mod counters;
mod cpus;
mod descriptors;
mod driver;
#[cfg(feature = "faults")]
mod faults;
pub mod files;
mod input;
mod io;
mod mailbox;
mod output;
mod placement;
mod reactor;
mod reactors;
mod service;
mod sharing;
mod socket;
mod steering;
mod sync;
mod turns;
mod vital;

pub use clock::Clock;
pub use connection::{Class, Closed, ConnectTag, Opened, Port};
pub use cpus::cpu_count;
pub use descriptors::spawn_without_descriptors;
pub use driver::DriverKind;
pub use input::{Input, LARGE_MESSAGE_BYTES};
pub use io::Io;
pub use mailbox::{Mailbox, Mailboxes};
pub use reactors::{Config, Reactors};
pub use service::Service;
pub use socket::{ListenError, Listener, UNACKNOWLEDGED_MAX, limit_unacknowledged};
pub use vital::spawn_vital;
