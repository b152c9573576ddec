//! Random deaths: servers with replicated logs are killed, cut off and restarted on their disks.
//! Connections break, ranges move, and coordinators restart, at any moment.
//!
//! Masters write to their backups by rules 1 to 6 of `docs/design/replication.md`, at once and
//! without loss; only messages to and from the coordinator take time or are lost. Checked at
//! every step:
//! - Each hash has one owner and is in at most one recovery partition.
//! - Epochs rise, and no incarnation is held by two servers.
//! - No range is assigned while its dead owner can serve or acknowledge.
//! - A recovery master learns of every acknowledged segment, and gets all acknowledged data.
//!
//! At the end the dead own nothing, no migration is left, and no replica of their logs is kept.

mod hearing;
mod judging;
mod serving;
#[path = "../support/mod.rs"]
mod support;
mod writing;

use coordinator::{Caller, CoordinatorEvent, Effect, LinkId};
use serving::Held;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use support::{Storage, World, caller_of, join_of, migrate, slots};
use types::{
    HashRange, Incarnation, Instant, MigrationId, OwnershipEpoch, SegmentId, ServerId, Slot,
    TableId,
};
use wire::control::{
    Ask, ClusterMap, FromCoordinator, HistoryMark, Intent, JoinReply, LogRequest, LogUpdate,
    MigrationRequest, MigrationState, MigrationUpdate, RecoveryPartition, RecoveryRequest,
    RecoveryState, RecoveryUpdate, ReplicaInfo, TabletInfo, ToCoordinator,
};
use wire::manifest::{ManifestEntry, SegmentContent, SegmentRecord, encode};
use wire::replica::ReplicaEpoch;

/// Number of machines. A machine runs at most one process, and has one disk.
const MACHINES: usize = 5;
const REPLICAS: usize = 2;
/// Number of slots that move.
const SLOTS: u16 = 100;
/// Time from the fencing of a manifest backup to the end of its master's lease.
const LEASE: Duration = Duration::from_millis(100);

#[test]
fn whoever_dies_everything_has_one_owner_and_nothing_that_counted_is_lost() {
    let met = std::thread::scope(|scope| {
        let other = scope.spawn(|| run_histories((0..60).step_by(2)));
        let mut met = run_histories((1..60).step_by(2));
        for (name, count) in other.join().expect("the other half of the histories") {
            *met.entry(name).or_default() += count;
        }
        met
    });
    println!("{met:#?}");
    for name in [
        "died",
        "recovered",
        "SegmentsMissing",
        "handed back",
        "zombie",
        "adopted disk",
        "kept",
        "two logs",
        "served before it is safe",
        "inherited from two",
        "flushed what arrives",
    ] {
        assert!(met.contains_key(name), "nothing was {name}: the histories are too tame");
    }
}

/// Runs the histories of these seeds. Returns how often each remarkable event was met.
fn run_histories(seeds: impl Iterator<Item = u64>) -> BTreeMap<String, usize> {
    let mut met = BTreeMap::new();
    for seed in seeds {
        let storage = if seed % 20 == 0 { Storage::file() } else { Storage::memory() };
        let mut history = History::new(seed, storage);
        history.run(Duration::from_secs(10), true);
        history.run(Duration::from_secs(30), false);
        history.check_end();
        for (name, count) in history.met {
            *met.entry(name).or_default() += count;
        }
    }
    met
}

/// The content of a disk, which outlives processes.
type Disk = BTreeMap<(ServerId, bool, SegmentId), Vec<u8>>;

/// One server process.
#[derive(Debug, Default)]
struct Process {
    id: Option<ServerId>,
    connection: Option<LinkId>,
    /// Logs for which it accepts no more data.
    fenced: BTreeSet<ServerId>,
    log: Log,
    /// Partitions assigned to it.
    parts: BTreeMap<OwnershipEpoch, RecoveryPartition>,
    /// Partitions reported as replayed: it may already own them.
    replayed: BTreeSet<OwnershipEpoch>,
    /// Partitions that the coordinator knows to be in its log.
    kept: BTreeSet<OwnershipEpoch>,
    /// Intents by migration; `None` after the answer that it never accepts.
    intents: BTreeMap<MigrationId, Option<Intent>>,
    /// Running migrations to this server, with their sources.
    accepted: BTreeMap<MigrationId, ServerId>,
    held: BTreeMap<u16, Held>,
}

/// A master's own view of its log.
#[derive(Debug, Default)]
struct Log {
    /// Acknowledged segments, with their content if closed, and their backups.
    segments: BTreeMap<SegmentId, (Option<SegmentContent>, Vec<usize>)>,
    /// The recorded segment of the manifest log.
    manifest_log: Option<(SegmentId, Vec<usize>)>,
    /// The next segment, which has been announced to the coordinator.
    next: Option<(SegmentId, Vec<usize>)>,
    last: u64,
}

#[derive(Debug)]
enum Delivery {
    Up { connection: LinkId, message: ToCoordinator },
    Down { connection: LinkId, message: FromCoordinator },
    Connect { machine: usize, process: u64 },
    Start { machine: usize },
    Look { machine: usize },
    Disturb,
}

struct History {
    seed: u64,
    random: fastrand::Rng,
    world: World,
    /// Each machine's process, with its unique number.
    machines: Vec<Option<(u64, Process)>>,
    disks: Vec<Disk>,
    /// The last server on each disk, and its highest mark.
    formers: Vec<(Option<ServerId>, Option<HistoryMark>)>,
    deliveries: BTreeMap<(Instant, u64), Delivery>,
    arrivals: BTreeMap<(LinkId, bool), Instant>,
    numbers: u64,
    is_disturbed: bool,
    /// Acknowledged segments of each master, at the time of its last acknowledgment.
    counted: BTreeMap<ServerId, BTreeSet<SegmentId>>,
    /// Time at which a machine was first asked to fence a log.
    leases: BTreeMap<(usize, ServerId), Instant>,
    /// Logs with losses accepted by an operator.
    given_up: BTreeSet<ServerId>,
    /// Logs with assigned recovery partitions.
    handed_out: BTreeSet<ServerId>,
    /// Current epoch and incarnation of each slot.
    epochs: BTreeMap<u16, (OwnershipEpoch, Incarnation)>,
    /// Holder of each incarnation.
    incarnations: BTreeMap<Incarnation, ServerId>,
    part_incarnations: BTreeMap<Incarnation, OwnershipEpoch>,
    /// Items in each server's log, by slot, with the incarnations under which they were written.
    logs: BTreeMap<(ServerId, u16), BTreeMap<u64, Incarnation>>,
    /// Acknowledged items that have not been flushed.
    required: BTreeMap<u16, BTreeSet<u64>>,
    flushed: BTreeMap<u16, BTreeSet<u64>>,
    met: BTreeMap<String, usize>,
}

impl History {
    fn new(seed: u64, storage: Storage) -> History {
        let mut history = History {
            seed,
            random: fastrand::Rng::with_seed(seed),
            world: World::new(storage),
            machines: (0..MACHINES).map(|_| None).collect(),
            disks: vec![Disk::new(); MACHINES],
            formers: vec![(None, None); MACHINES],
            deliveries: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            numbers: 0,
            is_disturbed: true,
            counted: BTreeMap::new(),
            leases: BTreeMap::new(),
            given_up: BTreeSet::new(),
            handed_out: BTreeSet::new(),
            epochs: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            part_incarnations: BTreeMap::new(),
            logs: BTreeMap::new(),
            required: BTreeMap::new(),
            flushed: BTreeMap::new(),
            met: BTreeMap::new(),
        };
        history.world.shows_marks = true;
        for machine in 0..MACHINES {
            history.put(Duration::from_millis(machine as u64), Delivery::Start { machine });
            history.put(Duration::from_millis(300), Delivery::Look { machine });
        }
        history.run(Duration::from_secs(1), false);
        history.put(Duration::ZERO, Delivery::Disturb);
        history
    }

    fn meet(&mut self, what: &str) {
        *self.met.entry(what.to_owned()).or_default() += 1;
    }

    fn put(&mut self, after: Duration, delivery: Delivery) {
        self.numbers += 1;
        self.deliveries.insert((self.world.now() + after, self.numbers), delivery);
    }

    fn put_in_order(&mut self, connection: LinkId, up: bool, delivery: Delivery) {
        let most = if self.random.u8(..) < 20 { 60_000 } else { 2_000 };
        let delay = Duration::from_micros(self.random.u64(20..most));
        let arrival = self.arrivals.entry((connection, up)).or_default();
        *arrival = (*arrival).max(self.world.now() + delay);
        self.numbers += 1;
        self.deliveries.insert((*arrival, self.numbers), delivery);
    }

    fn run(&mut self, duration: Duration, is_disturbed: bool) {
        self.is_disturbed = is_disturbed;
        let end = self.world.now() + duration;
        while let Some((&(at, number), _)) = self.deliveries.first_key_value() {
            if at > end {
                break;
            }
            let delivery = self.deliveries.remove(&(at, number)).unwrap();
            // One point in time after the other: effects must be checked when they are sent.
            while let Some(due) = self.world.next_deadline().filter(|due| *due < at) {
                let effects = self.world.wait(due.since(self.world.now()));
                self.carry_out(effects);
            }
            let effects = self.world.wait(at.since(self.world.now()));
            self.carry_out(effects);
            self.deliver(delivery);
            self.check();
        }
        let effects = self.world.wait(end.since(self.world.now()));
        self.carry_out(effects);
    }

    fn deliver(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Up { connection, message } => {
                if self.machine_at(connection).is_some() {
                    let effects = self.world.say(connection, message);
                    self.carry_out(effects);
                }
            }
            Delivery::Down { connection, message } => {
                if let Some(machine) = self.machine_at(connection) {
                    self.hear(machine, message);
                }
            }
            Delivery::Connect { machine, process } => {
                if self.machines[machine].as_ref().is_some_and(|(number, _)| *number == process) {
                    self.connect(machine);
                }
            }
            Delivery::Start { machine } => self.start(machine),
            Delivery::Look { machine } => {
                self.look(machine);
                let pause = Duration::from_millis(self.random.u64(5..60));
                self.put(pause, Delivery::Look { machine });
            }
            Delivery::Disturb => self.disturb(),
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { connection, message } => {
                    if let FromCoordinator::Recovery(RecoveryRequest::Recover(part)) = &message {
                        self.judge(connection, part);
                    }
                    self.put_in_order(connection, false, Delivery::Down { connection, message });
                }
                Effect::Commit(_) => unreachable!("the store has it"),
                Effect::Close { connection } => {
                    // Earlier messages still arrive.
                    if let Some(machine) = self.machine_at(connection) {
                        self.meet("closed");
                        let process = self.machines[machine].as_ref().unwrap().0;
                        let pause = Duration::from_millis(100);
                        self.put(pause, Delivery::Connect { machine, process });
                    }
                }
            }
        }
    }

    fn machine_at(&self, connection: LinkId) -> Option<usize> {
        self.machines.iter().position(|machine| {
            machine.as_ref().is_some_and(|(_, process)| process.connection == Some(connection))
        })
    }

    fn process(&mut self, machine: usize) -> &mut Process {
        &mut self.machines[machine].as_mut().unwrap().1
    }

    fn id_of(&self, machine: usize) -> Option<ServerId> {
        self.machines[machine].as_ref().and_then(|(_, process)| process.id)
    }

    /// Returns the machine on which this server runs, connected or not.
    fn process_of(&self, server: ServerId) -> Option<usize> {
        (0..MACHINES).find(|&machine| self.id_of(machine) == Some(server))
    }

    fn tell(&mut self, machine: usize, message: impl Into<ToCoordinator>) {
        let message = message.into();
        if let Some(connection) = self.process(machine).connection {
            let again = self.random.u8(..) < 10;
            if again {
                let message = message.clone();
                self.put_in_order(connection, true, Delivery::Up { connection, message });
            }
            self.put_in_order(connection, true, Delivery::Up { connection, message });
        }
    }

    fn start(&mut self, machine: usize) {
        if self.machines[machine].is_none() {
            self.numbers += 1;
            self.machines[machine] = Some((self.numbers, Process::default()));
            if !self.disks[machine].is_empty() {
                self.meet("adopted disk");
            }
            self.connect(machine);
        }
    }

    fn connect(&mut self, machine: usize) {
        let mut join = join_of(self.process(machine).id);
        join.replicas = REPLICAS as u16;
        let connection = self.world.open_connection(caller_of(&join));
        self.process(machine).connection = Some(connection);
        let (former, mark) = self.formers[machine];
        join.former = former.map(|server| (support::IDENTITY.cluster, server));
        join.mark = mark;
        self.tell(machine, ToCoordinator::Join(join));
    }

    /// Breaks a connection; the process reconnects later.
    fn lose(&mut self, machine: usize) {
        let Some((number, process)) = &mut self.machines[machine] else { return };
        let number = *number;
        let Some(connection) = process.connection.take() else { return };
        let away = match self.random.u8(..) {
            ..=170 => self.random.u64(1..140),
            171..=230 => self.random.u64(140..400),
            _ => self.random.u64(400..4_000),
        };
        let connect = Delivery::Connect { machine, process: number };
        self.put(Duration::from_millis(away), connect);
        let effects = self.world.handle(CoordinatorEvent::Closed { connection });
        self.carry_out(effects);
    }

    /// Kills a process. Its disk stays, and later another process starts on it.
    fn kill(&mut self, machine: usize) {
        let Some((_, process)) = self.machines[machine].take() else { return };
        let pause = Duration::from_millis(self.random.u64(50..3_000));
        self.put(pause, Delivery::Start { machine });
        if let Some(connection) = process.connection {
            let effects = self.world.handle(CoordinatorEvent::Closed { connection });
            self.carry_out(effects);
        }
    }

    fn restart_coordinator(&mut self) {
        self.world.restart();
        for machine in 0..MACHINES {
            if let Some((process, state)) = &mut self.machines[machine] {
                let process = *process;
                if state.connection.take().is_some() {
                    let pause = Duration::from_millis(self.random.u64(1..2_000));
                    self.put(pause, Delivery::Connect { machine, process });
                }
            }
        }
    }

    fn disturb(&mut self) {
        if !self.is_disturbed {
            return;
        }
        let machine = self.random.usize(..MACHINES);
        let up = self.machines.iter().filter(|machine| machine.is_some()).count();
        match self.random.u8(..100) {
            ..=4 => self.restart_coordinator(),
            5..=19 if up > 2 => {
                self.meet("died");
                self.kill(machine);
            }
            20..=34 => self.lose(machine),
            35..=39 => {
                // The coordinator is cut off from some servers.
                for machine in 0..MACHINES {
                    if self.random.bool() {
                        self.lose(machine);
                    }
                }
            }
            40..=42 => self.accept_losses(machine),
            _ => {
                let (a, b) = (self.random.u16(..SLOTS), self.random.u16(..SLOTS));
                let target = self.random.usize(..MACHINES);
                if let (Some(target), true) = (self.id_of(target), self.is_up(machine)) {
                    let ask = migrate(slots(a.min(b), a.max(b)), target);
                    self.tell(machine, ToCoordinator::Ask { request: 1, ask });
                }
            }
        }
        let pause = Duration::from_millis(self.random.u64(1..250));
        self.put(pause, Delivery::Disturb);
    }

    /// Accepts the missing parts of logs as lost, as an operator.
    fn accept_losses(&mut self, machine: usize) {
        for report in self.world.coordinator().recoveries() {
            let is_missing = matches!(
                report.state,
                RecoveryState::SegmentsMissing | RecoveryState::ManifestMissing
            );
            if is_missing && self.is_up(machine) {
                self.meet(&format!("{:?}", report.state));
                self.given_up.insert(report.dead);
                let Some(loss) = report.loss() else { continue };
                let ask = Ask::AcceptLoss { dead: report.dead, loss };
                let operator = self.world.open_connection(Caller::Operator);
                let ask = ToCoordinator::Ask { request: 2, ask };
                let effects = self.world.say(operator, ask);
                self.carry_out(effects);
                let effects = self.world.handle(CoordinatorEvent::Closed { connection: operator });
                self.carry_out(effects);
            }
        }
    }

    fn is_up(&self, machine: usize) -> bool {
        self.machines[machine].is_some()
    }

    /// Performs the periodic work of a server.
    fn look(&mut self, machine: usize) {
        if self.id_of(machine).is_none() {
            return;
        }
        self.write(machine);
        if !self.is_disturbed {
            self.accept_losses(machine);
        }
        for _ in 0..5 {
            self.acknowledge(machine);
        }
        let process = self.process(machine);
        let parts: Vec<RecoveryPartition> = process.parts.values().cloned().collect();
        let accepted = process.accepted.clone();
        for part in parts {
            self.go_on_with_part(machine, &part);
        }
        for (migration, source) in accepted {
            if self.random.u8(..) < 60 {
                self.pull(machine, migration, source);
            }
        }
        if self.is_disturbed && self.random.u8(..) < 4 {
            let ask = Ask::Flush { table: Some(TableId(0)) };
            self.tell(machine, ToCoordinator::Ask { request: 3, ask });
        }
        let logs: BTreeSet<ServerId> = self.disks[machine].keys().map(|name| name.0).collect();
        for log in logs {
            if self.random.u8(..) < 10 {
                self.tell(machine, LogUpdate::IsNeeded { log });
            }
        }
    }
}

impl History {
    /// Replays a partition and reports that, or writes it to the log and reports that.
    fn go_on_with_part(&mut self, machine: usize, part: &RecoveryPartition) {
        let (dead, range, epoch) = (dead_of(part), part.range, part.epoch);
        let is_simple = part.logs.len() == 1 && !part.keeps;
        if self.random.bool() && is_simple && self.replay(machine, part) {
            self.process(machine).replayed.insert(epoch);
            self.tell(machine, RecoveryUpdate::Replayed { dead, range, epoch });
        }
        if self.random.bool() && self.can_acknowledge(machine) && self.replay(machine, part) {
            self.process(machine).replayed.insert(epoch);
            self.secure(machine, part);
            self.tell(machine, RecoveryUpdate::Recovered { dead, range, epoch });
            self.meet("recovered");
        }
    }
}

fn dead_of(part: &RecoveryPartition) -> ServerId {
    part.dead().expect("a part has a log")
}
