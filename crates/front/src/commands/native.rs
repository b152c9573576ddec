//! Commands for the native client: `BALLAST.MAP` and `BALLAST.SCAN`.

use super::command::flag::{ANYTIME, READONLY};
use super::command::{Family, Keys, command};
use super::scan::scan_while;
use super::slots::slot_ranges;
use super::{Call, Cause, Done, NotExecuted, refused};
use node::{Node, ShownMigration};
use resp::ReplyWriter;
use types::{KeyHash, ServerId, Slot};
use wire::control::{ClusterMap, ServerInfo};

pub(super) static FAMILY: Family = Family {
    group: "ballast",
    category: None,
    commands: &[
        command("ballast.map", 1, ANYTIME, Keys::None, map),
        command("ballast.scan", -2, READONLY, Keys::Unnamed, scan),
    ],
};

/// `BALLAST.MAP`: cluster, version of the map, servers, the owner of each range of slots, as the
/// position of a server, and the migrations. Ranges without a living owner are omitted. A server outside of clusters
/// names itself with an empty host: the client knows where it has connected.
fn map(call: &mut Call<'_>) -> Done {
    let node = call.backend.node();
    let map = node.map();
    let servers: Vec<&ServerInfo> = map.servers.iter().filter(|server| !server.is_dead).collect();
    let position = |id: ServerId| servers.iter().position(|server| server.id == id);
    let ranges = slot_ranges(&map).into_iter();
    let ranges: Vec<_> =
        ranges.filter_map(|(first, last, owner)| Some((first, last, position(owner)?))).collect();
    let addresses: Vec<_> = servers.iter().map(|server| address(node, &map, server)).collect();
    let migrations = node.shown_migrations().into_iter();
    let migrations: Vec<_> = migrations
        .filter_map(|it| Some((position(it.source)?, position(it.target)?, it)))
        .collect();
    let reply = &mut call.reply;
    reply.map(5);
    reply.bulk(b"cluster");
    reply.bulk(format!("{:016x}", map.cluster.0).as_bytes());
    reply.bulk(b"version");
    reply.integer(i64::try_from(map.version).unwrap_or(i64::MAX));
    reply.bulk(b"servers");
    reply.array(addresses.len());
    for (name, host, port) in addresses {
        reply.array(3);
        reply.bulk(name.as_bytes());
        reply.bulk(host.as_bytes());
        reply.integer(i64::from(port));
    }
    reply.bulk(b"ranges");
    reply.array(ranges.len());
    for (first, last, owner) in ranges {
        reply.array(3);
        reply.integer(i64::from(first.0));
        reply.integer(i64::from(last.0));
        reply.integer(owner as i64);
    }
    reply.bulk(b"migrations");
    reply.array(migrations.len());
    for (source, target, migration) in migrations {
        let ShownMigration { slots: (first, last), missing, .. } = migration;
        reply.array(5);
        for number in [usize::from(first.0), usize::from(last.0), source, target] {
            reply.integer(number as i64);
        }
        missing_slots(reply, missing.as_deref());
    }
    Ok(())
}

/// Writes the slots of which records may still be at the source of a migration; null if this server
/// does not know them.
fn missing_slots(reply: &mut ReplyWriter<'_>, missing: Option<&[(Slot, Slot)]>) {
    let Some(missing) = missing else { return reply.null() };
    reply.array(missing.len());
    for (first, last) in missing {
        reply.array(2);
        reply.integer(i64::from(first.0));
        reply.integer(i64::from(last.0));
    }
}

/// Returns a server's node name, host and port for clients.
fn address<'m>(node: &Node, map: &ClusterMap, server: &'m ServerInfo) -> (String, &'m str, u16) {
    let host = if node.is_cluster() { server.host.as_str() } else { "" };
    (server.id.node_name(map.cluster), host, server.client_port)
}

/// `BALLAST.SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`: as `SCAN`, but never past the end
/// of a range that this server owns. If the cursor is in another server's range, the client is
/// redirected. So a client that scans all servers misses no key that moves meanwhile.
fn scan(call: &mut Call<'_>) -> Done {
    let table = call.session.status.table;
    scan_while(call, |call, from, steps| match call.backend.check_owned(table, from) {
        Ok(()) => Ok(true),
        Err(NotExecuted::Redirect) if steps > 0 => Ok(false),
        Err(NotExecuted::Redirect) => Err(redirect(call, from)),
        Err(next) => Err(next),
    })
}

/// Returns the redirection to the owner of a hash.
fn redirect(call: &Call<'_>, hash: KeyHash) -> NotExecuted {
    match call.backend.node().redirection_of(hash.slot()) {
        Some(moved) => refused(moved),
        // The newest map names this server, whose tablets are older.
        None => NotExecuted::Retry(Cause::Held),
    }
}
