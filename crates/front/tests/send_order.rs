//! Bytes that wait for another segment's entries are sent in the turn that acknowledges these.

mod common;
#[path = "common/whole_map.rs"]
mod whole_map;

use backup::MemoryDisk;
use common::{CLUSTER, ME, Sockets, start_alone};
use front::core::Core;
use std::time::Duration;
use types::{ConnectionId, Instant, UnixMillis};
use whole_map::whole_map;
use wire::control::FromCoordinator;

const SEGMENT_BYTES: usize = 64 << 10;
const WALL: u64 = 1_700_000_000_000;
/// Turns within which everything that was written is acknowledged.
const TURNS_TO_REST: usize = 10;
const CLIENT: ConnectionId = ConnectionId::from_number(0);

#[test]
fn a_batch_that_waits_for_the_end_of_its_reactors_last_segment_is_sent_in_its_turn() {
    let (_, mut cores) = start_alone(&MemoryDisk::new(), 1, 1, SEGMENT_BYTES);
    let mut core = cores.remove(0);
    let (mut sockets, mut now) = (Sockets::default(), Instant(0));
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
