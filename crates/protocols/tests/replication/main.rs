//! Tests of replication between a master and backups, with the real machines.
//!
//! `scripts` runs the golden scripts in `src/replication/scripts`. `model` lets a master write,
//! close and drop segments while messages are lost and servers die. After every event it checks
//! that a recovery would find everything acknowledged.

mod manifest;
mod master;
mod model;
mod scripts;
mod server;
