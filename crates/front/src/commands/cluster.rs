//! `CLUSTER`: the cluster map in its three formats, and migrations in Valkey's syntax.

use super::command::flag::{ADMIN, ANYTIME, DANGEROUS, LOADING, STALE};
use super::command::{Command, Family, Keys, command, container};
use super::help::help;
use super::migrate::{SlotMove, parse_migrate};
use super::moving;
use super::slot_stats::slot_stats;
use super::slots::{cluster_node, parse_slot, reply_done, server_named, slot_ranges};
use super::tasks::{Task, tasks};
use super::{Call, Done, Refusal, parse_integer, printable, refused, uppercase_is};
use types::{HashRange, SLOT_COUNT, ServerId};
use wire::control::{Answer, Ask, ClusterMap, MigrationReport, MigrationState, ServerInfo};

pub(super) static FAMILY: Family =
    Family { group: "cluster", category: None, commands: &[container("cluster", CLUSTER)] };

const OPERATOR: u32 = ADMIN | DANGEROUS | STALE;

static CLUSTER: &[Command] = &[
    command("cluster|addslots", -3, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|addslotsrange", -4, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|bumpepoch", 2, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|cancelslotmigrations", -2, OPERATOR, Keys::None, cancel_slot_migrations),
    command(
        "cluster|count-failure-reports",
        3,
        OPERATOR,
        Keys::None,
        moving::count_failure_reports,
    ),
    command("cluster|countkeysinslot", 3, STALE, Keys::None, count_keys_in_slot),
    command("cluster|delslots", -3, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|delslotsrange", -4, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|failover", -2, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|flushslots", 2, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|forget", 3, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|getkeysinslot", 4, STALE, Keys::None, moving::get_keys_in_slot),
    command("cluster|getslotmigrations", 2, OPERATOR, Keys::None, get_slot_migrations),
    help("cluster|help"),
    command("cluster|info", 2, ANYTIME, Keys::None, info),
    command("cluster|keyslot", 3, STALE, Keys::None, key_slot),
    command("cluster|links", 2, ANYTIME, Keys::None, moving::links),
    command("cluster|meet", -4, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|migrateslots", -4, OPERATOR, Keys::None, migrate_slots),
    command("cluster|migration", -3, OPERATOR, Keys::None, moving::migration),
    command("cluster|myid", 2, ANYTIME, Keys::None, my_id),
    command("cluster|myshardid", 2, ANYTIME, Keys::None, my_id),
    command("cluster|nodes", 2, ANYTIME, Keys::None, nodes),
    command("cluster|replicas", 3, OPERATOR, Keys::None, moving::replicas),
    command("cluster|replicate", -3, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|reset", -2, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|set-config-epoch", 3, OPERATOR, Keys::None, moving::coordinators),
    command("cluster|setslot", -4, OPERATOR, Keys::None, moving::set_slot),
    command("cluster|shards", 2, ANYTIME, Keys::None, shards),
    command("cluster|slot-stats", -4, STALE | LOADING, Keys::None, slot_stats),
    command("cluster|slots", 2, ANYTIME, Keys::None, slots),
];

/// `CLUSTER KEYSLOT key`.
fn key_slot(call: &mut Call<'_>) -> Done {
    call.integer(types::slot_of(call.args[2]).0)
}

/// `CLUSTER MYID` and `CLUSTER MYSHARDID`: each server is a shard of its own.
fn my_id(call: &mut Call<'_>) -> Done {
    let node = cluster_node(call)?;
    let name = node.name_of(node.me());
    call.bulk(name.as_bytes())
}

fn server(map: &ClusterMap, id: ServerId) -> Option<&ServerInfo> {
    map.servers.iter().find(|server| server.id == id)
}

/// `CLUSTER SLOTS`.
fn slots(call: &mut Call<'_>) -> Done {
    let map = cluster_node(call)?.map();
    let ranges: Vec<_> = slot_ranges(&map)
        .into_iter()
        .filter_map(|(first, last, owner)| Some((first, last, server(&map, owner)?)))
        .collect();
    call.reply.array(ranges.len());
    for (first, last, owner) in ranges {
        let reply = &mut call.reply;
        reply.array(3);
        reply.integer(i64::from(first.0));
        reply.integer(i64::from(last.0));
        reply.array(4);
        reply.bulk(owner.host.as_bytes());
        reply.integer(i64::from(owner.client_port));
        reply.bulk(owner.id.node_name(map.cluster).as_bytes());
        reply.map(0);
    }
    Ok(())
}

/// `CLUSTER SHARDS`.
fn shards(call: &mut Call<'_>) -> Done {
    let map = cluster_node(call)?.map();
    let ranges = slot_ranges(&map);
    let reply = &mut call.reply;
    reply.array(map.servers.len());
    for server in &map.servers {
        let owned: Vec<_> = ranges.iter().filter(|range| range.2 == server.id).collect();
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(owned.len() * 2);
        for (first, last, _) in owned {
            reply.integer(i64::from(first.0));
            reply.integer(i64::from(last.0));
        }
        reply.bulk(b"nodes");
        reply.array(1);
        reply.map(7);
        let name = server.id.node_name(map.cluster);
        let health = if server.connected { "online" } else { "fail" };
        reply.texts([
            ("id", &name[..]),
            ("endpoint", &server.host),
            ("ip", &server.host),
            ("role", "master"),
            ("health", health),
        ]);
        reply.integers([("port", server.client_port.into()), ("replication-offset", 0)]);
    }
    Ok(())
}

/// `CLUSTER NODES`.
fn nodes(call: &mut Call<'_>) -> Done {
    let node = cluster_node(call)?;
    let (map, me) = (node.map(), node.me());
    let ranges = slot_ranges(&map);
    let mut text = String::new();
    for server in &map.servers {
        let flags = match (server.id == me, server.connected) {
            (true, _) => "myself,master",
            (false, true) => "master",
            (false, false) => "master,fail",
        };
        let link = if server.connected { "connected" } else { "disconnected" };
        let epoch = map
            .tablets
            .iter()
            .filter(|tablet| tablet.owner == server.id)
            .map(|tablet| tablet.epoch.0)
            .max()
            .unwrap_or(0);
        text.push_str(&format!(
            "{} {}:{}@{} {flags} - 0 {} {epoch} {link}",
            server.id.node_name(map.cluster),
            server.host,
            server.client_port,
            server.bus_port,
            call.wall.0,
        ));
        for (first, last, _) in ranges.iter().filter(|range| range.2 == server.id) {
            match first == last {
                true => text.push_str(&format!(" {}", first.0)),
                false => text.push_str(&format!(" {}-{}", first.0, last.0)),
            }
        }
        text.push('\n');
    }
    call.text(&text)
}

/// `CLUSTER INFO`.
fn info(call: &mut Call<'_>) -> Done {
    let map = cluster_node(call)?.map();
    let assigned: u32 =
        slot_ranges(&map).iter().map(|(first, last, _)| u32::from(last.0 - first.0) + 1).sum();
    let failed: u32 = slot_ranges(&map)
        .iter()
        .filter(|(_, _, owner)| server(&map, *owner).is_none_or(|owner| !owner.connected))
        .map(|(first, last, _)| u32::from(last.0 - first.0) + 1)
        .sum();
    let complete = assigned == u32::from(SLOT_COUNT);
    let mut owners: Vec<ServerId> = map.tablets.iter().map(|tablet| tablet.owner).collect();
    owners.sort();
    owners.dedup();
    let mut text = String::new();
    for (field, value) in [
        ("cluster_state", if complete { "ok".to_string() } else { "fail".to_string() }),
        ("cluster_slots_assigned", assigned.to_string()),
        ("cluster_slots_ok", (assigned - failed).to_string()),
        ("cluster_slots_pfail", "0".to_string()),
        ("cluster_slots_fail", failed.to_string()),
        ("cluster_known_nodes", map.servers.len().to_string()),
        ("cluster_size", owners.len().to_string()),
        ("cluster_current_epoch", map.version.to_string()),
        ("cluster_my_epoch", map.version.to_string()),
        ("cluster_stats_messages_sent", "0".to_string()),
        ("cluster_stats_messages_received", "0".to_string()),
    ] {
        text.push_str(&format!("{field}:{value}\r\n"));
    }
    call.text(&text)
}

/// `CLUSTER COUNTKEYSINSLOT slot`.
fn count_keys_in_slot(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let slot = parse_slot(call.args[2]).ok_or_else(|| refused("ERR Invalid slot"))?;
    let counts = call.backend.record_counts(HashRange::of_slots(slot, slot));
    let records: u64 = counts
        .iter()
        .filter(|(table, _, _)| *table == call.session.status.table)
        .map(|(_, _, records)| u64::from(*records))
        .sum();
    call.integer(records as i64)
}

/// `CLUSTER MIGRATESLOTS SLOTSRANGE first last [first last ...] NODE id [POLICY name value ...]
/// [SLOTSRANGE ...]`. After all groups were checked, the coordinator is asked for one group after
/// another.
fn migrate_slots(call: &mut Call<'_>) -> Done {
    let me = cluster_node(call)?.me();
    let mut groups = parse_migrate(&call.args[2..]).map_err(refused)?;
    let mut targets = Vec::with_capacity(groups.len());
    for group in &groups {
        let node = &group.node;
        if node.len() != 40 || !node.iter().all(u8::is_ascii_alphanumeric) {
            let shown = printable(node, 64);
            return Err(refused(format!("ERR Invalid node name: {shown}")));
        }
        targets.push(server_named(call, node, "Unknown node name:")?);
    }
    if targets.contains(&me) {
        return Err(refused("ERR Target node can not be this node."));
    }
    let asked = call.past.answers;
    match call.answer {
        Some(Answer::Refused(reason)) if asked > 1 => {
            return Err(refused(format!(
                "ERR {reason} (the migration of the {} preceding groups of slots has started)",
                asked - 1
            )));
        }
        Some(answer) if asked == groups.len() || matches!(answer, Answer::Refused(_)) => {
            return reply_done(call, answer);
        }
        Some(_) | None => {}
    }
    let SlotMove { ranges, policy, .. } = groups.swap_remove(asked);
    Err(call.backend.ask(Ask::Migrate { target: targets[asked], ranges, source: Some(me), policy }))
}

/// `CLUSTER CANCELSLOTMIGRATIONS [ALL]`.
fn cancel_slot_migrations(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    match call.args[2..] {
        [] => {}
        [all] if uppercase_is(all, b"ALL") => {}
        _ => return Err(Refusal::Arity.into()),
    }
    match call.answer {
        None => Err(call
            .backend
            .ask(Ask::Cancel { source: Some(call.backend.node().me()), task: None })),
        Some(answer) => reply_done(call, answer),
    }
}

/// `CLUSTER GETSLOTMIGRATIONS`.
fn get_slot_migrations(call: &mut Call<'_>) -> Done {
    cluster_node(call)?;
    let reports = match call.answer {
        None => return Err(call.backend.ask(Ask::List { task: None })),
        Some(Answer::Migrations(reports)) => reports,
        Some(answer) => return reply_done(call, answer),
    };
    let node = call.backend.node();
    let me = node.me();
    let mine = tasks(reports, |report| report.source == me || report.target == me);
    let name = |server| node.name_of(server);
    let reply = &mut call.reply;
    reply.array(mine.len());
    for task in mine {
        let texts = describe_texts(&task, me, name);
        let numbers = describe_numbers(&task);
        reply.map(texts.len() + numbers.len());
        reply.texts(texts);
        reply.integers(numbers.map(|(field, number)| (field, number as i64)));
    }
    Ok(())
}

fn describe_texts(
    task: &Task<'_>,
    me: ServerId,
    name: impl Fn(ServerId) -> String,
) -> Vec<(&'static str, String)> {
    let MigrationReport { source, target, .. } = *task.first();
    let state = match task.state() {
        MigrationState::Queued => "queued",
        MigrationState::Preparing => "preparing",
        MigrationState::Moving => "moving",
        MigrationState::Releasing => "releasing",
        MigrationState::Success => "success",
        MigrationState::Cancelled => "cancelled",
        MigrationState::Failed => "failed",
    };
    vec![
        ("name", task.name()),
        ("operation", if source == me { "EXPORT" } else { "IMPORT" }.to_string()),
        ("slot_ranges", task.slots()),
        ("target_node", name(target)),
        ("source_node", name(source)),
        ("state", state.to_string()),
        ("message", task.message().to_string()),
    ]
}

/// Returns Valkey's fields, then ours: progress, and time from the flip to the last replay.
fn describe_numbers(task: &Task<'_>) -> [(&'static str, u64); 10] {
    let (progress, updated) = (task.progress(), task.updated() / 1000);
    let remaining = match progress.records {
        0 => 0,
        records => {
            let left = progress.records_total.saturating_sub(records);
            (u128::from(progress.bytes) * u128::from(left) / u128::from(records)) as u64
        }
    };
    [
        ("create_time", task.first().created.0 / 1000),
        ("last_update_time", updated),
        ("last_ack_time", updated),
        ("cow_size", 0),
        ("remaining_repl_size", remaining),
        ("records_total", progress.records_total),
        ("records_moved", progress.records),
        ("bytes_moved", progress.bytes),
        ("priority_records", progress.priority_records),
        ("elapsed_us", progress.elapsed_ns / 1000),
    ]
}
