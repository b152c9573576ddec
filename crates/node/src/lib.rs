//! One server without sockets and without the Redis protocol: it connects the store and the protocol
//! machines.
//!
//! [`Engine`] is one reactor's part: events come in, the contents of [`Engine::out`] go out. It owns
//! the reactor's worker of the store ([`Engine::worker`]), on which commands run directly, and the
//! components that do the rest: migrations (`source_side`, `pull_server`, `target_side`,
//! `priority_pulls`), durability of the log (`replicated`, `loading`, `gating`), recovery
//! (`recovering`), flushes, expiry, completion records, cleaning and eviction. An event goes to one component, with a
//! `Context` of everything else that it may use.
//!
//! All state shared by reactors is in [`Node`]. It consists of the state that a `Context` gives
//! ([`NodeState`]), and of the machines (`machines`), which code with only a context cannot reach.
//! One lock protects the machines: messages and quanta hold it for well under a microsecond, and
//! operations never take it.
//!
//! The simulator drives an engine as the shell does: with turns, messages, quanta and time.

#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::unwrap_used)]

mod background;
mod cleaning;
mod clock;
mod completion_sweep;
mod completions;
mod context;
mod demands;
mod driver;
mod engine;
mod entitled;
mod evicted_pages;
mod evicting;
mod eviction_state;
mod expiry;
mod field_sweep;
mod flush;
mod gating;
mod key_counts;
mod liveness;
mod load_profile;
mod loading;
mod machines;
mod membership;
mod messages;
mod node;
mod orders;
mod outgoing;
mod page_sweep;
mod priority_pulls;
mod pull_server;
mod recovering;
mod replay_warnings;
mod replicated;
mod requests;
mod rest_cleaning;
mod safety;
mod settings;
mod source_side;
mod state;
mod tablets;
mod target_side;
mod two_sided;
mod work;

pub use completions::{
    CompletionRecord, FiledUnder, OnceDecision, OnceRequest, REPLY_BYTES_MAX, SlotFloors,
    floors_key,
};
pub use engine::{Engine, TimeWithinTurn};
pub use liveness::ReactorLiveness;
pub use loading::{KeptError, Progress, RecoveredLog};
pub use membership::{
    ClusterMembership, MembershipContext, MembershipEffect, MembershipEffects, MembershipEnd,
    MembershipEvent,
};
pub use messages::{Payload, Route, Sending, To};
pub use node::Node;
pub use orders::{MemberChange, OrderName, OrderState, OrderTotals, SharedOrder, SortedOrders};
pub use outgoing::{DiskDone, DiskJob, EngineOutput, Wake};
pub use priority_pulls::EarlyPull;
pub use protocols::migration::Cuts;
pub use recovering::{ReadDone, ReadJob};
pub use replicated::{
    BackupDone, BackupJob, DiskCounts, LeaseState, LogPlacement, Mode, Plan, Replication,
};
pub use requests::reactor_for;
pub use safety::Safety;
pub use settings::{LiveSettings, MinReplicas, NodeSettings, ServerIdentity};
pub use state::{NodeState, Supervisor};
pub use two_sided::ShownMigration;
pub use work::Background;
