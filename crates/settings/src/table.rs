//! The table of all settings.

use crate::groups::{DurabilitySettings, MemorySettings};
use crate::text::{SettingKind, Text, Wrong};
use crate::{Bytes, REQUEST_BYTES_MAX, ServerConfiguration};
use std::ops::RangeInclusive;
use types::limits::{REACTORS_MAX, VALUE_BYTES_MAX};

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

macro_rules! setting {
    (
        $name:literal $(or $alias:literal)?, $when:ident, $($field:ident).+ $(in $range:expr)?,
        $summary:literal $(, $check:path)?
    ) => {
        Setting {
            name: $name,
            alias: concat!($($alias)?),
            when: When::$when,
            summary: $summary,
            kind: kind_of(|configuration| &configuration.$($field).+),
            show: |configuration| configuration.$($field).+.show(),
            set: |configuration, value| {
                let value = Text::read(value)?;
                $(within(&value, $range)?;)?
                $($check(&value)?;)?
                configuration.$($field).+ = value;
                Ok(())
            },
        }
    };
}

fn within<T: Text + PartialOrd>(value: &T, range: RangeInclusive<T>) -> Result<(), Wrong> {
    let (least, most) = (range.start().show(), range.end().show());
    match range.contains(value) {
        true => Ok(()),
        false => Err(format!("argument must be between {least} and {most} inclusive")),
    }
}

const fn kind_of<T: Text>(_: fn(&ServerConfiguration) -> &T) -> SettingKind {
    T::KIND
}

/// All settings, in the order of the documentation.
pub static SETTINGS: &[Setting] = &[
    setting!(
        "bind",
        AtStart,
        network.bind,
        "Addresses to listen on, separated by spaces. An address with the prefix '-' may be missing on this machine; '*' stands for all. The port for other servers uses the same addresses."
    ),
    setting!("port", AtStart, network.port, "Port for clients (Redis protocol). 0: any free port."),
    setting!(
        "cluster-port" or "bus-port", AtStart, network.cluster_port,
        "Port for other servers. 0: the client port + 10000."
    ),
    setting!(
        "cluster-announce-ip" or "announce", AtStart, network.announce,
        "Host name or address under which clients and other servers reach this server. Empty: the first address of 'bind'."
    ),
    setting!(
        "join",
        AtStart,
        membership.join,
        "Coordinator of the cluster to join, as HOST:PORT. Empty: the server is stand-alone."
    ),
    setting!(
        "cluster-key-file",
        AtStart,
        membership.cluster_key_file,
        "File of the cluster key, the same for every server, the coordinator and 'ballast cluster': 'ballast key FILE' creates one. It is read again when it changes. Empty: no key, which is allowed only if all addresses are loopback addresses."
    ),
    setting!(
        "maxmemory" or "memory", AtStart, memory.limit,
        "Memory for records and index together, as in 4gb. A full server refuses writes; records are never evicted.",
        MemorySettings::check_limit
    ),
    setting!(
        "ready-memory",
        AtStart,
        memory.ready,
        "Free memory to prefault, so that bursts of writes and migrations do not wait for page faults. 0: an eighth of 'maxmemory'."
    ),
    setting!(
        "huge-pages",
        AtStart,
        memory.huge_pages,
        "Use huge pages if the operating system grants them."
    ),
    setting!(
        "durability",
        AtStart,
        durability.mode,
        "When a write is acknowledged: 'memory' when it is in the operating system's memory (it survives the end of the process), 'interval' like 'memory', with a sync to disk once a second, 'disk' when it is synced to disk, 'none' when it is executed (nothing is persistent). 'auto': 'interval' for a stand-alone server, 'none' in a cluster. In a cluster the replicas are on other servers, and all servers must have the same value."
    ),
    setting!(
        "data-dir" or "dir",
        AtStart,
        durability.data_dir,
        "Folder for the log of a stand-alone server, or for replicas of other servers' logs in a cluster. It is created if it does not exist. Each server needs its own folder.",
        DurabilitySettings::check_data_dir
    ),
    setting!(
        "replicas",
        AtStart,
        durability.replicas,
        "Number of other servers that store each segment of this server's log, unless durability is 'none'. No data is lost if fewer servers fail at once. The cluster needs more servers than this number.",
        DurabilitySettings::check_replicas
    ),
    setting!(
        "min-replicas-to-write" or "min-slaves-to-write", Always, durability.min_replicas,
        "Minimum number of reachable backups for a write to a replicated log. With fewer for more than a tenth of a second, a write is refused with NOREPLICAS and not executed. Values above 'replicas' count as 'replicas'. 0: never refuse; a write is acknowledged when one backup has it. 'auto': one less than 'replicas', or one less than the backups there would be if all members were alive, but at least one; 0 when no other server is alive, and this server's log is on its own disk."
    ),
    setting!(
        "scrub-interval",
        AtStart,
        durability.scrub_interval,
        "Seconds between two scrubs of a replica on this server's disk. A damaged replica is created again while the log's owner has the data in memory. Scrubbing reads at most 16 MiB per second. 0: never."
    ),
    setting!(
        "rack",
        AtStart,
        membership.rack,
        "Name of this server's failure domain, of your choice. Replicas of its log are placed in other racks if possible. Empty: a failure domain of its own."
    ),
    setting!(
        "strict-reads",
        AtStart,
        durability.strict_reads,
        "Delay replies to reads and writes until the backups confirm, after the request was executed, that no other server owns the data. Then no read is stale even if the machine's clock stops, as when a virtual machine is paused or moved. Each request takes about 20 ms longer. Only for a server with a replicated log."
    ),
    setting!(
        "reactors",
        AtStart,
        reactors.count in 0..=REACTORS_MAX as u16,
        "Number of reactors (threads that serve requests). 0: one per processor that the server may use."
    ),
    setting!(
        "poll",
        AtStart,
        reactors.poll,
        "How an idle reactor waits: 'adaptive' spins while that is likely to save a sleep, 'busy' always spins, 'sleep' never spins."
    ),
    setting!(
        "driver",
        AtStart,
        reactors.driver,
        "Network driver: 'uring' (fewer system calls), 'epoll' (works everywhere), or 'auto': io_uring if the system permits it, else epoll."
    ),
    setting!(
        "shared-cores",
        AtStart,
        reactors.shared_cores,
        "Share the processors with other processes: reactors do not spin, and yield after each quantum of background work."
    ),
    setting!(
        "protected-mode",
        Always,
        access.protected_mode,
        "Serve only clients on this machine while no password is set."
    ),
    setting!(
        "requirepass",
        Always,
        access.requirepass,
        "Password that clients must send first. Empty: none."
    ),
    setting!(
        "maxclients",
        Always,
        clients.count_max in 1..=u32::MAX,
        "Maximum number of client connections. Further ones are refused."
    ),
    setting!(
        "timeout",
        Always,
        clients.timeout,
        "Seconds without a request after which a client connection is closed. 0: never."
    ),
    setting!(
        "tcp-keepalive",
        AtStart,
        network.tcp_keepalive,
        "Seconds without traffic before a TCP keepalive probe is sent to a client. 0: never."
    ),
    setting!(
        "client-query-buffer-limit",
        Always,
        clients.query_limit in Bytes(1 << 20)..=Bytes(REQUEST_BYTES_MAX),
        "Largest request, at most 64mb. A change applies to new connections."
    ),
    setting!(
        "client-output-buffer-limit",
        Always,
        clients.output_limit,
        "'normal HARD SOFT SECONDS': a client connection is closed when HARD bytes of unsent replies are pending, or SOFT bytes for SECONDS. 0: no limit. Independent of this setting, no requests are read from a client with more than 1 MiB of unsent replies."
    ),
    setting!(
        "proto-max-bulk-len",
        Always,
        clients.bulk_bytes_max in Bytes(16 << 10)..=Bytes(VALUE_BYTES_MAX),
        "Largest argument, at most the largest value. A request with a longer argument is refused. A change applies to new connections."
    ),
    setting!(
        "slowlog-log-slower-than" or "commandlog-execution-slower-than",
        Always,
        reports.slowlog_slower_than,
        "Execution time in microseconds from which a command is recorded in the slow log. 0: all commands. Negative: none."
    ),
    setting!(
        "slowlog-max-len" or "commandlog-slow-execution-max-len",
        Always,
        reports.slowlog_max_len in 0..=1_000_000,
        "Maximum number of entries in the slow log."
    ),
    setting!(
        "latency-monitor-threshold",
        Always,
        reports.latency_threshold,
        "Milliseconds from which an event that blocks a reactor is recorded for LATENCY. 0: none."
    ),
    setting!(
        "enable-debug-command",
        AtStart,
        access.debug_command,
        "Clients that may use DEBUG: 'no' (none), 'local' (those on this machine), 'yes' (all)."
    ),
    setting!(
        "metrics-port",
        AtStart,
        reports.metrics_port,
        "Port for Prometheus metrics, as http://HOST:PORT/metrics. 0: none."
    ),
    setting!(
        "loglevel" or "log-level", AtStart, reports.log_level,
        "Log level: nothing, error, warning, notice, debug, trace. The environment variable BALLAST_LOG overrides it."
    ),
    setting!(
        "log-format",
        AtStart,
        reports.log_format,
        "Log format: 'text', or 'json' with one object per line."
    ),
];
