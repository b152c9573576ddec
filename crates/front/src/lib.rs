//! The Redis front end of a server: client connections, the order of requests and replies,
//! commands, and the state that operators see and change.
//!
//! - [`core`]: one reactor's engine with its clients, without sockets: bytes in, bytes out;
//!   - `backend`, `data`: the seam between commands and the node;
//!   - `connections`: client connections, order of replies, parked requests;
//! - `commands`: one handler per command, from arguments to a reply;
//! - [`operators`]: the state that operators see and change while a server runs.
//!
//! **Invariant:** commands reach the engine and the store only through the methods of `Backend`.
//! Its field `engine` is visible in `core` only.
//! **Invariant:** no command on data knows about migration. It only sees that an operation was not
//! executed, and its caller does what `NotExecuted` says.
//! **Invariant:** no bytes from a socket can cause a panic.

#![warn(clippy::expect_used, clippy::unwrap_used)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod commands;
pub mod core;
pub mod operators;
mod session;

pub use operators::Operators;
pub use operators::host;
