//! All settings of a server, by subject: the types that hold their values, and one table.

use crate::text::{
    Bind, Bytes, DebugCommand, Durability, IoDriver, LogFormat, LogLevel, OutputLimit,
    ReplicaMinimum, SettingKind, Text, Wrong,
};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;
use types::limits::{REACTORS_MAX, VALUE_BYTES_MAX};
use types::{EvictionPolicy, PollPolicy};

/// Largest request that fits the input buffer of a connection, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Default amount of memory kept ready, and the part of the memory limit that it does not exceed.
/// With it, an idle server has less than 64 MiB resident.
const READY_BYTES: usize = 48 << 20;
const READY_PART: usize = 8;
/// Difference between the default port for other servers and the client port.
const CLUSTER_PORT_OFFSET: u16 = 10_000;

/// The time at which a setting can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At any time, by `CONFIG SET`.
    Always,
    /// Only at the start of the server.
    AtStart,
}

/// One setting. See [`SETTINGS`].
pub struct Setting {
    /// Name in the file, on the command line and for `CONFIG`.
    pub name: &'static str,
    /// Second name, on the command line and for `CONFIG`; empty if there is none.
    pub alias: &'static str,
    /// Time at which the setting can be changed.
    pub when: When,
    /// Description in one paragraph.
    pub summary: &'static str,
    pub(crate) kind: SettingKind,
    show: fn(&ServerConfiguration) -> String,
    set: fn(&mut ServerConfiguration, &str) -> Result<(), Wrong>,
}

impl Setting {
    /// Returns the setting of this name.
    pub fn find(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name.eq_ignore_ascii_case(name))
    }

    /// Returns the setting of this name or alias.
    pub fn find_any(name: &str) -> Option<&'static Setting> {
        let is_it = |setting: &&Setting| setting.alias.eq_ignore_ascii_case(name);
        Setting::find(name).or_else(|| SETTINGS.iter().find(is_it).filter(|_| !name.is_empty()))
    }

    /// Returns the setting's value as text.
    pub fn show(&self, configuration: &ServerConfiguration) -> String {
        (self.show)(configuration)
    }

    /// Changes the setting. If the value is invalid, returns an error and changes nothing.
    pub fn set(&self, configuration: &mut ServerConfiguration, value: &str) -> Result<(), Wrong> {
        (self.set)(configuration, value)
    }

    /// Returns whether the setting can be given without a value, which means `yes`.
    pub fn is_switch(&self) -> bool {
        self.kind == SettingKind::YesNo
    }
}

/// Makes a type for each subject, [`ServerConfiguration`] and [`SETTINGS`]. A setting is given as its
/// field with type and default, its name for users and perhaps a second one, when it can be changed,
/// perhaps the range or the check of its values, and its description.
macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $subject:ident: $type:ident {$(
            $field:ident: $value:ty = $default:expr,
            $name:literal $(or $alias:literal)?,
            $when:ident $(in [$range:expr])? $(check($check:ident))?,
            $summary:literal;
        )+}
    )+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            #[expect(missing_docs, reason = "each is described in the table, for users")]
            pub struct $type {
                $(pub $field: $value,)+
            }

            impl Default for $type {
                fn default() -> $type {
                    $type { $($field: $default,)+ }
                }
            }
        )+

        /// The settings of a server, by subject. [`SETTINGS`] describes each of them.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is described at its type")]
        pub struct ServerConfiguration {
            $(pub $subject: $type,)+
        }

        /// All settings, in the order of the documentation.
        pub static SETTINGS: &[Setting] = &[$($(Setting {
            name: $name,
            alias: concat!($($alias)?),
            when: When::$when,
            summary: $summary,
            kind: <$value as Text>::KIND,
            show: |configuration| configuration.$subject.$field.show(),
            set: |configuration, value| {
                let value = <$value as Text>::read(value)?;
                $(check_within(&value, $range)?;)?
                $($check(&value)?;)?
                configuration.$subject.$field = value;
                Ok(())
            },
        },)+)+];
    };
}

settings! {
    /// Addresses and ports of the server, and its cluster.
    network: NetworkSettings {
        bind: Bind = Bind::to(IpAddr::V4(Ipv4Addr::LOCALHOST)), "bind", AtStart,
            "Addresses to listen on, separated by spaces. An address with the prefix '-' may be missing on this machine; '*' stands for all. The port for other servers uses the same addresses.";
        port: u16 = 6379, "port", AtStart,
            "Port for clients (Redis protocol). 0: any free port.";
        cluster_port: u16 = 0, "cluster-port" or "bus-port", AtStart,
            "Port for other servers. 0: the client port + 10000.";
        announce: String = String::new(), "cluster-announce-ip" or "announce", AtStart,
            "Host name or address under which clients and other servers reach this server. Empty: the first address of 'bind' that this machine has. Required in a cluster if that stands for all addresses.";
        join: String = String::new(), "join", AtStart,
            "Coordinator of the cluster to join, as HOST:PORT. Empty: the server is stand-alone.";
        cluster_key_file: String = String::new(), "cluster-key-file", AtStart,
            "File of the cluster key, the same for every server, the coordinator and 'ballast cluster': 'ballast key FILE' creates one. It is read again when it changes. Empty: no key, which is allowed only if all addresses are loopback addresses.";
    }
    /// Memory for records and index.
    memory: MemorySettings {
        limit: Bytes = Bytes(1 << 30), "maxmemory" or "memory", Always check(check_limit),
            "Memory for records and index together, as in 4gb. A full server refuses writes, or evicts records: see 'maxmemory-policy'. At run time it can be lowered, and raised up to the value at the start.";
        policy: EvictionPolicy = EvictionPolicy::NoEviction, "maxmemory-policy", Always,
            "Which records a full server deletes to make room for writes: 'noeviction' (none, writes are refused), 'allkeys-lru' (those not accessed for longest), 'allkeys-lfu' (those accessed least often), 'allkeys-random' (any), or 'volatile-lru', 'volatile-lfu', 'volatile-random' and 'volatile-ttl' (the nearest expiry) of the records with an expiry. The lru and lfu policies use memory beside 'maxmemory', up to 3 % of it, to track accesses.";
        samples: u16 = 5, "maxmemory-samples", Always in [1..=64],
            "Minimum number of records that are compared to evict one of them. More find better ones, and take longer.";
        ready: Bytes = Bytes(0), "ready-memory", AtStart,
            "Free memory to prefault at idle times, so that bursts of writes do not wait for page faults. Memory for migrations and recoveries is prefaulted when it is reserved. 0: 48 MiB, but at most an eighth of 'maxmemory'.";
        packed: Bytes = Bytes(4096), "max-packed-bytes", Always check(check_packed),
            "Longest hash, set, sorted set or list that is stored in one record. A longer one is divided into pages, of a sixteenth of this size (a list: of half), so that a change rewrites a page instead of the whole value. Values other than lists stay divided.";
        huge_pages: bool = true, "huge-pages", AtStart,
            "Use huge pages if the operating system grants them.";
    }
    /// Persistence and replication of the log.
    durability: DurabilitySettings {
        mode: Durability = Durability::Auto, "durability", AtStart,
            "When a write is acknowledged: 'memory' when it is in the operating system's memory (it survives the end of the process), 'interval' like 'memory', with a sync to disk once a second, 'disk' when it is synced to disk, 'none' when it is executed (nothing is persistent). 'auto': 'interval' for a stand-alone server, 'none' in a cluster. In a cluster the replicas are on other servers, and all servers must have the same value.";
        data_dir: String = "ballast-data".into(),
            "data-dir" or "dir", AtStart check(check_data_dir),
            "Folder for the log of a stand-alone server, or for replicas of other servers' logs in a cluster. It is created if it does not exist. Each server needs its own folder.";
        replicas: u16 = 3, "replicas", AtStart check(check_replicas),
            "Number of other servers that store each segment of this server's log, unless durability is 'none'. No data is lost if fewer servers fail at once. The cluster needs more servers than this number.";
        min_replicas: ReplicaMinimum = ReplicaMinimum::Auto,
            "min-replicas-to-write" or "min-slaves-to-write", Always,
            "Minimum number of reachable backups for a write to a replicated log. With fewer for more than a tenth of a second, a write is refused with NOREPLICAS and not executed. Values above 'replicas' count as 'replicas'. 0: never refuse; a write is acknowledged when one backup has it. 'auto': one less than 'replicas', or one less than the backups there would be if all members were alive, but at least one; 0 when no other server is alive, and this server's log is on its own disk.";
        scrub_interval: Duration = Duration::from_secs(3 * 86_400), "scrub-interval", AtStart,
            "Seconds between two scrubs of a replica on this server's disk. A damaged replica is created again while the log's owner has the data in memory. Scrubbing reads at most 16 MiB per second. 0: never.";
        rack: String = String::new(), "rack", AtStart,
            "Name of this server's failure domain, of your choice. Replicas of its log are placed in other racks if possible. Empty: a failure domain of its own.";
        strict_reads: bool = false, "strict-reads", AtStart,
            "Delay replies to reads and writes until the backups confirm, after the request was executed, that no other server owns the data. Then no read is stale even if the machine's clock stops, as when a virtual machine is paused or moved. Each request takes about 20 ms longer. Only for a server with a replicated log.";
    }
    /// The threads that serve requests.
    reactors: ReactorSettings {
        count: u16 = 0, "reactors", AtStart in [0..=REACTORS_MAX as u16],
            "Number of reactors (threads that serve requests). 0: one per processor that the server may use.";
        poll: PollPolicy = PollPolicy::Adaptive, "poll", AtStart,
            "How an idle reactor waits: 'adaptive' spins while that is likely to save a sleep, 'busy' always spins, 'sleep' never spins.";
        driver: IoDriver = IoDriver::Auto, "driver", AtStart,
            "Network driver: 'uring' (fewer system calls), 'epoll' (works everywhere), or 'auto': io_uring if the system permits it, else epoll.";
        shared_cores: bool = false, "shared-cores", AtStart,
            "Share the processors with other processes: reactors do not spin and are not bound to a processor. Without it, a reactor detects at run time that it shares its processor.";
    }
    /// Rights of clients.
    access: AccessSettings {
        protected_mode: bool = true, "protected-mode", Always,
            "Serve only clients on this machine while no password is set.";
        requirepass: String = String::new(), "requirepass", Always,
            "Password that clients must send first. Empty: none.";
    }
    /// Limits of client connections.
    clients: ClientSettings {
        count_max: u32 = 10_000, "maxclients", Always in [1..=u32::MAX],
            "Maximum number of client connections. Further ones are refused. It is lowered to the number for which the process has file descriptors (ulimit -n), and cannot be raised above it at run time.";
        timeout: Duration = Duration::ZERO, "timeout", Always,
            "Seconds without a request after which a client connection is closed. 0: never.";
        tcp_keepalive: Duration = Duration::from_secs(300), "tcp-keepalive", AtStart,
            "Seconds without traffic before a TCP keepalive probe is sent to a client. 0: never.";
        query_limit: Bytes = Bytes(REQUEST_BYTES_MAX),
            "client-query-buffer-limit", Always in [Bytes(1 << 20)..=Bytes(REQUEST_BYTES_MAX)],
            "Largest request, at most 64mb. A change applies to new connections.";
        output_limit: OutputLimit = OutputLimit::default(), "client-output-buffer-limit", Always,
            "'normal HARD SOFT SECONDS': a client connection is closed when HARD bytes of unsent replies are pending, or SOFT bytes for SECONDS. 0: no limit. Independent of this setting, no requests are read from a client with more than 1 MiB of unsent replies.";
        bulk_bytes_max: Bytes = Bytes(VALUE_BYTES_MAX),
            "proto-max-bulk-len", Always in [Bytes(16 << 10)..=Bytes(VALUE_BYTES_MAX)],
            "Largest argument, at most the largest value. A request with a longer argument is refused. A change applies to new connections.";
    }
    /// Reports and tools for operators.
    operators: OperatorSettings {
        slowlog_slower_than: i64 = 10_000,
            "slowlog-log-slower-than" or "commandlog-execution-slower-than", Always,
            "Execution time in microseconds from which a command is recorded in the slow log. 0: all commands. Negative: none.";
        slowlog_max_len: u32 = 128,
            "slowlog-max-len" or "commandlog-slow-execution-max-len", Always in [0..=1_000_000],
            "Maximum number of entries in the slow log.";
        latency_threshold: u64 = 0, "latency-monitor-threshold", Always,
            "Milliseconds from which an event that blocks a reactor is recorded for LATENCY. 0: none.";
        debug_command: DebugCommand = DebugCommand::No, "enable-debug-command", AtStart,
            "Clients that may use DEBUG: 'no' (none), 'local' (those on this machine), 'yes' (all).";
        metrics_port: u16 = 0, "metrics-port", AtStart,
            "Port for Prometheus metrics, as http://HOST:PORT/metrics. 0: none.";
        log_level: LogLevel = LogLevel::Info, "loglevel" or "log-level", AtStart,
            "Log level: nothing, error, warning, notice, debug, trace. The environment variable BALLAST_LOG overrides it.";
        log_format: LogFormat = LogFormat::Text, "log-format", AtStart,
            "Log format: 'text', or 'json' with one object per line.";
    }
}

fn check_within<T: Text + PartialOrd>(value: &T, range: RangeInclusive<T>) -> Result<(), Wrong> {
    let (least, most) = (range.start().show(), range.end().show());
    match range.contains(value) {
        true => Ok(()),
        false => Err(format!("argument must be between {least} and {most} inclusive")),
    }
}

fn check_limit(limit: &Bytes) -> Result<(), Wrong> {
    match limit.0 {
        0 => Err("a memory limit is required: argument must be above 0".into()),
        _ => Ok(()),
    }
}

fn check_packed(bytes: &Bytes) -> Result<(), Wrong> {
    match (16..=1 << 20).contains(&bytes.0) {
        true => Ok(()),
        false => Err("argument must be between 16 and 1mb".into()),
    }
}

fn check_data_dir(folder: &str) -> Result<(), Wrong> {
    match folder.is_empty() {
        true => Err("argument must be the path of a folder".into()),
        false => Ok(()),
    }
}

fn check_replicas(count: &u16) -> Result<(), Wrong> {
    match count {
        1..=16 => Ok(()),
        _ => Err("argument must be between 1 and 16; use --durability none for no replicas".into()),
    }
}

impl NetworkSettings {
    /// Returns whether the server is stand-alone.
    pub fn is_standalone(&self) -> bool {
        self.join.is_empty()
    }

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
}

impl MemorySettings {
    /// Returns the number of bytes of free memory to prefault.
    pub fn ready_bytes(&self) -> usize {
        match self.ready.0 {
            0 => READY_BYTES.min(self.limit.0 / READY_PART),
            bytes => bytes,
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
