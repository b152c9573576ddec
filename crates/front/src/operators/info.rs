//! The sections of `INFO`, with the fields that clients, tools and exporters read.

use crate::commands::{REDIS_VERSION, flag};
use crate::core::backend::Backend;
use crate::operators::counts;
use crate::operators::pause::Paused;
use crate::operators::sources::{Sources, called};
use crate::operators::{Operators, lock, metrics};
use node::{Background, Mode, Node, Replication};
use settings::Setting;
use std::fmt::{Display, Write};
use std::time::Duration;
use types::limits::DATABASES;
use types::{Instant, ReactorCounts, TableId, UnixMillis};

/// A section of `INFO`.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    /// Set if `INFO` without arguments shows it.
    pub(crate) is_default: bool,
    write: fn(&InfoSources<'_>, &mut InfoPage),
}

/// All sections, in their order.
static SECTIONS: [Section; 15] = [
    section("Server", true, server),
    section("Clients", true, clients),
    section("Memory", true, memory),
    section("Persistence", true, persistence),
    section("Stats", true, stats),
    section("Replication", true, replication),
    section("CPU", true, cpu),
    section("Modules", true, |_, _| {}),
    section("Commandstats", false, command_stats),
    section("Errorstats", true, error_stats),
    section("Latencystats", false, latency_stats),
    section("Cluster", true, |shown, page| {
        page.field("cluster_enabled", u8::from(shown.node().is_cluster()));
    }),
    section("Ballast", true, ballast),
    section("Recovery", true, recovery),
    section("Keyspace", true, keyspace),
];

const fn section(
    name: &'static str,
    is_default: bool,
    write: fn(&InfoSources<'_>, &mut InfoPage),
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

    /// Returns the replication of the log, if other servers have it.
    fn replication(&self) -> Option<&Replication> {
        Some(&**self.node().durability()).filter(|durability| durability.is_with_others())
    }
}

/// The text of `INFO` under construction.
#[derive(Default)]
struct InfoPage(String);

impl InfoPage {
    fn field(&mut self, field: &str, value: impl Display) {
        let _ = write!(self.0, "{field}:{value}\r\n");
    }

    /// Adds fields that show numbers of the registry.
    fn numbers(&mut self, shown: &InfoSources<'_>, fields: &[&str]) {
        for field in fields {
            self.field(field, metrics::number(field, &shown.numbers));
        }
    }

    /// Adds fields of Redis that are always 0 here.
    fn zeros(&mut self, fields: &[&str]) {
        fields.iter().for_each(|field| self.field(field, 0));
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
    let uptime = backend.uptime(now);
    let rate = lock(&backend.operators.rate).at(uptime, numbers.sum(|counts| &counts.requests));
    let shown = InfoSources { backend, numbers, uptime, wall, rate };
    let mut page = InfoPage::default();
    for section in SECTIONS.iter().filter(|section| is_wanted(section)) {
        let space = if page.0.is_empty() { "" } else { "\r\n" };
        let _ = write!(page.0, "{space}# {}\r\n", section.name);
        (section.write)(&shown, &mut page);
    }
    page.0
}

fn server(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let node = shown.node();
    let uptime = shown.uptime.as_secs();
    let host = shown.operators().host();
    let executable = std::env::current_exe().map(|path| path.display().to_string());
    page.field("redis_version", REDIS_VERSION);
    page.field("redis_git_sha1", "00000000");
    page.zeros(&["redis_git_dirty", "redis_build_id"]);
    page.field("server_name", "ballast");
    page.field("ballast_version", env!("CARGO_PKG_VERSION"));
    page.field("redis_mode", if node.is_cluster() { "cluster" } else { "standalone" });
    page.field("os", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    page.field("arch_bits", usize::BITS);
    page.field("multiplexing_api", host.map_or("none", |host| host.driver()));
    page.field("process_id", std::process::id());
    page.field("run_id", node.name_of(node.me()));
    page.field("tcp_port", node.settings().client_port);
    page.field("server_time_usec", shown.wall.0 * 1000);
    page.field("expiry_clock_ms", node.store().clock().0);
    page.field("expiry_clock_doubt_ms", node.clock_doubt(shown.numbers.now));
    page.field("uptime_in_seconds", uptime);
    page.field("uptime_in_days", uptime / 86_400);
    page.field("hz", 10);
    page.field("executable", executable.unwrap_or_default());
    page.field("config_file", host.and_then(|host| host.file()).unwrap_or_default());
    page.field("io_threads_active", node.settings().reactors);
}

fn clients(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let operators = shown.operators();
    let sums = operators.clients.sums();
    page.numbers(shown, &["connected_clients"]);
    page.zeros(&["cluster_connections"]);
    page.numbers(shown, &["maxclients"]);
    page.field("client_recent_max_input_buffer", sums.unread_max);
    page.field("client_recent_max_output_buffer", sums.unsent_max);
    page.numbers(shown, &["blocked_clients"]);
    page.zeros(&["tracking_clients", "pubsub_clients"]);
    page.field("watching_clients", sums.watching);
    page.zeros(&["clients_in_timeout_table"]);
    page.field("total_watched_keys", sums.watched_keys);
    page.field("total_blocking_keys", operators.blocked.keys());
    page.zeros(&["total_blocking_keys_on_nokey"]);
    let now = shown.numbers.now;
    let (reason, actions) = match operators.pause.at(now) {
        None => ("none", "none"),
        Some(Paused::Writes) => ("client_pause", "write"),
        Some(Paused::All) => ("client_pause", "all"),
    };
    let left = operators.pause.next_end(now).map_or(Duration::ZERO, |end| end.since(now));
    page.field("paused_reason", reason);
    page.field("paused_actions", actions);
    page.field("paused_timeout_milliseconds", left.as_millis());
}

fn memory(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let Sources { memory, process, .. } = &shown.numbers;
    let log = &memory.log;
    let used = log.total_bytes.saturating_sub(log.free_bytes);
    let resident = match process.resident_bytes {
        0 => log.resident_bytes,
        bytes => bytes,
    };
    let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 1.0 };
    let fragmentation = ratio(used as f64, log.live_bytes as f64 + memory.index_bytes as f64);
    page.field("used_memory", used);
    page.field("used_memory_human", human(used));
    page.field("used_memory_rss", resident);
    page.field("used_memory_rss_human", human(resident));
    page.field("used_memory_peak", process.resident_bytes_peak.max(used));
    page.field("used_memory_overhead", memory.index_bytes);
    page.zeros(&["used_memory_startup"]);
    page.numbers(shown, &["used_memory_dataset", "used_memory_index"]);
    page.numbers(shown, &["used_memory_touched", "memory_ready", "memory_reserved"]);
    page.numbers(shown, &["memory_unready_segments"]);
    page.numbers(shown, &["sorted_set_orders", "used_memory_orders"]);
    page.field("total_system_memory", process.machine_bytes);
    page.zeros(&["used_memory_lua", "used_memory_scripts"]);
    page.numbers(shown, &["maxmemory"]);
    page.field("maxmemory_human", human(log.total_bytes));
    page.field("maxmemory_policy", setting_text("maxmemory-policy", shown));
    page.field("mem_fragmentation_ratio", format!("{fragmentation:.2}"));
    page.field("mem_clients_normal", shown.operators().clients.sums().bytes);
    page.zeros(&["mem_clients_slaves"]);
    page.field("mem_allocator", "mimalloc");
    page.field("huge_pages", format!("{:?}", log.huge_pages).to_lowercase());
}

/// Returns the value of a setting as text.
fn setting_text(name: &str, shown: &InfoSources<'_>) -> String {
    let setting = Setting::find(name);
    setting.map_or_else(String::new, |setting| setting.show(&shown.operators().configuration()))
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

/// Writes the fields of Redis that apply here, and the progress of loading.
fn persistence(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let began = (shown.wall.0 / 1000).saturating_sub(shown.uptime.as_secs());
    let durability = shown.node().durability();
    let progress = durability.load_progress();
    let misplaced = shown.replication().map(Replication::misplaced).unwrap_or_default();
    let mode = shown.node().persistence();
    let status = if durability.refuses_writes() { "err" } else { "ok" };
    page.field("loading", u8::from(progress.is_some()));
    page.zeros(&["async_loading"]);
    page.field("durability", mode.map_or("none", Mode::name));
    page.field("rdb_changes_since_last_save", unsaved_changes(shown));
    page.zeros(&["rdb_bgsave_in_progress"]);
    page.field("rdb_last_save_time", shown.node().last_save(shown.wall, shown.uptime));
    page.field("rdb_last_bgsave_status", status);
    page.field("rdb_last_bgsave_time_sec", -1);
    page.field("rdb_current_bgsave_time_sec", -1);
    page.field("log_replicas", shown.replication().map_or(0, |it| it.plan().replicas));
    page.numbers(shown, &["log_segments_under_replicated", "log_backups_reachable"]);
    page.numbers(shown, &["log_backups_needed", "log_on_own_disk_only"]);
    page.field("log_replicas_in_own_rack", misplaced.with_master);
    page.field("log_replicas_in_shared_rack", misplaced.together);
    if let Some(mark) = durability.version_mark() {
        page.field("log_version", shown.node().store().version().0);
        page.field("log_version_mark", mark.0);
    }
    page.field("aof_enabled", u8::from(mode.is_some()));
    page.zeros(&["aof_rewrite_in_progress", "aof_rewrite_scheduled"]);
    page.field("aof_last_rewrite_time_sec", -1);
    page.field("aof_current_rewrite_time_sec", -1);
    page.field("aof_last_bgrewrite_status", "ok");
    page.field("aof_last_write_status", status);
    if let Some(progress) = progress {
        let percent = progress.entered as f64 / progress.segments.max(1) as f64 * 100.0;
        page.field("loading_start_time", began);
        page.field("loading_segments", progress.segments);
        page.field("loading_segments_left", progress.segments.saturating_sub(progress.entered));
        page.field("loading_loaded_bytes", progress.bytes);
        page.field("loading_loaded_perc", format!("{percent:.2}"));
    }
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

fn stats(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let Sources { reactors, baseline, .. } = &shown.numbers;
    let traffic = |count: fn(&ReactorCounts) -> u64, before: u64| {
        reactors.iter().map(count).sum::<u64>().saturating_sub(before)
    };
    page.numbers(shown, &["total_connections_received", "total_commands_processed"]);
    page.numbers(shown, &["total_commands_parked"]);
    page.field("instantaneous_ops_per_sec", shown.rate);
    page.field("total_net_input_bytes", traffic(|counts| counts.bytes_in, baseline.bytes_in));
    page.field("total_net_output_bytes", traffic(|counts| counts.bytes_out, baseline.bytes_out));
    page.numbers(shown, &["rejected_connections"]);
    page.zeros(&["sync_full", "sync_partial_ok", "sync_partial_err"]);
    page.numbers(shown, &["expired_keys", "evicted_keys"]);
    page.zeros(&["evicted_clients"]);
    page.numbers(shown, &["keyspace_hits", "keyspace_misses"]);
    page.zeros(&["pubsub_channels", "pubsub_patterns", "latest_fork_usec", "total_forks"]);
    page.zeros(&["migrate_cached_sockets", "slave_expires_tracked_keys"]);
    page.field("total_error_replies", shown.numbers.sum(|counts| &counts.errors));
    page.numbers(shown, &["acl_access_denied_auth", "client_output_buffer_limit_disconnections"]);
    page.numbers(shown, &["client_timeout_disconnections"]);
}

fn replication(shown: &InfoSources<'_>, page: &mut InfoPage) {
    page.field("role", "master");
    page.zeros(&["connected_slaves"]);
    page.field("master_failover_state", "no-failover");
    page.field("master_replid", shown.node().name_of(shown.node().me()));
    page.field("master_replid2", "0".repeat(40));
    page.zeros(&["master_repl_offset"]);
    page.field("second_repl_offset", -1);
    page.zeros(&["repl_backlog_active", "repl_backlog_size"]);
    page.zeros(&["repl_backlog_first_byte_offset", "repl_backlog_histlen"]);
}

fn active_time(reactors: &[ReactorCounts]) -> Duration {
    let active =
        |counts: &ReactorCounts| counts.priority_ns + counts.work_ns + counts.background_ns;
    Duration::from_nanos(reactors.iter().map(active).sum())
}

fn cpu(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let seconds = |time: Duration| format!("{:.6}", time.as_secs_f64());
    page.field("used_cpu_sys", seconds(shown.numbers.process.system));
    page.field("used_cpu_user", seconds(shown.numbers.process.user));
    page.field("used_cpu_sys_children", "0.000000");
    page.field("used_cpu_user_children", "0.000000");
    // Time not spent waiting for input, summed over all reactors: there is no main thread.
    page.field("used_active_time_main_thread", seconds(active_time(&shown.numbers.reactors)));
}

fn command_stats(shown: &InfoSources<'_>, page: &mut InfoPage) {
    for (command, sum) in called(&shown.numbers.counts) {
        let micros = sum.nanoseconds as f64 / 1000.0;
        let value = format!(
            "calls={},usec={},usec_per_call={:.2},rejected_calls={},failed_calls={}",
            sum.calls,
            micros as u64,
            if sum.calls > 0 { micros / sum.calls as f64 } else { 0.0 },
            sum.rejected,
            sum.failed,
        );
        page.field(&format!("cmdstat_{}", command.name), value);
    }
}

fn error_stats(shown: &InfoSources<'_>, page: &mut InfoPage) {
    for (kind, count) in counts::errors(&shown.numbers.counts) {
        page.field(&format!("errorstat_{kind}"), format!("count={count}"));
    }
}

fn latency_stats(shown: &InfoSources<'_>, page: &mut InfoPage) {
    for (command, sum) in called(&shown.numbers.counts) {
        if sum.calls > 0 {
            let at = |percent| sum.percentile(percent) as f64 / 1000.0;
            let value = format!("p50={:.3},p99={:.3},p99.9={:.3}", at(50.0), at(99.0), at(99.9));
            page.field(&format!("latency_percentiles_usec_{}", command.name), value);
        }
    }
}

/// Writes the fields that Redis does not have.
fn ballast(shown: &InfoSources<'_>, page: &mut InfoPage) {
    let node = shown.node();
    page.field("server_id", node.me().0);
    page.field("map_version", node.map().version);
    page.field("coordinator_link", if node.is_linked() { "up" } else { "down" });
    page.numbers(shown, &["migrations_out", "migrations_in", "background_share_percent"]);
    let (target, seen) = (node.latency_target(), shown.numbers.seen_p99());
    page.field("latency_target_usec", target.unwrap_or_default().as_micros());
    page.field("latency_p99_usec", seen.as_micros());
    page.field("replicas", shown.replication().map_or(0, |it| it.plan().replicas));
    if shown.replication().is_some() {
        page.numbers(shown, &["replicas_held", "replica_bytes", "replica_files_open"]);
        page.numbers(shown, &["replica_disk_errors", "scrubbed_replicas", "damaged_replicas"]);
        page.numbers(shown, &["lease_lapses"]);
    }
}

/// Writes the state, results and cost of recoveries on this server.
fn recovery(shown: &InfoSources<'_>, page: &mut InfoPage) {
    for (field, value) in shown.node().recovery_fields() {
        page.field(&field, value);
    }
    let counts = shown.numbers.counts.iter();
    let spent: u64 = counts.map(|counts| counts.background_ns(Background::Recover)).sum();
    page.field("recovery_replay_usec", spent / 1000);
}

fn keyspace(shown: &InfoSources<'_>, page: &mut InfoPage) {
    for table in (0..DATABASES as u8).map(TableId) {
        let records = shown.backend.table_records(table);
        let (expires, mean_left) = shown.node().expiring_records(table);
        let expires = expires.min(records);
        if records > 0 {
            let value = format!("keys={records},expires={expires},avg_ttl={mean_left}");
            page.field(&format!("db{}", table.0), value);
        }
    }
}
