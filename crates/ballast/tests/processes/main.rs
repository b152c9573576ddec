//! The binary as its users see it: processes, sockets, stock clients, abuse.
//!
//! Servers listen on ports that the operating system chooses, so that tests run in parallel.

mod abuse;
mod availability;
mod blocking;
mod client;
mod commands;
mod compatibility;
mod crashes;
mod descriptors;
mod differential;
mod disks;
mod expiry;
#[cfg(feature = "faults")]
mod faults;
mod fidelity;
mod folders;
mod gray;
mod kept;
mod large_hashes;
mod large_lists;
mod large_sorted_sets;
mod large_streams;
mod large_values;
mod latency_targets;
mod lifetimes;
mod live_migration;
mod losses;
mod moves;
mod native_client;
mod nemesis;
mod network;
mod once;
mod operators;
mod paged_clients;
mod registers;
mod rollback;
mod scrubs;
mod seats;
mod servers;
mod silence;
mod sizes;
mod solo;
mod stock_clients;
mod strangers;
mod tools;
mod transactions;
mod trust;
mod two_sided;
mod versions;
mod waiting;
mod workers;
