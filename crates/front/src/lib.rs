//! The Redis front end of a server: client connections, the order of requests and replies,
//! commands, and the state that operators see and change.
//!
//! - [`core`]: one reactor's engine with its clients, without sockets: bytes in, bytes out;
//! - `connections`: client connections, order of replies, parked requests;
//! - `commands`: one handler per command, from arguments to a reply;
//! - `data`: records as commands see them;
//! - [`operators`]: the state that operators see and change while a server runs.
//!
//! **Invariant:** no command and nothing in `connections` knows about migration. They only see that
//! an operation was not executed and must wait.
//! **Invariant:** no bytes from a socket can cause a panic.

#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::unwrap_used)]
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod backend;
mod commands;
mod connections;
pub mod core;
mod data;
pub mod operators;
mod session;

pub use operators::Operators;
pub use operators::host;
