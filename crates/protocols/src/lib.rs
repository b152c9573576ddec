//! The distributed protocols of Ballast, as state machines without input or output.
//!
//! A [`Machine`] is a value with one way to change it: `handle(now, event, &mut outbox)`. Events and
//! effects are plain data that can be printed, and time is an argument. The server's reactors,
//! the golden scripts and the simulator therefore drive the same code.
//!
//! - [`clock`]: the clock by which a server judges expiry;
//! - [`segment_manifest`]: the segment manifest, which lists the segments of a server's log;
//! - [`migration`]: moves a range of key hashes from one server to another under load;
//! - [`recovery`]: restores the ranges of a dead server on other servers;
//! - [`replication`]: replicates a server's log to the disks of other servers.
//!
//! **Invariant:** a machine uses no socket, clock, randomness, thread or lock, and does not know
//! the store. Bulk data passes through a machine as a [`Ticket`], never as bytes.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod clock;
pub mod migration;
pub mod recovery;
pub mod replication;
pub mod segment_manifest;

mod machine;
mod outbox;

pub use machine::Machine;
pub use outbox::Outbox;

use std::fmt;

/// The id of a payload that the driver of a machine holds for it. The driver chooses the number
/// and uses each number once per machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
