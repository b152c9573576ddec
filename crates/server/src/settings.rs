//! What a server was told when it was started. Fixed until it stops.

use protocols::migration::Cuts;

/// How a server runs, as far as its core must know. Sockets and threads are the shell's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Host that clients and servers reach it under.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// Memory for records and index together, in bytes.
    pub memory_bytes: usize,
    /// Reactors it has.
    pub reactors: u16,
    /// Whether clients see a Redis Cluster: slots, redirections, `CROSSSLOT`.
    pub is_cluster: bool,
    /// How often what arrives here is made safe.
    pub cuts: Cuts,
}
