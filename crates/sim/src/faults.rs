//! Fault schedule of a run: the kinds of faults that it has, how often servers die, and the end of
//! its outages.
//!
//! Each run has some kinds of faults and not others, since faults that always happen hide each
//! other.
//!
//! Replicated servers die at the worst moments: right after a protocol message, several at a time,
//! all at once, and machines with everything that their disks had not synced. The durability mode
//! decides which accidents a run may have. In every mode processes may die in any number and
//! order: their disks survive, with the bytes that the operating system had not written. In
//! `disk`, machines may fail as well. In the other modes a machine that loses power loses its
//! unsynced bytes, and a damaged block loses a replica; these modes promise durability only while
//! fewer servers than replicas are down at once. Such accidents therefore happen one at a time,
//! and the next one only when everything is whole again.

use crate::agreement;
use crate::clock_faults::{ClockFaults, FarClocks};
use crate::coverage::FaultCoverage;
use crate::lasting::{LastingFault, LastingKind};
use crate::losses::Losses;
use crate::profile::RunProfile;
use crate::settings::{Knob, RunSettings};
use crate::timeline::{Accident, PlannedEvent, RunTimeline};
use fastrand::Rng;
use node::Plan;
use protocols::replication::timing::UNHEARD_MAX;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Instant, ServerId};
use wire::peer::PeerMessage;
use wire::replica::{ReplicaId, ReplicaKind};

/// Kinds of faults, with the number of fifths of the runs that have them.
const FAULTS: [(Knob, u32); 8] = [
    (Knob::Link, 2),
    (Knob::PairPartition, 2),
    (Knob::Pause, 2),
    (Knob::Clock, 2),
    (Knob::Restart, 2),
    (Knob::Takeover, 1),
    (Knob::Store, 1),
    (Knob::Crash, 1),
];

/// Longest outage in microseconds: somewhat more than the five-second timeouts.
const OUTAGE_MAX: u64 = 8_000_000;

/// Time that a job takes on a slow disk, in microseconds.
const SLOW_JOB_MICROS: std::ops::Range<u64> = 100_000..600_000;

/// One replicated run in this many has slow disks, and one has long absences of the coordinator.
const SLOW_DISK_ONE_IN: u32 = 4;
const ABSENCE_ONE_IN: u32 = 4;

/// Mixed into the seed for the separate random numbers of these faults.
const SLOW: u64 = 0x736c_6f77_6469_736b;

/// In runs with reads right behind deaths, one append of data in this many is the last one.
const WRITER_DEATH_ONE_IN: u32 = 300;

/// Death settings of a run with replicated servers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeathRates {
    /// One in this many messages that change agreed state triggers a death; 0: none.
    after_message_one_in: u32,
    /// One death in this many triggers another one shortly after; 0: none.
    twin_one_in: u32,
    /// Set if servers die only while all others are whole; then machines and disks may fail as
    /// well.
    is_one_at_a_time: bool,
}

impl DeathRates {
    pub(crate) fn draw(rng: &mut Rng, settings: &RunSettings, plan: Plan) -> DeathRates {
        let after_message_one_in = [0, 60, 400][rng.usize(..3)];
        let twin_one_in = [0, 2, 6][rng.usize(..3)];
        let is_one_at_a_time = rng.u32(..3) == 0 && plan.replicas > 1;
        let has = |knob, number| if settings.has(knob) { number } else { 0 };
        DeathRates {
            after_message_one_in: has(Knob::Deaths, after_message_one_in),
            twin_one_in: has(Knob::Deaths, twin_one_in),
            is_one_at_a_time: is_one_at_a_time && settings.has(Knob::Machines),
        }
    }
}

/// A damaged replica on a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damage {
    replica: ReplicaId,
    at: Instant,
    report: DamageReport,
}

/// State of the report of a damaged replica to its master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DamageReport {
    None,
    /// The time of the last attempt. The backup repeats it after [`UNHEARD_MAX`].
    Sent(Instant),
    Received,
}

/// Faults that a run may have, and the state of those that have begun.
pub(crate) struct FaultSchedule {
    kinds: Vec<Knob>,
    death_rates: DeathRates,
    /// Kind of the fault that will last at the end, if there is one.
    pub(crate) lasting_kind: Option<LastingKind>,
    /// Fault that lasts now.
    pub(crate) lasting: Option<LastingFault>,
    /// Places with slow disks, and the time until which they are slow.
    slow_disks: BTreeMap<usize, Instant>,
    /// Time until which no coordinator starts.
    pub(crate) no_coordinator_until: Instant,
    /// Steps of protocols that faults have met.
    pub(crate) coverage: FaultCoverage,
    /// Set once a disk has a damaged block.
    pub(crate) damage: Option<Damage>,
    /// Faults of the servers' wall clocks.
    pub(crate) clocks: ClockFaults,
    /// End of all outages so far.
    pub(crate) outages_until: Instant,
}

impl FaultSchedule {
    pub(crate) fn draw_kinds(rng: &mut Rng, settings: &RunSettings) -> Vec<Knob> {
        let drawn = FAULTS.into_iter().filter(|&(_, often)| rng.u32(..5) < often);
        let mut drawn: Vec<Knob> = drawn.map(|(knob, _)| knob).collect();
        if FarClocks::draw(settings).is_some() && !drawn.contains(&Knob::Clock) {
            drawn.push(Knob::Clock);
        }
        drawn.retain(|&knob| settings.has(knob));
        drawn
    }

    pub(crate) fn new(kinds: Vec<Knob>, death_rates: DeathRates) -> FaultSchedule {
        FaultSchedule {
            kinds,
            death_rates,
            lasting_kind: None,
            lasting: None,
            slow_disks: BTreeMap::new(),
            no_coordinator_until: Instant(0),
            coverage: FaultCoverage::default(),
            damage: None,
            clocks: ClockFaults::default(),
            outages_until: Instant(0),
        }
    }

    pub(crate) fn has(&self, kind: Knob) -> bool {
        self.kinds.contains(&kind)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Removes a kind of fault from the rest of the run.
    pub(crate) fn remove(&mut self, kind: Knob) {
        self.kinds.retain(|fault| *fault != kind);
    }

    pub(crate) fn draw_fault(&self, rng: &mut Rng) -> Knob {
        self.kinds[rng.usize(..self.kinds.len())]
    }

    pub(crate) fn is_one_at_a_time(&self) -> bool {
        self.death_rates.is_one_at_a_time
    }

    /// Records that a replica on a server's disk is damaged.
    pub(crate) fn record_damage(
        &mut self,
        replica: ReplicaId,
        server: ServerId,
        timeline: &mut RunTimeline,
    ) {
        timeline.note(format_args!("{replica} on {server}'s disk is damaged"));
        self.damage = Some(Damage { replica, at: timeline.now, report: DamageReport::None });
    }

    /// Records that a backup tells the master that it has lost a replica.
    pub(crate) fn record_report(&mut self, replica: ReplicaId, now: Instant) {
        let damage = self.damage.as_mut().filter(|damage| damage.replica == replica);
        if let Some(Damage { report, .. }) = damage
            && *report != DamageReport::Received
        {
            *report = DamageReport::Sent(now);
        }
    }

    /// Records that a master receives such a report.
    pub(crate) fn record_received_report(&mut self, replica: ReplicaId) {
        let damage = self.damage.as_mut().filter(|damage| damage.replica == replica);
        damage.into_iter().for_each(|damage| damage.report = DamageReport::Received);
    }

    /// Returns whether a disk was damaged, and the master of the replica may not know it: the
    /// backup may not have read the replica since, or its report was lost and is not due again.
    pub(crate) fn awaits_scrub(&self, profile: &RunProfile, now: Instant) -> bool {
        let Some((damage, interval)) = self.damage.zip(profile.scrub()) else { return false };
        let known_by = match damage.report {
            DamageReport::None | DamageReport::Received => damage.at + 2 * interval,
            DamageReport::Sent(at) => (damage.at + 2 * interval).max(at + UNHEARD_MAX + interval),
        };
        now < known_by
    }

    /// Adds the faults that only runs with persistent or replicated logs have.
    pub(crate) fn add_persistent(&mut self, profile: &RunProfile, rng: &mut Rng) {
        let settings = &profile.settings;
        if profile.persistence.is_some() && settings.has(Knob::Crash) {
            self.kinds.push(Knob::Crash);
        }
        if profile.replicas() == 0 {
            return;
        }
        self.lasting_kind = LastingKind::draw(settings);
        if self.is_one_at_a_time() {
            self.kinds.retain(|fault| matches!(fault, Knob::Crash | Knob::Clock));
        } else {
            for fault in [Knob::Blackout, Knob::Partition] {
                if rng.u32(..3) == 0 && settings.has(fault) {
                    self.kinds.push(fault);
                }
            }
        }
        // A separate generator: further draws would change the runs of all seeds.
        let mut separate = Rng::with_seed(settings.seed ^ SLOW);
        for (fault, one_in) in [(Knob::SlowDisk, SLOW_DISK_ONE_IN), (Knob::Absence, ABSENCE_ONE_IN)]
        {
            if separate.u32(..one_in) == 0 && settings.has(fault) {
                self.kinds.push(fault);
            }
        }
        if rng.bool() && settings.has(Knob::Disk) {
            self.kinds.push(Knob::Disk);
        }
        if rng.u32(..3) == 0 && settings.has(Knob::Rollback) {
            self.kinds.push(Knob::Rollback);
        }
    }

    /// May plan a death, since a message was just sent between these places.
    pub(crate) fn may_strike_sides(
        &self,
        places: [usize; 2],
        message: &PeerMessage,
        profile: &RunProfile,
        timeline: &mut RunTimeline,
    ) {
        if agreement::is_changed_by_peer(message) {
            self.may_strike(places, profile, timeline);
        }
        let is_data = matches!(message, PeerMessage::Append(it) if it.kind == ReplicaKind::Data);
        if profile.is_followed && is_data {
            self.may_strike_writer(places[0], timeline);
        }
    }

    /// May plan a death, since a message that changes agreed state was just sent between these
    /// places.
    pub(crate) fn may_strike(
        &self,
        places: [usize; 2],
        profile: &RunProfile,
        timeline: &mut RunTimeline,
    ) {
        let one_in = self.death_rates.after_message_one_in;
        let is_possible =
            one_in > 0 && timeline.is_working() && profile.replicas() > 0 && self.has(Knob::Crash);
        if !is_possible || timeline.rng.u32(..one_in) != 0 {
            return;
        }
        let soon = [10, 300, 3_000][timeline.rng.usize(..3)];
        let soon = timeline.micros(0..soon);
        let is_coordinator = self.has(Knob::Restart) && timeline.rng.u32(..3) == 0;
        let accident = match is_coordinator {
            true => Accident::CoordinatorStops,
            false => Accident::ServerDies(places[timeline.rng.usize(..2)]),
        };
        timeline.plan_in(soon, PlannedEvent::Accident(accident));
    }

    /// Does the same for a message between a server and the coordinator.
    pub(crate) fn may_strike_near(
        &self,
        place: usize,
        profile: &RunProfile,
        timeline: &mut RunTimeline,
    ) {
        if self.death_rates.after_message_one_in > 0 {
            let other = other_place(place, profile, timeline);
            self.may_strike([place, other], profile, timeline);
        }
    }

    /// May plan the death of a server that has just sent the last writes to a backup.
    fn may_strike_writer(&self, place: usize, timeline: &mut RunTimeline) {
        if timeline.is_working() && timeline.rng.u32(..WRITER_DEATH_ONE_IN) == 0 {
            let soon = timeline.micros(0..50);
            timeline.plan_in(soon, PlannedEvent::Accident(Accident::ServerDies(place)));
        }
    }

    /// May plan the death of a second server shortly after that of the first one.
    pub(crate) fn may_strike_twin(
        &self,
        place: usize,
        profile: &RunProfile,
        timeline: &mut RunTimeline,
    ) {
        let twin = self.death_rates.twin_one_in;
        if twin > 0 && profile.replicas() > 0 && timeline.rng.u32(..twin) == 0 {
            let other = other_place(place, profile, timeline);
            let soon = timeline.micros(0..20_000);
            timeline.plan_in(soon, PlannedEvent::Accident(Accident::ServerDies(other)));
        }
    }

    /// Draws the duration of an outage: usually up to `usual` microseconds, in some runs longer
    /// than the five-second timeouts.
    pub(crate) fn draw_outage(
        &mut self,
        usual: u64,
        profile: &RunProfile,
        timeline: &mut RunTimeline,
    ) -> Duration {
        let is_long = profile.slowness > 1 && timeline.rng.u32(..3) == 0 && timeline.is_working();
        let outage = timeline.micros(1_000..if is_long { OUTAGE_MAX } else { usual });
        self.extend_outages(timeline.now + outage);
        outage
    }

    /// Makes the disk at a place slow for a while.
    pub(crate) fn begin_slow_disk(
        &mut self,
        place: usize,
        losses: &mut Losses,
        timeline: &mut RunTimeline,
    ) {
        let until = timeline.now + timeline.micros(50_000..1_000_000);
        timeline.note(format_args!("the disk at place {place} is slow until {until}"));
        losses.failing.insert(place);
        self.extend_outages(until);
        self.slow_disk(place, until);
    }

    /// Makes the disk at a place slow until this time.
    pub(crate) fn slow_disk(&mut self, place: usize, until: Instant) {
        self.slow_disks.insert(place, until);
    }

    /// Returns whether the disk at a place is slow; `None` if it has never been.
    pub(crate) fn is_disk_slow(&self, place: usize, now: Instant) -> Option<bool> {
        Some(now < *self.slow_disks.get(&place)?)
    }

    /// Draws the time of a disk job at a place, if the disk is slow now.
    pub(crate) fn slow_job_time(
        &self,
        place: usize,
        timeline: &mut RunTimeline,
    ) -> Option<Duration> {
        let until = self.slow_disks.get(&place)?;
        (timeline.now < *until).then(|| timeline.micros(SLOW_JOB_MICROS))
    }

    /// Ends the faults that go on by themselves.
    pub(crate) fn end(&mut self) {
        self.lasting = None;
        self.slow_disks.values_mut().for_each(|until| *until = Instant(0));
        self.no_coordinator_until = Instant(0);
    }

    /// Records that an outage lasts until this time.
    pub(crate) fn extend_outages(&mut self, until: Instant) {
        self.outages_until = self.outages_until.max(until);
    }
}

/// Draws another place. The server there may not have joined yet.
fn other_place(place: usize, profile: &RunProfile, timeline: &mut RunTimeline) -> usize {
    let servers = profile.size.servers;
    (place + timeline.rng.usize(1..servers)) % servers
}
