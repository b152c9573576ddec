//! Checks of the rules, and the end of a run.

use super::faults::Cuts;
use super::{Next, Part, REST_AGAIN, REST_MAX, World};
use crate::clients::Slack;
use crate::failure::{Failure, Rule};
use crate::history::Verdict;
use crate::inspect::Walk;
use crate::network::Weather;
use crate::reactor::Inbound;
use crate::servers::Server;
use crate::settings::Knob;
use crate::workload::EXPIRY_MAX_MILLIS;
use protocols::replication::timing::CLOCK_LEASE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{BEHIND_MAX_MILLIS, TabletState};
use types::{HashRange, Instant, MigrationId, UnixMillis};
use wire::control::{Ask, MigrationReport, MigrationState};
use wire::peer::{PeerMessage, PriorityAnswer};

/// Maximal number of requests for a hash that the source reported as absent. Late answers are
/// ignored, and requests in transit arrive once more.
const ASKED_AGAIN_MAX: u32 = 5;

impl World {
    /// Checks that this server has everything that its progress has just passed.
    pub(super) fn check_progress(&mut self, place: usize) {
        let passed = self.servers[place].inspector.newly_passed(&self.workload.registers);
        if passed.is_empty() {
            return;
        }
        let walls: Vec<_> = (0..self.servers.len()).map(|place| self.wall_at(place)).collect();
        for (migration, source, table, hash) in passed {
            // The target may have reclaimed records that have expired by its clock.
            let clock = self.servers[place].node.store().latest_clock();
            let from = self.place(source);
            let is_there = from.is_some_and(|from| {
                self.servers[from].inspector.has(walls[from], (table, hash), Some(clock))
            });
            let inspector = &mut self.servers[place].inspector;
            if is_there && !inspector.knows(walls[place], table, hash) {
                let text = format!("{migration} has passed {hash}, which only {source} has");
                self.failure = Some(Rule::ProgressFollowsReplay.broken(text));
            }
        }
    }

    /// Checks that no two servers serve the same hash. Runs when a server's tablets have changed.
    pub(super) fn check_owners(&mut self, place: usize) {
        let version = self.servers[place].node.tablets_version();
        if std::mem::replace(&mut self.servers[place].tablets_version, version) == version {
            return;
        }
        let ranges = self.servers.iter().map(|server| server.served(self.now)).collect::<Vec<_>>();
        self.check_rise(place);
        let here = &ranges[place];
        if let Some(failure) = self.check_lost(place, here) {
            self.failure = Some(failure);
        }
        for (other, there) in ranges.iter().enumerate().filter(|(other, _)| *other != place) {
            let shared = here.iter().flat_map(|a| there.iter().find_map(|b| a.intersection(*b)));
            if let Some(range) = shared.into_iter().next() {
                let (one, two) = (self.servers[place].id, self.servers[other].id);
                self.failure =
                    Some(Rule::OneOwner.broken(format!("{one} and {two} serve {range}")));
            }
        }
    }

    /// Checks that a server's map versions and a range's epochs only rise.
    fn check_rise(&mut self, place: usize) {
        let server = &self.servers[place];
        if server.is_dead {
            return;
        }
        let (id, map) = (server.id, server.node.map().version);
        let seen = self.maps_seen.entry(id).or_insert(0);
        if map < *seen {
            let text = format!("{id} goes from map {seen} to {map}");
            self.failure = Some(Rule::MapsRise.broken(text));
        }
        *seen = map;
        // A server that was declared dead may not know it yet.
        if !server.may_serve(self.now) {
            return;
        }
        let tablets = server.node.store().tablets();
        for slot in self.workload.slots() {
            let tablet = tablets.at(slot.first_hash());
            let served = tablet.filter(|tablet| match tablet.state {
                TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => true,
                TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
            });
            let Some(tablet) = served else { continue };
            let highest = self.epochs.entry(slot).or_insert(tablet.epoch);
            if tablet.epoch < *highest {
                let text = format!("{id} serves {slot:?} under {}, after {highest}", tablet.epoch);
                self.failure = Some(Rule::EpochsRise.broken(text));
            }
            *highest = tablet.epoch;
        }
    }

    /// Checks that a reactor does not repeatedly ask for hashes that its source reported as
    /// absent.
    pub(super) fn check_asked(&mut self, reactor: (usize, usize), message: &PeerMessage) {
        let PeerMessage::PriorityPull(pull) = message else { return };
        for &(_, hash) in &pull.hashes {
            if let Some(times) = self.told_absent.get_mut(&(reactor, pull.migration, hash)) {
                *times += 1;
                if *times > ASKED_AGAIN_MAX {
                    let text = format!("{hash} of {} by reactor {reactor:?}", pull.migration);
                    self.failure = Some(Rule::AskedOnce.broken(text));
                }
            }
        }
    }

    /// Records the hashes that a reactor learns to be absent at its source.
    pub(super) fn note_told(&mut self, reactor: (usize, usize), inbound: &Inbound) {
        let Inbound::Peer(arrived) = inbound else { return };
        let PeerMessage::PriorityReply(reply) = &arrived.message else { return };
        for &(_, hash, answer) in &reply.answers {
            if answer != PriorityAnswer::Records {
                self.told_absent.entry((reactor, reply.migration, hash)).or_insert(0);
            }
        }
    }

    /// Ends all faults, and then repeatedly checks if everything has come to rest.
    pub(super) fn rest(&mut self) {
        let is_clearing = self.part == Part::Working;
        if is_clearing {
            self.trace.note(self.now, format_args!("the faults end"));
            self.part = Part::Resting;
            self.worked = Some(self.now.since(Instant(0)));
            self.weather = Weather::fair();
            self.disks.iter().for_each(|disk| disk.mend());
            self.cuts = Cuts::default();
            self.leaders.set_trouble(false);
            self.end_former_leaders();
            self.rest_by = self.now + REST_MAX;
        }
        // A list from before the links broke proves nothing.
        let is_known = self.ask(Ask::List { task: None });
        if is_known {
            self.check_remembered();
        }
        let has_ended = is_known && self.unrest().is_empty();
        let is_at_rest = has_ended && self.clients.open().next().is_none();
        if is_clearing || self.part == Part::Resting && !is_at_rest {
            // Clocks may run a twentieth slow, stand still while another one catches up, and lag
            // behind.
            let longest = 2 * (EXPIRY_MAX_MILLIS + self.skew_max_millis + BEHIND_MAX_MILLIS);
            self.expired_by = self.now + Duration::from_millis(longest + 1);
        }
        match self.part {
            Part::Working => unreachable!("the working part has just ended"),
            Part::Resting if is_at_rest && self.now >= self.expired_by => {
                self.part = Part::Reading(0);
                self.clients.begin_last_reads();
                (0..self.clients.count()).for_each(|client| self.think_soon(client));
            }
            // Nothing is planned any more, so the run ends.
            Part::Reading(next) if is_at_rest && next == self.closing.len() => {
                return self.plan.clear();
            }
            Part::Resting | Part::Reading(_) => {}
        }
        if self.now >= self.rest_by {
            self.ask(Ask::Recoveries);
            self.failure = Some(self.describe_unrest());
        }
        self.plan_in(REST_AGAIN, Next::Rest);
    }

    /// Returns the migrations and servers that have not come to rest although they could.
    fn unrest(&self) -> Vec<(Rule, String)> {
        let stuck = self.losses.stuck(&self.migrations);
        let is_under_way = |report: &&MigrationReport| !is_over(report.state);
        let (lost, moving): (Vec<_>, Vec<_>) =
            self.migrations.iter().filter(is_under_way).partition(|r| stuck.contains(&r.migration));
        let moving = moving.iter().map(|report| (Rule::MigrationsEnd, format!("{report:?}")));
        // A target that does not know the end of its migration keeps tombstones.
        let cannot_end = |range: HashRange| lost.iter().any(|report| report.range.covers(range));
        let unsettled =
            self.servers.iter().filter(|server| !server.is_settled(self.now, cannot_end));
        let unsettled = unsettled.map(|server| {
            (Rule::ServersSettle, format!("{} is cut off, or has a moving range", server.id))
        });
        moving.chain(unsettled).chain(self.unowned()).collect()
    }

    /// Returns a range with a dead owner, although replicas of the owner's log exist.
    fn unowned(&self) -> Option<(Rule, String)> {
        if self.kept.is_none_or(|keeps| keeps.replicas() == 0) {
            return None;
        }
        let maps = self.servers.iter().filter(|server| !server.is_dead);
        let map = maps.map(|server| server.node.map()).max_by_key(|map| map.version)?;
        let mut lost = map.tablets.iter().filter(|tablet| self.place(tablet.owner).is_none());
        let tablet = lost.next()?;
        let text = format!("{} is owned by {}, which is gone", tablet.range, tablet.owner);
        Some((Rule::ServersSettle, text))
    }

    fn describe_unrest(&self) -> Failure {
        let open = self.clients.open();
        let open =
            open.map(|open| (Rule::Answered, format!("open since {}: {:?}", open.since, open.job)));
        let unrest: Vec<_> = open.chain(self.unrest()).collect();
        let rule = unrest.first().map_or(Rule::ServersSettle, |(rule, _)| *rule);
        let mut text = String::new();
        unrest.iter().for_each(|(_, line)| text.push_str(&format!("\n  {line}")));
        for recovery in &self.recoveries {
            text.push_str(&format!("\n  {recovery:?}"));
        }
        for server in &self.servers {
            for reactor in &server.reactors {
                text.push_str(&format!("\n  at {}: {}", server.id, reactor.waiting()));
            }
        }
        rule.broken(text)
    }

    /// Records by how much the clocks of a range's parts differ: the range moves with the latest
    /// one.
    pub(super) fn note_clock_step(&mut self, source: usize, id: MigrationId, range: HashRange) {
        let store = self.servers[source].node.store();
        let tablets = store.tablets();
        let inside = tablets.iter().filter(|tablet| tablet.range.overlaps(range));
        let clocks = inside.map(|tablet| tablet.clock.read(store.clock()).0);
        let clocks = clocks.collect::<BTreeSet<_>>();
        if let (Some(first), Some(last)) = (clocks.first(), clocks.last()) {
            let step = self.clock_steps.entry(id).or_default();
            *step = Duration::from_millis(last - first).max(*step);
        }
    }

    /// Returns the time by which values may expire too early or too late.
    ///
    /// If clocks differ by little and no process dies, no value expires early: lifetimes count by
    /// the clock of the range, which moves with it and makes a step only if the range is joined
    /// with another. A process that starts begins with its own wall clock. All ranges of a dead
    /// server continue with the latest of their clocks. If the server itself had recovered a
    /// range from a disk, with a clock up to a second behind, values that were written there lose
    /// that second.
    fn slack(&self) -> Slack {
        let skew = Duration::from_millis(self.skew_max_millis);
        let is_steady = !self.settings.is_replicated
            && !self.faults.contains(&Knob::Crash)
            && skew < protocols::clock::FOLLOWED_MAX;
        let steps: Duration = self.clock_steps.values().sum();
        let behind = Duration::from_millis(BEHIND_MAX_MILLIS);
        let again = if self.losses.dead.len() > 1 { behind } else { Duration::ZERO };
        let early = if is_steady { steps } else { skew + CLOCK_LEASE + again };
        // A range's clock falls behind by the duration of a flip, which is up to a second.
        let late = skew + 4 * CLOCK_LEASE + behind;
        (early + Duration::from_millis(2), late)
    }

    /// Checks the histories of the clients, and the final contents of the servers.
    pub(super) fn judge(&mut self) -> Option<Failure> {
        match self.clients.judge(self.slack()) {
            Some((register, Verdict::Violated(text))) => {
                let key = String::from_utf8_lossy(&self.workload.registers[register].keys[0].1);
                return Some(Rule::Linearizable.broken(format!("{key}: {text}")));
            }
            Some((register, _)) => {
                return Some(Rule::Decided.broken(format!("register {register}")));
            }
            None => {}
        }
        self.judge_servers()
    }

    /// Checks that a scan over all servers finds exactly the records that the last reads saw,
    /// each at one server.
    fn judge_servers(&mut self) -> Option<Failure> {
        let mut seen: BTreeMap<&[u8], u64> = BTreeMap::new();
        let mut unknown: BTreeSet<&[u8]> = BTreeSet::new();
        for (number, register) in self.workload.registers.iter().enumerate() {
            let keys = register.keys.iter().map(|(_, key)| key.as_slice());
            match self.clients.last_read(number) {
                Some(Some(value)) => seen.extend(keys.map(|key| (key, value))),
                Some(None) => {}
                None if self.losses.is_excused(number) => unknown.extend(keys),
                None => {
                    let key = String::from_utf8_lossy(&register.keys[0].1);
                    return Some(Rule::Answered.broken(format!("no server answers for {key}")));
                }
            }
        }
        let walls: Vec<_> = (0..self.servers.len()).map(|place| self.wall_at(place)).collect();
        for (server, wall) in self.servers.iter_mut().zip(walls).filter(|(s, _)| !s.is_dead) {
            let Walk { mut held, .. } = match judge_counts(server, wall) {
                Ok(walk) => walk,
                Err(failure) => return Some(failure),
            };
            held.retain(|key, _| !unknown.contains(key.as_slice()));
            for (key, value) in held {
                if seen.remove(key.as_slice()) != Some(value) {
                    let key = String::from_utf8_lossy(&key);
                    let text = format!("{} holds {value} for {key}: no read sees it", server.id);
                    return Some(Rule::NothingStray.broken(text));
                }
            }
        }
        let lost = seen.first_key_value()?;
        let key = String::from_utf8_lossy(lost.0);
        Some(Rule::NothingLost.broken(format!("no server holds {key} = {}", lost.1)))
    }
}

/// Checks that a server's counts match a scan, and that it has no records outside its ranges.
fn judge_counts(server: &mut Server, wall: UnixMillis) -> Result<Walk, Failure> {
    let id = server.id;
    let left = server.inspector.left_behind(wall);
    if !left.is_empty() {
        return Err(Rule::NothingStray.broken(format!("{id} holds {left:?}")));
    }
    let walk = server.inspector.walk(wall);
    let words = server.inspector.words(wall);
    let found = walk.held.len() as u64 + walk.others;
    if found != words && !(walk.may_bury && found < words) {
        let (held, others) = (walk.held.len(), walk.others);
        let text = format!("{id} counts {words} records, serves {held}, and holds {others} others");
        return Err(Rule::CountsMatch.broken(text));
    }
    let (live, bytes) = (server.node.store().usage().log.live_bytes, walk.bytes);
    if live != bytes && !(walk.may_bury && bytes < live) {
        let text = format!("{id} counts {live} live bytes and holds {bytes}");
        return Err(Rule::CountsMatch.broken(text));
    }
    Ok(walk)
}

fn is_over(state: MigrationState) -> bool {
    match state {
        MigrationState::Success | MigrationState::Cancelled | MigrationState::Failed => true,
        MigrationState::Queued
        | MigrationState::Preparing
        | MigrationState::Moving
        | MigrationState::Releasing => false,
    }
}
