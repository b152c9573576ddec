//! The settings of a server: names, valid values, and the ways to change them.
//!
//! The [table](SETTINGS) contains everything about each setting. The command line, the
//! configuration file, `CONFIG` and the documented example are derived from it, so that they cannot
//! disagree. Names and meanings follow redis.conf where it has the same setting.
//!
//! **Invariant:** each value in a [`ServerConfiguration`] is valid, because its type has parsed it.
//! A change at runtime replaces the whole configuration, so that no reader sees half of a change.

#![forbid(unsafe_code)]
#![warn(clippy::expect_used, clippy::unwrap_used)]

mod file;
mod table;
mod text;

pub use file::{FileError, example, read_file, rewrite};
pub use table::{SETTINGS, Setting, When};
pub use text::{
    Bind, Bytes, DebugCommand, Durability, IoDriver, LogFormat, LogLevel, OutputLimit,
    ReplicaMinimum, Wrong,
};

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use types::PollPolicy;
use types::limits::VALUE_BYTES_MAX;

/// Largest request that fits the input buffer of a connection, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;

/// The settings of a server. [`SETTINGS`] describes each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described in the table, for users")]
pub struct ServerConfiguration {
    pub bind: Bind,
    pub port: u16,
    pub cluster_port: u16,
    pub announce: String,
    pub join: String,
    pub cluster_key_file: String,
    pub maxmemory: Bytes,
    pub ready_memory: Bytes,
    pub huge_pages: bool,
    pub durability: Durability,
    pub data_dir: String,
    pub replicas: u16,
    pub min_replicas: ReplicaMinimum,
    pub scrub_interval: Duration,
    pub rack: String,
    pub strict_reads: bool,
    pub reactors: u16,
    pub poll: PollPolicy,
    pub driver: IoDriver,
    pub shared_cores: bool,
    pub protected_mode: bool,
    pub requirepass: String,
    pub maxclients: u32,
    pub timeout: Duration,
    pub tcp_keepalive: Duration,
    pub query_limit: Bytes,
    pub output_limit: OutputLimit,
    pub bulk_bytes_max: Bytes,
    pub slowlog_slower_than: i64,
    pub slowlog_max_len: u32,
    pub latency_threshold: u64,
    pub debug_command: DebugCommand,
    pub metrics_port: u16,
    pub log_level: LogLevel,
    pub log_format: LogFormat,
}

impl Default for ServerConfiguration {
    fn default() -> ServerConfiguration {
        ServerConfiguration {
            bind: Bind::to(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            port: 6379,
            cluster_port: 0,
            announce: String::new(),
            join: String::new(),
            cluster_key_file: String::new(),
            maxmemory: Bytes(1 << 30),
            ready_memory: Bytes(0),
            huge_pages: true,
            durability: Durability::Auto,
            data_dir: "ballast-data".into(),
            replicas: 3,
            min_replicas: ReplicaMinimum::Auto,
            scrub_interval: Duration::from_secs(3 * 86_400),
            rack: String::new(),
            strict_reads: false,
            reactors: 0,
            poll: PollPolicy::Adaptive,
            driver: IoDriver::Auto,
            shared_cores: false,
            protected_mode: true,
            requirepass: String::new(),
            maxclients: 10_000,
            timeout: Duration::ZERO,
            tcp_keepalive: Duration::from_secs(300),
            query_limit: Bytes(REQUEST_BYTES_MAX),
            output_limit: OutputLimit::default(),
            bulk_bytes_max: Bytes(VALUE_BYTES_MAX),
            slowlog_slower_than: 10_000,
            slowlog_max_len: 128,
            latency_threshold: 0,
            debug_command: DebugCommand::No,
            metrics_port: 0,
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
        }
    }
}

impl ServerConfiguration {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_the_password() {
        let configuration =
            ServerConfiguration { requirepass: "secret".into(), ..ServerConfiguration::default() };
        assert!(configuration.is_password(b"secret"));
        for wrong in ["", "s", "secre", "secretsecret", "secrets", "Secret", "secrex"] {
            assert!(!configuration.is_password(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn every_setting_can_be_set_to_what_it_shows() {
        let mut configuration = ServerConfiguration::default();
        for setting in SETTINGS {
            let shown = setting.show(&configuration);
            assert_eq!(setting.set(&mut configuration, &shown), Ok(()), "{}", setting.name);
        }
        assert_eq!(configuration, ServerConfiguration::default());
    }
}
