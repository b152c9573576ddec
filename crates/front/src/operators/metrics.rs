//! Metrics for Prometheus: all counters of `INFO`, in the text format of version 0.0.4.

use super::counts::{self, Counter, FrontEndCounters, Summary};
use super::info::{called, expired};
use super::{Operators, lock};
use node::{Background, DiskCounts, Node, Replication};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::Instant;

/// Returns the metrics of a server at `now`, in Prometheus's text format.
pub fn text(node: &Node, operators: &Operators, now: Instant) -> String {
    let mut page = Page::default();
    let counts = operators.counts();
    server(&mut page, node, operators);
    clients(&mut page, operators, &counts);
    commands(&mut page, &counts);
    reactors(&mut page, operators, &counts);
    memory(&mut page, node, expired(node, &lock(&operators.baseline), &counts));
    migrations(&mut page, node);
    // Without replication the values are 0, so that dashboards find each metric on each server.
    let replication = Some(&**node.durability()).filter(|durability| durability.is_with_others());
    replicas(&mut page, replication);
    lease(&mut page, replication, now);
    page.0
}

/// The text of a scrape under construction.
#[derive(Debug, Default)]
struct Page(String);

/// The type of a metric.
#[derive(Clone, Copy, Debug)]
enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

impl Page {
    /// Writes the header of a metric. Its values follow.
    fn metric(&mut self, name: &str, kind: MetricType, help: &str) {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, MetricType::Gauge, help);
        self.line(format_args!("{name} {value}"));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, MetricType::Counter, help);
        self.line(format_args!("{name} {value}"));
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn server(page: &mut Page, node: &Node, operators: &Operators) {
    page.metric("ballast_info", MetricType::Gauge, "Version and identity of the server.");
    page.line(format_args!(
        "ballast_info{{version=\"{}\",server=\"{}\",cluster=\"{}\"}} 1",
        env!("CARGO_PKG_VERSION"),
        node.me(),
        node.cluster(),
    ));
    let usage = operators.host().map(|host| host.usage()).unwrap_or_default();
    page.metric("ballast_cpu_seconds_total", MetricType::Counter, "Processor time of the process.");
    for (mode, time) in [("user", usage.user), ("system", usage.system)] {
        let seconds = time.as_secs_f64();
        page.line(format_args!("ballast_cpu_seconds_total{{mode=\"{mode}\"}} {seconds}"));
    }
    page.gauge("ballast_resident_bytes", "Resident memory of the process.", usage.resident_bytes);
    let is_linked = u64::from(node.is_linked());
    page.gauge(
        "ballast_coordinator_linked",
        "1 if the coordinator is connected, else 0.",
        is_linked,
    );
    page.counter(
        "ballast_frames_too_long_total",
        "Messages to servers dropped because they exceed the frame size limit.",
        operators.frames_too_long.load(Ordering::Relaxed),
    );
}

fn clients(page: &mut Page, operators: &Operators, counts: &[Arc<FrontEndCounters>]) {
    let sum = |counter: fn(&FrontEndCounters) -> &Counter| -> u64 {
        counts.iter().map(|counts| counter(counts).read()).sum()
    };
    page.gauge("ballast_clients", "Connected clients.", operators.clients.count());
    let blocked = operators.clients.sums().blocked;
    page.gauge("ballast_clients_blocked", "Clients with a blocked request.", blocked);
    let max = u64::from(operators.configuration().clients.count_max);
    page.gauge("ballast_clients_max", "Maximum number of connected clients.", max);
    let connections = sum(|counts| &counts.connections);
    page.counter("ballast_connections_total", "Connections accepted.", connections);
    let refused = sum(|counts| &counts.refused);
    page.counter("ballast_connections_refused_total", "Connections refused.", refused);
    let name = "ballast_clients_evicted_total";
    page.metric(name, MetricType::Counter, "Client connections closed by a limit, by reason.");
    let output = sum(|counts| &counts.overflowed);
    page.line(format_args!("{name}{{reason=\"output\"}} {output}"));
    let timeout = sum(|counts| &counts.timed_out);
    page.line(format_args!("{name}{{reason=\"timeout\"}} {timeout}"));
    page.counter(
        "ballast_auth_failures_total",
        "Failed authentications.",
        sum(|counts| &counts.auth_failures),
    );
    page.counter("ballast_requests_total", "Requests received.", sum(|counts| &counts.requests));
    page.counter(
        "ballast_requests_parked_total",
        "Requests that had to wait.",
        sum(|counts| &counts.parked),
    );
    let hits = sum(|counts| &counts.hits);
    page.counter("ballast_keyspace_hits_total", "Reads that found a record.", hits);
    let misses = sum(|counts| &counts.misses);
    page.counter("ballast_keyspace_misses_total", "Reads that found no record.", misses);
    page.metric("ballast_errors_total", MetricType::Counter, "Error replies, by error code.");
    for (kind, count) in counts::errors(counts) {
        let kind: String = kind.chars().filter(char::is_ascii_alphanumeric).collect();
        page.line(format_args!("ballast_errors_total{{kind=\"{kind}\"}} {count}"));
    }
}

/// Number of histogram buckets. Bucket ends are 1.024 us times powers of four.
const BUCKETS: usize = 12;

fn commands(page: &mut Page, counts: &[Arc<FrontEndCounters>]) {
    let called = called(counts);
    for (name, help, count) in [
        (
            "ballast_command_calls_total",
            "Commands executed.",
            (|sum: &Summary| sum.calls) as fn(&Summary) -> u64,
        ),
        ("ballast_command_failed_total", "Commands that failed during execution.", |sum| {
            sum.failed
        }),
        ("ballast_command_rejected_total", "Commands rejected before execution.", |sum| {
            sum.rejected
        }),
    ] {
        page.metric(name, MetricType::Counter, help);
        for (command, sum) in &called {
            let value = count(sum);
            page.line(format_args!("{name}{{command=\"{}\"}} {value}", command.name));
        }
    }
    let name = "ballast_command_duration_seconds";
    page.metric(name, MetricType::Histogram, "Execution time of commands on their reactor.");
    for (command, sum) in &called {
        let command = command.name;
        for power in 0..BUCKETS {
            let end = 1024_u64 << (2 * power);
            let within = sum.within(end);
            let le = seconds(end);
            page.line(format_args!("{name}_bucket{{command=\"{command}\",le=\"{le}\"}} {within}"));
        }
        let (calls, total) = (sum.calls, seconds(sum.nanoseconds));
        page.line(format_args!("{name}_bucket{{command=\"{command}\",le=\"+Inf\"}} {calls}"));
        page.line(format_args!("{name}_sum{{command=\"{command}\"}} {total}"));
        page.line(format_args!("{name}_count{{command=\"{command}\"}} {calls}"));
    }
}

fn reactors(page: &mut Page, operators: &Operators, counts: &[Arc<FrontEndCounters>]) {
    let reactors = operators.host().map(|host| host.reactors()).unwrap_or_default();
    let name = "ballast_reactor_seconds_total";
    page.metric(name, MetricType::Counter, "Time of reactors, by kind of work.");
    for (number, spent) in reactors.iter().enumerate() {
        for (kind, nanoseconds) in [
            ("client", spent.work_ns),
            ("priority", spent.priority_ns),
            ("background", spent.background_ns),
            ("waiting", spent.waiting_ns),
        ] {
            let spent = seconds(nanoseconds);
            page.line(format_args!("{name}{{reactor=\"{number}\",kind=\"{kind}\"}} {spent}"));
        }
    }
    page.metric(
        "ballast_reactor_turns_total",
        MetricType::Counter,
        "Event loop turns of reactors.",
    );
    for (number, spent) in reactors.iter().enumerate() {
        let turns = spent.turns;
        page.line(format_args!("ballast_reactor_turns_total{{reactor=\"{number}\"}} {turns}"));
    }
    page.metric(
        "ballast_network_bytes_total",
        MetricType::Counter,
        "Network bytes of all connections.",
    );
    let received: u64 = reactors.iter().map(|spent| spent.bytes_in).sum();
    page.line(format_args!("ballast_network_bytes_total{{direction=\"in\"}} {received}"));
    let sent: u64 = reactors.iter().map(|spent| spent.bytes_out).sum();
    page.line(format_args!("ballast_network_bytes_total{{direction=\"out\"}} {sent}"));
    let (time, quanta) = ("ballast_background_seconds_total", "ballast_background_quanta_total");
    page.metric(time, MetricType::Counter, "Time of background work, by kind.");
    for (number, counts) in counts.iter().enumerate() {
        for (kind, name) in Background::ALL {
            let spent = seconds(counts.background_ns(kind));
            page.line(format_args!("{time}{{reactor=\"{number}\",kind=\"{name}\"}} {spent}"));
        }
    }
    page.metric(quanta, MetricType::Counter, "Quanta of background work, by kind.");
    for (number, counts) in counts.iter().enumerate() {
        for (kind, name) in Background::ALL {
            let done = counts.quanta(kind);
            page.line(format_args!("{quanta}{{reactor=\"{number}\",kind=\"{name}\"}} {done}"));
        }
    }
}

fn memory(page: &mut Page, node: &Node, expired: u64) {
    let usage = node.store().usage();
    let log = &usage.log;
    page.metric("ballast_log_bytes", MetricType::Gauge, "Memory of the log, by state.");
    for (state, bytes) in [
        ("total", log.total_bytes),
        ("free", log.free_bytes),
        ("live", log.live_bytes),
        ("resident", log.resident_bytes),
    ] {
        page.line(format_args!("ballast_log_bytes{{state=\"{state}\"}} {bytes}"));
    }
    page.metric("ballast_log_segments", MetricType::Gauge, "Segments of the log, by state.");
    let segments = &log.segments;
    for (state, count) in [
        ("free", segments.free),
        ("open", segments.open),
        ("side", segments.side),
        ("closed", segments.closed),
        ("cleaning", segments.cleaning),
    ] {
        page.line(format_args!("ballast_log_segments{{state=\"{state}\"}} {count}"));
    }
    page.gauge("ballast_index_bytes", "Memory of the index.", usage.index_bytes);
    page.metric("ballast_records", MetricType::Gauge, "Records, by database, up to a second old.");
    for (table, records) in node.table_records() {
        page.line(format_args!("ballast_records{{db=\"{}\"}} {records}", table.0));
    }
    page.counter("ballast_expired_records_total", "Expired records reclaimed.", expired);
}

fn migrations(page: &mut Page, node: &Node) {
    let map = node.map();
    let me = node.me();
    let out = map.moving.iter().filter(|(_, source, _)| *source == me).count();
    let into = map.moving.iter().filter(|(_, _, target)| *target == me).count();
    page.metric("ballast_migrations", MetricType::Gauge, "Migrations in progress.");
    page.line(format_args!("ballast_migrations{{direction=\"out\"}} {out}"));
    page.line(format_args!("ballast_migrations{{direction=\"in\"}} {into}"));
    let share = u64::from(node.background_share());
    page.gauge("ballast_background_share_percent", "Minimum share of background work.", share);
}

/// Writes the metrics of replicas: those held for other servers, and those that this log lacks.
fn replicas(page: &mut Page, replication: Option<&Replication>) {
    let (count, bytes) = replication.map(Replication::held).unwrap_or_default();
    page.gauge("ballast_replicas", "Replicas of segments of other servers' logs.", count as u64);
    page.gauge("ballast_replica_bytes", "Known bytes of segments in these replicas.", bytes);
    let open = replication.map_or(0, |it| it.disk().open_files()) as u64;
    page.gauge("ballast_replica_files_open", "Open files of replicas being written.", open);
    let short = replication.map_or(0, Replication::under_replicated) as u64;
    page.gauge(
        "ballast_segments_under_replicated",
        "Segments of this server's log with fewer replicas than wanted.",
        short,
    );
    let reach = replication.map_or(0, Replication::reach) as u64;
    page.gauge("ballast_backups_reachable", "Backups that would receive the next write.", reach);
    let least = replication.map_or(0, Replication::reach_min) as u64;
    page.gauge(
        "ballast_backups_needed",
        "Minimum number of reachable backups. With fewer, writes are refused.",
        least,
    );
    let is_alone = replication.is_some_and(Replication::is_on_own_disk);
    let help = "1 if no other server is alive and the log is on this server's disk only, else 0.";
    page.gauge("ballast_log_on_own_disk_only", help, u64::from(is_alone));
    let count = |count: fn(&DiskCounts) -> u64| replication.map_or(0, |it| count(it.disk_counts()));
    let errors = count(DiskCounts::errors);
    page.counter("ballast_disk_errors_total", "Failed disk operations.", errors);
    let scrubbed = count(DiskCounts::scrubbed_replicas);
    page.counter(
        "ballast_scrubbed_replicas_total",
        "Replicas read by scrubbing and found intact.",
        scrubbed,
    );
    let bytes = count(DiskCounts::scrubbed_bytes);
    page.counter(
        "ballast_scrubbed_bytes_total",
        "Bytes of the replicas found intact by scrubbing.",
        bytes,
    );
    let damaged = count(DiskCounts::damaged_replicas);
    page.counter("ballast_damaged_replicas_total", "Replicas found damaged on disk.", damaged);
}

/// Writes the metrics of the read lease.
fn lease(page: &mut Page, replication: Option<&Replication>, now: Instant) {
    let left = replication.map(|it| it.lease_left(now)).unwrap_or_default();
    page.metric("ballast_lease_seconds", MetricType::Gauge, "Remaining time of the read lease.");
    page.line(format_args!("ballast_lease_seconds {}", left.as_secs_f64()));
    let lapses = replication.map_or(0, Replication::lease_lapses);
    page.counter("ballast_lease_lapses_total", "Expirations of the read lease.", lapses);
}
