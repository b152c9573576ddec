//! The sections of `INFO`, with the fields that clients, tools and exporters read.

use crate::backend::Backend;
use crate::commands::{Command, REDIS_VERSION, flag};
use crate::operators::counts::{self, Summary};
use crate::operators::pause::{Pause, Paused};
use crate::operators::sources::{Sources, called};
use crate::operators::{Operators, lock, metrics};
use node::{Background, Mode, Node};
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{Instant, ReactorCounts, TableId, UnixMillis};

type Lines = Vec<(String, String)>;

/// A section of `INFO`.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    /// Set if `INFO` without arguments shows it.
    pub(crate) is_default: bool,
    write: fn(&InfoSources<'_>) -> Lines,
}

/// All sections, in their order.
pub(crate) static SECTIONS: [Section; 15] = [
    section("Server", true, server),
    section("Clients", true, clients),
    section("Memory", true, memory),
    section("Persistence", true, persistence),
    section("Stats", true, stats),
    section("Replication", true, replication),
    section("CPU", true, cpu),
    section("Modules", true, |_| Vec::new()),
    section("Commandstats", false, command_stats),
    section("Errorstats", true, error_stats),
    section("Latencystats", false, latency_stats),
    section("Cluster", true, |shown| {
        lines(vec![("cluster_enabled", u8::from(shown.node().is_cluster()).to_string())])
    }),
    section("Ballast", true, ballast),
    section("Recovery", true, recovery),
    section("Keyspace", true, keyspace),
];

const fn section(
    name: &'static str,
    is_default: bool,
    write: fn(&InfoSources<'_>) -> Lines,
) -> Section {
    Section { name, is_default, write }
}

/// Sources of the values of a section.
struct InfoSources<'e> {
    backend: &'e Backend,
    numbers: Sources<'e>,
    uptime: Duration,
    wall: UnixMillis,
    /// Requests per second since the last `INFO`.
    rate: u64,
}

impl InfoSources<'_> {
    fn node(&self) -> &Node {
        self.backend.node()
    }

    fn operators(&self) -> &Operators {
        &self.backend.operators
    }

    /// Returns a field that shows a number of the registry.
    fn number(&self, field: &'static str) -> (&'static str, String) {
        (field, metrics::number(field, &self.numbers).to_string())
    }
}

/// Returns the text of the wanted sections.
pub(crate) fn text(
    backend: &Backend,
    now: Instant,
    wall: UnixMillis,
    is_wanted: impl Fn(&Section) -> bool,
) -> String {
    let numbers = Sources::new(backend.node(), &backend.operators, now);
    let uptime = backend.engine.uptime(now);
    let rate = lock(&backend.operators.rate).at(uptime, numbers.sum(|counts| &counts.requests));
    let shown = InfoSources { backend, numbers, uptime, wall, rate };
    let mut text = String::new();
    for section in SECTIONS.iter().filter(|section| is_wanted(section)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        text.push_str(&format!("# {}\r\n", section.name));
        for (field, value) in (section.write)(&shown) {
            text.push_str(&format!("{field}:{value}\r\n"));
        }
    }
    text
}

fn lines(fields: Vec<(&str, String)>) -> Lines {
    fields.into_iter().map(|(field, value)| (field.to_string(), value)).collect()
}

fn server(shown: &InfoSources<'_>) -> Lines {
    let node = shown.node();
    let uptime = shown.uptime.as_secs();
    let host = shown.operators().host();
    let mode = if node.is_cluster() { "cluster" } else { "standalone" };
    let executable = std::env::current_exe().map(|path| path.display().to_string());
    lines(vec![
        ("redis_version", REDIS_VERSION.into()),
        ("redis_git_sha1", "00000000".into()),
        ("redis_git_dirty", "0".into()),
        ("redis_build_id", "0".into()),
        ("server_name", "ballast".into()),
        ("ballast_version", env!("CARGO_PKG_VERSION").into()),
        ("redis_mode", mode.into()),
        ("os", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("arch_bits", usize::BITS.to_string()),
        ("multiplexing_api", host.map_or("none", |host| host.driver()).into()),
        ("process_id", std::process::id().to_string()),
        ("run_id", node.name_of(node.me())),
        ("tcp_port", node.settings().client_port.to_string()),
        ("server_time_usec", (shown.wall.0 * 1000).to_string()),
        ("expiry_clock_ms", node.store().clock().0.to_string()),
        ("expiry_clock_doubt_ms", node.clock_doubt(shown.numbers.now).to_string()),
        ("uptime_in_seconds", uptime.to_string()),
        ("uptime_in_days", (uptime / 86_400).to_string()),
        ("hz", "10".into()),
        ("executable", executable.unwrap_or_default()),
        ("config_file", host.and_then(|host| host.file()).unwrap_or_default()),
        ("io_threads_active", node.settings().reactors.to_string()),
    ])
}

fn clients(shown: &InfoSources<'_>) -> Lines {
    let operators = shown.operators();
    let sums = operators.clients.sums();
    let mut fields = lines(vec![
        shown.number("connected_clients"),
        ("cluster_connections", "0".into()),
        shown.number("maxclients"),
        ("client_recent_max_input_buffer", sums.unread_max.to_string()),
        ("client_recent_max_output_buffer", sums.unsent_max.to_string()),
        shown.number("blocked_clients"),
        ("tracking_clients", "0".into()),
        ("pubsub_clients", "0".into()),
        ("watching_clients", sums.watching.to_string()),
        ("clients_in_timeout_table", "0".into()),
        ("total_watched_keys", sums.watched_keys.to_string()),
        ("total_blocking_keys", "0".into()),
        ("total_blocking_keys_on_nokey", "0".into()),
    ]);
    fields.extend(lines(pause_fields(&operators.pause, shown.numbers.now)));
    fields
}

/// Returns the fields about `CLIENT PAUSE`: the held commands and the remaining time.
fn pause_fields(pause: &Pause, now: Instant) -> Vec<(&'static str, String)> {
    let (reason, actions) = match pause.at(now) {
        None => ("none", "none"),
        Some(Paused::Writes) => ("client_pause", "write"),
        Some(Paused::All) => ("client_pause", "all"),
    };
    let left = pause.next_end(now).map_or(Duration::ZERO, |end| end.since(now));
    vec![
        ("paused_reason", reason.into()),
        ("paused_actions", actions.into()),
        ("paused_timeout_milliseconds", left.as_millis().to_string()),
    ]
}

fn memory(shown: &InfoSources<'_>) -> Lines {
    let Sources { memory, process, .. } = &shown.numbers;
    let log = &memory.log;
    let used = log.total_bytes.saturating_sub(log.free_bytes);
    let resident = match process.resident_bytes {
        0 => log.resident_bytes,
        bytes => bytes,
    };
    let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 1.0 };
    let fragmentation = ratio(used as f64, log.live_bytes as f64 + memory.index_bytes as f64);
    lines(vec![
        ("used_memory", used.to_string()),
        ("used_memory_human", human(used)),
        ("used_memory_rss", resident.to_string()),
        ("used_memory_rss_human", human(resident)),
        ("used_memory_peak", process.resident_bytes_peak.max(used).to_string()),
        ("used_memory_overhead", memory.index_bytes.to_string()),
        ("used_memory_startup", "0".into()),
        shown.number("used_memory_dataset"),
        shown.number("used_memory_index"),
        ("total_system_memory", process.machine_bytes.to_string()),
        ("used_memory_lua", "0".into()),
        ("used_memory_scripts", "0".into()),
        shown.number("maxmemory"),
        ("maxmemory_human", human(log.total_bytes)),
        ("maxmemory_policy", "noeviction".into()),
        ("mem_fragmentation_ratio", format!("{fragmentation:.2}")),
        ("mem_clients_normal", shown.operators().clients.sums().bytes.to_string()),
        ("mem_clients_slaves", "0".into()),
        ("mem_allocator", "mimalloc".into()),
        ("huge_pages", format!("{:?}", log.huge_pages).to_lowercase()),
    ])
}

/// Formats a size as Redis does for people.
fn human(bytes: u64) -> String {
    let (unit, factor) = match bytes {
        0..1024 => return format!("{bytes}B"),
        1024..1_048_576 => ("K", 1024.0),
        1_048_576..1_073_741_824 => ("M", 1_048_576.0),
        _ => ("G", 1_073_741_824.0),
    };
    format!("{:.2}{unit}", bytes as f64 / factor)
}

/// Returns the fields of Redis that apply here, and the progress of loading.
fn persistence(shown: &InfoSources<'_>) -> Lines {
    let began = (shown.wall.0 / 1000).saturating_sub(shown.uptime.as_secs());
    let last_save = shown.node().last_save(shown.wall, shown.uptime);
    let durability = shown.node().durability();
    let progress = durability.load_progress();
    let replication = Some(durability).filter(|durability| durability.is_with_others());
    let misplaced = replication.map(|it| it.misplaced()).unwrap_or_default();
    let mode = shown.node().persistence();
    let status = if durability.refuses_writes() { "err" } else { "ok" };
    let loading = if progress.is_some() { "1" } else { "0" };
    let mut fields = lines(vec![
        ("loading", loading.into()),
        ("async_loading", "0".into()),
        ("durability", mode.map_or("none", Mode::name).into()),
        ("rdb_changes_since_last_save", unsaved_changes(shown).to_string()),
        ("rdb_bgsave_in_progress", "0".into()),
        ("rdb_last_save_time", last_save.to_string()),
        ("rdb_last_bgsave_status", status.into()),
        ("rdb_last_bgsave_time_sec", "-1".into()),
        ("rdb_current_bgsave_time_sec", "-1".into()),
        ("log_replicas", replication.map_or(0, |it| it.plan().replicas).to_string()),
        shown.number("log_segments_under_replicated"),
        shown.number("log_backups_reachable"),
        shown.number("log_backups_needed"),
        shown.number("log_on_own_disk_only"),
        ("log_replicas_in_own_rack", misplaced.with_master.to_string()),
        ("log_replicas_in_shared_rack", misplaced.together.to_string()),
        ("aof_enabled", if mode.is_some() { "1" } else { "0" }.into()),
        ("aof_rewrite_in_progress", "0".into()),
        ("aof_rewrite_scheduled", "0".into()),
        ("aof_last_rewrite_time_sec", "-1".into()),
        ("aof_current_rewrite_time_sec", "-1".into()),
        ("aof_last_bgrewrite_status", "ok".into()),
        ("aof_last_write_status", status.into()),
    ]);
    if let Some(progress) = progress {
        let percent = progress.entered as f64 / progress.segments.max(1) as f64 * 100.0;
        let left = progress.segments.saturating_sub(progress.entered);
        fields.extend(lines(vec![
            ("loading_start_time", began.to_string()),
            ("loading_segments", progress.segments.to_string()),
            ("loading_segments_left", left.to_string()),
            ("loading_loaded_bytes", progress.bytes.to_string()),
            ("loading_loaded_perc", format!("{percent:.2}")),
        ]));
    }
    fields
}

/// Returns the number of successful writes since the last reset; 0 if the log is persisted.
fn unsaved_changes(shown: &InfoSources<'_>) -> u64 {
    if shown.node().persistence().is_some() {
        return 0;
    }
    let writes =
        called(&shown.numbers.counts).into_iter().filter(|(command, _)| command.has(flag::WRITE));
    writes.map(|(_, sum)| sum.calls.saturating_sub(sum.failed)).sum()
}

fn stats(shown: &InfoSources<'_>) -> Lines {
    let Sources { reactors, baseline, .. } = &shown.numbers;
    let traffic = |count: fn(&ReactorCounts) -> u64, before: u64| -> String {
        reactors.iter().map(count).sum::<u64>().saturating_sub(before).to_string()
    };
    lines(vec![
        shown.number("total_connections_received"),
        shown.number("total_commands_processed"),
        shown.number("total_commands_parked"),
        ("instantaneous_ops_per_sec", shown.rate.to_string()),
        ("total_net_input_bytes", traffic(|counts| counts.bytes_in, baseline.bytes_in)),
        ("total_net_output_bytes", traffic(|counts| counts.bytes_out, baseline.bytes_out)),
        shown.number("rejected_connections"),
        ("sync_full", "0".into()),
        ("sync_partial_ok", "0".into()),
        ("sync_partial_err", "0".into()),
        shown.number("expired_keys"),
        ("evicted_keys", "0".into()),
        ("evicted_clients", "0".into()),
        shown.number("keyspace_hits"),
        shown.number("keyspace_misses"),
        ("pubsub_channels", "0".into()),
        ("pubsub_patterns", "0".into()),
        ("latest_fork_usec", "0".into()),
        ("total_forks", "0".into()),
        ("migrate_cached_sockets", "0".into()),
        ("slave_expires_tracked_keys", "0".into()),
        ("total_error_replies", shown.numbers.sum(|counts| &counts.errors).to_string()),
        shown.number("acl_access_denied_auth"),
        shown.number("client_output_buffer_limit_disconnections"),
        shown.number("client_timeout_disconnections"),
    ])
}

fn replication(shown: &InfoSources<'_>) -> Lines {
    lines(vec![
        ("role", "master".into()),
        ("connected_slaves", "0".into()),
        ("master_failover_state", "no-failover".into()),
        ("master_replid", shown.node().name_of(shown.node().me())),
        ("master_replid2", "0".repeat(40)),
        ("master_repl_offset", "0".into()),
        ("second_repl_offset", "-1".into()),
        ("repl_backlog_active", "0".into()),
        ("repl_backlog_size", "0".into()),
        ("repl_backlog_first_byte_offset", "0".into()),
        ("repl_backlog_histlen", "0".into()),
    ])
}

fn active_time(reactors: &[ReactorCounts]) -> Duration {
    let active =
        |counts: &ReactorCounts| counts.priority_ns + counts.work_ns + counts.background_ns;
    Duration::from_nanos(reactors.iter().map(active).sum())
}

fn cpu(shown: &InfoSources<'_>) -> Lines {
    let seconds = |time: Duration| format!("{:.6}", time.as_secs_f64());
    lines(vec![
        ("used_cpu_sys", seconds(shown.numbers.process.system)),
        ("used_cpu_user", seconds(shown.numbers.process.user)),
        ("used_cpu_sys_children", "0.000000".into()),
        ("used_cpu_user_children", "0.000000".into()),
        // Time not spent waiting for input, summed over all reactors: there is no main thread.
        ("used_active_time_main_thread", seconds(active_time(&shown.numbers.reactors))),
    ])
}

fn command_stats(shown: &InfoSources<'_>) -> Lines {
    let describe = |(command, sum): (&Command, Summary)| {
        let micros = sum.nanoseconds as f64 / 1000.0;
        let value = format!(
            "calls={},usec={},usec_per_call={:.2},rejected_calls={},failed_calls={}",
            sum.calls,
            micros as u64,
            if sum.calls > 0 { micros / sum.calls as f64 } else { 0.0 },
            sum.rejected,
            sum.failed,
        );
        (format!("cmdstat_{}", command.name), value)
    };
    called(&shown.numbers.counts).into_iter().map(describe).collect()
}

fn error_stats(shown: &InfoSources<'_>) -> Lines {
    let errors = counts::errors(&shown.numbers.counts);
    errors
        .into_iter()
        .map(|(kind, n)| (format!("errorstat_{kind}"), format!("count={n}")))
        .collect()
}

fn latency_stats(shown: &InfoSources<'_>) -> Lines {
    let describe = |(command, sum): (&Command, Summary)| {
        let at = |percent| sum.percentile(percent) as f64 / 1000.0;
        let value = format!("p50={:.3},p99={:.3},p99.9={:.3}", at(50.0), at(99.0), at(99.9));
        (format!("latency_percentiles_usec_{}", command.name), value)
    };
    let called = called(&shown.numbers.counts).into_iter().filter(|(_, sum)| sum.calls > 0);
    called.map(describe).collect()
}

/// Returns the fields that Redis does not have.
fn ballast(shown: &InfoSources<'_>) -> Lines {
    let node = shown.node();
    let replication = Some(node.durability()).filter(|durability| durability.is_with_others());
    let replicas = replication.map_or(0, |replication| replication.plan().replicas);
    let mut fields = lines(vec![
        ("server_id", node.me().0.to_string()),
        ("map_version", node.map().version.to_string()),
        ("coordinator_link", if node.is_linked() { "up" } else { "down" }.into()),
        shown.number("migrations_out"),
        shown.number("migrations_in"),
        shown.number("background_share_percent"),
        ("replicas", replicas.to_string()),
    ]);
    if replication.is_some() {
        fields.extend(lines(vec![
            shown.number("replicas_held"),
            shown.number("replica_bytes"),
            shown.number("replica_files_open"),
            shown.number("replica_disk_errors"),
            shown.number("scrubbed_replicas"),
            shown.number("damaged_replicas"),
            shown.number("lease_lapses"),
        ]));
    }
    fields
}

/// Returns the state, results and cost of recoveries on this server.
fn recovery(shown: &InfoSources<'_>) -> Lines {
    let mut fields = shown.node().recovery_fields();
    let counts = shown.numbers.counts.iter();
    let spent: u64 = counts.map(|counts| counts.background_ns(Background::Recover)).sum();
    fields.push(("recovery_replay_usec".to_owned(), (spent / 1000).to_string()));
    fields
}

fn keyspace(shown: &InfoSources<'_>) -> Lines {
    (0..TABLES_MAX as u8)
        .filter_map(|table| {
            let records = shown.backend.engine.worker.table_records(TableId(table));
            let (expires, mean_left) = shown.node().expiring_records(TableId(table));
            let expires = expires.min(records);
            let line = format!("keys={records},expires={expires},avg_ttl={mean_left}");
            (records > 0).then(|| (format!("db{table}"), line))
        })
        .collect()
}
