//! The registry of the numbers that operators see, and the metrics page for Prometheus.
//!
//! `METRICS` defines each number once: its name, type and help on the metrics page, its labels,
//! its field of `INFO` and the function that reads it.

use super::Operators;
use super::counts::{self, Summary};
use super::metric_page::MetricPage;
use super::sources::{Sources, called};
use node::{Background, Node, Replication};
use std::fmt::Display;
use std::sync::atomic::Ordering;
use types::{Instant, ReactorCounts};

/// Returns the metrics of a server at `now`, in Prometheus's text format.
pub fn text(node: &Node, operators: &Operators, now: Instant) -> String {
    let sources = Sources::new(node, operators, now);
    let mut page = MetricPage::default();
    for metric in METRICS {
        page.begin(metric.name, metric.kind, metric.help);
        for series in metric.series {
            match series.read {
                Read::Number(read) => page.sample(series.labels, read(&sources)),
                Read::Samples(write) => write(&sources, &mut page),
            }
        }
    }
    page.into_text()
}

/// Returns the value of the number with this field of `INFO`.
pub(super) fn number(field: &str, sources: &Sources<'_>) -> u64 {
    let mut series = METRICS.iter().flat_map(|metric| metric.series);
    let found = series.find(|series| series.field == field).map(|series| &series.read);
    let Some(Read::Number(read)) = found else { unreachable!("{field} is in the registry") };
    read(sources)
}

/// A metric. Without replication its numbers are 0, so that dashboards find each metric on each
/// server.
struct Metric {
    name: &'static str,
    /// Type in Prometheus: counter, gauge or histogram.
    kind: &'static str,
    help: &'static str,
    series: &'static [Series],
}

/// One or several samples of a metric.
struct Series {
    labels: &'static [(&'static str, &'static str)],
    /// Field of `INFO` that shows the same number; empty if there is none.
    field: &'static str,
    read: Read,
}

enum Read {
    Number(fn(&Sources<'_>) -> u64),
    /// Writes samples whose labels depend on the server, or that are no whole numbers.
    Samples(fn(&Sources<'_>, &mut MetricPage)),
}

const fn number_of(field: &'static str, read: fn(&Sources<'_>) -> u64) -> Series {
    labelled(&[], field, read)
}

const fn labelled(
    labels: &'static [(&'static str, &'static str)],
    field: &'static str,
    read: fn(&Sources<'_>) -> u64,
) -> Series {
    Series { labels, field, read: Read::Number(read) }
}

const fn samples(write: fn(&Sources<'_>, &mut MetricPage)) -> Series {
    Series { labels: &[], field: "", read: Read::Samples(write) }
}

macro_rules! metrics {
    ($($kind:ident $name:literal $help:literal: $($series:expr),+;)+) => {
        &[$(Metric {
            name: $name,
            kind: stringify!($kind),
            help: $help,
            series: &[$($series),+],
        }),+]
    };
}

/// All metrics, in the order of the page.
static METRICS: &[Metric] = metrics! {
    gauge "ballast_info" "Version and identity of the server.": samples(identity);
    counter "ballast_cpu_seconds_total" "Processor time of the process.": samples(processor_time);
    gauge "ballast_resident_bytes" "Resident memory of the process.":
        number_of("", |s| s.process.resident_bytes);
    gauge "ballast_coordinator_linked" "1 if the coordinator is connected, else 0.":
        number_of("", |s| s.node.is_linked().into());
    counter "ballast_frames_too_long_total"
        "Messages to servers dropped because they exceed the frame size limit.":
        number_of("", |s| s.operators.frames_too_long.load(Ordering::Relaxed));
    gauge "ballast_clients" "Connected clients.":
        number_of("connected_clients", |s| s.operators.clients.count());
    gauge "ballast_clients_blocked" "Clients with a blocked request.":
        number_of("blocked_clients", |s| s.operators.clients.sums().blocked);
    gauge "ballast_clients_max" "Maximum number of connected clients.":
        number_of("maxclients", |s| s.operators.configuration().clients.count_max.into());
    counter "ballast_connections_total" "Connections accepted.":
        number_of("total_connections_received", |s| s.sum(|counts| &counts.connections));
    counter "ballast_connections_refused_total" "Connections refused.":
        number_of("rejected_connections", |s| s.sum(|counts| &counts.refused));
    counter "ballast_clients_evicted_total" "Client connections closed by a limit, by reason.":
        labelled(&[("reason", "output")], "client_output_buffer_limit_disconnections", |s| {
            s.sum(|counts| &counts.overflowed)
        }),
        labelled(&[("reason", "timeout")], "client_timeout_disconnections", |s| {
            s.sum(|counts| &counts.timed_out)
        });
    counter "ballast_auth_failures_total" "Failed authentications.":
        number_of("acl_access_denied_auth", |s| s.sum(|counts| &counts.auth_failures));
    counter "ballast_requests_total" "Requests received.":
        number_of("total_commands_processed", |s| s.sum(|counts| &counts.requests));
    counter "ballast_requests_parked_total" "Requests that had to wait.":
        number_of("total_commands_parked", |s| s.sum(|counts| &counts.parked));
    counter "ballast_keyspace_hits_total" "Reads that found a record.":
        number_of("keyspace_hits", |s| s.sum(|counts| &counts.hits));
    counter "ballast_keyspace_misses_total" "Reads that found no record.":
        number_of("keyspace_misses", |s| s.sum(|counts| &counts.misses));
    counter "ballast_errors_total" "Error replies, by error code.": samples(errors);
    counter "ballast_command_calls_total" "Commands executed.":
        samples(|s, page| commands(s, page, |sum| sum.calls));
    counter "ballast_command_failed_total" "Commands that failed during execution.":
        samples(|s, page| commands(s, page, |sum| sum.failed));
    counter "ballast_command_rejected_total" "Commands rejected before execution.":
        samples(|s, page| commands(s, page, |sum| sum.rejected));
    histogram "ballast_command_duration_seconds" "Execution time of commands on their reactor.":
        samples(command_durations);
    counter "ballast_reactor_seconds_total" "Time of reactors, by kind of work.":
        samples(reactor_times);
    counter "ballast_reactor_turns_total" "Event loop turns of reactors.": samples(turns);
    counter "ballast_network_bytes_total" "Network bytes of all connections.":
        labelled(&[("direction", "in")], "", |s| sum(s, |reactor| reactor.bytes_in)),
        labelled(&[("direction", "out")], "", |s| sum(s, |reactor| reactor.bytes_out));
    counter "ballast_background_seconds_total" "Time of background work, by kind.":
        samples(|s, page| background(s, page, |counts, kind| seconds(counts.background_ns(kind))));
    counter "ballast_background_quanta_total" "Quanta of background work, by kind.":
        samples(|s, page| background(s, page, counts::FrontEndCounters::quanta));
    gauge "ballast_log_bytes" "Memory of the log, by state.":
        labelled(&[("state", "total")], "maxmemory", |s| s.memory.log.total_bytes),
        labelled(&[("state", "free")], "", |s| s.memory.log.free_bytes),
        labelled(&[("state", "live")], "used_memory_dataset", |s| s.memory.log.live_bytes),
        labelled(&[("state", "ready")], "memory_ready", |s| s.memory.log.ready_bytes),
        labelled(&[("state", "reserved")], "memory_reserved", |s| s.memory.log.reserved_bytes),
        labelled(&[("state", "resident")], "used_memory_touched", |s| {
            s.memory.log.resident_bytes
        });
    counter "ballast_log_unready_segments_total"
        "Segments that were used before their pages were resident.":
        number_of("memory_unready_segments", |s| s.memory.log.unready_takes);
    gauge "ballast_log_segments" "Segments of the log, by state.":
        labelled(&[("state", "free")], "", |s| s.memory.log.segments.free as u64),
        labelled(&[("state", "open")], "", |s| s.memory.log.segments.open as u64),
        labelled(&[("state", "side")], "", |s| s.memory.log.segments.side as u64),
        labelled(&[("state", "closed")], "", |s| s.memory.log.segments.closed as u64),
        labelled(&[("state", "cleaning")], "", |s| s.memory.log.segments.cleaning as u64);
    gauge "ballast_index_bytes" "Memory of the index.":
        number_of("used_memory_index", |s| s.memory.index_bytes);
    gauge "ballast_sorted_set_orders" "Sorted sets with pages whose order is in memory.":
        number_of("sorted_set_orders", |s| s.node.orders().totals().orders);
    gauge "ballast_sorted_set_order_bytes"
        "Memory of the orders of sorted sets with pages, outside of log and index.":
        number_of("used_memory_orders", |s| s.node.orders().totals().memory_bytes);
    gauge "ballast_records" "Records, by database, up to a second old.": samples(records);
    counter "ballast_expired_records_total" "Expired records reclaimed.":
        number_of("expired_keys", |s| s.expired());
    counter "ballast_evicted_records_total" "Records evicted because memory was scarce.":
        number_of("evicted_keys", |s| s.evicted());
    gauge "ballast_migrations" "Migrations in progress.":
        labelled(&[("direction", "out")], "migrations_out", |s| s.migrations().0 as u64),
        labelled(&[("direction", "in")], "migrations_in", |s| s.migrations().1 as u64);
    gauge "ballast_background_share_percent"
        "Minimum share of background work, or what a migration's latency target allows.":
        number_of("background_share_percent", |s| s.background_share());
    gauge "ballast_latency_target_seconds"
        "Lowest latency target of the migrations in progress; 0 if there is none.":
        samples(|s, page| {
            page.sample(&[], s.node.latency_target().unwrap_or_default().as_secs_f64());
        });
    gauge "ballast_latency_p99_seconds"
        "Delay of 99 % of the last requests; 0 without a latency target.":
        samples(|s, page| page.sample(&[], s.seen_p99().as_secs_f64()));
    gauge "ballast_replicas" "Replicas of segments of other servers' logs.":
        number_of("replicas_held", |s| s.replication(|it| it.held().0 as u64));
    gauge "ballast_replica_bytes" "Known bytes of segments in these replicas.":
        number_of("replica_bytes", |s| s.replication(|it| it.held().1));
    gauge "ballast_replica_files_open" "Open files of replicas being written.":
        number_of("replica_files_open", |s| s.replication(|it| it.disk().open_files() as u64));
    gauge "ballast_segments_under_replicated"
        "Segments of this server's log with fewer replicas than wanted.":
        number_of("log_segments_under_replicated", |s| {
            s.replication(|it| it.under_replicated() as u64)
        });
    gauge "ballast_backups_reachable" "Backups that would receive the next write.":
        number_of("log_backups_reachable", |s| s.replication(|it| it.reach() as u64));
    gauge "ballast_backups_needed"
        "Minimum number of reachable backups. With fewer, writes are refused.":
        number_of("log_backups_needed", |s| s.replication(|it| it.reach_min() as u64));
    gauge "ballast_log_on_own_disk_only"
        "1 if no other server is alive and the log is on this server's disk only, else 0.":
        number_of("log_on_own_disk_only", |s| s.replication(|it| it.is_last_server().into()));
    counter "ballast_disk_errors_total" "Failed disk operations.":
        number_of("replica_disk_errors", |s| s.replication(|it| it.disk_counts().errors()));
    counter "ballast_scrubbed_replicas_total" "Replicas read by scrubbing and found intact.":
        number_of("scrubbed_replicas", |s| {
            s.replication(|it| it.disk_counts().scrubbed_replicas())
        });
    counter "ballast_scrubbed_bytes_total" "Bytes of the replicas found intact by scrubbing.":
        number_of("", |s| s.replication(|it| it.disk_counts().scrubbed_bytes()));
    counter "ballast_damaged_replicas_total" "Replicas found damaged on disk.":
        number_of("damaged_replicas", |s| s.replication(|it| it.disk_counts().damaged_replicas()));
    gauge "ballast_lease_seconds" "Remaining time of the read lease.": samples(lease_left);
    counter "ballast_lease_lapses_total" "Expirations of the read lease.":
        number_of("lease_lapses", |s| s.replication(Replication::lease_lapses));
};

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn sum(sources: &Sources<'_>, count: fn(&ReactorCounts) -> u64) -> u64 {
    sources.reactors.iter().map(count).sum()
}

fn identity(sources: &Sources<'_>, page: &mut MetricPage) {
    let (server, cluster) = (sources.node.me().to_string(), sources.node.cluster().to_string());
    let version = env!("CARGO_PKG_VERSION");
    page.sample(&[("version", version), ("server", &server), ("cluster", &cluster)], 1);
}

fn processor_time(sources: &Sources<'_>, page: &mut MetricPage) {
    page.sample(&[("mode", "user")], sources.process.user.as_secs_f64());
    page.sample(&[("mode", "system")], sources.process.system.as_secs_f64());
}

fn errors(sources: &Sources<'_>, page: &mut MetricPage) {
    for (kind, count) in counts::errors(&sources.counts) {
        let kind: String = kind.chars().filter(char::is_ascii_alphanumeric).collect();
        page.sample(&[("kind", &kind)], count);
    }
}

fn commands(sources: &Sources<'_>, page: &mut MetricPage, count: fn(&Summary) -> u64) {
    for (command, sum) in called(&sources.counts) {
        page.sample(&[("command", command.name)], count(&sum));
    }
}

/// Number of histogram buckets. Bucket ends are 1.024 us times powers of four.
const BUCKETS: usize = 12;

fn command_durations(sources: &Sources<'_>, page: &mut MetricPage) {
    for (command, sum) in called(&sources.counts) {
        let command = ("command", command.name);
        for power in 0..BUCKETS {
            let end = 1024_u64 << (2 * power);
            let le = seconds(end).to_string();
            page.part("_bucket", &[command, ("le", &le)], sum.within(end));
        }
        page.part("_bucket", &[command, ("le", "+Inf")], sum.calls);
        page.part("_sum", &[command], seconds(sum.nanoseconds));
        page.part("_count", &[command], sum.calls);
    }
}

fn reactor_times(sources: &Sources<'_>, page: &mut MetricPage) {
    for (number, spent) in sources.reactors.iter().enumerate() {
        for (kind, nanoseconds) in [
            ("client", spent.work_ns),
            ("priority", spent.priority_ns),
            ("background", spent.background_ns),
            ("waiting", spent.waiting_ns),
        ] {
            let number = number.to_string();
            page.sample(&[("reactor", &number), ("kind", kind)], seconds(nanoseconds));
        }
    }
}

fn turns(sources: &Sources<'_>, page: &mut MetricPage) {
    for (number, spent) in sources.reactors.iter().enumerate() {
        page.sample(&[("reactor", &number.to_string())], spent.turns);
    }
}

fn background<V: Display>(
    sources: &Sources<'_>,
    page: &mut MetricPage,
    value: fn(&counts::FrontEndCounters, Background) -> V,
) {
    for (number, counts) in sources.counts.iter().enumerate() {
        for (kind, name) in Background::ALL {
            let number = number.to_string();
            page.sample(&[("reactor", &number), ("kind", name)], value(counts, kind));
        }
    }
}

fn records(sources: &Sources<'_>, page: &mut MetricPage) {
    for (table, records) in sources.node.table_records() {
        page.sample(&[("db", &table.0.to_string())], records);
    }
}

fn lease_left(sources: &Sources<'_>, page: &mut MetricPage) {
    let replication = Some(sources.node.durability()).filter(|it| it.is_with_others());
    let left = replication.map(|it| it.lease_left(sources.now)).unwrap_or_default();
    page.sample(&[], left.as_secs_f64());
}
