//! What Prometheus reads: everything that `INFO` counts, in the text format of version 0.0.4.

use super::counts::{self, Background, Counter, Counts, Summary};
use crate::engine::{DiskCounts, Node, Replication, called, expired};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::Instant;

/// The text of one scrape, at `now`.
pub(crate) fn text(node: &Node, now: Instant) -> String {
    let mut page = Page::default();
    let counts = node.operators.counts();
    server(&mut page, node);
    clients(&mut page, node, &counts);
    commands(&mut page, &counts);
    reactors(&mut page, node, &counts);
    memory(&mut page, node, &counts);
    migrations(&mut page, node);
    // Nothing where nobody else keeps the log: a dashboard finds each metric at each server.
    let replication = node.replication().map(|replication| &**replication);
    replicas(&mut page, replication);
    lease(&mut page, replication, now);
    page.0
}

/// The text as it grows.
#[derive(Debug, Default)]
struct Page(String);

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Page {
    /// A metric begins: its values follow.
    fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, Kind::Gauge, help);
        self.line(format_args!("{name} {value}"));
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, Kind::Counter, help);
        self.line(format_args!("{name} {value}"));
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn server(page: &mut Page, node: &Node) {
    page.metric("ballast_info", Kind::Gauge, "What the server is.");
    page.line(format_args!(
        "ballast_info{{version=\"{}\",server=\"{}\",cluster=\"{}\"}} 1",
        env!("CARGO_PKG_VERSION"),
        node.me(),
        node.cluster(),
    ));
    let usage = node.operators.host().map(|host| host.usage()).unwrap_or_default();
    page.metric("ballast_cpu_seconds_total", Kind::Counter, "Processor time of the process.");
    for (mode, time) in [("user", usage.user), ("system", usage.system)] {
        let seconds = time.as_secs_f64();
        page.line(format_args!("ballast_cpu_seconds_total{{mode=\"{mode}\"}} {seconds}"));
    }
    page.gauge("ballast_resident_bytes", "Resident memory of the process.", usage.resident_bytes);
    let is_linked = u64::from(node.is_linked());
    page.gauge("ballast_coordinator_linked", "Whether the coordinator can be reached.", is_linked);
    page.counter(
        "ballast_frames_too_long_total",
        "Messages to servers that no frame can carry, and that were dropped.",
        node.operators.frames_too_long.load(Ordering::Relaxed),
    );
}

fn clients(page: &mut Page, node: &Node, counts: &[Arc<Counts>]) {
    let sum = |counter: fn(&Counts) -> &Counter| -> u64 {
        counts.iter().map(|counts| counter(counts).read()).sum()
    };
    page.gauge("ballast_clients", "Clients that are connected.", node.operators.clients.count());
    let blocked = node.operators.clients.sums().blocked;
    page.gauge("ballast_clients_blocked", "Clients with a request that waits.", blocked);
    let max = u64::from(node.configuration().maxclients);
    page.gauge("ballast_clients_max", "Clients that may be connected.", max);
    let connections = sum(|counts| &counts.connections);
    page.counter("ballast_connections_total", "Clients that have connected.", connections);
    let refused = sum(|counts| &counts.refused);
    page.counter("ballast_connections_refused_total", "Clients sent away at once.", refused);
    let name = "ballast_clients_evicted_total";
    page.metric(name, Kind::Counter, "Clients sent away, by reason.");
    let output = sum(|counts| &counts.overflowed);
    page.line(format_args!("{name}{{reason=\"output\"}} {output}"));
    let timeout = sum(|counts| &counts.timed_out);
    page.line(format_args!("{name}{{reason=\"timeout\"}} {timeout}"));
    page.counter(
        "ballast_auth_failures_total",
        "Wrong passwords.",
        sum(|counts| &counts.auth_failures),
    );
    page.counter("ballast_requests_total", "Requests read.", sum(|counts| &counts.requests));
    page.counter(
        "ballast_requests_parked_total",
        "Requests that had to wait for something.",
        sum(|counts| &counts.parked),
    );
    let hits = sum(|counts| &counts.hits);
    page.counter("ballast_keyspace_hits_total", "Reads that found a record.", hits);
    let misses = sum(|counts| &counts.misses);
    page.counter("ballast_keyspace_misses_total", "Reads that found none.", misses);
    page.metric("ballast_errors_total", Kind::Counter, "Errors answered, by their first word.");
    for (kind, count) in counts::errors(counts) {
        let kind: String = kind.chars().filter(char::is_ascii_alphanumeric).collect();
        page.line(format_args!("ballast_errors_total{{kind=\"{kind}\"}} {count}"));
    }
}

/// The buckets of a histogram end at 1.024 us times powers of four.
const BUCKETS: usize = 12;

fn commands(page: &mut Page, counts: &[Arc<Counts>]) {
    let called = called(counts);
    for (name, help, count) in [
        (
            "ballast_command_calls_total",
            "Commands executed.",
            (|sum: &Summary| sum.calls) as fn(&Summary) -> u64,
        ),
        ("ballast_command_failed_total", "Commands answered with an error.", |sum| sum.failed),
        ("ballast_command_rejected_total", "Commands not even tried.", |sum| sum.rejected),
    ] {
        page.metric(name, Kind::Counter, help);
        for (command, sum) in &called {
            let value = count(sum);
            page.line(format_args!("{name}{{command=\"{}\"}} {value}", command.name));
        }
    }
    let name = "ballast_command_duration_seconds";
    page.metric(name, Kind::Histogram, "Time that commands took on their reactor.");
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

fn reactors(page: &mut Page, node: &Node, counts: &[Arc<Counts>]) {
    let reactors = node.operators.host().map(|host| host.reactors()).unwrap_or_default();
    let name = "ballast_reactor_seconds_total";
    page.metric(name, Kind::Counter, "What reactors spent their time on.");
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
    page.metric("ballast_reactor_turns_total", Kind::Counter, "Turns of reactors.");
    for (number, spent) in reactors.iter().enumerate() {
        let turns = spent.turns;
        page.line(format_args!("ballast_reactor_turns_total{{reactor=\"{number}\"}} {turns}"));
    }
    page.metric("ballast_network_bytes_total", Kind::Counter, "Bytes over all connections.");
    let received: u64 = reactors.iter().map(|spent| spent.bytes_in).sum();
    page.line(format_args!("ballast_network_bytes_total{{direction=\"in\"}} {received}"));
    let sent: u64 = reactors.iter().map(|spent| spent.bytes_out).sum();
    page.line(format_args!("ballast_network_bytes_total{{direction=\"out\"}} {sent}"));
    let (time, quanta) = ("ballast_background_seconds_total", "ballast_background_quanta_total");
    page.metric(time, Kind::Counter, "Time of background work, by what it is for.");
    for (number, counts) in counts.iter().enumerate() {
        for (kind, name) in Background::ALL {
            let spent = seconds(counts.background_ns(kind));
            page.line(format_args!("{time}{{reactor=\"{number}\",kind=\"{name}\"}} {spent}"));
        }
    }
    page.metric(quanta, Kind::Counter, "Pieces of background work, by what they are for.");
    for (number, counts) in counts.iter().enumerate() {
        for (kind, name) in Background::ALL {
            let done = counts.quanta(kind);
            page.line(format_args!("{quanta}{{reactor=\"{number}\",kind=\"{name}\"}} {done}"));
        }
    }
}

fn memory(page: &mut Page, node: &Node, counts: &[Arc<Counts>]) {
    let usage = node.store().usage();
    let log = &usage.log;
    page.metric("ballast_log_bytes", Kind::Gauge, "The log's memory, by what it is.");
    for (state, bytes) in [
        ("total", log.total_bytes),
        ("free", log.free_bytes),
        ("live", log.live_bytes),
        ("resident", log.resident_bytes),
    ] {
        page.line(format_args!("ballast_log_bytes{{state=\"{state}\"}} {bytes}"));
    }
    page.metric("ballast_log_segments", Kind::Gauge, "Segments of the log, by state.");
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
    page.metric("ballast_records", Kind::Gauge, "Records, by database, about a second ago.");
    for (table, records) in node.table_records() {
        page.line(format_args!("ballast_records{{db=\"{}\"}} {records}", table.0));
    }
    let gone = expired(node, counts);
    page.counter("ballast_expired_records_total", "Records whose time had come.", gone);
}

fn migrations(page: &mut Page, node: &Node) {
    let map = node.map();
    let me = node.me();
    let out = map.moving.iter().filter(|(_, source, _)| *source == me).count();
    let into = map.moving.iter().filter(|(_, _, target)| *target == me).count();
    page.metric("ballast_migrations", Kind::Gauge, "Migrations that are under way.");
    page.line(format_args!("ballast_migrations{{direction=\"out\"}} {out}"));
    page.line(format_args!("ballast_migrations{{direction=\"in\"}} {into}"));
    let share = u64::from(node.background_share());
    page.gauge("ballast_background_share_percent", "Least share of background work.", share);
}

/// Writes the metrics of replicas: those held for others, and those that this log lacks.
fn replicas(page: &mut Page, replication: Option<&Replication>) {
    let (count, bytes) = replication.map(Replication::held).unwrap_or_default();
    page.gauge("ballast_replicas", "Replicas of segments of other servers' logs.", count as u64);
    page.gauge("ballast_replica_bytes", "Bytes of segments in them, as far as is known.", bytes);
    let open = replication.map_or(0, |it| it.disk().open_files()) as u64;
    page.gauge("ballast_replica_files_open", "Files open because replicas are written.", open);
    let short = replication.map_or(0, Replication::under_replicated) as u64;
    page.gauge(
        "ballast_segments_under_replicated",
        "Segments of this server's log with fewer replicas than wanted.",
        short,
    );
    let reach = replication.map_or(0, Replication::reach) as u64;
    page.gauge("ballast_backups_reachable", "Other servers that get what is written next.", reach);
    let least = replication.map_or(0, Replication::reach_min) as u64;
    page.gauge("ballast_backups_needed", "With fewer of them writes are refused.", least);
    let is_alone = replication.is_some_and(Replication::is_on_own_disk);
    let help = "1: no other server lives, and this one's log is on its own disk only.";
    page.gauge("ballast_log_on_own_disk_only", help, u64::from(is_alone));
    let count = |count: fn(&DiskCounts) -> u64| replication.map_or(0, |it| count(it.disk_counts()));
    let errors = count(DiskCounts::errors);
    page.counter("ballast_disk_errors_total", "Operations of the disk that failed.", errors);
    let scrubbed = count(DiskCounts::scrubbed_replicas);
    page.counter("ballast_scrubbed_replicas_total", "Replicas read again and whole.", scrubbed);
    let bytes = count(DiskCounts::scrubbed_bytes);
    page.counter("ballast_scrubbed_bytes_total", "Their bytes.", bytes);
    let damaged = count(DiskCounts::damaged_replicas);
    page.counter("ballast_damaged_replicas_total", "Replicas that the disk has lost.", damaged);
}

/// The backups' word, on which this server may serve.
fn lease(page: &mut Page, replication: Option<&Replication>, now: Instant) {
    let left = replication.map(|it| it.lease_left(now)).unwrap_or_default();
    page.metric("ballast_lease_seconds", Kind::Gauge, "How much longer the read lease runs.");
    page.line(format_args!("ballast_lease_seconds {}", left.as_secs_f64()));
    let lapses = replication.map_or(0, Replication::lease_lapses);
    page.counter("ballast_lease_lapses_total", "How often the read lease has run out.", lapses);
}
