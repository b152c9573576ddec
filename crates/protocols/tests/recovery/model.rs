//! A randomized model of recovery masters. Messages are lost, repeated and delayed; replicas are
//! short, different, damaged or missing; backups hang and die. The model checks that a part
//! reported as recovered is replayed to the last entry, and that a part handed back was unreadable.

use super::backups::{Backups, Entries, Replica, part};
use fastrand::Rng;
use protocols::recovery::timing::{FETCHES_MAX, REPLAYS_MAX};
use protocols::recovery::{
    PartitionName, RecoveryMaster, RecoveryMasterEffect, RecoveryMasterEvent, ReplayFailure,
};
use protocols::{Machine, Outbox, Ticket};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Instant, SegmentId, ServerId};
use wire::control::{RecoveryPartition, RecoverySegment, RecoveryUpdate, ReplicaPlace};
use wire::manifest::SegmentContent;
use wire::peer::{RecoveryRead, RecoveryReply};
use wire::replica::ReplicaEpoch;

const CRC: u32 = 7;

#[test]
fn what_is_called_recovered_is_and_what_is_handed_back_could_not_be_read() {
    let mut ends = BTreeMap::new();
    for seed in 0..runs(20_000) {
        *ends.entry(World::new(seed).run()).or_insert(0) += 1;
    }
    // Every end must occur, or the test proves nothing.
    for end in [End::Ours, End::Elsewhere, End::HandedBack, End::Waits] {
        assert!(ends.contains_key(&end), "{end:?} is not among {ends:?}");
    }
}

/// Returns the number of runs; `RECOVERY_RUNS` overrides it for a longer search.
fn runs(usual: u64) -> u64 {
    std::env::var("RECOVERY_RUNS").map_or(usual, |text| text.parse().unwrap())
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Ours,
    /// The part was given to another server.
    Elsewhere,
    HandedBack,
    /// The master waits for a list with other places.
    Waits,
}

#[derive(Clone, Debug)]
enum Happening {
    Read(ServerId, RecoveryRead),
    Reply(ServerId, RecoveryReply, Option<Entries>),
    Part(Box<RecoveryPartition>),
    Replay(Ticket),
    Secured,
    /// The coordinator repeats its request.
    Demand,
    /// The coordinator receives a message.
    Told(RecoveryUpdate),
    Accident,
}

/// The fault schedule: probabilities per 1,000.
#[derive(Clone, Copy, Debug)]
struct Weather {
    lost: u32,
    repeated: u32,
    late: u32,
    accidents: bool,
}

/// A segment according to the manifest.
#[derive(Clone, Debug)]
struct Known {
    /// Length up to which the entries count.
    length: u32,
    is_closed: bool,
    /// Length that every replica has that a later recovery might read.
    common_prefix: u32,
    places: Vec<(ServerId, u32)>,
}

struct World {
    rng: Rng,
    now: Instant,
    events: BTreeMap<(Instant, u64), Happening>,
    count: u64,
    master: RecoveryMaster,
    backups: Backups,
    log: BTreeMap<SegmentId, Known>,
    dead: BTreeSet<ServerId>,
    hanging: BTreeSet<ServerId>,
    list: u64,
    payloads: BTreeMap<Ticket, Entries>,
    /// Running replays, each with whether its entries are common_prefix.
    replaying: BTreeMap<Ticket, bool>,
    tickets: u64,
    /// Offsets of the entries of each segment that are in the store.
    replayed: BTreeMap<SegmentId, BTreeSet<u32>>,
    /// Offsets of the entries that are written here before any reply shows them.
    kept: BTreeMap<SegmentId, BTreeSet<u32>>,
    weather: Weather,
    is_full: bool,
    has_hung: bool,
    has_begun: bool,
    is_refused: bool,
    /// Maximum duration of a replay in microseconds.
    replay_max: u64,
    /// Set once nothing may be read or replayed any more.
    is_secured: bool,
    /// Set once the secured entries are acknowledged by backups.
    is_safe: bool,
    is_abandoned: bool,
    end: Option<End>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let mut world = World {
            now: Instant(0),
            events: BTreeMap::new(),
            count: 0,
            master: RecoveryMaster::new(PartitionName::of(&part(0, 0, Vec::new())).unwrap()),
            backups: Backups::default(),
            log: BTreeMap::new(),
            dead: BTreeSet::new(),
            hanging: BTreeSet::new(),
            list: 0,
            payloads: BTreeMap::new(),
            replaying: BTreeMap::new(),
            tickets: 0,
            replayed: BTreeMap::new(),
            kept: BTreeMap::new(),
            weather: Weather {
                lost: rng.u32(..2) * rng.u32(..100),
                repeated: rng.u32(..2) * rng.u32(..100),
                late: rng.u32(..2) * rng.u32(..600),
                accidents: rng.bool(),
            },
            is_full: false,
            has_hung: false,
            has_begun: false,
            is_refused: false,
            replay_max: [1_000, 20_000, 700_000][rng.usize(..3)],
            is_secured: false,
            is_safe: false,
            is_abandoned: false,
            end: None,
            rng,
        };
        let spoiled = world.rng.u32(..2) * world.rng.u32(..300);
        let most = [4, 30][world.rng.usize(..2)];
        (0..world.rng.u64(..most)).for_each(|_| world.write_segment(spoiled));
        world.at(Duration::ZERO, Happening::Demand);
        world.at(Duration::from_millis(3), Happening::Accident);
        world
    }

    fn write_segment(&mut self, spoiled: u32) {
        let id = SegmentId(self.log.len() as u64 + 1);
        let length = 10 * self.rng.u32(..80);
        let is_closed = self.rng.u8(..4) > 0;
        let has_entries = self.rng.u8(..4) > 0;
        let mut backups: Vec<u32> = (2..7).collect();
        self.rng.shuffle(&mut backups);
        backups.truncate(self.rng.usize(1..=3));
        let mut places = Vec::new();
        for server in backups.into_iter().map(ServerId) {
            // A replica of an open segment may have bytes beyond those that count.
            let more = if is_closed { 0 } else { 10 * self.rng.u32(..5) };
            let mut replica =
                Replica { length: length + more, crc: CRC, is_right: true, has_entries };
            places.push((server, replica.length));
            if self.rng.u32(..1_000) < spoiled {
                match self.rng.u8(..4) {
                    0 => replica.length = self.rng.u32(..=replica.length / 10) * 10,
                    1 => replica.crc += u32::from(is_closed),
                    2 => replica.is_right = false,
                    _ => continue,
                }
            }
            self.backups.replicas.insert((server, id, ReplicaEpoch(0)), replica);
        }
        places.sort_by_key(|place| std::cmp::Reverse(place.1));
        if !has_entries {
            let of = self.replayed.entry(id).or_default();
            of.extend((0..length).step_by(10));
        }
        let common_prefix = match (is_closed, self.rng.u8(..4)) {
            (true, 1..) => length,
            (false, 1..) => 10 * self.rng.u32(..=length / 10),
            (_, 0) => 0,
        };
        self.log.insert(id, Known { length, is_closed, common_prefix, places });
    }

    fn run(mut self) -> End {
        let bad = Duration::from_millis(self.rng.u64(1..1_500));
        self.go_on(bad);
        self.weather = Weather { lost: 0, repeated: 0, late: 0, accidents: false };
        self.hanging.clear();
        self.go_on(Duration::from_secs(30));
        let end = self.end.unwrap_or(End::Waits);
        match end {
            End::Ours => assert!(self.is_secured && !self.is_abandoned),
            End::Elsewhere => assert!(self.is_abandoned || !self.has_begun),
            End::HandedBack => assert!(self.is_refused && self.is_abandoned),
            End::Waits => assert!(!self.is_whole(), "{} waits for nothing", self.master),
        }
        assert!(self.master.is_over() || end == End::Waits, "{}: {end:?}", self.master);
        assert!(self.payloads.is_empty(), "payloads are not forgotten");
        end
    }

    fn go_on(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            let tick = self.master.next_deadline();
            let next = self.events.first_key_value().map(|((at, _), _)| *at);
            let Some(at) = next.into_iter().chain(tick).min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            if next == Some(at) {
                let (_, happening) = self.events.pop_first().expect("just seen");
                self.happen(happening);
            } else {
                self.tell(RecoveryMasterEvent::Tick);
            }
        }
        self.now = end;
    }

    fn at(&mut self, delay: Duration, happening: Happening) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), happening);
    }

    fn send(&mut self, happening: Happening) {
        let copies = 1 + u32::from(self.rng.u32(..1_000) < self.weather.repeated);
        for _ in 0..copies {
            if self.rng.u32(..1_000) >= self.weather.lost {
                let is_late = self.rng.u32(..1_000) < self.weather.late;
                let delay = self.rng.u64(50..if is_late { 600_000 } else { 500 });
                self.at(Duration::from_micros(delay), happening.clone());
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Read(backup, _)
                if self.dead.contains(&backup) || self.hanging.contains(&backup) => {}
            Happening::Read(backup, read) => {
                let (reply, entries) = self.backups.answer(backup, &read);
                self.send(Happening::Reply(backup, reply, entries));
            }
            Happening::Reply(from, reply, entries) => {
                let payload = entries.map(|entries| self.keep(entries));
                self.tell(RecoveryMasterEvent::Replied { from, reply, payload });
            }
            Happening::Part(part) => self.tell(RecoveryMasterEvent::Part(part)),
            Happening::Replay(ticket) => self.replay(ticket),
            Happening::Secured => {
                self.is_safe = true;
                self.tell(RecoveryMasterEvent::Secured);
            }
            Happening::Demand => self.demand(),
            Happening::Told(message) => self.told(&message),
            Happening::Accident => self.accident(),
        }
    }

    fn keep(&mut self, entries: Entries) -> Ticket {
        self.tickets += 1;
        self.payloads.insert(Ticket(self.tickets), entries);
        Ticket(self.tickets)
    }

    fn replay(&mut self, ticket: Ticket) {
        assert!(!self.is_abandoned && !self.is_secured, "{ticket} is replayed too late");
        let is_common = self.replaying.remove(&ticket).expect("it is being replayed");
        let Entries { from: (_, segment), bytes, is_right } = self.payloads[&ticket].clone();
        let whole = bytes.step_by(10);
        if self.is_full || !is_right {
            // Some entries of the payload have been replayed.
            let of = self.replayed.entry(segment).or_default();
            of.extend(whole.take(if is_right { 1 } else { 0 }));
            let why = match self.is_full {
                true => ReplayFailure::OutOfMemory,
                false => ReplayFailure::Corrupt,
            };
            return self.tell(RecoveryMasterEvent::ReplayFailed { ticket, why });
        }
        let kept = self.kept.entry(segment).or_default();
        if is_common {
            let common_prefix = self.log[&segment].common_prefix;
            let divergent = whole.clone().filter(|byte| *byte >= common_prefix);
            let lost = divergent.filter(|byte| !kept.contains(byte)).collect::<Vec<_>>();
            assert!(lost.is_empty(), "{segment} has {lost:?} without any replica");
        } else {
            kept.extend(whole.clone());
        }
        self.payloads.remove(&ticket);
        self.replayed.entry(segment).or_default().extend(whole);
        self.tell(RecoveryMasterEvent::Replayed { ticket });
    }

    fn tell(&mut self, event: RecoveryMasterEvent) {
        let mut out = Outbox::new();
        self.master.handle(self.now, event, &mut out);
        while let Some(effect) = out.take_first() {
            self.carry_out(effect, &mut out);
        }
    }

    fn carry_out(&mut self, effect: RecoveryMasterEffect, more: &mut Outbox<RecoveryMasterEffect>) {
        let is_at_work = !self.is_secured && !self.is_abandoned;
        match effect {
            RecoveryMasterEffect::Begin => {
                self.has_begun = true;
                self.master.handle(self.now, RecoveryMasterEvent::Begun(Ok(())), more);
            }
            RecoveryMasterEffect::Read { backup, read } => {
                assert!(is_at_work, "reads too late");
                assert!(!self.dead.contains(&backup), "reads from the dead");
                self.send(Happening::Read(backup, read));
            }
            RecoveryMasterEffect::Replay { ticket, is_common } => {
                assert!(is_at_work, "replays too late");
                self.replaying.insert(ticket, is_common);
                assert!(self.replaying.len() < REPLAYS_MAX + FETCHES_MAX, "too many replays");
                let delay = Duration::from_micros(self.rng.u64(1..self.replay_max));
                self.at(delay, Happening::Replay(ticket));
            }
            RecoveryMasterEffect::Discard { ticket } => {
                assert!(!self.replaying.contains_key(&ticket), "{ticket} is being replayed");
                self.payloads.remove(&ticket);
            }
            RecoveryMasterEffect::Secure { version } => {
                assert!(is_at_work && self.replaying.is_empty(), "secures too early");
                self.judge_replayed();
                let highest = self.log.keys().map(|id| id.0 * 1000).max().unwrap_or(0);
                assert_eq!(version.0, highest);
                self.is_secured = true;
                self.at(Duration::from_millis(2), Happening::Secured);
            }
            RecoveryMasterEffect::Tell(message) => {
                let is_refused = matches!(message, RecoveryUpdate::NotRecovered { .. });
                if is_refused && !self.is_refused {
                    assert!(self.may_be_handed_back(), "is handed back for nothing: {message:?}");
                }
                self.is_refused |= is_refused;
                self.send(Happening::Told(message));
            }
            RecoveryMasterEffect::Finish => assert!(self.is_safe && self.end == Some(End::Ours)),
            RecoveryMasterEffect::Abandon => {
                assert!(self.replaying.is_empty(), "deletes records that are being replayed");
                assert!(!self.is_abandoned, "abandons twice");
                self.is_abandoned = true;
            }
        }
    }

    fn judge_replayed(&self) {
        for (id, known) in &self.log {
            for byte in (0..known.length).step_by(10) {
                let is_here = self.replayed.get(id).is_some_and(|of| of.contains(&byte));
                assert!(is_here, "{id} at {byte} is lost");
            }
        }
    }

    fn is_living(&self, server: ServerId) -> bool {
        !self.dead.contains(&server)
    }

    /// Returns whether each segment has a place on a living backup.
    fn is_whole(&self) -> bool {
        self.log.values().all(|known| known.places.iter().any(|place| self.is_living(place.0)))
    }

    /// Repeats the coordinator's request while the part is undecided and the log complete.
    fn demand(&mut self) {
        if self.end.is_some() {
            return;
        }
        self.at(Duration::from_secs(1), Happening::Demand);
        if !self.is_whole() {
            return;
        }
        self.list += 1;
        let segments: Vec<RecoverySegment> =
            self.log.iter().map(|(id, known)| self.named(*id, known)).collect();
        let total = segments.len();
        if total == 0 {
            return self.send(Happening::Part(Box::new(part(self.list, 0, Vec::new()))));
        }
        let size = self.rng.usize(1..=total);
        for chunk in segments.chunks(size) {
            let message = part(self.list, total, chunk.to_vec());
            self.send(Happening::Part(Box::new(message)));
        }
    }

    fn named(&self, segment: SegmentId, known: &Known) -> RecoverySegment {
        let living = known.places.iter().filter(|place| self.is_living(place.0));
        let place = |&(backup, length): &(ServerId, u32)| ReplicaPlace {
            backup,
            epoch: ReplicaEpoch(0),
            length,
        };
        let content = SegmentContent { length: known.length, crc: CRC };
        RecoverySegment {
            log: super::backups::DEAD,
            segment,
            content: known.is_closed.then_some(content),
            places: living.map(place).collect(),
            common_prefix: known.common_prefix,
        }
    }

    fn told(&mut self, message: &RecoveryUpdate) {
        if self.end.is_none() {
            let is_ours = match message {
                RecoveryUpdate::Replayed { .. } => self.is_secured,
                RecoveryUpdate::Recovered { .. } => self.is_safe,
                RecoveryUpdate::NotRecovered { .. } => false,
            };
            self.end = Some(if is_ours { End::Ours } else { End::HandedBack });
        }
        let is_ours = self.end == Some(End::Ours);
        self.tell(RecoveryMasterEvent::Decided { is_ours });
        if is_ours && matches!(message, RecoveryUpdate::Recovered { .. }) {
            self.tell(RecoveryMasterEvent::Kept);
        }
    }

    /// Returns whether there is a reason to hand the part back: full memory, or a segment with
    /// bad places only.
    fn may_be_handed_back(&self) -> bool {
        let is_right = |id: SegmentId, known: &Known, place: &(ServerId, u32)| {
            let replica = self.backups.replicas.get(&(place.0, id, ReplicaEpoch(0)));
            let ends = |it: &Replica| it.length == place.1 && (!known.is_closed || it.crc == CRC);
            replica.is_some_and(|it| ends(it) && (it.is_right || !it.has_entries))
        };
        let is_bad = |(id, known): (&SegmentId, &Known)| {
            let living = known.places.iter().filter(|place| self.is_living(place.0));
            let rights: Vec<bool> = living.map(|place| is_right(*id, known, place)).collect();
            !rights.is_empty() && !rights.contains(&true)
        };
        self.is_full || self.has_hung || self.log.iter().any(is_bad)
    }

    fn accident(&mut self) {
        if !self.weather.accidents {
            return;
        }
        let delay = Duration::from_millis(self.rng.u64(1..60));
        self.at(delay, Happening::Accident);
        let backup = ServerId(self.rng.u32(2..7));
        match self.rng.u8(..40) {
            0..10 => self.tell(RecoveryMasterEvent::ConnectionLost { backup }),
            10..13 => {
                self.dead.insert(backup);
                self.tell(RecoveryMasterEvent::Died { backup });
                self.at(Duration::ZERO, Happening::Demand);
            }
            13..20 => {
                self.hanging.insert(backup);
                self.has_hung = true;
            }
            20..30 => drop(self.hanging.remove(&backup)),
            30 => self.is_full = true,
            31 if self.end.is_none() => {
                self.end = Some(End::Elsewhere);
                self.tell(RecoveryMasterEvent::Decided { is_ours: false });
            }
            _ => {}
        }
    }
}
