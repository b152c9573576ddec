//! `CLUSTER`: the map in the three forms that clients read, and migrations in Valkey's words.

use super::migrate::parse_migrate;
use super::strings::BadArgument;
use super::{Call, Pause, parse_integer, uppercase_is};
use types::{HashRange, MigrationId, SLOT_COUNT, ServerId, Slot};
use wire::control::{
    Answer, Ask, ClusterMap, MigrationReport, MigrationState, ServerInfo, TabletInfo,
};

pub(super) const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";

/// `CLUSTER subcommand`.
pub(crate) fn cluster(call: &mut Call<'_>) -> Result<(), Pause> {
    let subcommand = call.args[1].to_ascii_uppercase();
    if let (b"KEYSLOT", [key]) = (&subcommand[..], &call.args[2..]) {
        call.reply.integer(i64::from(types::slot_of(key).0));
        return Ok(());
    }
    if !call.engine.node().is_cluster() {
        call.reply.error(NO_CLUSTER);
        return Ok(());
    }
    match (&subcommand[..], &call.args[2..]) {
        (b"SLOTS", []) => slots(call),
        (b"SHARDS", []) => shards(call),
        (b"NODES", []) => nodes(call),
        (b"INFO", []) => info(call),
        (b"MYID", []) => {
            let name = call.engine.node().name_of(call.engine.node().me());
            call.reply.bulk(name.as_bytes());
        }
        (b"COUNTKEYSINSLOT", [slot]) => count_keys_in_slot(call, slot),
        (b"MIGRATESLOTS", [_, ..]) => return migrate_slots(call),
        (b"GETSLOTMIGRATIONS", []) => return get_slot_migrations(call),
        (b"CANCELSLOTMIGRATIONS", []) => return cancel_slot_migrations(call),
        (b"CANCELSLOTMIGRATIONS", [all]) if uppercase_is(all, b"ALL") => {
            return cancel_slot_migrations(call);
        }
        (
            b"SLOTS"
            | b"SHARDS"
            | b"NODES"
            | b"INFO"
            | b"MYID"
            | b"KEYSLOT"
            | b"COUNTKEYSINSLOT"
            | b"MIGRATESLOTS"
            | b"GETSLOTMIGRATIONS"
            | b"CANCELSLOTMIGRATIONS",
            _,
        ) => {
            let name = String::from_utf8_lossy(&subcommand).to_lowercase();
            call.reply.error(format!("ERR wrong number of arguments for 'cluster|{name}' command"));
        }
        _ => call.unknown_subcommand(),
    }
    Ok(())
}

/// Neighbouring tablets of one owner, shown as one: first slot, last slot, owner.
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

fn slots(call: &mut Call<'_>) {
    let map = call.engine.node().map();
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
}

fn shards(call: &mut Call<'_>) {
    let map = call.engine.node().map();
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
}

fn nodes(call: &mut Call<'_>) {
    let node = call.engine.node();
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
}

fn info(call: &mut Call<'_>) {
    let map = call.engine.node().map();
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
}

/// A slot as an argument.
pub(super) fn parse_slot(argument: &[u8]) -> Option<Slot> {
    let slot = u16::try_from(parse_integer(argument)?).ok()?;
    (slot < SLOT_COUNT).then_some(Slot(slot))
}

fn count_keys_in_slot(call: &mut Call<'_>, slot: &[u8]) {
    if parse_integer(slot).is_none() {
        return call.refuse(BadArgument::NotAnInteger, "cluster");
    }
    let Some(slot) = parse_slot(slot) else { return call.reply.error("ERR Invalid slot") };
    let counts = call.engine.worker.counts(HashRange::of_slots(slot, slot));
    let records: u64 = counts
        .iter()
        .filter(|(table, _, _)| *table == call.session.table)
        .map(|(_, _, records)| u64::from(*records))
        .sum();
    call.reply.integer(records as i64);
}

/// `CLUSTER MIGRATESLOTS SLOTSRANGE first last [first last ...] NODE id [POLICY name value ...]`.
fn migrate_slots(call: &mut Call<'_>) -> Result<(), Pause> {
    if let Some(answer) = call.answer {
        reply_done(call, answer);
        return Ok(());
    }
    let wanted = match parse_migrate(&call.args[2..]) {
        Ok(wanted) => wanted,
        Err(text) => {
            call.reply.error(&text);
            return Ok(());
        }
    };
    let node = call.engine.node();
    let map = node.map();
    let target = map.servers.iter().find(|server| {
        server.id.node_name(map.cluster).as_bytes() == wanted.node.to_ascii_lowercase()
    });
    let Some(target) = target else {
        let id = super::printable(&wanted.node, 64);
        call.reply.error(format!("ERR Unknown node name: {id}"));
        return Ok(());
    };
    Err(Pause::Ask(Ask::Migrate {
        ranges: wanted.ranges,
        source: Some(node.me()),
        target: target.id,
        policy: wanted.policy,
    }))
}

fn cancel_slot_migrations(call: &mut Call<'_>) -> Result<(), Pause> {
    match call.answer {
        None => Err(Pause::Ask(Ask::Cancel { source: Some(call.engine.node().me()) })),
        Some(answer) => {
            reply_done(call, answer);
            Ok(())
        }
    }
}

/// The reply to a request that the coordinator has answered with no more than yes or no.
pub(super) fn reply_done(call: &mut Call<'_>, answer: &Answer) {
    match answer {
        Answer::Refused(reason) => call.reply.error(format!("ERR {reason}")),
        Answer::Cancelled(0) => call.reply.error("ERR No migrations ongoing"),
        Answer::Started(_) | Answer::Cancelled(_) | Answer::Flushed | Answer::Migrations(_) => {
            call.reply.simple("OK");
        }
    }
}

fn get_slot_migrations(call: &mut Call<'_>) -> Result<(), Pause> {
    let reports = match call.answer {
        None => return Err(Pause::Ask(Ask::List)),
        Some(Answer::Migrations(reports)) => reports,
        Some(answer) => {
            reply_done(call, answer);
            return Ok(());
        }
    };
    let node = call.engine.node();
    let me = node.me();
    let mine: Vec<_> =
        reports.iter().filter(|report| report.source == me || report.target == me).collect();
    let name = |server| node.name_of(server);
    let reply = &mut call.reply;
    reply.array(mine.len());
    for report in mine {
        let texts = describe_texts(report, me, name);
        let numbers = describe_numbers(report);
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

/// The name by which people refer to a migration: 40 hexadecimal digits, as in Valkey.
fn migration_name(migration: MigrationId) -> String {
    format!("{:040x}", migration.0)
}

fn describe_texts(
    report: &MigrationReport,
    me: ServerId,
    name: impl Fn(ServerId) -> String,
) -> Vec<(&'static str, String)> {
    let (first, last) = report.range.slots();
    let state = match report.state {
        MigrationState::Queued => "queued",
        MigrationState::Preparing => "preparing",
        MigrationState::Moving => "moving",
        MigrationState::Releasing => "releasing",
        MigrationState::Success => "success",
        MigrationState::Cancelled => "cancelled",
        MigrationState::Failed => "failed",
    };
    vec![
        ("name", migration_name(report.migration)),
        ("operation", if report.source == me { "EXPORT" } else { "IMPORT" }.to_string()),
        ("slot_ranges", format!("{}-{}", first.0, last.0)),
        ("target_node", name(report.target)),
        ("source_node", name(report.source)),
        ("state", state.to_string()),
        ("message", report.message.clone()),
    ]
}

/// Valkey's fields, then ours: how far the move is, and how long flip to last replay took.
fn describe_numbers(report: &MigrationReport) -> Vec<(&'static str, u64)> {
    let progress = &report.progress;
    let remaining = match progress.records {
        0 => 0,
        records => {
            let left = progress.records_total.saturating_sub(records);
            (u128::from(progress.bytes) * u128::from(left) / u128::from(records)) as u64
        }
    };
    vec![
        ("create_time", report.created.0 / 1000),
        ("last_update_time", report.updated.0 / 1000),
        ("last_ack_time", report.updated.0 / 1000),
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
