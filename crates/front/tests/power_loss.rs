//! A standalone server with two reactors on a machine that loses power. In the mode `interval` it
//! comes back with the state of one moment, of the last two seconds at most. The end of the process
//! alone loses nothing, nor does an orderly end. In the mode `memory` each key comes back with a
//! value of the last seconds.

mod common;

use backup::{Faults, MemoryDisk};
use common::{IDENTITY, REACTORS, Sockets, Standalone};
use fastrand::Rng;
use front::core::Core;
use node::{DiskJob, Mode, Node};
use std::sync::Arc;
use std::time::Duration;
use types::{ConnectionId, Instant, UnixMillis};
use wire::control::FromCoordinator;

#[path = "common/whole_map.rs"]
mod whole_map;
use whole_map::whole_map;

const SEGMENT_BYTES: usize = 128 << 10;
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);
/// Pairs of keys, each written as a whole.
const PAIRS: usize = 5;
/// Keys of a group that is written once.
const KEYS: usize = 200;
/// Virtual time from one turn to the next.
const TURN: Duration = Duration::from_millis(2);
/// Longest time for which acknowledged writes may be lost: an interval, the one in which its mark
/// becomes durable, and some turns.
const LOSS_MAX: Duration = Duration::from_millis(2_100);

/// Longest time for which acknowledged writes may be lost in the mode `memory`: the time from one
/// sync to the next, and some turns.
const MEMORY_LOSS_MAX: Duration = Duration::from_millis(5_200);

/// A write of a pair.
struct PairWrite {
    reactor: usize,
    pair: usize,
    number: u64,
    at: Instant,
}

struct World {
    rng: Rng,
    server: Standalone,
    disk: MemoryDisk,
    boot: u8,
    node: Arc<Node>,
    cores: Vec<Core>,
    sockets: Sockets,
    /// Disk jobs of each reactor that have not been carried out.
    jobs: Vec<Vec<DiskJob>>,
    now: Instant,
    connections: u64,
    numbers: u64,
    writes: Vec<PairWrite>,
    /// Last write that survives, as `WAITAOF` has told.
    safe: u64,
}

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    PowerCut,
    /// In order, and the machine loses power afterwards.
    InOrder,
}

impl World {
    fn new(seed: u64) -> World {
        World::of(seed, Mode::Interval, 64 << 20)
    }

    fn of(seed: u64, mode: Mode, memory_bytes: usize) -> World {
        let disk = MemoryDisk::new();
        let (reactors, segment_bytes) = (REACTORS, SEGMENT_BYTES);
        let server = Standalone { mode, reactors, memory_bytes, segment_bytes };
        let (node, cores) = server.start(&disk, 1);
        let mut world = World {
            rng: Rng::with_seed(seed),
            server,
            disk,
            boot: 1,
            node,
            cores,
            sockets: Sockets::default(),
            jobs: (0..REACTORS).map(|_| Vec::new()).collect(),
            now: Instant(0),
            connections: 0,
            numbers: 0,
            writes: Vec::new(),
            safe: 0,
        };
        world.begin();
        world
    }

    /// Lets the server load its log and serve.
    fn begin(&mut self) {
        for is_born in [true, false] {
            let map = whole_map(IDENTITY.cluster, IDENTITY.server, is_born);
            self.cores[0].on_control(FromCoordinator::Map(map));
        }
        let mut turns = 0;
        while self.cores[0].engine_mut().is_loading() || turns < 20 {
            self.turn();
            turns += 1;
            assert!(turns < 10_000, "the log is not loaded");
        }
    }

    /// Runs a turn of every reactor, and some of the disk jobs.
    fn turn(&mut self) {
        self.now = self.now + TURN;
        for reactor in 0..self.cores.len() {
            let core = &mut self.cores[reactor];
            core.begin_turn(self.now, WALL);
            core.end_of_input(&mut self.sockets);
            core.tick(self.now, &mut self.sockets);
            core.quantum(self.now, &mut self.sockets);
            self.jobs[reactor].append(&mut core.engine_mut().out.disk);
            while !self.jobs[reactor].is_empty() && self.rng.u8(..3) != 0 {
                let job = self.jobs[reactor].remove(0);
                self.cores[reactor].on_disk(job.carry_out());
            }
        }
    }

    /// Sends a request to a reactor, and returns the reply.
    fn ask(&mut self, reactor: usize, line: &str) -> String {
        self.connections += 1;
        let connection = ConnectionId::from_number((reactor as u64) << 48 | self.connections);
        let core = &mut self.cores[reactor];
        core.open(connection, "127.0.0.1:1000".to_owned(), &mut self.sockets);
        core.receive(connection, format!("{line}\r\n").as_bytes(), &mut self.sockets);
        // Output leaves a server at the end of a turn, when the turn's bytes are written.
        self.turn();
        let mut turns = 0;
        while self.sockets.outputs.get(&connection).is_none_or(Vec::is_empty) {
            self.turn();
            turns += 1;
            assert!(turns < 2_000, "no reply to {line}");
        }
        let output = self.sockets.outputs.remove(&connection).unwrap_or_default();
        String::from_utf8(output).expect("replies of these tests are text")
    }

    fn write(&mut self) {
        let reactor = self.rng.usize(..self.cores.len());
        let padding = self.rng.usize(..2_000);
        self.write_to(reactor, padding);
    }

    fn write_to(&mut self, reactor: usize, padding: usize) {
        let pair = self.rng.usize(..PAIRS);
        self.numbers += 1;
        let number = self.numbers;
        let value = format!("{number:07}{}", "x".repeat(padding));
        let reply = self.ask(reactor, &format!("MSET one:{pair} {value} two:{pair} {value}"));
        assert_eq!(reply, "+OK\r\n");
        self.writes.push(PairWrite { reactor, pair, number, at: self.now });
    }

    /// Waits until the writes of a reactor survive a loss of power.
    fn wait_for_disk(&mut self) {
        let reactor = self.rng.usize(..self.cores.len());
        let last = self.writes.iter().rev().find(|it| it.reactor == reactor);
        let last = last.map_or(0, |it| it.number);
        assert_eq!(self.ask(reactor, "WAITAOF 1 0 0"), "*2\r\n:1\r\n:0\r\n");
        self.safe = self.safe.max(last);
    }

    fn read(&mut self, name: &str) -> u64 {
        let reply = self.ask(0, &format!("GET {name}"));
        reply
            .split("\r\n")
            .nth(1)
            .filter(|it| it.len() >= 7)
            .map_or(0, |value| value[..7].parse().expect("values begin with their numbers"))
    }

    /// Ends the process, and starts another one that finds the disk.
    fn restart(&mut self, end: End) {
        if end == End::InOrder {
            self.node.durability().end_in_order(self.node.store(), IDENTITY).expect("a whole disk");
        }
        self.start_again(end != End::Killed);
    }

    /// Starts another process after the end of this one, or of its machine.
    fn start_again(&mut self, loses_power: bool) {
        self.cores.clear();
        self.jobs.iter_mut().for_each(Vec::clear);
        self.disk.kill_process();
        if loses_power {
            let rng = &mut self.rng;
            self.disk.power_cut(&mut |below| rng.usize(..below));
            self.boot += 1;
        }
        (self.node, self.cores) = self.server.start(&self.disk, self.boot);
        self.begin();
    }

    /// Checks, key by key, that only writes of the last seconds are lost.
    fn check_each(&mut self, ended: Instant) {
        for (pair, key) in (0..PAIRS).flat_map(|pair| ["one", "two"].map(|key| (pair, key))) {
            let found = self.read(&format!("{key}:{pair}"));
            let of_pair = self.writes.iter().filter(|it| it.pair == pair);
            let is_old = |it: &&PairWrite| ended.since(it.at) > MEMORY_LOSS_MAX;
            let oldest = of_pair.clone().filter(is_old).map(|it| it.number).max().unwrap_or(0);
            let is_written = found == 0 || of_pair.clone().any(|it| it.number == found);
            assert!(
                is_written && oldest <= found,
                "{key}:{pair} is {found}, not {oldest} or later"
            );
        }
        // Lost writes are not expected after the next loss of power, however old they are then.
        self.writes.iter_mut().for_each(|it| it.at = Instant(u64::MAX));
    }

    /// Sets some keys, or deletes them.
    fn change_keys(&mut self, prefix: &str, are_set: bool) {
        for number in 0..KEYS {
            let reactor = self.rng.usize(..self.cores.len());
            let (line, expected) = match are_set {
                true => (format!("SET {prefix}:{number} {}", "x".repeat(1_000)), "+OK\r\n"),
                false => (format!("DEL {prefix}:{number}"), ":1\r\n"),
            };
            assert_eq!(self.ask(reactor, &line), expected);
        }
    }

    /// Counts the keys with this prefix.
    fn count_keys(&mut self, prefix: &str) -> usize {
        (0..KEYS).filter(|key| self.ask(0, &format!("EXISTS {prefix}:{key}")) == ":1\r\n").count()
    }

    /// Lets all syncs fail for some turns.
    fn fail_syncs(&mut self, turns: usize) {
        self.disk.set_faults(Faults { syncs_fail: true, ..Faults::default() });
        (0..turns).for_each(|_| self.turn());
        self.disk.set_faults(Faults::default());
    }

    /// Returns the number of replicas of segments of data that have another replica.
    fn copies(&self) -> usize {
        let ids = self.node.durability().disk().ids().into_iter();
        let segments: Vec<_> = ids.map(|id| id.segment).filter(|it| !it.is_manifest()).collect();
        segments.windows(2).filter(|two| two[0] == two[1]).count()
    }

    /// Checks that the pairs have the values of one moment, and returns how many writes are lost.
    fn check(&mut self, end: End, ended: Instant) -> usize {
        let found: Vec<u64> = (0..PAIRS)
            .map(|pair| {
                let [one, two] = ["one", "two"].map(|key| self.read(&format!("{key}:{pair}")));
                assert_eq!(one, two, "half of a write of pair {pair} is there after {end:?}");
                one
            })
            .collect();
        let last = found.iter().copied().max().unwrap_or(0);
        for (pair, found) in found.iter().enumerate() {
            let mut until = self.writes.iter().filter(|it| it.pair == pair && it.number <= last);
            let expected = until.next_back().map_or(0, |it| it.number);
            assert_eq!(*found, expected, "pair {pair}, when {last} is there, after {end:?}");
        }
        assert!(self.safe <= last, "write {} was on the disk, {last} is the last", self.safe);
        let is_lost = |it: &&PairWrite| it.number > last;
        for lost in self.writes.iter().filter(is_lost) {
            assert_eq!(end, End::PowerCut, "write {} is lost", lost.number);
            assert!(ended.since(lost.at) <= LOSS_MAX, "{:?} are lost", ended.since(lost.at));
        }
        let before = self.writes.len();
        self.writes.retain(|it| it.number <= last);
        before - self.writes.len()
    }
}

#[test]
fn a_standalone_server_comes_back_with_the_state_of_one_moment() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        for _ in 0..6 {
            for _ in 0..world.rng.usize(1..2_000) {
                match world.rng.u32(..1_000) {
                    0 => world.wait_for_disk(),
                    1..250 => world.turn(),
                    _ => world.write(),
                }
            }
            let end =
                [End::Killed, End::PowerCut, End::PowerCut, End::InOrder][world.rng.usize(..4)];
            let ended = world.now;
            world.restart(end);
            lost += world.check(end, ended);
        }
    }
    assert!(lost > 100, "{lost} writes are lost: the power cuts test nothing");
}

/// One sync makes all deletes of a second durable, and a turn removes few words of the index.
#[test]
fn tombstones_of_many_deletes_leave_the_index_as_background_work() {
    let mut world = World::new(1);
    for part in 0..20 {
        let keys = (0..100).map(|number| format!("key:{part}:{number}"));
        let pairs: Vec<_> = keys.clone().map(|key| format!("{key} value")).collect();
        assert_eq!(world.ask(0, &format!("MSET {}", pairs.join(" "))), "+OK\r\n");
        let keys: Vec<_> = keys.collect();
        assert_eq!(world.ask(0, &format!("DEL {}", keys.join(" "))), ":100\r\n");
    }
    let has_tombstones =
        |world: &mut World| world.cores[0].engine_mut().worker.reclamation_share().is_some();
    let mut turns = 0;
    while !has_tombstones(&mut world) {
        world.turn();
        turns += 1;
        assert!(turns < 2_000, "the deletes are not synced");
    }
    let mut quanta = 0;
    while has_tombstones(&mut world) {
        assert!(world.cores[0].has_background(), "the reactor would sleep");
        world.cores[0].quantum(world.now, &mut world.sockets);
        quanta += 1;
        assert!(quanta < 100, "quanta do not reclaim the tombstones");
    }
}

/// A failed sync leaves bytes in memory only until their segment is copied.
#[test]
fn an_orderly_end_calls_nothing_whole_that_the_disk_lacks() {
    let mut refused = 0;
    for seed in 0..40 {
        let mut world = World::new(seed);
        (0..world.rng.usize(1..300)).for_each(|_| world.write());
        let written = world.now;
        let turns = world.rng.usize(1..700);
        world.fail_syncs(turns);
        (0..world.rng.usize(..10)).for_each(|_| world.turn());
        let ended = world.node.durability().end_in_order(world.node.store(), IDENTITY);
        refused += usize::from(ended.is_err());
        world.start_again(true);
        world.check(if ended.is_ok() { End::InOrder } else { End::PowerCut }, written);
    }
    assert!((5..35).contains(&refused), "{refused} of 40 orderly ends have failed");
}

/// The process is killed while a segment is copied whose sync has failed. The system returns its
/// bytes, but the disk does not have them.
#[test]
fn a_restart_relies_on_no_replica_with_a_failed_sync() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        (0..20).for_each(|_| world.write_to(0, 0));
        world.fail_syncs(600);
        let mut turns = 0;
        while world.copies() == 0 {
            world.turn();
            turns += 1;
            assert!(turns < 1_000, "the segment is not copied");
        }
        (0..world.rng.usize(..3)).for_each(|_| world.turn());
        let ended = world.now;
        world.restart(End::Killed);
        assert_eq!(world.check(End::Killed, ended), 0);
        (0..2_000).for_each(|_| world.turn());
        assert_eq!(world.copies(), 0, "replicas that are not needed are freed");
        world.restart(End::PowerCut);
        assert_eq!(world.check(End::PowerCut, ended), 0);
    }
}

/// Segments leave the log, files are used again and manifest segments follow each other while little
/// is synced. Nothing that was written earlier depends on what the power cut takes.
#[test]
fn a_server_in_memory_mode_loses_the_last_seconds_and_nothing_else() {
    for seed in 0..6 {
        let mut world = World::of(seed, Mode::Memory, 8 << 20);
        world.change_keys("old", true);
        world.change_keys("gone", true);
        (0..1_000).for_each(|_| world.write());
        world.change_keys("gone", false);
        for _ in 0..3 {
            (0..3_000 + world.rng.usize(..1_000)).for_each(|_| world.write());
            let ended = world.now;
            world.start_again(true);
            world.check_each(ended);
            assert_eq!((world.count_keys("old"), world.count_keys("gone")), (KEYS, 0));
        }
    }
}

#[test]
fn a_server_at_rest_records_one_mark_and_syncs_no_more() {
    let mut world = World::new(1);
    (0..20).for_each(|_| world.write());
    let counter = world.node.store().version();
    (0..2_000).for_each(|_| world.turn());
    let mark = world.node.durability().version_mark();
    assert!(mark.is_some_and(|mark| mark >= counter), "{mark:?} is below {counter}");
    let files =
        |world: &World| (0..20).map(|n| world.disk.contents(backup::FileNumber(n))).collect();
    let before: Vec<Vec<u8>> = files(&world);
    (0..5_000).for_each(|_| world.turn());
    assert_eq!(files(&world), before, "something is written at rest");
    assert_eq!(world.node.durability().version_mark(), mark);
}
