//! The shell of a Ballast server: it runs the core of the crate `front` on reactors and sockets.
//!
//! - [`shell`]: sockets, the bus between servers, messages from the coordinator link;
//! - [`control`]: the link to the coordinator.
//!
//! **Invariant:** this crate makes no decisions.
//! **Invariant:** no bytes from a socket can cause a panic.

#![warn(clippy::expect_used, clippy::unwrap_used)]

pub mod control;
pub mod shell;
