//! What settings there are.

use super::text::{Kind, Text, Wrong};
use super::{Bytes, Configuration, REQUEST_BYTES_MAX};
use types::limits::{REACTORS_MAX, VALUE_BYTES_MAX};

/// When a setting can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At any time, by `CONFIG SET`.
    Always,
    /// Only when the server starts.
    AtStart,
}

/// One setting. See [`SETTINGS`].
pub struct Setting {
    /// As in the file, on the command line and for `CONFIG`.
    pub name: &'static str,
    /// Its other name, on the command line and for `CONFIG`; empty: none.
    pub alias: &'static str,
    /// When it can be changed.
    pub when: When,
    /// What it means, in one paragraph.
    pub summary: &'static str,
    pub(super) kind: Kind,
    show: fn(&Configuration) -> String,
    set: fn(&mut Configuration, &str) -> Result<(), Wrong>,
}

impl Setting {
    /// The setting of this name.
    pub fn find(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name.eq_ignore_ascii_case(name))
    }

    /// The setting of this name, or that is also called like this.
    pub fn find_any(name: &str) -> Option<&'static Setting> {
        let is_it = |setting: &&Setting| setting.alias.eq_ignore_ascii_case(name);
        Setting::find(name).or_else(|| SETTINGS.iter().find(is_it).filter(|_| !name.is_empty()))
    }

    /// Its value.
    pub fn show(&self, configuration: &Configuration) -> String {
        (self.show)(configuration)
    }

    /// Sets it, or says what is wrong with the value and changes nothing.
    pub fn set(&self, configuration: &mut Configuration, value: &str) -> Result<(), Wrong> {
        (self.set)(configuration, value)
    }

    /// Whether it may be written without a value, which means `yes`.
    pub fn is_switch(&self) -> bool {
        self.kind == Kind::YesNo
    }
}

macro_rules! setting {
    ($name:literal $(or $alias:literal)?, $when:ident, $field:ident, $summary:literal $(, $check:expr)?) => {
        Setting {
            name: $name,
            alias: concat!($($alias)?),
            when: When::$when,
            summary: $summary,
            kind: kind_of(|configuration| &configuration.$field),
            show: |configuration| configuration.$field.show(),
            set: |configuration, value| {
                let value = Text::read(value)?;
                $($check(&value)?;)?
                configuration.$field = value;
                Ok(())
            },
        }
    };
}

const fn kind_of<T: Text>(_: fn(&Configuration) -> &T) -> Kind {
    T::KIND
}

/// All settings, in the order in which they are documented.
pub static SETTINGS: &[Setting] = &[
    setting!(
        "bind",
        AtStart,
        bind,
        "Addresses to listen on, between blanks. One that begins with '-' may be missing on this machine; '*' stands for all. Other servers are met on the same addresses."
    ),
    setting!("port", AtStart, port, "Port for clients (the Redis protocol). 0: one that is free."),
    setting!(
        "cluster-port" or "bus-port", AtStart, cluster_port,
        "Port for other servers. 0: the client port + 10000."
    ),
    setting!(
        "cluster-announce-ip" or "announce", AtStart, announce,
        "Host that clients and other servers reach this server under. Empty: the first address that it is bound to."
    ),
    setting!(
        "join",
        AtStart,
        join,
        "Join the cluster of this coordinator, as HOST:PORT. Empty: the server is a store of its own."
    ),
    setting!(
        "cluster-key-file",
        AtStart,
        cluster_key_file,
        "File of the cluster key, which every server, the coordinator and 'ballast cluster' must have: 'ballast key FILE' makes one. It is read again when it changes. Empty: none, which is allowed where all addresses are those of this machine."
    ),
    setting!(
        "maxmemory" or "memory", AtStart, maxmemory,
        "Memory for records and index together, as in 4gb. A full server refuses writes; nothing is evicted.",
        |bytes: &Bytes| match bytes.0 {
            0 => Err("there is always a limit: argument must be the memory to use".to_string()),
            _ => Ok(()),
        }
    ),
    setting!(
        "ready-memory",
        AtStart,
        ready_memory,
        "Free memory to take from the operating system ahead of its use, so that neither a burst of writes nor arriving data waits for it. 0: an eighth of the memory."
    ),
    setting!(
        "huge-pages",
        AtStart,
        huge_pages,
        "Whether to ask the operating system for huge pages."
    ),
    setting!(
        "durability",
        AtStart,
        durability,
        "When a write counts as safe: 'memory' when the operating system has it (it survives the end of the process), 'interval' like that and once a second on the disk, 'disk' when it is on the disk, 'none' when it has been executed (nothing is kept). 'auto': interval for a server alone, none in a cluster. In a cluster other servers keep it, and all servers must say the same."
    ),
    setting!(
        "data-dir" or "dir",
        AtStart,
        data_dir,
        "Folder in which a server keeps its log, or the logs of others if it is part of a cluster. It is made if it is not there. Each server has one of its own.",
        |folder: &String| match folder.is_empty() {
            true => Err("argument must be the name of a folder".to_string()),
            false => Ok(()),
        }
    ),
    setting!(
        "replicas",
        AtStart,
        replicas,
        "Servers of a cluster that keep each part of this one's log on their disks, if it is kept: fewer may fail at once without a loss. There must be more servers than that.",
        |count: &u16| match count {
            1..=16 => Ok(()),
            _ =>
                Err("argument must be between 1 and 16; --durability none keeps nothing"
                    .to_string()),
        }
    ),
    setting!(
        "min-replicas-to-write" or "min-slaves-to-write", Always, min_replicas,
        "Fewest other servers that must be able to keep a write of a log that others keep: with fewer, for more than a tenth of a second, it is refused with NOREPLICAS and not executed. More than 'replicas' means as many as that. 0: never refused; a write is answered when one other server has it. 'auto': one less than 'replicas', or than there would be if all members lived, but at least one; 0 when no other server lives, and this one keeps its log on its own disk."
    ),
    setting!(
        "scrub-interval",
        AtStart,
        scrub_interval,
        "Seconds after which what is kept for other servers is read again, to find out whether the disk still has it: what is damaged is made again while its owner has it in memory. Reads at most 16 MiB per second. 0: never."
    ),
    setting!(
        "rack",
        AtStart,
        rack,
        "What fails together with this server, by a name of your choice: its log is kept in other racks as far as there are any. Empty: it fails alone."
    ),
    setting!(
        "strict-reads",
        AtStart,
        strict_reads,
        "Whether replies about data wait until those who keep the log have confirmed, after the request was executed, that nobody else serves it. Then no read is stale even if the machine's clock stands still, as that of a virtual machine that is moved or paused; each takes some 20 ms longer. Only for a server whose log others keep."
    ),
    setting!(
        "reactors",
        AtStart,
        reactors,
        "Reactors (threads that serve). 0: one for each processor that the server may use.",
        |count: &u16| match usize::from(*count) <= REACTORS_MAX {
            true => Ok(()),
            false => Err(format!("argument must be between 0 and {REACTORS_MAX} inclusive")),
        }
    ),
    setting!(
        "poll",
        AtStart,
        poll,
        "How an idle reactor waits: 'adaptive' spins while that pays, 'busy' always, 'sleep' never."
    ),
    setting!(
        "driver",
        AtStart,
        driver,
        "How sockets are served: 'uring' (fewer calls of the kernel), 'epoll' (works everywhere), or 'auto': io_uring where the system permits it."
    ),
    setting!(
        "shared-cores",
        AtStart,
        shared_cores,
        "Whether other processes need these processors too: then reactors do not spin, and offer them after each piece of background work."
    ),
    setting!(
        "protected-mode",
        Always,
        protected_mode,
        "Whether a server without a password serves only clients on this machine."
    ),
    setting!(
        "requirepass",
        Always,
        requirepass,
        "The password that clients must say first. Empty: none."
    ),
    setting!(
        "maxclients",
        Always,
        maxclients,
        "Connections of clients. Further ones are refused.",
        |clients: &u32| match *clients {
            0 => Err("argument must be between 1 and 4294967295 inclusive".to_string()),
            _ => Ok(()),
        }
    ),
    setting!(
        "timeout",
        Always,
        timeout,
        "Seconds without a request after which a client is sent away. 0: never."
    ),
    setting!(
        "tcp-keepalive",
        AtStart,
        tcp_keepalive,
        "Seconds of silence after which the system asks whether a client still lives. 0: never."
    ),
    setting!(
        "client-query-buffer-limit",
        Always,
        query_limit,
        "The largest request, at most 64mb. Counts for clients that connect from then on.",
        |bytes: &Bytes| match bytes.0 {
            1_048_576..=REQUEST_BYTES_MAX => Ok(()),
            _ => Err(format!("argument must be between 1048576 and {REQUEST_BYTES_MAX} inclusive")),
        }
    ),
    setting!(
        "client-output-buffer-limit",
        Always,
        output_limit,
        "'normal HARD SOFT SECONDS': a client is sent away when replies of HARD bytes wait for it, or of SOFT bytes for so many seconds. 0: no limit. Whatever the limits, a client that leaves more than 1 MiB is not read until it takes them."
    ),
    setting!(
        "proto-max-bulk-len",
        Always,
        bulk_bytes_max,
        "The largest argument, at most the largest value. A request with a longer one is refused. Counts for clients that connect from then on.",
        |bytes: &Bytes| match bytes.0 {
            16_384..=VALUE_BYTES_MAX => Ok(()),
            _ => Err(format!("argument must be between 16384 and {VALUE_BYTES_MAX} inclusive")),
        }
    ),
    setting!(
        "slowlog-log-slower-than" or "commandlog-execution-slower-than",
        Always,
        slowlog_slower_than,
        "Microseconds from which on a command is noted in the slow log. 0: all are. Negative: none is."
    ),
    setting!(
        "slowlog-max-len" or "commandlog-slow-execution-max-len",
        Always,
        slowlog_max_len,
        "Entries that the slow log keeps.",
        |entries: &u32| match *entries {
            0..=1_000_000 => Ok(()),
            _ => Err("argument must be between 0 and 1000000 inclusive".to_string()),
        }
    ),
    setting!(
        "latency-monitor-threshold",
        Always,
        latency_threshold,
        "Milliseconds from which on something that holds a reactor up is noted for LATENCY. 0: nothing is."
    ),
    setting!(
        "enable-debug-command",
        AtStart,
        debug_command,
        "Who may use DEBUG: 'no' (nobody), 'local' (clients on this machine), 'yes'."
    ),
    setting!(
        "metrics-port",
        AtStart,
        metrics_port,
        "Port under which Prometheus finds the metrics, as http://HOST:PORT/metrics. 0: nowhere."
    ),
    setting!(
        "loglevel" or "log-level", AtStart, log_level,
        "What the server says about itself: nothing, error, warning, notice, debug, trace. The environment's BALLAST_LOG overrides it."
    ),
    setting!(
        "log-format",
        AtStart,
        log_format,
        "How it says it: 'text', or 'json' with one object per line."
    ),
];
