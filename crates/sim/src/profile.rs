//! Environment of the servers in one run, drawn once from the seed.

use crate::cluster_size::ClusterSize;
use crate::faults::DeathRates;
use crate::load::is_followed;
use crate::servers::{LocalLog, Persistence};
use crate::settings::{Knob, RunSettings};
use crate::typed;
use crate::workload::Workload;
use fastrand::Rng;
use node::{Mode, Plan};
use std::time::Duration;

/// Scrubbing interval of the backups, in runs that scrub.
const SCRUB_INTERVAL: Duration = Duration::from_millis(700);

/// Memory of a server in bytes: enough for several migrations with their reservations.
const MEMORY_BYTES: usize = 256 << 20;

/// One run in this many has servers with less memory.
const SCARCE_ONE_IN: u32 = 8;

/// One run in this many has servers that persist their logs.
const PERSISTENT_ONE_IN: u32 = 4;

/// Memory, segment size and value length factor in runs that are to clean their logs.
const SMALL_MEMORY_BYTES: [usize; 2] = [3 << 20, 4 << 20];
const SMALL_SEGMENT_BYTES: usize = 64 << 10;
const SMALL_LENGTH: usize = 12;

/// Mixed into the seed for the separate random numbers of replicated runs.
const REPLICATED: u64 = 0x7265_706c_6963_6173;

/// Mixed into the seed for the separate random numbers of runs whose machines lose power.
const POWER: u64 = 0x706f_7765_7220_6375;

/// Sync intervals of such runs, in milliseconds of virtual time: runs are shorter than a second.
const SYNC_MILLIS: [u64; 3] = [5, 20, 60];

/// Number of sync intervals after which a standalone server in mode `memory` syncs.
const MEMORY_INTERVALS: u32 = 5;

/// Time within which such a sync has ended, if nothing disturbs it.
const SYNC_MAX: Duration = Duration::from_millis(60);

/// One run with forced losses of power in this many is in mode `memory`.
const MEMORY_ONE_IN: u64 = 4;

/// One run in this many is long.
const LONG_ONE_IN: u32 = 16;

/// Factor by which long runs last longer and are slower.
const LONG_SLOWNESS: u32 = 16;

/// Settings of a run, and everything about its servers that stays the same from start to end.
pub(crate) struct RunProfile {
    pub(crate) settings: RunSettings,
    pub(crate) size: ClusterSize,
    /// Memory of each server, in bytes.
    pub(crate) memory_bytes: usize,
    /// Longest packed value, in bytes.
    pub(crate) packed_bytes: usize,
    /// Way in which servers persist their logs, if they do.
    pub(crate) persistence: Option<Persistence>,
    /// Set if machines lose power although their servers do not sync before they answer: then
    /// clients find the state of an earlier moment.
    pub(crate) loses_power: bool,
    /// Set if ranges move although servers persist their logs.
    pub(crate) persisted_ranges_move: bool,
    /// Set if clients read what was being written when a server died.
    pub(crate) is_followed: bool,
    /// Factor by which the run's own delays are longer.
    pub(crate) slowness: u32,
    /// One turn in this many has a background quantum.
    pub(crate) quantum_one_in: u32,
}

/// Persistence of the servers' logs, and the deaths that go with it.
struct PersistenceDraw {
    persistence: Option<Persistence>,
    loses_power: bool,
    persisted_ranges_move: bool,
    is_followed: bool,
    is_small: bool,
    small_memory_bytes: usize,
    death_rates: DeathRates,
}

impl PersistenceDraw {
    /// Draws from a separate generator, so that other runs stay the same. `are_whole`: each value is
    /// in one record.
    fn draw(
        settings: &RunSettings,
        size: &ClusterSize,
        is_persistent: bool,
        mode: Mode,
        are_whole: bool,
    ) -> PersistenceDraw {
        let mut rng = Rng::with_seed(settings.seed ^ REPLICATED);
        let is_replicated = is_persistent && rng.bool() && settings.has(Knob::Replicated);
        let is_persistent = is_persistent || settings.is_replicated || settings.loses_power;
        let is_replicated = is_replicated && !settings.loses_power || settings.is_replicated;
        let mode = match settings.loses_power {
            true if are_whole && settings.seed % MEMORY_ONE_IN == 3 => Mode::Memory,
            true => Mode::Interval,
            false => mode,
        };
        // Not drawn: a further draw would change the runs of all seeds.
        let scrub = settings.seed.is_multiple_of(2).then_some(SCRUB_INTERVAL);
        let replicas = rng.u16(1..=2);
        let plan = Plan { mode, replicas: size.replicas.unwrap_or(replicas), scrub };
        let persisted_ranges_move =
            is_replicated && rng.u32(..4) != 0 && settings.has(Knob::Lineage);
        let death_rates = match is_replicated {
            true => DeathRates::draw(&mut rng, settings, plan),
            false => DeathRates::default(),
        };
        let may_lose = match mode {
            Mode::Memory => are_whole,
            Mode::Interval => true,
            Mode::Disk => false,
        };
        let power = (is_persistent && !is_replicated && may_lose)
            .then(|| PowerDraw::draw(settings))
            .filter(|_| settings.has(Knob::Machines));
        let is_small = is_replicated && rng.bool() && settings.has(Knob::Small)
            || power.is_some_and(|power| power.is_small);
        let small_memory_bytes = SMALL_MEMORY_BYTES[rng.usize(..2)];
        let persistence = match is_replicated {
            true => Persistence::Replicated(plan, is_small.then_some(SMALL_SEGMENT_BYTES)),
            false => Persistence::LocalLog(LocalLog {
                mode,
                sync_interval: power.map(|power| power.sync_interval),
                segment_bytes: is_small.then_some(SMALL_SEGMENT_BYTES),
            }),
        };
        PersistenceDraw {
            persistence: is_persistent.then_some(persistence),
            loses_power: power.is_some_and(|power| power.loses_power),
            persisted_ranges_move,
            is_followed: is_replicated && is_followed(settings),
            is_small,
            small_memory_bytes,
            death_rates,
        }
    }
}

/// Environment of servers that sync their own logs later than they answer. Drawn from a separate generator,
/// so that other runs stay the same.
#[derive(Clone, Copy, Debug)]
struct PowerDraw {
    loses_power: bool,
    sync_interval: Duration,
    is_small: bool,
}

impl PowerDraw {
    fn draw(settings: &RunSettings) -> PowerDraw {
        let mut rng = Rng::with_seed(settings.seed ^ POWER);
        let loses_power = rng.bool() || settings.loses_power;
        let sync_interval = Duration::from_millis(SYNC_MILLIS[rng.usize(..SYNC_MILLIS.len())]);
        let is_small = loses_power && rng.bool() && settings.has(Knob::Small);
        PowerDraw { loses_power, sync_interval, is_small }
    }
}

impl RunProfile {
    /// Draws the environment of the servers, and how often they die.
    pub(crate) fn draw(
        rng: &mut Rng,
        settings: RunSettings,
        size: ClusterSize,
        workload: &mut Workload,
    ) -> (RunProfile, DeathRates) {
        let is_scarce = rng.u32(..SCARCE_ONE_IN) == 0 && settings.has(Knob::Memory);
        let scarce = [72 << 20, 88 << 20, 120 << 20][rng.usize(..3)];
        let is_persistent = rng.u32(..PERSISTENT_ONE_IN) == 0 && settings.has(Knob::LocalLog);
        let mode = [Mode::Memory, Mode::Interval, Mode::Disk][rng.usize(..3)];
        let are_whole = workload.collections.is_none() && !typed::are_used(&settings);
        let drawn = PersistenceDraw::draw(&settings, &size, is_persistent, mode, are_whole);
        if drawn.is_small {
            workload.lengthen(SMALL_LENGTH);
        }
        let memory_bytes = match (drawn.is_small, is_scarce) {
            (true, _) => drawn.small_memory_bytes,
            (false, true) => scarce,
            (false, false) => MEMORY_BYTES,
        };
        let is_long = rng.u32(..LONG_ONE_IN) == 0 && settings.has(Knob::Long);
        let are_divided = workload.collections.as_ref().map(|it| it.are_divided);
        let packed_bytes = typed::packed_bytes(&settings, are_divided);
        let quantum_one_in = [1, 5, 25][rng.usize(..3)];
        let profile = RunProfile {
            settings,
            size,
            memory_bytes,
            packed_bytes,
            persistence: drawn.persistence,
            loses_power: drawn.loses_power,
            persisted_ranges_move: drawn.persisted_ranges_move,
            is_followed: drawn.is_followed,
            slowness: if is_long { LONG_SLOWNESS } else { 1 },
            quantum_one_in,
        };
        (profile, drawn.death_rates)
    }

    /// Returns the number of replicas that other servers have of each log.
    pub(crate) fn replicas(&self) -> u16 {
        self.persistence.map_or(0, Persistence::replicas)
    }

    /// Returns the interval at which backups scrub each replica, if they do.
    pub(crate) fn scrub(&self) -> Option<Duration> {
        match self.persistence? {
            Persistence::Replicated(plan, _) => plan.scrub,
            Persistence::LocalLog(_) => None,
        }
    }

    /// Returns whether the logs have small segments, and the servers little memory for them.
    pub(crate) fn has_small_segments(&self) -> bool {
        match self.persistence {
            Some(Persistence::Replicated(_, segment_bytes)) => segment_bytes.is_some(),
            Some(Persistence::LocalLog(plan)) => plan.segment_bytes.is_some(),
            None => false,
        }
    }

    /// Returns the durability mode of the logs, if they are persisted.
    pub(crate) fn mode(&self) -> Option<Mode> {
        self.persistence.map(Persistence::mode)
    }

    /// Returns whether servers in mode `memory` have their own logs, and their machines lose power.
    pub(crate) fn loses_power_in_memory(&self) -> bool {
        self.loses_power && self.has_local_logs() && self.mode() == Some(Mode::Memory)
    }

    /// Returns the longest time for which a server that is well leaves its own log unsynced in mode
    /// `memory`, with the time of the sync.
    pub(crate) fn unsynced_max(&self) -> Option<Duration> {
        let Some(Persistence::LocalLog(LocalLog { sync_interval, .. })) = self.persistence else {
            return None;
        };
        Some(sync_interval? * MEMORY_INTERVALS + SYNC_MAX * self.slowness)
    }

    /// Returns whether each server has its own log on its own disk, and therefore keeps its id.
    pub(crate) fn has_local_logs(&self) -> bool {
        self.persistence.is_some_and(|persistence| persistence.replicas() == 0)
    }
}
