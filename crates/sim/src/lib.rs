//! Deterministic simulator: whole clusters of the real code in one thread, with virtual time and
//! a virtual network.
//!
//! The seed decides everything. A run has three to seven servers of two reactors each (the real
//! front end, engine, store and protocol machines) and the real coordinator. Clients read, write,
//! delete, increment and let expire a few hot and many cold keys. Ranges move back and forth all
//! the time, messages are late, lost, repeated and out of order, disks and servers fail.
//! [`history`] checks the observations of the clients; `monitor` and `run` check the servers. The
//! same seed gives the same run, and [`Report::trace`] is a fingerprint of it. See
//! `docs/design/simulator.md`.
//!
//! - `run`: one run, event by event: its phases, its accidents, and the verdict at the end;
//! - `timeline`: virtual time, planned events, random numbers, trace and failure of a run;
//! - `cluster`: the servers, coordinators and disks under test, connected by links and messages;
//!   its parts are `fleet` (of `servers`), `coordinators` (on `metadata`), `disks`, `network`,
//!   `faults` (the fault schedule) with `lasting` (faults that last), `losses`, `moves` and
//!   `monitor` (rules checked meanwhile) with `acknowledged` (recovered data is complete) and
//!   `range_clocks` (the clocks that judge expiry), and `redundancy` (the disks have the replicas);
//! - `streams`: simulated TCP between the buses of servers (`reactor_bus`);
//! - `reactor`: one reactor's turn, and the server's ends of the connections of clients;
//! - `native`: clients with the real core of the client library, on simulated connections;
//! - `load`: the jobs of the clients, their requests and replies; its parts are `clients`,
//!   `workload`, `lifetimes`, `typed`, `collections` and `commands`;
//! - [`history`]: the linearizability checker, and `expiry`: when it lets values disappear;
//! - `coverage`: the steps of protocols that each fault has met;
//! - `planted`: bugs that are built in on purpose, so that the simulator itself is tested.
//!
//! Not simulated: the connections to coordinators as bytes that are cut, delayed and lost (their
//! messages are encoded and decoded), and two cores inside the store at the same instant (the
//! shuttle models of `store` cover that).

#![warn(clippy::unwrap_used)]

pub mod history;
pub mod once;
mod planted;
mod power;

mod acknowledged;
mod agreement;
mod clients;
mod clock_faults;
mod cluster;
mod cluster_size;
mod collections;
mod commands;
mod control_streams;
mod coordinators;
mod coverage;
mod disks;
mod expiry;
mod failure;
mod faults;
mod fleet;
mod growth;
mod inspect;
mod lasting;
mod lifetimes;
mod load;
mod losses;
mod metadata;
mod monitor;
mod moves;
mod named;
mod native;
mod network;
mod profile;
mod range_clocks;
mod reactor;
mod reactor_bus;
mod redundancy;
mod run;
mod search;
mod servers;
mod settings;
mod streams;
mod timeline;
mod trace;
mod typed;
mod versions;
mod workload;

pub use cluster_size::SERVERS_POSSIBLE;
pub use coverage::{COVERED_FAULTS, FaultCoverage, ProtocolStep};
pub use failure::{Failure, Report, Rule};
pub use lasting::LastingKind;
pub use planted::Planted;
pub use run::run;
pub use search::{minimize, search};
pub use settings::{Knob, RunSettings};
