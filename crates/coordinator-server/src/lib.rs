//! The shell of the coordinator: sockets, clocks, a thread and a file around the state machine of
//! the crate `coordinator`.
//!
//! - [`serve()`] and [`Running`] connect the machine with the processes that connect to a socket.
//! - [`FileStore`] is the metadata store in one file.
//!
//! **Invariant:** the shell makes no decisions about the cluster.

#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::unwrap_used)]

mod clock;
mod connection;
mod file_store;
mod serve;

pub use file_store::FileStore;
pub use serve::{Running, ServeError, serve, serve_rebuild, serve_reopening};
