//! The sections of `INFO`, with the fields that clients, tools and exporters read.

use super::{Engine, Node};
use crate::commands::REDIS_VERSION;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{TableId, UnixMillis};

type Lines = Vec<(String, String)>;

/// Name and lines of each section.
pub(crate) type Sections = Vec<(&'static str, Lines)>;

pub(super) fn sections(engine: &Engine, uptime: Duration, wall: UnixMillis) -> Sections {
    let node = engine.node();
    vec![
        ("Server", server(node, uptime, wall)),
        ("Clients", clients(node)),
        ("Memory", memory(node)),
        ("Persistence", persistence()),
        ("Stats", stats(node)),
        ("Replication", replication()),
        ("Cluster", lines(vec![("cluster_enabled", u8::from(node.is_cluster()).to_string())])),
        ("Ballast", ballast(node)),
        ("Keyspace", keyspace(engine)),
    ]
}

fn lines(fields: Vec<(&str, String)>) -> Lines {
    fields.into_iter().map(|(field, value)| (field.to_string(), value)).collect()
}

fn sum(node: &Node, counter: impl Fn(&super::Counters) -> &AtomicU64) -> u64 {
    node.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
}

fn server(node: &Node, uptime: Duration, wall: UnixMillis) -> Lines {
    let uptime = uptime.as_secs();
    lines(vec![
        ("redis_version", REDIS_VERSION.into()),
        ("server_name", "ballast".into()),
        ("ballast_version", env!("CARGO_PKG_VERSION").into()),
        ("redis_mode", if node.is_cluster() { "cluster" } else { "standalone" }.into()),
        ("os", std::env::consts::OS.into()),
        ("arch_bits", "64".into()),
        ("multiplexing_api", "epoll".into()),
        ("process_id", std::process::id().to_string()),
        ("run_id", node.name_of(node.me())),
        ("tcp_port", node.settings().client_port.to_string()),
        ("server_time_usec", (wall.0 * 1000).to_string()),
        ("uptime_in_seconds", uptime.to_string()),
        ("uptime_in_days", (uptime / 86_400).to_string()),
        ("io_threads_active", node.settings().reactors.to_string()),
    ])
}

fn clients(node: &Node) -> Lines {
    lines(vec![
        ("connected_clients", sum(node, |c| &c.connections).to_string()),
        ("blocked_clients", "0".into()),
        ("maxclients", crate::CLIENTS_MAX.to_string()),
    ])
}

fn memory(node: &Node) -> Lines {
    let usage = node.store().usage();
    let used = usage.log.total_bytes.saturating_sub(usage.log.free_bytes);
    lines(vec![
        ("used_memory", used.to_string()),
        ("used_memory_dataset", usage.log.live_bytes.to_string()),
        ("used_memory_index", usage.index_bytes.to_string()),
        ("used_memory_rss", usage.log.resident_bytes.to_string()),
        ("maxmemory", usage.log.total_bytes.to_string()),
        ("maxmemory_policy", "noeviction".into()),
        ("mem_fragmentation_ratio", "1.00".into()),
        ("huge_pages", format!("{:?}", usage.log.huge_pages).to_lowercase()),
    ])
}

fn persistence() -> Lines {
    lines(vec![
        ("loading", "0".into()),
        ("durability", "none".into()),
        ("rdb_changes_since_last_save", "0".into()),
        ("rdb_bgsave_in_progress", "0".into()),
        ("aof_enabled", "0".into()),
    ])
}

fn stats(node: &Node) -> Lines {
    lines(vec![
        ("total_connections_received", sum(node, |c| &c.connections_total).to_string()),
        ("total_commands_processed", sum(node, |c| &c.commands).to_string()),
        ("total_commands_parked", sum(node, |c| &c.parked).to_string()),
        ("rejected_connections", sum(node, |c| &c.refused).to_string()),
        ("evicted_keys", "0".into()),
    ])
}

fn replication() -> Lines {
    lines(vec![
        ("role", "master".into()),
        ("connected_slaves", "0".into()),
        ("master_repl_offset", "0".into()),
    ])
}

/// What Redis has no field for.
fn ballast(node: &Node) -> Lines {
    let map = node.map();
    let (out, into) = map.moving.iter().fold((0, 0), |(out, into), (_, source, target)| {
        (out + u32::from(*source == node.me()), into + u32::from(*target == node.me()))
    });
    lines(vec![
        ("server_id", node.me().0.to_string()),
        ("map_version", map.version.to_string()),
        ("coordinator_link", if node.is_linked() { "up" } else { "down" }.into()),
        ("migrations_out", out.to_string()),
        ("migrations_in", into.to_string()),
        ("background_share_percent", node.background_share().to_string()),
        ("replicas", "0".into()),
    ])
}

fn keyspace(engine: &Engine) -> Lines {
    (0..TABLES_MAX as u8)
        .filter_map(|table| {
            let records = engine.worker.table_records(TableId(table));
            let line = format!("keys={records},expires=0,avg_ttl=0");
            (records > 0).then(|| (format!("db{table}"), line))
        })
        .collect()
}
