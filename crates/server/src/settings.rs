//! Settings given at the start of a server, fixed until it stops.

use protocols::migration::Cuts;

/// The settings that the core of a server needs. The shell has those of sockets and threads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Host under which clients and other servers reach this server.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus (connections between servers).
    pub bus_port: u16,
    /// Memory for records and index together, in bytes.
    pub memory_bytes: usize,
    /// Number of reactors.
    pub reactors: u16,
    /// True if clients see a Redis Cluster: slots, redirections, `CROSSSLOT`.
    pub is_cluster: bool,
    /// Limits on time and bytes between two cuts (commit points) of an arriving migration.
    pub cuts: Cuts,
}
