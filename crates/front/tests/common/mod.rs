//! A server of a cluster, and connections of clients without sockets.

#![allow(dead_code, reason = "each test file uses its part")]

use backup::{MemoryDisk, Replicas};
use front::Operators;
use front::core::{Connections, Core};
use node::{
    Engine, LogPlacement, Mode, Node, NodeSettings, Plan, RecoveredLog, Replication, ServerIdentity,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Store, StoreConfig};
use types::{ClusterId, ConnectionId, HashSeed, ReactorId, ServerId};
use wire::replica::BootId;

pub(crate) const CLUSTER: ClusterId = ClusterId(1);
/// The server under test.
pub(crate) const ME: ServerId = ServerId(2);
pub(crate) const IDENTITY: ServerIdentity = ServerIdentity { cluster: CLUSTER, server: ME };
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
    let is_durable = replication.placement() != LogPlacement::Nowhere;
    let store = new_store(REACTORS, memory_bytes, is_durable, None);
    new_cores(store, replication, REACTORS, memory_bytes, true)
}

/// Starts a standalone server in the mode `interval`, which finds this disk in this boot of its
/// machine.
pub(crate) fn start_alone(
    disk: &MemoryDisk,
    boot: u8,
    reactors: u16,
    segment_bytes: usize,
) -> (Arc<Node>, Vec<Core>) {
    let (mode, memory_bytes) = (Mode::Interval, 64 << 20);
    Standalone { mode, reactors, memory_bytes, segment_bytes }.start(disk, boot)
}

/// Parameters of a standalone server.
#[derive(Clone, Copy)]
pub(crate) struct Standalone {
    pub(crate) mode: Mode,
    pub(crate) reactors: u16,
    pub(crate) memory_bytes: usize,
    pub(crate) segment_bytes: usize,
}

impl Standalone {
    /// Starts the server, which finds this disk in this boot of its machine.
    pub(crate) fn start(self, disk: &MemoryDisk, boot: u8) -> (Arc<Node>, Vec<Core>) {
        let Standalone { mode, reactors, memory_bytes, segment_bytes } = self;
        let store = new_store(reactors, memory_bytes, true, Some(segment_bytes));
        let log = RecoveredLog::find(Arc::new(disk.clone()), BootId([boot; 16]));
        let log = log.expect("a whole disk");
        let alone = Replication::alone(log, IDENTITY, mode, reactors, &store);
        new_cores(store, alone.expect("a whole log"), reactors, memory_bytes, false)
    }
}

fn new_store(
    reactors: u16,
    memory_bytes: usize,
    durable: bool,
    segment_bytes: Option<usize>,
) -> Arc<Store> {
    let (seed, huge_pages) = (HashSeed::new(1), false);
    let config = StoreConfig { memory_bytes, reactors, seed, huge_pages, durable, segment_bytes };
    Store::new(config).expect("memory for a small store")
}

fn new_cores(
    store: Arc<Store>,
    replication: Replication,
    reactors: u16,
    memory_bytes: usize,
    is_cluster: bool,
) -> (Arc<Node>, Vec<Core>) {
    let settings = NodeSettings {
        host: "here".to_owned(),
        client_port: 2,
        bus_port: 102,
        memory_bytes,
        reactors,
        is_cluster,
        cuts: node::Cuts::default(),
    };
    let node = Node::new(settings, IDENTITY, store, Arc::new(replication), Arc::default());
    node.set_linked(true);
    let operators = Arc::new(Operators::new(reactors));
    let core =
        |reactor| Core::new(Engine::new(node.clone(), ReactorId(reactor)), operators.clone());
    let cores = (0..reactors).map(core).collect();
    (node, cores)
}
