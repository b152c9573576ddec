//! A Ballast server: the Redis front end, the commands, and the core that joins store and
//! protocols; and the shell that puts them on reactors and sockets.
//!
//! - [`engine`]: one reactor's part of the server without sockets; [`engine::Node`] is what
//!   reactors share;
//! - `front`: client connections, order of replies, parking;
//! - `commands`: from arguments to a reply;
//! - [`configuration`]: what can be set, and where;
//! - `operators`: what operators see and change while a server runs;
//! - [`core`]: an engine with its clients, still without sockets: bytes in, bytes out;
//! - [`shell`]: sockets, the bus between servers, mail from the coordinator's link;
//! - [`control`]: the link to the coordinator.
//!
//! **Invariant:** no command and nothing in `front` knows of migration: they see a pause.
//! **Invariant:** nothing that comes from a socket can panic.

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
