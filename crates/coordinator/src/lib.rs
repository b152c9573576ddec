//! The configuration of a cluster: who its servers are, who owns which range, and what is moving.
//!
//! - [`Coordinator`] is a machine without input or output: events in, effects out, every change of
//!   the configuration one compare-and-swap transaction. Start at [`Coordinator::handle`].
//! - [`MetaStore`] is where the configuration is kept: in memory, or in a file.
//! - `rebuild` makes a file anew from what servers know.
//! - [`serve()`] and [`Running`] put sockets and clocks around the machine.
//!
//! The coordinator is never on the data path: servers serve, and migrations that have flipped go
//! on, while it is away. The protocol that it speaks is told in `wire::control`, the reasons in
//! `docs/design/coordinator.md`.
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
