//! The Ballast server: the Redis front end, the commands, the core that joins store and protocols,
//! and the shell that runs them on reactors and sockets.
//!
//! - [`engine`]: the server part of one reactor, without sockets. Reactors share [`engine::Node`].
//! - `front`: client connections, order of replies, parked requests;
//! - `commands`: one handler per command, from arguments to a reply;
//! - [`configuration`]: all settings, and the places where they can be set;
//! - `operators`: the state that operators see and change while a server runs;
//! - [`core`]: an engine with its clients, still without sockets: bytes in, bytes out;
//! - [`shell`]: sockets, the bus between servers, messages from the coordinator link;
//! - [`control`]: the link to the coordinator.
//!
//! **Invariant:** no command and nothing in `front` knows about migration. They only see that an
//! operation was not executed and must wait.
//! **Invariant:** no bytes from a socket can cause a panic.

#![forbid(unsafe_code)]

mod commands;
pub mod configuration;
pub mod control;
pub mod core;
mod data;
pub mod engine;
mod front;
mod operators;
mod session;
mod settings;
pub mod shell;

pub use configuration::Configuration;
pub use operators::host;
pub use protocols::migration::Cuts;
pub use settings::Settings;
