//! One server, shared by its reactors: its state, and its migrations and recoveries.

use crate::machines::Machines;
use crate::replicated::Replication;
use crate::settings::{NodeSettings, ServerIdentity};
use crate::state::NodeState;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use store::{Store, Tablet, TabletState};
use types::{ServerId, Slot, slot_of};
use wire::control::{
    ClusterMap, HeldMigration, HeldState, HeldTablet, Holdings, Intent, RecoveryLog,
};

/// One server, shared by its reactors. Its machines are apart from the state that components use:
/// a component that runs within a machine cannot name them.
pub struct Node {
    state: NodeState,
    machines: Mutex<Machines>,
}

impl Deref for Node {
    type Target = NodeState;

    fn deref(&self) -> &NodeState {
        &self.state
    }
}

/// Returns a tablet in the form that is reported to the coordinator. `depends_on` is the dead
/// server's log that it needs.
fn held(tablet: &Tablet, depends_on: Option<RecoveryLog>) -> HeldTablet {
    let state = match tablet.state {
        TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => {
            HeldState::Owned
        }
        TabletState::Frozen | TabletState::Leaving => HeldState::Leaving,
        TabletState::Recovering(_) => HeldState::Recovering,
    };
    let Tablet { range, epoch, incarnations, .. } = tablet;
    let incarnations = incarnations.to_vec();
    HeldTablet { range: *range, epoch: *epoch, incarnations, state, depends_on }
}

impl Node {
    /// Makes a server that holds no tablet and persists its log as `durability` specifies. Its
    /// owner sets `is_linked` while the coordinator is connected.
    pub fn new(
        settings: NodeSettings,
        identity: ServerIdentity,
        store: Arc<Store>,
        durability: Arc<Replication>,
        is_linked: Arc<AtomicBool>,
    ) -> Arc<Node> {
        let cuts = settings.cuts.for_segments(settings.reactors, store.log().segment_bytes());
        let machines = Machines { cuts, ..Machines::default() };
        let state = NodeState::new(settings, identity, store, durability, is_linked);
        Arc::new(Node { state, machines: Mutex::new(machines) })
    }

    /// Returns the number of pieces of background work that wait for a reactor.
    pub fn queued_work(&self) -> usize {
        self.work.len()
    }

    /// Locks the machines for reading.
    pub(crate) fn machines(&self) -> impl Deref<Target = Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes machines, and publishes the values that every turn reads before it unlocks them.
    /// Wakes all reactors if the replication of recovered segments may begin.
    pub(crate) fn change_machines<T>(&self, change: impl FnOnce(&mut Machines) -> T) -> T {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut machines);
        if self.demands.publish(machines.demands()) {
            self.wake_all();
        }
        result
    }

    /// Returns everything this server holds, for a coordinator that rebuilds its state.
    pub(crate) fn holdings(&self) -> Holdings {
        let machines = self.machines();
        let sources = machines.sources.values().filter(|side| !side.machine.is_over());
        let sources = sources.filter_map(|side| Some((side.machine.intent()?, false)));
        let targets = machines.targets.values().filter(|side| !side.machine.is_over());
        let targets = targets
            .filter_map(|side| Some((side.machine.intent()?, side.driver.arrival().is_some())));
        let migration = |(intent, is_accepted): (&Intent, bool)| HeldMigration {
            intent: Intent::clone(intent),
            is_accepted,
        };
        let tablet = |tablet: &Tablet| held(tablet, machines.dependency_of(tablet));
        let is_backup = self.durability().is_with_others();
        Holdings {
            seed: self.store().seed().number(),
            manifest_log: self.durability().recorded_manifest().filter(|_| is_backup),
            tablets: self.store().tablets().iter().map(tablet).collect(),
            migrations: sources.chain(targets).map(migration).collect(),
            logs: if is_backup { self.durability().kept_logs() } else { Vec::new() },
        }
    }

    /// Returns the Redis error for a key that this server does not own: a redirection, or that
    /// the slot is not served. Returns `None` if the request should wait: no owner is known, or
    /// this server is about to become the owner, or the range is being recovered.
    pub fn redirection(&self, key: &[u8]) -> Option<String> {
        self.redirection_of(slot_of(key))
    }

    /// Returns the same as [`Node::redirection`] for a key of this slot.
    pub fn redirection_of(&self, slot: Slot) -> Option<String> {
        let Some(owner) = self.owner_of(slot) else { return self.not_held(slot) };
        let map = self.map();
        let server = map.servers.iter().find(|server| server.id == owner)?;
        if server.is_dead {
            return self.not_served(slot, server.in_recovery);
        }
        // If the recorded owner is a previous process at this server's address, a MOVED to it
        // would loop back here. The same holds for a previous process that is the target of a
        // move: the source would redirect clients to it.
        let moves = map.moving.iter().filter(|(range, ..)| range.contains(slot.first_hash()));
        // Without replication a lost server is not declared dead soon, and the source may serve.
        let moves = moves.filter(|_| self.durability().is_with_others());
        let mut owners = moves.map(|(.., target)| *target).chain([owner]);
        if owners.any(|owner| self.is_former(&map, owner)) {
            return Some(
                "CLUSTERDOWN Hash slot not served: the server that held it is gone".into(),
            );
        }
        Some(format!("MOVED {} {}:{}", slot.0, server.host, server.client_port))
    }

    /// Returns whether `id` is an earlier process at this address, not declared dead yet.
    fn is_former(&self, map: &ClusterMap, id: ServerId) -> bool {
        let mut servers = map.servers.iter().filter(|server| server.id == id && id != self.me());
        let here = (&self.settings().host, self.settings().client_port);
        servers.any(|server| !server.is_dead && (&server.host, server.client_port) == here)
    }

    fn owner_of(&self, slot: Slot) -> Option<ServerId> {
        let hash = slot.first_hash();
        // An accepted flip takes effect before the coordinator's map shows it.
        if let Some(to) = self.machines().left_to(hash) {
            return Some(to);
        }
        let map = self.map();
        let owner = map.tablet_at(hash)?.owner;
        if owner == self.me() && planted::is(planted::Bug::RedirectedWhileHeld) {
            return map.servers.iter().map(|server| server.id).find(|other| *other != owner);
        }
        (owner != self.me()).then_some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mode, Plan};
    use super::*;
    use ::backup::{MemoryDisk, Replicas};
    use protocols::migration::Cuts;
    use store::StoreConfig;
    use types::{ClusterId, HashRange, HashSeed, OwnershipEpoch};
    use wire::control::{ServerInfo, TabletInfo};
    use wire::replica::BootId;

    const CLUSTER: ClusterId = ClusterId(1);

    fn small_node() -> Arc<Node> {
        node_with(Replication::nowhere(ServerId(3), 1))
    }

    fn replicated_node() -> Arc<Node> {
        let disk = Arc::new(MemoryDisk::default());
        let opened = Replicas::open(disk, BootId([1; 16]));
        let disk = opened.expect("an empty disk can be read").replicas;
        let plan = Plan { mode: Mode::Memory, replicas: 1, scrub: None };
        node_with(Replication::new(plan, ServerId(3), 1, disk))
    }

    fn node_with(durability: Replication) -> Arc<Node> {
        let settings = NodeSettings {
            host: "here".to_owned(),
            client_port: 1,
            bus_port: 2,
            memory_bytes: 64 << 20,
            reactors: 1,
            is_cluster: true,
            cuts: Cuts::default(),
        };
        let store = StoreConfig {
            memory_bytes: settings.memory_bytes,
            reactors: 1,
            seed: HashSeed::new(1),
            huge_pages: false,
            durable: false,
            segment_bytes: None,
        };
        let identity = ServerIdentity { cluster: CLUSTER, server: ServerId(3) };
        let store = Store::new(store).expect("memory for a small store");
        Node::new(settings, identity, store, Arc::new(durability), Arc::default())
    }

    fn server(id: u32, client_port: u16, is_dead: bool) -> ServerInfo {
        ServerInfo {
            id: ServerId(id),
            host: "here".into(),
            client_port,
            bus_port: 2,
            connected: false,
            rack: String::new(),
            is_dead,
            in_recovery: false,
        }
    }

    fn map(version: u64, servers: Vec<ServerInfo>, tablets: Vec<TabletInfo>) -> ClusterMap {
        ClusterMap { version, cluster: CLUSTER, servers, tablets, moving: Vec::new() }
    }

    #[test]
    fn clients_are_not_sent_to_our_own_address_for_what_an_earlier_process_held() {
        let node = small_node();
        for (owner, port, said) in [(1, 1, "CLUSTERDOWN Hash slot not served"), (2, 9, "MOVED ")] {
            let tablet = TabletInfo {
                range: HashRange::ALL,
                owner: ServerId(owner),
                epoch: OwnershipEpoch(1),
                incarnations: Vec::new(),
                is_born: false,
            };
            node.adopt(map(1, vec![server(owner, port, false)], vec![tablet]));
            let error = node.redirection(b"key").expect("somebody is known");
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn clients_are_not_sent_to_a_source_that_sends_them_to_a_target_of_our_address() {
        let (node, other) = (replicated_node(), small_node());
        let tablet = TabletInfo {
            range: HashRange::ALL,
            owner: ServerId(2),
            epoch: OwnershipEpoch(1),
            incarnations: Vec::new(),
            is_born: false,
        };
        let living = [server(1, 1, false), server(2, 9, false), server(4, 8, false)];
        let servers = [&living[..], &[server(5, 1, true)]].concat();
        let refused = "CLUSTERDOWN Hash slot not served";
        for (target, said) in [(1, refused), (3, "MOVED "), (4, "MOVED "), (5, "MOVED ")] {
            let moving = vec![(HashRange::ALL, ServerId(2), ServerId(target))];
            let map = ClusterMap { moving, ..map(1, servers.clone(), vec![tablet.clone()]) };
            other.adopt(map.clone());
            node.adopt(map);
            let error = node.redirection(b"key").expect("somebody is known");
            assert!(error.starts_with(said), "{target}: {error}");
            let error = other.redirection(b"key").expect("somebody is known");
            assert!(error.starts_with("MOVED "), "{target}: {error}");
        }
    }

    #[test]
    fn clients_wait_for_what_is_being_recovered_and_are_not_sent_to_the_dead() {
        let node = small_node();
        let tablet = TabletInfo {
            range: HashRange::ALL,
            owner: ServerId(2),
            epoch: OwnershipEpoch(1),
            incarnations: Vec::new(),
            is_born: false,
        };
        let in_recovery = ServerInfo { in_recovery: true, ..server(2, 9, true) };
        node.adopt(map(1, vec![in_recovery], vec![tablet.clone()]));
        assert_eq!(node.redirection(b"key"), None);
        node.adopt(map(1, vec![server(2, 9, true)], vec![tablet]));
        let error = node.redirection(b"key").expect("somebody is known");
        assert!(error.starts_with("CLUSTERDOWN Hash slot not served: its server died"), "{error}");
    }

    #[test]
    fn who_stands_in_no_map_any_more_is_dead() {
        let node = small_node();
        let dead = || node.dead().into_iter().map(|id| id.0).collect::<Vec<_>>();
        let all = vec![server(1, 1, false), server(2, 2, false), server(4, 4, true)];
        node.adopt(map(1, all, Vec::new()));
        assert_eq!(dead(), [4]);
        node.adopt(map(2, vec![server(2, 2, false), server(5, 5, false)], Vec::new()));
        assert_eq!(dead(), [1, 4]);
    }
}
