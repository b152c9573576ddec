//! The cluster coordinator: membership, range ownership, migrations and recoveries.
//!
//! - [`Coordinator`] is a state machine without input or output. It consumes events and produces
//!   effects; every change of the configuration is one compare-and-swap transaction. Start at
//!   [`Coordinator::handle`].
//! - [`MetaStore`] stores the configuration; [`MemoryStore`] does so in memory.
//! - [`Rebuilding`] recreates a lost file from the knowledge of the servers.
//!
//! The crate `coordinator-server` adds sockets, clocks and a file.
//!
//! The coordinator is never on the data path: while it is away, servers keep serving, and
//! migrations that have flipped continue. `wire::control` documents its protocol,
//! `docs/design/coordinator.md` its design.
//!
//! **Invariant:** no socket, no file, no clock and no random number; the shell has them.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod admission;
mod configuration;
mod configuration_store;
mod earlier_formats;
mod machine;
mod metastore;
mod outbox;
mod ranges;
mod rebuild;
mod records;

pub use admission::{HISTORY_MAX, MIGRATIONS_MAX, SERVERS_MAX, TABLETS_MAX};
pub use configuration_store::{Stopped, holds_cluster, only_server};
pub use machine::{Coordinator, CoordinatorSettings, LISTED_BYTES_MAX};
pub use metastore::{
    MemoryStore, MetaEntry, MetaStore, MetaStoreError, Revision, Transaction, Verdict,
};
pub use outbox::{Caller, CoordinatorEvent, Effect, Effects, LinkId, Moment};
pub use rebuild::Rebuilding;
pub use records::{ClusterIdentity, Drawn};
