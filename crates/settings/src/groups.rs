//! The settings by subject, with their defaults and checks.
//!
//! [`crate::SETTINGS`] describes each field for users and names the check of its value.

use crate::REQUEST_BYTES_MAX;
use crate::text::{
    Bind, Bytes, DebugCommand, Durability, IoDriver, LogFormat, LogLevel, OutputLimit,
    ReplicaMinimum, Wrong,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use types::PollPolicy;
use types::limits::VALUE_BYTES_MAX;

/// Divisor of the memory limit that gives the default amount of memory kept ready.
const READY_PART: usize = 8;
/// Difference between the default port for other servers and the client port.
const CLUSTER_PORT_OFFSET: u16 = 10_000;

/// Addresses and ports of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct NetworkSettings {
    pub bind: Bind,
    pub port: u16,
    pub cluster_port: u16,
    pub announce: String,
    pub tcp_keepalive: Duration,
}

impl Default for NetworkSettings {
    fn default() -> NetworkSettings {
        NetworkSettings {
            bind: Bind::to(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            port: 6379,
            cluster_port: 0,
            announce: String::new(),
            tcp_keepalive: Duration::from_secs(300),
        }
    }
}

impl NetworkSettings {
    /// Returns the port for other servers; 0 means any free port.
    ///
    /// # Errors
    /// If the default port for other servers does not exist.
    pub fn bus_port(&self) -> Result<u16, Wrong> {
        match (self.cluster_port, self.port) {
            (0, 0) => Ok(0),
            (0, port) => port.checked_add(CLUSTER_PORT_OFFSET).ok_or_else(|| {
                format!(
                    "the default bus port {port} + {CLUSTER_PORT_OFFSET} does not exist: choose \
                     one with --cluster-port"
                )
            }),
            (port, _) => Ok(port),
        }
    }

    /// Returns the host name or address under which others reach this server.
    pub fn host(&self) -> String {
        match &self.announce[..] {
            "" => self.bind.addresses[0].0.to_string(),
            announced => announced.to_string(),
        }
    }
}

/// The server's place in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct MembershipSettings {
    pub join: String,
    pub cluster_key_file: String,
    pub rack: String,
}

impl MembershipSettings {
    /// Returns whether the server is stand-alone.
    pub fn is_alone(&self) -> bool {
        self.join.is_empty()
    }
}

/// Memory for records and index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct MemorySettings {
    pub limit: Bytes,
    pub ready: Bytes,
    pub huge_pages: bool,
}

impl Default for MemorySettings {
    fn default() -> MemorySettings {
        MemorySettings { limit: Bytes(1 << 30), ready: Bytes(0), huge_pages: true }
    }
}

impl MemorySettings {
    pub(crate) fn check_limit(limit: &Bytes) -> Result<(), Wrong> {
        match limit.0 {
            0 => Err("a memory limit is required: argument must be above 0".into()),
            _ => Ok(()),
        }
    }

    /// Returns the number of bytes of free memory to prefault.
    pub fn ready_bytes(&self) -> usize {
        match self.ready.0 {
            0 => self.limit.0 / READY_PART,
            bytes => bytes,
        }
    }
}

/// Persistence and replication of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct DurabilitySettings {
    pub mode: Durability,
    pub data_dir: String,
    pub replicas: u16,
    pub min_replicas: ReplicaMinimum,
    pub scrub_interval: Duration,
    pub strict_reads: bool,
}

impl Default for DurabilitySettings {
    fn default() -> DurabilitySettings {
        DurabilitySettings {
            mode: Durability::Auto,
            data_dir: "ballast-data".into(),
            replicas: 3,
            min_replicas: ReplicaMinimum::Auto,
            scrub_interval: Duration::from_secs(3 * 86_400),
            strict_reads: false,
        }
    }
}

impl DurabilitySettings {
    pub(crate) fn check_data_dir(folder: &String) -> Result<(), Wrong> {
        match folder.is_empty() {
            true => Err("argument must be the path of a folder".into()),
            false => Ok(()),
        }
    }

    pub(crate) fn check_replicas(count: &u16) -> Result<(), Wrong> {
        match count {
            1..=16 => Ok(()),
            _ => {
                Err("argument must be between 1 and 16; use --durability none for no replicas"
                    .into())
            }
        }
    }
}

/// The threads that serve requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct ReactorSettings {
    pub count: u16,
    pub poll: PollPolicy,
    pub driver: IoDriver,
    pub shared_cores: bool,
}

impl Default for ReactorSettings {
    fn default() -> ReactorSettings {
        ReactorSettings {
            count: 0,
            poll: PollPolicy::Adaptive,
            driver: IoDriver::Auto,
            shared_cores: false,
        }
    }
}

/// Rights of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct AccessSettings {
    pub protected_mode: bool,
    pub requirepass: String,
    pub debug_command: DebugCommand,
}

impl Default for AccessSettings {
    fn default() -> AccessSettings {
        AccessSettings {
            protected_mode: true,
            requirepass: String::new(),
            debug_command: DebugCommand::No,
        }
    }
}

impl AccessSettings {
    /// Returns whether clients must authenticate.
    pub fn needs_password(&self) -> bool {
        !self.requirepass.is_empty()
    }

    /// Returns whether `said` is the password. The time taken depends only on the length of `said`.
    pub fn is_password(&self, said: &[u8]) -> bool {
        let wanted = self.requirepass.as_bytes();
        let mut difference = usize::from(wanted.len() != said.len());
        for (at, byte) in said.iter().enumerate() {
            let other = wanted[at % wanted.len().max(1)..].first().copied().unwrap_or(0);
            difference |= usize::from(std::hint::black_box(byte ^ other));
        }
        difference == 0
    }
}

/// Limits of client connections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct ClientSettings {
    pub count_max: u32,
    pub timeout: Duration,
    pub query_limit: Bytes,
    pub output_limit: OutputLimit,
    pub bulk_bytes_max: Bytes,
}

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            count_max: 10_000,
            timeout: Duration::ZERO,
            query_limit: Bytes(REQUEST_BYTES_MAX),
            output_limit: OutputLimit::default(),
            bulk_bytes_max: Bytes(VALUE_BYTES_MAX),
        }
    }
}

/// The server's reports to its operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct ReportSettings {
    pub slowlog_slower_than: i64,
    pub slowlog_max_len: u32,
    pub latency_threshold: u64,
    pub metrics_port: u16,
    pub log_level: LogLevel,
    pub log_format: LogFormat,
}

impl Default for ReportSettings {
    fn default() -> ReportSettings {
        ReportSettings {
            slowlog_slower_than: 10_000,
            slowlog_max_len: 128,
            latency_threshold: 0,
            metrics_port: 0,
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_the_password() {
        let access = AccessSettings { requirepass: "secret".into(), ..AccessSettings::default() };
        assert!(access.is_password(b"secret"));
        for wrong in ["", "s", "secre", "secretsecret", "secrets", "Secret", "secrex"] {
            assert!(!access.is_password(wrong.as_bytes()), "{wrong}");
        }
    }
}
