//! Slots, servers and answers of the coordinator, as the commands of a cluster use them.

use super::{Call, Done, NotExecuted, parse_integer, printable, refused};
use node::Node;
use types::{SLOT_COUNT, ServerId, Slot};
use wire::control::{Answer, ClusterMap, ServerInfo, TabletInfo};

const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";

/// Returns the node, for a `CLUSTER` subcommand. Refuses it on a server outside of clusters.
pub(super) fn cluster_node<'c>(call: &'c Call<'_>) -> Result<&'c Node, NotExecuted> {
    let node = call.backend.node();
    if node.is_cluster() { Ok(node) } else { Err(refused(NO_CLUSTER)) }
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

/// Parses a slot number.
pub(super) fn parse_slot(argument: &[u8]) -> Option<Slot> {
    let slot = u16::try_from(parse_integer(argument)?).ok()?;
    (slot < SLOT_COUNT).then_some(Slot(slot))
}

/// Returns the server with this 40-digit node name. The error for another name begins with `unknown`.
pub(super) fn server_named(
    call: &Call<'_>,
    name: &[u8],
    unknown: &str,
) -> Result<ServerId, NotExecuted> {
    let map = call.backend.node().map();
    let wanted = name.to_ascii_lowercase();
    let is_it = |server: &&ServerInfo| server.id.node_name(map.cluster).as_bytes() == wanted;
    let found = map.servers.iter().find(is_it).map(|server| server.id);
    found.ok_or_else(|| refused(format!("ERR {unknown} {}", printable(name, 64))))
}

/// Returns the 40-digit node names of some servers.
pub(super) fn names_of<const N: usize>(call: &Call<'_>, servers: [ServerId; N]) -> [String; N] {
    servers.map(|server| call.backend.node().name_of(server))
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
        | Answer::Clocks(_)
        | Answer::Lease(_) => call.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClusterId, HashRange, OwnershipEpoch};

    #[test]
    fn neighbouring_tablets_of_one_owner_are_shown_as_one() {
        let tablet = |first, last, owner| TabletInfo {
            is_born: false,
            range: HashRange::of_slots(Slot(first), Slot(last)),
            owner: ServerId(owner),
            epoch: OwnershipEpoch(1),
            incarnations: Vec::new(),
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
