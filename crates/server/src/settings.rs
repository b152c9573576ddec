//! What a server was told when it was started. Fixed until it stops.

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
}

impl Settings {
    /// Names and values of redis.conf that clients and tools ask for by `CONFIG GET`.
    pub(crate) fn as_redis_configuration(&self) -> Vec<(&'static str, String)> {
        let yes_no = |yes| if yes { "yes" } else { "no" }.to_string();
        vec![
            ("appendfsync", "no".into()),
            ("appendonly", "no".into()),
            ("bind", self.host.clone()),
            ("cluster-enabled", yes_no(self.is_cluster)),
            ("cluster-port", self.bus_port.to_string()),
            ("databases", types::limits::TABLES_MAX.to_string()),
            ("maxclients", "10000".into()),
            ("maxmemory", self.memory_bytes.to_string()),
            ("maxmemory-policy", "noeviction".into()),
            ("port", self.client_port.to_string()),
            ("proto-max-bulk-len", types::limits::VALUE_BYTES_MAX.to_string()),
            ("replica-read-only", "yes".into()),
            ("save", String::new()),
            ("timeout", "0".into()),
        ]
    }
}
