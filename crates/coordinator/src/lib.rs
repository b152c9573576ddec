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
mod ledger;
mod machine;
mod outbox;
mod rebuild;
mod records;
mod serve;
mod store;

pub use admission::{HISTORY_MAX, MIGRATIONS_MAX, SERVERS_MAX, TABLETS_MAX};
pub use ledger::{Stopped, holds_cluster, only_server};
pub use machine::{Coordinator, Settings};
pub use outbox::{Caller, ConnectionId, Effect, Event, Moment, Outbox};
pub use records::{Drawn, Identity};
pub use serve::{Running, ServeError, serve, serve_rebuild};
pub use store::{
    Entry, FileStore, MemoryStore, MetaStore, Revision, StoreError, Transaction, Verdict,
};
