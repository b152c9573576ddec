//! Bytes that wait for another segment's entries are sent in the turn that acknowledges these.

mod common;
#[path = "common/whole_map.rs"]
mod whole_map;

use backup::MemoryDisk;
use common::{CLUSTER, ME, Sockets};
use front::Operators;
use front::core::Core;
use node::{Cuts, Engine, Mode, Node, NodeSettings, RecoveredLog, Replication, ServerIdentity};
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreConfig};
use types::{ConnectionId, HashSeed, Instant, ReactorId, UnixMillis};
use whole_map::whole_map;
use wire::control::FromCoordinator;
use wire::replica::BootId;

const MEMORY_BYTES: usize = 64 << 20;
const WALL: u64 = 1_700_000_000_000;
/// Turns within which everything that was written is acknowledged.
const TURNS_TO_REST: usize = 10;
const CLIENT: ConnectionId = ConnectionId::from_number(0);

/// Starts a standalone server with one reactor, whose segments have 64 KiB.
fn standalone() -> Core {
    let store = Store::new(StoreConfig {
        memory_bytes: MEMORY_BYTES,
        reactors: 1,
        seed: HashSeed::new(1),
        huge_pages: false,
        durable: true,
        segment_bytes: Some(64 << 10),
    });
    let store = store.expect("memory for a small store");
    let settings = NodeSettings {
        host: "here".to_owned(),
        client_port: 2,
        bus_port: 102,
        memory_bytes: MEMORY_BYTES,
        reactors: 1,
        is_cluster: false,
        cuts: Cuts::default(),
    };
    let identity = ServerIdentity { cluster: CLUSTER, server: ME };
    let log = RecoveredLog::find(Arc::new(MemoryDisk::new()), BootId::default());
    let log = log.expect("an empty disk");
    let alone = Replication::alone(log, identity, Mode::Interval, 1, &store).expect("an empty log");
    let node = Node::new(settings, identity, store, Arc::new(alone), Arc::default());
    node.set_linked(true);
    Core::new(Engine::new(node, ReactorId(0)), Arc::new(Operators::new(1)))
}

#[test]
fn a_batch_that_waits_for_the_end_of_its_reactors_last_segment_is_sent_in_its_turn() {
    let (mut core, mut sockets, mut now) = (standalone(), Sockets::default(), Instant(0));
    core.begin_turn(now, UnixMillis(WALL));
    for is_born in [true, false] {
        core.on_control(FromCoordinator::Map(whole_map(CLUSTER, ME, is_born)));
    }
    core.open(CLIENT, "127.0.0.1:40000".into(), &mut sockets);
    // The batch replaces the value that was written before it in the same turn. In some turns it is
    // in the next segment.
    for round in 0..40 {
        let value = "v".repeat(10_000 + 100 * round);
        let input = format!("SET a {value}\r\nMSET a {value} b {value}\r\n");
        turn(&mut core, &mut sockets, &mut now, &input);
        assert!(!core.engine_mut().keeps_back(), "round {round} ends with unsent bytes");
        // The disk begins a replica of the new segment, and the manifest registers it.
        for _ in 0..TURNS_TO_REST {
            for job in std::mem::take(&mut core.engine_mut().out.disk) {
                core.on_disk(job.carry_out());
            }
            turn(&mut core, &mut sockets, &mut now, "");
        }
    }
}

/// Runs a turn in which the client's input arrives.
fn turn(core: &mut Core, sockets: &mut Sockets, now: &mut Instant, input: &str) {
    *now = *now + Duration::from_millis(1);
    core.begin_turn(*now, UnixMillis(WALL + now.0 / 1_000_000));
    assert_eq!(core.receive(CLIENT, input.as_bytes(), sockets), Some(input.len()));
    core.end_of_input(sockets);
    core.tick(*now, sockets);
}
