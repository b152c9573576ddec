//! Whole clusters of the real code, in one thread, under a clock and a network of their own.
//!
//! A seed decides everything: three servers with two reactors each (the real engine, store and
//! machines), the real coordinator, clients that read, write, delete, increment and let expire a few
//! hot and many cold keys, ranges that move back and forth all the time, messages that are late,
//! lost, repeated and out of order, and some kinds of faults. What clients
//! saw is judged by [`history`]; what the servers hold, by the world. The same seed gives the same
//! run, so [`Report::trace`] is a fingerprint of it. See `docs/design/simulator.md`.
//!
//! - `world`: servers, coordinator, clients and network, event by event: faults, messages, links,
//!   requests, rules;
//! - `reactor`: one reactor's turn, and the operations that wait on it;
//! - `network`: what happens to messages between servers;
//! - `workload`: keys, operations, and moves to ask for;
//! - [`history`]: whether what clients saw can have happened;
//! - `planted`: bugs, built in from outside, that a run must find: who tests the simulator.
//!
//! Left out until there is something to lose: crashes of servers, and disks. The front end (parsing,
//! order on a connection) has tests of its own; here an operation is a value.

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
