//! The binary as its users meet it: processes, sockets, stock clients, abuse.
//!
//! Servers listen on ports that the operating system chooses, so that tests run side by side.

#![forbid(unsafe_code)]

mod abuse;
mod client;
mod commands;
mod compatibility;
mod differential;
mod expiry;
mod kept;
mod live_migration;
mod losses;
mod moves;
mod operators;
mod registers;
mod servers;
mod stock_clients;
mod tools;
mod transactions;
mod workers;
