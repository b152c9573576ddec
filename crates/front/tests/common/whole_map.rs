//! The map of a cluster of one server.

use types::limits::TABLES_MAX;
use types::{ClusterId, HashRange, Incarnation, OwnershipEpoch, ServerId};
use wire::control::{ClusterMap, ServerInfo, TabletInfo};

/// Returns a map in which the server owns everything.
pub(crate) fn whole_map(cluster: ClusterId, server: ServerId, is_born: bool) -> ClusterMap {
    let me = ServerInfo {
        id: server,
        host: "here".into(),
        client_port: 7000,
        bus_port: 7001,
        connected: true,
        rack: String::new(),
        is_dead: false,
        in_recovery: false,
    };
    let tablet = TabletInfo {
        range: HashRange::ALL,
        owner: server,
        epoch: OwnershipEpoch(1),
        incarnations: (0..TABLES_MAX).map(|_| Incarnation::MAX).collect(),
        is_born,
    };
    ClusterMap { version: 1, cluster, servers: vec![me], tablets: vec![tablet], moving: Vec::new() }
}
