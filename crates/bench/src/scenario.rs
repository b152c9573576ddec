//! The one story that demo, comparison and figures tell: load two servers, offer load, move slots
//! from the first to the second, and read every record back.

use crate::bulk::{Bulk, used_until_resting};
use crate::clock;
use crate::control::Control;
use crate::distribution::Distribution;
use crate::migrate::{Move, Moved, Payload};
use crate::pace::Pace;
use crate::peers::Cluster;
use crate::processes::{self, Usage};
use crate::recorder::{Findings, Phase};
use crate::records::Records;
use crate::routes::{Routes, Slots};
use crate::run::{Dataset, Plan, Wiring, start};
use crate::timeline::Timeline;
use crate::workload::{Mix, Workload};
use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Duration;
use types::Slot;

/// Before a server is judged it has worked for so long.
pub(crate) const WARM_UP: Duration = Duration::from_secs(1);
/// What happens.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The data set.
    pub records: Records,
    /// Threads of the load generator.
    pub threads: u32,
    /// How clients connect.
    pub wiring: Wiring,
    /// The load while slots move; `None` for none.
    pub load: Option<Load>,
    /// The slots that move.
    pub slots: (Slot, Slot),
    /// Words for `CLUSTER MIGRATESLOTS` that say how to move: Ballast's `POLICY ...`, or none.
    pub policy: Vec<String>,
    /// Everything that is drawn is drawn from this.
    pub seed: u64,
}

/// Load before, during and after a migration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Load {
    /// Reads and writes.
    pub mix: Mix,
    /// How records are drawn.
    pub distribution: Distribution,
    /// When operations start.
    pub pace: Pace,
    /// How long before the move, behind a second of warm-up.
    pub before: Duration,
    /// How long after it.
    pub after: Duration,
}

/// How far it is, for progress bars.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress {
    /// Records written.
    Loading {
        /// So far.
        done: u64,
        /// In the end.
        of: u64,
    },
    /// Load runs, nothing moves.
    Serving {
        /// Whether the move is over.
        moved: bool,
    },
    /// Slots move.
    Moving,
    /// A server is dead, and not everything is served that it held.
    Recovering,
    /// Everything is served again.
    Recovered,
    /// Records read back.
    Verifying {
        /// So far.
        done: u64,
        /// In the end.
        of: u64,
    },
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Records written per second while loading.
    pub load_rate: f64,
    /// Resident bytes per record of the first server after loading, and how many of its bytes
    /// were in huge pages.
    pub memory: Memory,
    /// The move.
    pub moved: Moved,
    /// What the move took.
    pub cost: Cost,
    /// What the clients saw, if there were any.
    pub under_load: Option<Loaded>,
    /// What reading every record back showed.
    pub verified: Findings,
}

/// What there is to tell of the load around a move.
#[derive(Debug)]
pub struct Loaded {
    /// What the clients saw.
    pub timeline: Timeline,
    /// Seconds that the host took from this machine before, during and after the move.
    pub steal: [f64; 3],
}

/// Memory of a server that holds all records.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Memory {
    /// Growth of its resident memory through loading, per record.
    pub resident_bytes_per_record: f64,
    /// All of its resident memory per record.
    pub total_bytes_per_record: f64,
    /// Bytes in huge pages.
    pub huge_page_bytes: u64,
}

/// What the move took beside time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// Processor nanoseconds of the source per record moved, from the command to success. Means
    /// little under load.
    pub source_ns_per_record: f64,
    /// The same of the target.
    pub target_ns_per_record: f64,
    /// What both used after success until they rested, per record moved: to delete what was given
    /// away, to make memory ready. 0 under load.
    pub later_ns_per_record: f64,
    /// Seconds that processes ran until success which are no part of the benchmark.
    pub foreign_cpu_seconds: f64,
    /// Seconds that the host took from this machine meanwhile.
    pub steal_seconds: f64,
}

impl Scenario {
    /// Plays it on a cluster whose first server owns every slot.
    pub fn play(
        &self,
        cluster: &mut Cluster,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome> {
        let mut routes = Control::connect(cluster.servers()[0].address)?.routes()?;
        for address in cluster.addresses() {
            routes.node(address);
        }
        let empty = processes::resident_bytes(cluster.processes()[0])?;
        let dataset = Dataset::new(self.records, self.threads);
        let (dataset, loaded) = self.bulk(&routes).load(dataset, progress)?;
        let memory = self.memory(cluster.processes()[0], empty)?;
        // What is left to do from loading, memory that is made ready first of all, is no part of
        // what is measured.
        used_until_resting(&cluster.processes())?;
        let moving = self.moving(cluster)?;
        let payload = moving.payload(&self.records);
        let migrate =
            |progress: &mut dyn FnMut(Progress)| self.migrate(&moving, payload, cluster, progress);
        let (dataset, (moved, cost), under_load) = match self.load {
            None => (dataset, migrate(progress)?, None),
            Some(load) => {
                let plan = self.plan(load);
                let (dataset, migrated, loaded) =
                    under_load((load, &plan), (dataset, &routes), migrate, progress)?;
                (dataset, migrated, Some(loaded))
            }
        };
        cluster.check()?;
        let (_, verified) = self.bulk(&routes).verify(dataset, progress)?;
        let load_rate = loaded.phase(Phase::Before).map_or(0.0, |phase| phase.throughput);
        let verified = verified.findings;
        Ok(Outcome { load_rate, memory, moved, cost, under_load, verified })
    }

    fn bulk<'r>(&self, routes: &'r Routes) -> Bulk<'r> {
        Bulk { routes, wiring: self.wiring, patience: Duration::ZERO, seed: self.seed }
    }

    fn memory(&self, process: u32, empty: u64) -> Result<Memory> {
        let resident = processes::resident_bytes(process)?;
        let count = f64::from(self.records.count());
        Ok(Memory {
            resident_bytes_per_record: resident.saturating_sub(empty) as f64 / count,
            total_bytes_per_record: resident as f64 / count,
            huge_page_bytes: processes::huge_page_bytes(process)?,
        })
    }

    fn plan(&self, load: Load) -> Plan {
        Plan {
            workload: Workload::Mixed(load.mix, load.distribution),
            pace: load.pace,
            duration: None,
            warm_up: WARM_UP,
            wiring: self.wiring,
            patience: Duration::ZERO,
            watched: Slots::default(),
            seed: self.seed,
        }
    }

    fn moving(&self, cluster: &Cluster) -> Result<Move> {
        let [_, target, ..] = cluster.servers() else { bail!("a migration needs two servers") };
        let (first, last) = self.slots;
        Ok(Move { first, last, target: target.name.clone(), policy: self.policy.clone() })
    }

    fn migrate(
        &self,
        moving: &Move,
        payload: Payload,
        cluster: &Cluster,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Moved, Cost)> {
        let [source, target, ..] = cluster.servers() else {
            bail!("a migration needs two servers")
        };
        let mut source_control = Control::connect(source.address)?;
        let mut target_control = Control::connect(target.address)?;
        let usage = Usage::of(&cluster.processes()[..2])?;
        let watch = |_: &_| progress(Progress::Moving);
        let moved = moving.run((&mut source_control, &mut target_control), payload, watch)?;
        let used = usage.since()?;
        let per_record = |used: Duration| used.as_nanos() as f64 / moved.records.max(1) as f64;
        let later = match self.load {
            None => used_until_resting(&cluster.processes()[..2])?,
            Some(_) => Duration::ZERO,
        };
        let cost = Cost {
            source_ns_per_record: per_record(used.each[0]),
            target_ns_per_record: per_record(used.each[1]),
            later_ns_per_record: per_record(later),
            foreign_cpu_seconds: used.foreign.as_secs_f64(),
            steal_seconds: used.steal.as_secs_f64(),
        };
        Ok((moved, cost))
    }
}

/// Migrates while there is load, and some time before and after.
fn under_load<T>(
    (load, plan): (Load, &Plan),
    (dataset, routes): (Dataset, &Routes),
    migrate: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<T>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Dataset, T, Loaded)> {
    let running = start(plan, dataset, routes)?;
    progress(Progress::Serving { moved: false });
    clock::sleep(plan.warm_up);
    let mut steal = vec![processes::steal_time()?];
    clock::sleep(load.before);
    steal.push(processes::steal_time()?);
    running.marks().begin(clock::now());
    let migrated = migrate(progress);
    running.marks().end(clock::now());
    steal.push(processes::steal_time()?);
    progress(Progress::Serving { moved: true });
    if migrated.is_ok() {
        clock::sleep(load.after);
    }
    running.stop();
    let (dataset, timeline) = running.finish()?;
    steal.push(processes::steal_time()?);
    let steal = std::array::from_fn(|phase| (steal[phase + 1] - steal[phase]).as_secs_f64());
    Ok((dataset, migrated?, Loaded { timeline, steal }))
}
