//! A server of a cluster, and connections of clients without sockets.

#![allow(dead_code, reason = "each test file uses its part")]

use backup::Replicas;
use front::Operators;
use front::core::{Connections, Core};
use node::{Engine, LogPlacement, Node, NodeSettings, Plan, Replication, ServerIdentity};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Store, StoreConfig};
use types::{ClusterId, ConnectionId, HashSeed, ReactorId, ServerId};

pub(crate) const CLUSTER: ClusterId = ClusterId(1);
/// The server under test.
pub(crate) const ME: ServerId = ServerId(2);
pub(crate) const REACTORS: u16 = 2;

/// Connections of clients.
#[derive(Default)]
pub(crate) struct Sockets {
    pub(crate) outputs: BTreeMap<ConnectionId, Vec<u8>>,
}

impl Connections for Sockets {
    fn output(&mut self, connection: ConnectionId) -> &mut Vec<u8> {
        self.outputs.entry(connection).or_default()
    }

    fn resume_reading(&mut self, _connection: ConnectionId) {}

    fn pause_reading(&mut self, _connection: ConnectionId) {}

    fn close_after_flush(&mut self, _connection: ConnectionId) {}
}

/// Starts the server, with `disk` for replicas of other servers' logs.
pub(crate) fn start(plan: Plan, disk: Replicas, memory_bytes: usize) -> (Arc<Node>, Vec<Core>) {
    start_with(Replication::new(plan, ME, REACTORS, disk), memory_bytes)
}

/// Starts the server with this replication of its log.
pub(crate) fn start_with(replication: Replication, memory_bytes: usize) -> (Arc<Node>, Vec<Core>) {
    let settings = NodeSettings {
        host: "here".to_owned(),
        client_port: 2,
        bus_port: 102,
        memory_bytes,
        reactors: REACTORS,
        is_cluster: true,
        cuts: node::Cuts::default(),
    };
    let store = StoreConfig {
        memory_bytes,
        reactors: REACTORS,
        seed: HashSeed::new(1),
        huge_pages: false,
        durable: replication.placement() != LogPlacement::Nowhere,
        segment_bytes: None,
    };
    let store = Store::new(store).expect("memory for a small store");
    let identity = ServerIdentity { cluster: CLUSTER, server: ME };
    let node = Node::new(settings, identity, store, Arc::new(replication), Arc::default());
    node.set_linked(true);
    let operators = Arc::new(Operators::new(REACTORS));
    let core =
        |reactor| Core::new(Engine::new(node.clone(), ReactorId(reactor)), operators.clone());
    let cores = (0..REACTORS).map(core).collect();
    (node, cores)
}
