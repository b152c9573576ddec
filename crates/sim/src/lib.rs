//! Deterministic simulator: whole clusters of the real code in one thread, with virtual time and
//! a virtual network.
//!
//! The seed decides everything. A run has three servers with two reactors each (the real front
//! end, engine, store and protocol machines) and the real coordinator. Clients read, write,
//! delete, increment and let expire a few hot and many cold keys. Ranges move back and forth all
//! the time, messages are late, lost, repeated and out of order, disks and servers fail.
//! [`history`] checks the observations of the clients; `world` checks the contents of the
//! servers. The same seed gives the same run, and [`Report::trace`] is a fingerprint of it. See
//! `docs/design/simulator.md`.
//!
//! - `world`: servers, coordinator, clients, network, faults and rules, event by event;
//! - `reactor`: one reactor's turn, and the server's ends of the connections of clients;
//! - `network`: delay, loss and duplication of messages between servers;
//! - `clients`, `workload`, `commands`: keys, operations, their requests and replies, and moves;
//! - [`history`]: the linearizability checker;
//! - `planted`: bugs that are built in on purpose, so that the simulator itself is tested.
//!
//! Not simulated: the bus as bytes, and two cores inside the store at the same instant (the
//! shuttle models of `store` cover that).

#![forbid(unsafe_code)]

pub mod history;
pub mod planted;

mod clients;
mod commands;
mod failure;
mod inspect;
mod metadata;
mod network;
mod reactor;
mod search;
mod servers;
mod settings;
mod trace;
mod workload;
mod world;

pub use failure::{Failure, Report, Rule};
pub use planted::Planted;
pub use search::{minimize, search};
pub use settings::{Knob, Settings};
pub use world::run;
