//! Settings and identity of a server, given at its start.

use protocols::migration::Cuts;
use store::EvictionRule;
use types::{ClusterId, EvictionPolicy, ServerId};

/// Identity of a server, assigned by the coordinator before the server holds any data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Id of the cluster.
    pub cluster: ClusterId,
    /// Number of the server within the cluster.
    pub server: ServerId,
}

/// The settings that the core of a server needs. The shell has those of sockets and threads.
#[derive(Clone, Debug)]
pub struct NodeSettings {
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

/// Settings of a node that can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    /// Set if a reply to a read also waits for the lease to be renewed after the read.
    pub strict_reads: bool,
    /// Fewest other servers that must be able to hold a write.
    pub min_replicas: MinReplicas,
    /// Rule by which records are evicted.
    pub eviction: EvictionRule,
    /// Memory limit in bytes, up to the one at the start.
    pub memory_limit: u64,
}

impl Default for LiveSettings {
    fn default() -> LiveSettings {
        LiveSettings {
            strict_reads: false,
            min_replicas: MinReplicas::Auto,
            eviction: EvictionRule { policy: EvictionPolicy::NoEviction, samples: 5 },
            memory_limit: u64::MAX,
        }
    }
}

/// Fewest other servers that must be able to hold a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinReplicas {
    /// Derived from the numbers of replicas and members.
    Auto,
    /// A fixed number.
    Count(u16),
}

impl MinReplicas {
    /// Returns the number, given the configured replicas and the members of the cluster. Dead
    /// members count until they are removed.
    pub fn count(self, replicas: u16, members: usize) -> usize {
        let replicas = usize::from(replicas);
        match self {
            MinReplicas::Auto => replicas.min(members.saturating_sub(1)).saturating_sub(1).max(1),
            MinReplicas::Count(count) => usize::from(count).min(replicas),
        }
    }
}
