//! The cluster coordinator: membership, range ownership, migrations and recoveries.
//!
//! - [`Coordinator`] is a state machine without input or output. It consumes events and produces
//!   effects; every change of the configuration is one compare-and-swap transaction. Start at
//!   [`Coordinator::handle`].
//! - [`MetaStore`] stores the configuration, in memory or in a file.
//! - `rebuild` recreates a lost file from the knowledge of the servers.
//! - [`serve()`] and [`Running`] add sockets and clocks to the machine.
//!
//! The coordinator is never on the data path: while it is away, servers keep serving, and
//! migrations that have flipped continue. `wire::control` documents its protocol,
//! `docs/design/coordinator.md` its design.
//!
//! **Invariant:** the machine reads no clock and draws no random number; the shell does.

#![forbid(unsafe_code)]

mod admission;
mod configuration;
mod configuration_store;
mod machine;
mod metastore;
mod outbox;
mod ranges;
mod rebuild;
mod records;
mod serve;

pub use admission::{HISTORY_MAX, MIGRATIONS_MAX, SERVERS_MAX, TABLETS_MAX};
pub use configuration_store::{Stopped, holds_cluster, only_server};
pub use machine::{Coordinator, CoordinatorSettings};
pub use metastore::{
    FileStore, MemoryStore, MetaEntry, MetaStore, MetaStoreError, Revision, Transaction, Verdict,
};
pub use outbox::{Caller, CoordinatorEvent, Effect, Effects, LinkId, Moment};
pub use records::{ClusterIdentity, Drawn};
pub use serve::{Running, ServeError, serve, serve_rebuild};
