//! Every distributed protocol of Ballast, as state machines without input or output.
//!
//! A machine is a value with one way to change it: `handle(now, event, &mut outbox)`. Events and
//! effects are plain data that can be printed; time is an argument. So the server's reactors, the
//! golden scripts and the simulator drive the same code.
//!
//! - [`clock`]: the time by which a server judges expiry;
//! - [`directory`]: which segments make up a server's log;
//! - [`migration`]: moves a range of key hashes from one server to another while it is used;
//! - [`recovery`]: serves again what a dead server held;
//! - [`replication`]: keeps a server's log on the disks of others.
//!
//! **Invariant:** no socket, no clock, no randomness, no thread, no lock, and no knowledge of the
//! store: bulk data passes a machine as a [`Ticket`], never as bytes.

#![forbid(unsafe_code)]

pub mod clock;
pub mod directory;
pub mod migration;
pub mod recovery;
pub mod replication;

mod outbox;

pub use outbox::Outbox;

use std::fmt;

/// A payload that whoever drives a machine keeps for it, by a number of the driver's choice that
/// is not used twice within one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
