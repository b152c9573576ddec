//! `CLUSTER`: the cluster map in its three formats, and migrations in Valkey's syntax.

use super::migrate::{SlotMove, parse_migrate};
use super::moving;
use super::slot_stats::slot_stats;
use super::table::flag::{ADMIN, ANYTIME, DANGEROUS, LOADING, STALE};
use super::table::{Command, Family, Keys, command, container, help};
use super::tasks::{Task, tasks};
use super::{Call, Done, Refusal, Undone, parse_integer, printable, refused, uppercase_is};
use types::{HashRange, SLOT_COUNT, ServerId, Slot};
use wire::control::{
    Answer, Ask, ClusterMap, MigrationReport, MigrationState, ServerInfo, TabletInfo,
};

pub(super) const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";

pub(super) static FAMILY: Family = Family {
    group: "cluster",
    category: None,
    commands: &[container("cluster", CLUSTER).text(
        "3.0.0",
        "O(1)",
        "Commands for cluster information and slot migration.",
    )],
};

const OPERATOR: u16 = ADMIN | DANGEROUS | STALE;

static CLUSTER: &[Command] = &[
    command("cluster|addslots", -3, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator assigns slots.",
    ),
    command("cluster|addslotsrange", -4, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator assigns slots.",
    ),
    command("cluster|bumpepoch", 2, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator manages epochs.",
    ),
    command("cluster|cancelslotmigrations", -2, OPERATOR, Keys::None, cancel_slot_migrations).text(
        "9.0.0",
        "O(1)",
        "Cancels slot migrations from this server whose ownership has not changed yet.",
    ),
    command(
        "cluster|count-failure-reports",
        3,
        OPERATOR,
        Keys::None,
        moving::count_failure_reports,
    )
    .text("3.0.0", "O(1)", "Returns 0: the coordinator detects failures."),
    command("cluster|countkeysinslot", 3, STALE, Keys::None, count_keys_in_slot).text(
        "3.0.0",
        "O(1)",
        "Returns the number of keys in a slot of this server.",
    ),
    command("cluster|delslots", -3, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator assigns slots.",
    ),
    command("cluster|delslotsrange", -4, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator assigns slots.",
    ),
    command("cluster|failover", -2, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: there are no replicas.",
    ),
    command("cluster|flushslots", 2, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator assigns slots.",
    ),
    command("cluster|forget", 3, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator manages members.",
    ),
    command("cluster|getkeysinslot", 4, STALE, Keys::None, moving::get_keys_in_slot).text(
        "3.0.0",
        "O(1)",
        "Returns keys of a slot. Empty once a migration of the slot is announced.",
    ),
    command("cluster|getslotmigrations", 2, OPERATOR, Keys::None, get_slot_migrations).text(
        "9.0.0",
        "O(N) where N is the number of migrations",
        "Lists slot migrations and their progress.",
    ),
    help("cluster|help"),
    command("cluster|info", 2, ANYTIME, Keys::None, info).text(
        "3.0.0",
        "O(N) where N is the number of ranges",
        "Returns the state of the cluster.",
    ),
    command("cluster|keyslot", 3, STALE, Keys::None, key_slot).text(
        "3.0.0",
        "O(N) where N is the length of the key",
        "Returns the slot of a key.",
    ),
    command("cluster|links", 2, ANYTIME, Keys::None, moving::links).text(
        "7.0.0",
        "O(1)",
        "Returns an empty list: servers do not gossip.",
    ),
    command("cluster|meet", -4, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator manages members.",
    ),
    command("cluster|migrateslots", -4, OPERATOR, Keys::None, migrate_slots).text(
        "9.0.0",
        "O(1)",
        "Migrates slot ranges from this server to another one.",
    ),
    command("cluster|migration", -3, OPERATOR, Keys::None, moving::migration).text(
        "8.4.0",
        "O(1)",
        "Migrates slot ranges to this server, and lists or cancels such migrations.",
    ),
    command("cluster|myid", 2, ANYTIME, Keys::None, my_id).text(
        "3.0.0",
        "O(1)",
        "Returns the node ID of this server.",
    ),
    command("cluster|myshardid", 2, ANYTIME, Keys::None, moving::my_shard_id).text(
        "7.2.0",
        "O(1)",
        "Returns the shard ID of this server, which is its node ID.",
    ),
    command("cluster|nodes", 2, ANYTIME, Keys::None, nodes).text(
        "3.0.0",
        "O(N) where N is the number of ranges",
        "Lists servers and their slots, as text.",
    ),
    command("cluster|replicas", 3, OPERATOR, Keys::None, moving::replicas).text(
        "5.0.0",
        "O(1)",
        "Returns an empty list: there are no replicas.",
    ),
    command("cluster|replicate", -3, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: there are no replicas.",
    ),
    command("cluster|reset", -2, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator manages members.",
    ),
    command("cluster|set-config-epoch", 3, OPERATOR, Keys::None, moving::coordinators).text(
        "3.0.0",
        "O(1)",
        "Not supported: the coordinator manages epochs.",
    ),
    command("cluster|setslot", -4, OPERATOR, Keys::None, moving::set_slot).text(
        "3.0.0",
        "O(1)",
        "Announces or performs the migration of a slot.",
    ),
    command("cluster|shards", 2, ANYTIME, Keys::None, shards).text(
        "7.0.0",
        "O(N) where N is the number of ranges",
        "Lists shards with their servers and slots.",
    ),
    command("cluster|slot-stats", -4, STALE | LOADING, Keys::None, slot_stats).text(
        "8.0.0",
        "O(N) where N is the number of slots",
        "Returns the number of keys per slot.",
    ),
    command("cluster|slots", 2, ANYTIME, Keys::None, slots).text(
        "3.0.0",
        "O(N) where N is the number of ranges",
        "Lists slot ranges and their owners.",
    ),
];

/// Refuses a `CLUSTER` subcommand on a server that is not part of a cluster.
pub(super) fn refuse_if_alone(call: &Call<'_>) -> Done {
    match call.backend.engine.node().is_cluster() {
        true => Ok(()),
        false => Err(refused(NO_CLUSTER)),
    }
}

/// `CLUSTER KEYSLOT key`.
fn key_slot(call: &mut Call<'_>) -> Done {
    call.reply.integer(i64::from(types::slot_of(call.args[2]).0));
    Ok(())
}

/// `CLUSTER MYID`.
fn my_id(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    let node = call.backend.engine.node();
    let name = node.name_of(node.me());
    call.reply.bulk(name.as_bytes());
    Ok(())
}

/// Merges adjacent tablets of one owner. Returns first slot, last slot and owner of each range.
pub(crate) fn slot_ranges(map: &ClusterMap) -> Vec<(Slot, Slot, ServerId)> {
    let mut ranges: Vec<(Slot, Slot, ServerId)> = Vec::new();
    for TabletInfo { range, owner, .. } in &map.tablets {
        let (first, last) = range.slots();
        match ranges.last_mut() {
            Some(before) if before.2 == *owner && before.1.0 + 1 >= first.0 => before.1 = last,
            Some(_) | None => ranges.push((first, last, *owner)),
        }
    }
    ranges
}

fn server(map: &ClusterMap, id: ServerId) -> Option<&ServerInfo> {
    map.servers.iter().find(|server| server.id == id)
}

/// `CLUSTER SLOTS`.
fn slots(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    let map = call.backend.engine.node().map();
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
    refuse_if_alone(call)?;
    let map = call.backend.engine.node().map();
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
        for (field, value) in [
            ("id", &name[..]),
            ("endpoint", &server.host),
            ("ip", &server.host),
            ("role", "master"),
            ("health", health),
        ] {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"port");
        reply.integer(i64::from(server.client_port));
        reply.bulk(b"replication-offset");
        reply.integer(0);
    }
    Ok(())
}

/// `CLUSTER NODES`.
fn nodes(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    let node = call.backend.engine.node();
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
    call.reply.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CLUSTER INFO`.
fn info(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    let map = call.backend.engine.node().map();
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
    call.reply.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// Parses a slot number.
pub(super) fn parse_slot(argument: &[u8]) -> Option<Slot> {
    let slot = u16::try_from(parse_integer(argument)?).ok()?;
    (slot < SLOT_COUNT).then_some(Slot(slot))
}

/// `CLUSTER COUNTKEYSINSLOT slot`.
fn count_keys_in_slot(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    parse_integer(call.args[2]).ok_or(Refusal::NotAnInteger)?;
    let slot = parse_slot(call.args[2]).ok_or_else(|| refused("ERR Invalid slot"))?;
    let counts = call.backend.engine.worker.counts(HashRange::of_slots(slot, slot));
    let records: u64 = counts
        .iter()
        .filter(|(table, _, _)| *table == call.session.table)
        .map(|(_, _, records)| u64::from(*records))
        .sum();
    call.reply.integer(records as i64);
    Ok(())
}

/// `CLUSTER MIGRATESLOTS SLOTSRANGE first last [first last ...] NODE id [POLICY name value ...]
/// [SLOTSRANGE ...]`. After all groups were checked, the coordinator is asked for one group after
/// another.
fn migrate_slots(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    let me = call.backend.engine.node().me();
    let mut groups = parse_migrate(&call.args[2..]).map_err(refused)?;
    let mut targets = Vec::with_capacity(groups.len());
    for group in &groups {
        let node = &group.node;
        if node.len() != 40 || !node.iter().all(u8::is_ascii_alphanumeric) {
            let shown = printable(node, 64);
            return Err(refused(format!("ERR Invalid node name: {shown}")));
        }
        targets.push(server_named(call, node)?);
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
    Err(Undone::Ask(Ask::Migrate { target: targets[asked], ranges, source: Some(me), policy }))
}

/// Returns the server with this 40-digit node name.
pub(super) fn server_named(call: &Call<'_>, name: &[u8]) -> Result<ServerId, Undone> {
    let map = call.backend.engine.node().map();
    let wanted = name.to_ascii_lowercase();
    let is_it = |server: &&ServerInfo| server.id.node_name(map.cluster).as_bytes() == wanted;
    let found = map.servers.iter().find(is_it).map(|server| server.id);
    found.ok_or_else(|| refused(format!("ERR Unknown node name: {}", printable(name, 64))))
}

/// Returns the 40-digit node names of some servers.
pub(super) fn names_of<const N: usize>(call: &Call<'_>, servers: [ServerId; N]) -> [String; N] {
    servers.map(|server| call.backend.engine.node().name_of(server))
}

/// `CLUSTER CANCELSLOTMIGRATIONS [ALL]`.
fn cancel_slot_migrations(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    match call.args[2..] {
        [] => {}
        [all] if uppercase_is(all, b"ALL") => {}
        _ => return Err(Refusal::Arity.into()),
    }
    match call.answer {
        None => Err(Undone::Ask(Ask::Cancel {
            source: Some(call.backend.engine.node().me()),
            task: None,
        })),
        Some(answer) => reply_done(call, answer),
    }
}

/// Writes the reply to a request that the coordinator has merely accepted or refused.
pub(super) fn reply_done(call: &mut Call<'_>, answer: &Answer) -> Done {
    match answer {
        Answer::Refused(reason) => Err(refused(format!("ERR {reason}"))),
        Answer::Cancelled(0) => Err(refused("ERR No migrations ongoing")),
        Answer::Started(_)
        | Answer::Cancelled(_)
        | Answer::Flushed { .. }
        | Answer::Migrations(_)
        | Answer::Recoveries(_)
        | Answer::LossAccepted(_)
        | Answer::Health(_)
        | Answer::Map(_)
        | Answer::Rebuild(_)
        | Answer::Standing(_)
        | Answer::Clocks(_) => call.ok(),
    }
}

/// `CLUSTER GETSLOTMIGRATIONS`.
fn get_slot_migrations(call: &mut Call<'_>) -> Done {
    refuse_if_alone(call)?;
    let reports = match call.answer {
        None => return Err(Undone::Ask(Ask::List { task: None })),
        Some(Answer::Migrations(reports)) => reports,
        Some(answer) => return reply_done(call, answer),
    };
    let node = call.backend.engine.node();
    let me = node.me();
    let mine = tasks(reports, |report| report.source == me || report.target == me);
    let name = |server| node.name_of(server);
    let reply = &mut call.reply;
    reply.array(mine.len());
    for task in mine {
        let texts = describe_texts(&task, me, name);
        let numbers = describe_numbers(&task);
        reply.map(texts.len() + numbers.len());
        for (field, value) in texts {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        for (field, value) in numbers {
            reply.bulk(field.as_bytes());
            reply.integer(value as i64);
        }
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
fn describe_numbers(task: &Task<'_>) -> Vec<(&'static str, u64)> {
    let (progress, updated) = (task.progress(), task.updated() / 1000);
    let remaining = match progress.records {
        0 => 0,
        records => {
            let left = progress.records_total.saturating_sub(records);
            (u128::from(progress.bytes) * u128::from(left) / u128::from(records)) as u64
        }
    };
    vec![
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

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClusterId, OwnershipEpoch};

    #[test]
    fn neighbouring_tablets_of_one_owner_are_shown_as_one() {
        let tablet = |first, last, owner| TabletInfo {
            is_born: false,
            range: HashRange::of_slots(Slot(first), Slot(last)),
            owner: ServerId(owner),
            epoch: OwnershipEpoch(1),
            tenures: Vec::new(),
        };
        let map = ClusterMap {
            version: 1,
            cluster: ClusterId(1),
            servers: Vec::new(),
            tablets: vec![tablet(0, 9, 1), tablet(10, 19, 1), tablet(20, 29, 2), tablet(40, 49, 2)],
            moving: Vec::new(),
        };
        let expected = vec![
            (Slot(0), Slot(19), ServerId(1)),
            (Slot(20), Slot(29), ServerId(2)),
            (Slot(40), Slot(49), ServerId(2)),
        ];
        assert_eq!(slot_ranges(&map), expected);
    }
}
