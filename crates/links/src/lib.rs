//! Connections between the processes of a cluster, without sockets and clocks: state machines that
//! decide when to connect, when a peer is proven, which frames are valid, when a queue is full and
//! when a connection is dead.
//!
//! - [`Link`] is one end of a connection to or from a coordinator; [`BlockingLink`] runs it on a
//!   blocking stream.
//! - [`BusLinks`] are the connections of one reactor to other servers.
//! - [`Backoff`], [`Addresses`] and [`UnprovenConnections`] decide when to connect again, to which
//!   address, and which connection gives way.
//!
//! The shells move bytes and timers. Design: `docs/design/links.md`.
//!
//! Invariants:
//! - No socket, no clock, no randomness: times and nonces are arguments.
//! - No byte of an unproven peer reaches anything but the handshake.
//! - A machine knows no message but the handshake's; it passes all others on.

#![warn(clippy::expect_used, clippy::unwrap_used)]

mod addresses;
mod backoff;
mod blocking;
mod bus;
mod frames;
mod link;
mod unproven;

pub use addresses::{AddressLookup, Addresses};
pub use backoff::{AttemptOutcome, Backoff};
pub use blocking::BlockingLink;
pub use bus::{BusDestination, BusEffect, BusEnd, BusEvent, BusLinks};
pub use frames::encoded;
pub use link::{Link, LinkEffect, LinkEffects, LinkEnd, LinkEvent, QUEUE_BYTES_MAX};
pub use unproven::{UNPROVEN_MAX, UnprovenConnections};
