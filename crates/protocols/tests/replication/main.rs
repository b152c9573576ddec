//! Replication between a master's real machines and backups with real machines.
//!
//! `scripts` runs the golden scripts in `src/replication/scripts`; `model` lets a master write,
//! close and drop segments while messages get lost and servers die, and asks after every event
//! whether a recovery would find what was acknowledged.

mod chain;
mod master;
mod model;
mod scripts;
mod server;
