//! The clocks by which ranges judge expiry, and the rules that they keep (`docs/design/time.md`).
//!
//! Two uses. The clock of a register's range is read at the beginning and end of each operation,
//! which gives the exact time range in which a value may disappear (`expiry.rs`). And each reading
//! is compared with the one before, which may have come from an earlier owner: the clock never
//! goes back, and is never ahead of what the definitions allow.

use crate::failure::Rule;
use crate::fleet::ServerFleet;
use crate::servers::SimulatedServer;
use crate::timeline::RunTimeline;
use protocols::clock::DOUBT;
use protocols::replication::timing::{BEAT, CLOCK_LEASE};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{BEHIND_MAX_MILLIS, Tablet, TabletState};
use types::{Instant, KeyHash, OwnershipEpoch, ServerId, UnixMillis};
use wire::control::RecoveryPartition;
use wire::peer::Flip;

/// Milliseconds that the rounding of clocks may add to a difference.
const ROUNDING: u64 = 2;

/// Interval between two readings of a server's clock.
const READING_INTERVAL: Duration = Duration::from_millis(1);

/// Time within which the backups of a master with a new range hear its clock, with the next beat.
const UNHEARD_MAX: Duration = BEAT.saturating_mul(2);

/// Time within which a master has another backup instead of a dead one.
const HEARD: Duration = Duration::from_secs(1);

/// Bounds of a range's clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeClockBounds {
    /// Operations that begin from now on are judged by this time or a later one.
    pub(crate) low: UnixMillis,
    /// Operations that ended before now were judged by this time or an earlier one. `None`: no
    /// server serves the range now; the next reading is a bound.
    pub(crate) high: Option<UnixMillis>,
}

impl RangeClockBounds {
    /// Bounds of a clock of which nothing is known any more.
    pub(crate) const UNKNOWN: RangeClockBounds =
        RangeClockBounds { low: UnixMillis(0), high: Some(UnixMillis(u64::MAX)) };
}

/// Readings of all clocks, and the rules that they keep.
#[derive(Debug, Default)]
pub(crate) struct RangeClockMonitor {
    /// Registers with values that may expire.
    ranges: Vec<Option<TrackedRange>>,
    /// Registers whose clocks are not known any more.
    forgotten: BTreeSet<usize>,
    servers: BTreeMap<ServerId, ServerReading>,
    dead: Vec<DeadServer>,
    /// Servers whose ranges were recovered. Such a server may still run, without a lease.
    recovered: BTreeSet<ServerId>,
    /// Servers from which the coordinator has the replicas of a fenced log, with the clock that they
    /// know: pairs of the log's server and the reporting one.
    reports: BTreeSet<(ServerId, ServerId)>,
    /// Dead servers whose logs were recovered without a report of a server that had lived with them.
    known_from_disks: BTreeSet<ServerId>,
    /// Number of servers that have replicas of a log.
    replicas: usize,
}

/// Latest clock of a server that has died.
#[derive(Clone, Copy, Debug)]
struct DeadServer {
    id: ServerId,
    died: Instant,
    /// Set if its own disk was its only backup, because no other server lived.
    was_last: bool,
    /// Newest server that had joined by then. Numbers of servers rise.
    newest: ServerId,
    latest: UnixMillis,
    farthest: HeardClock,
    /// Time at which the latest clock was shown first. It stands still while it is ahead of the
    /// server's own one.
    since: Instant,
}

/// Hash of a register, and the last reading of its range's clock.
#[derive(Clone, Copy, Debug)]
struct TrackedRange {
    hash: KeyHash,
    last: Option<RangeReading>,
    /// Time of a flip, and the clock with which the range moves, beside others.
    joined: Option<(Instant, UnixMillis)>,
    /// Time of the last flip, if no record moved with it.
    moved_empty: Option<Instant>,
}

/// Reading of a range's clock at its owner.
#[derive(Clone, Copy, Debug)]
struct RangeReading {
    at: Instant,
    server: ServerId,
    epoch: OwnershipEpoch,
    /// Time at which the process has died.
    died: Option<Instant>,
    /// Clock at the last turn of the server, and clock of a turn that would begin now.
    low: UnixMillis,
    high: UnixMillis,
    /// The server's own clock at the same times.
    own_low: UnixMillis,
    own_high: UnixMillis,
}

/// Reading of a server's expiry clock.
#[derive(Clone, Copy, Debug)]
struct ServerReading {
    at: Instant,
    shown: UnixMillis,
    /// Start of the process, or time of the clock's last step.
    steady_since: Instant,
    has_stepped: bool,
    /// Latest clock of any range, and the time at which it was shown first.
    latest: UnixMillis,
    latest_since: Instant,
    farthest: HeardClock,
}

/// A clock as backups hear it with an append. They let it run on from there.
#[derive(Clone, Copy, Debug)]
struct HeardClock {
    at: Instant,
    clock: UnixMillis,
}

impl HeardClock {
    /// Returns what the clock shows at a time, if nothing else was heard.
    fn at(self, time: Instant) -> UnixMillis {
        later(self.clock, time.max(self.at).since(self.at))
    }

    /// Returns the one of two clocks that is ahead of the other one, then and ever after. A backup
    /// may have heard only an early one, which has stood still at its server since.
    fn farther(self, new: HeardClock) -> HeardClock {
        if new.clock >= self.at(new.at) { new } else { self }
    }
}

impl RangeReading {
    /// Reads the clock of a hash's range, if the server serves it.
    fn of(server: &SimulatedServer, hash: KeyHash, now: Instant) -> Option<RangeReading> {
        let store = server.node.store();
        let tablets = store.tablets();
        let tablet = tablets.at(hash).filter(|tablet| executes(tablet))?;
        // While a log is loaded, operations wait.
        let is_loading = server.node.durability().load_progress().is_some();
        if is_loading || !server.may_serve(now) {
            return None;
        }
        let own_low = store.clock();
        let own_high = server.liveness.clock(now)?.max(own_low);
        if own_low == UnixMillis(0) {
            return None; // No turn has begun.
        }
        Some(RangeReading {
            at: now,
            server: server.id,
            epoch: tablet.epoch,
            died: None,
            low: tablet.clock.read(own_low),
            high: tablet.clock.read(own_high),
            own_low,
            own_high,
        })
    }
}

impl TrackedRange {
    /// Returns whether the owner has died before its backups heard a clock after the range had
    /// moved to it without records. Then there is no value that may expire. The records of any
    /// other range are replicated, with the clock, before its owner alone has them.
    fn died_empty(&self, last: RangeReading) -> bool {
        let (Some(moved), Some(died)) = (self.moved_empty, last.died) else { return false };
        died.since(moved) <= UNHEARD_MAX
    }
}

/// Returns whether a server executes operations in a tablet.
fn executes(tablet: &Tablet) -> bool {
    match tablet.state {
        TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => true,
        TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
    }
}

/// Returns the latest time that a server's clocks can have shown.
fn latest(server: &SimulatedServer, now: Instant) -> UnixMillis {
    let latest = server.node.store().latest_clock();
    server.liveness.clock(now).map_or(latest, |own| own.max(latest))
}

/// Returns the latest time that a range's clock shows now if it showed `then` at `since`: the
/// server's clock may run a twentieth fast, and a range's clock that is behind gains another one.
fn run_on(then: UnixMillis, since: Instant, now: Instant) -> UnixMillis {
    let passed = now.since(since) * 441 / 400;
    UnixMillis(then.0 + passed.as_millis() as u64 + ROUNDING)
}

fn later(clock: UnixMillis, by: Duration) -> UnixMillis {
    UnixMillis(clock.0 + by.as_millis() as u64)
}

fn before(clock: UnixMillis, millis: u64) -> UnixMillis {
    UnixMillis(clock.0.saturating_sub(millis))
}

impl RangeClockMonitor {
    /// Reads the clocks of these registers' ranges from now on.
    pub(crate) fn track(
        &mut self,
        replicas: u16,
        registers: impl Iterator<Item = (usize, KeyHash)>,
    ) {
        self.replicas = usize::from(replicas);
        for (register, hash) in registers {
            self.ranges.resize(self.ranges.len().max(register + 1), None);
            self.ranges[register] =
                Some(TrackedRange { hash, last: None, joined: None, moved_empty: None });
        }
    }

    /// Ignores a register that was lost with its server.
    pub(crate) fn ignore(&mut self, register: usize) {
        if let Some(range) = self.ranges.get_mut(register)
            && range.take().is_some()
        {
            self.forgotten.insert(register);
        }
    }

    /// Reads the clock of a register's range. Returns `None` if its values do not expire.
    pub(crate) fn read(
        &mut self,
        register: usize,
        servers: &ServerFleet,
        timeline: &mut RunTimeline,
    ) -> Option<RangeClockBounds> {
        if self.forgotten.contains(&register) {
            return Some(RangeClockBounds::UNKNOWN);
        }
        let range = (*self.ranges.get(register)?)?;
        let now = timeline.now;
        let read = |server| Some((server, RangeReading::of(server, range.hash, now)?));
        if let Some((server, reading)) = servers.live().find_map(read) {
            // A step that the server's clock has just made explains one of the range's clock.
            self.check_server(server, timeline);
            self.check(register, range, reading, servers, timeline);
            let known = self.ranges[register].is_some();
            let bounds = RangeClockBounds { low: reading.low, high: Some(reading.high) };
            return Some(if known { bounds } else { RangeClockBounds::UNKNOWN });
        }
        let low = range.last.map_or(UnixMillis(0), |last| last.low);
        Some(RangeClockBounds { low, high: None })
    }

    /// Reads all clocks of a server whose tablets have changed.
    pub(crate) fn read_all(
        &mut self,
        place: usize,
        servers: &ServerFleet,
        timeline: &mut RunTimeline,
    ) {
        for register in 0..self.ranges.len() {
            let Some(range) = self.ranges[register] else { continue };
            if let Some(reading) = RangeReading::of(&servers[place], range.hash, timeline.now) {
                self.check_server(&servers[place], timeline);
                self.check(register, range, reading, servers, timeline);
            }
        }
    }

    fn check(
        &mut self,
        register: usize,
        range: TrackedRange,
        reading: RangeReading,
        servers: &ServerFleet,
        timeline: &mut RunTimeline,
    ) {
        let RangeReading { server, low, high, own_low, own_high, .. } = reading;
        let fail = |timeline: &mut RunTimeline, text: &str| {
            let text = format!("register {register} at {server}: {text}; {reading:?}, {range:?}");
            timeline.fail(Rule::RangeClocks.broken(text));
        };
        if low < before(own_low, BEHIND_MAX_MILLIS) {
            fail(timeline, "the clock is too far behind the server's");
        }
        if let Some(last) = range.last {
            if low < last.low && (self.may_be_forgotten(last) || range.died_empty(last)) {
                return self.ignore(register);
            }
            let latest = self.latest_possible(range, last, reading, servers);
            if low < last.low {
                fail(timeline, "the clock goes back");
            }
            if high > latest {
                fail(timeline, &format!("the clock is ahead of {latest:?}"));
            }
            let is_same = (last.server, last.epoch, last.died) == (server, reading.epoch, None);
            let slowest = later(last.high, reading.at.since(last.at) * 19 / 20);
            if is_same && high < before(slowest.min(own_high), ROUNDING) {
                fail(timeline, "the clock stands still");
            }
        }
        self.ranges[register] = Some(TrackedRange { last: Some(reading), joined: None, ..range });
    }

    /// Returns whether the clock of a dead or fenced server may be known from the disks only: all
    /// its backups have died, with the clocks that they had heard since the last piece of the log,
    /// or the others do not reach the coordinator. A server alone has no other backup, nor has the
    /// last one of a cluster.
    fn may_be_forgotten(&self, last: RangeReading) -> bool {
        let died = self.dead.iter().filter(|it| last.at <= it.died + HEARD).count();
        match last.died {
            Some(_) => {
                let was_last = self.dead.iter().any(|it| it.was_last && it.id == last.server);
                let is_unheard = self.known_from_disks.contains(&last.server);
                was_last || is_unheard || died > self.replicas
            }
            None => self.recovered.contains(&last.server) && died >= self.replicas,
        }
    }

    /// Records that the coordinator has the replicas of a fenced log from a server.
    pub(crate) fn record_report(&mut self, log: ServerId, server: ServerId) {
        self.reports.insert((log, server));
    }

    /// Records that another coordinator leads, which has no reports yet.
    pub(crate) fn forget_reports(&mut self) {
        self.reports.clear();
    }

    /// Returns the latest time that a range's clock may show.
    fn latest_possible(
        &self,
        range: TrackedRange,
        last: RangeReading,
        reading: RangeReading,
        servers: &ServerFleet,
    ) -> UnixMillis {
        let now = reading.at;
        // The clock under a new owner begins a second behind at most, and gains a twentieth.
        let gained = now.since(last.at) / 20;
        let close = later(before(reading.own_high, BEHIND_MAX_MILLIS), gained);
        let close = close.min(reading.own_high);
        let mut latest = run_on(last.high, last.at, now).max(UnixMillis(close.0 + ROUNDING));
        if let Some((at, clock)) = range.joined {
            latest = latest.max(run_on(clock, at, now));
        }
        // A process with its predecessor's log begins with its own wall clock, if that is ahead.
        if last.died.is_some() && last.server == reading.server {
            latest = latest.max(reading.own_high);
        }
        let stepped = self
            .servers
            .values()
            .filter(|server| server.has_stepped && server.steady_since >= last.at);
        latest =
            stepped.fold(latest, |latest, server| latest.max(run_on(server.shown, server.at, now)));
        // Recovered ranges of one server continue with the latest of their clocks. Backups let that
        // run on from the last one that they have heard, even if it has stood still since.
        let run_on_from = |at: Instant, clock| run_on(clock, at.min(last.at), now);
        let recovered = self.dead.iter().map(|it| run_on_from(it.since, it.latest));
        let replaced =
            servers.live().filter(|other| other.id != reading.server && !other.may_serve(now));
        let replaced = replaced.map(|other| {
            let latest = self::latest(other, now);
            run_on_from(self.shown_since(other.id, latest, now), latest)
        });
        let dead = self.dead.iter().map(|it| it.farthest);
        let fenced = servers.live().filter(|other| !other.may_serve(now));
        let fenced = fenced.filter_map(|other| Some(self.servers.get(&other.id)?.farthest));
        let heard = dead.chain(fenced).map(|heard| run_on(heard.at(last.at), last.at, now));
        recovered
            .chain(replaced)
            .chain(heard)
            .fold(latest, |latest, clock| latest.max(later(clock, CLOCK_LEASE)))
    }

    /// Records that ranges move as one, with the latest of their clocks.
    pub(crate) fn record_flip(&mut self, source: &SimulatedServer, flip: &Flip, now: Instant) {
        let store = source.node.store();
        let tablets = store.tablets();
        let inside = tablets.iter().filter(|tablet| tablet.range.overlaps(flip.range));
        let Some(clock) = inside.map(|tablet| tablet.clock.read(store.clock())).max() else {
            return;
        };
        for range in self.ranges.iter_mut().flatten() {
            if flip.range.contains(range.hash) {
                range.moved_empty = (flip.records.total() == 0).then_some(now);
                // The range may move on before its clock is read.
                let is_bounded = |(at, known)| run_on(known, at, now) >= clock;
                if !range.joined.is_some_and(is_bounded) {
                    range.joined = Some((now, clock));
                }
            }
        }
    }

    /// Records that a range is being recovered. If the log has no segments, there is no value that
    /// may expire, so the clock begins anew.
    pub(crate) fn record_recovery(&mut self, part: &RecoveryPartition) {
        for id in part.logs.iter().map(|log| log.dead) {
            let dead = self.dead.iter().find(|it| it.id == id);
            if let Some(dead) = dead.filter(|_| self.recovered.insert(id))
                && self.reports.range((id, ServerId(0))..=(id, dead.newest)).next().is_none()
            {
                self.known_from_disks.insert(id);
            }
            self.recovered.insert(id);
        }
        if part.segments_total > 0 || part.keeps {
            return;
        }
        for register in 0..self.ranges.len() {
            if self.ranges[register].is_some_and(|range| part.range.contains(range.hash)) {
                self.ignore(register);
            }
        }
    }

    /// Returns the time at which the latest clock of a server was shown first.
    fn shown_since(&self, server: ServerId, latest: UnixMillis, now: Instant) -> Instant {
        let last = self.servers.get(&server).filter(|last| last.latest == latest);
        last.map_or(now, |last| last.latest_since)
    }

    /// Records the clocks of a server that dies. `newest` has joined last.
    pub(crate) fn record_death(
        &mut self,
        server: &SimulatedServer,
        newest: ServerId,
        now: Instant,
    ) {
        let latest = latest(server, now);
        let since = self.shown_since(server.id, latest, now);
        let farthest = match self.servers.remove(&server.id) {
            Some(before) => before.farthest.farther(HeardClock { at: before.at, clock: latest }),
            None => HeardClock { at: now, clock: latest },
        };
        let was_last = server.node.durability().is_last_server();
        let id = server.id;
        self.dead.push(DeadServer { id, died: now, was_last, newest, latest, farthest, since });
        let lasts = self.ranges.iter_mut().flatten().filter_map(|range| range.last.as_mut());
        for last in lasts.filter(|last| last.server == server.id) {
            last.died.get_or_insert(now);
        }
    }

    /// Checks the rate of a server's clock: a twentieth more or less than that of true time. It
    /// makes a step forward when a difference has lasted for ten seconds.
    pub(crate) fn check_server(&mut self, server: &SimulatedServer, timeline: &mut RunTimeline) {
        let now = timeline.now;
        // A clock that may make a step is read in each turn.
        let is_fresh = |last: &ServerReading| {
            now.since(last.at) < READING_INTERVAL && now.since(last.steady_since) < DOUBT
        };
        if self.servers.get(&server.id).is_some_and(is_fresh) {
            return;
        }
        // When its log is loaded, the clock continues from the latest one there.
        if server.node.durability().load_progress().is_some() {
            self.servers.remove(&server.id);
            return;
        }
        let Some(shown) = server.liveness.clock(now) else { return };
        let latest = latest(server, now);
        let new = ServerReading {
            at: now,
            shown,
            steady_since: now,
            has_stepped: false,
            latest,
            latest_since: now,
            farthest: HeardClock { at: now, clock: latest },
        };
        let last = self.servers.entry(server.id).or_insert(new);
        let passed = now.since(last.at);
        let is_slow = shown < before(later(last.shown, passed * 19 / 20), ROUNDING);
        let has_stepped = shown.0 > later(last.shown, passed * 21 / 20).0 + ROUNDING;
        if is_slow || has_stepped && now.since(last.steady_since) < DOUBT {
            let text = format!("{} shows {shown:?} at {now}, after {last:?}", server.id);
            timeline.fail(Rule::RangeClocks.broken(text));
        }
        let (since, stepped) = match has_stepped {
            true => (now, true),
            false => (last.steady_since, last.has_stepped),
        };
        let latest_since = if last.latest == latest { last.latest_since } else { now };
        // It was shown first at some time after the last reading.
        let farthest = last.farthest.farther(HeardClock { at: last.at, clock: latest });
        let (steady_since, has_stepped) = (since, stepped);
        *last = ServerReading { steady_since, has_stepped, latest_since, farthest, ..new };
    }
}
