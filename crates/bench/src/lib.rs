//! Load generator and benchmarks.

#![warn(clippy::unwrap_used)]

pub mod clock;
pub mod compare;
mod connection;
pub mod control;
pub mod crash;
pub mod crash_report;
pub mod distribution;
pub mod draw;
pub mod figures;
mod fleet;
pub mod generator;
mod judge;
pub mod ledger;
pub mod migrate;
mod operation;
pub mod pace;
pub mod peers;
pub mod ports;
pub mod processes;
pub mod progress;
pub mod recorder;
pub mod records;
pub mod report;
mod retry_queue;
pub mod run;
pub mod scenario;
pub mod series;
pub mod slot_map;
pub mod timeline;
pub mod workload;
