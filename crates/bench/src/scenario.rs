//! Migration scenario of the demo, the comparison and the figures: load two servers, offer load,
//! move slots from the first to the second, and read every record back.

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

/// Time that a server works before it is measured.
pub(crate) const WARM_UP: Duration = Duration::from_secs(1);
/// Parameters of the scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The data set.
    pub records: Records,
    /// Number of threads of the load generator.
    pub threads: u32,
    /// Connections of the clients.
    pub wiring: Wiring,
    /// Load while slots move; `None` for none.
    pub load: Option<Load>,
    /// First and last slot that move.
    pub slots: (Slot, Slot),
    /// Arguments of `CLUSTER MIGRATESLOTS` for the policy: Ballast's `POLICY ...`, or none.
    pub policy: Vec<String>,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Load before, during and after a migration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Load {
    /// Reads and writes.
    pub mix: Mix,
    /// Distribution of the records.
    pub distribution: Distribution,
    /// Start times of the operations.
    pub pace: Pace,
    /// Duration before the move, after a second of warm-up.
    pub before: Duration,
    /// Duration after the move.
    pub after: Duration,
}

/// Progress of a scenario, for progress bars.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress {
    /// Records are written.
    Loading {
        /// Records so far.
        done: u64,
        /// Records in total.
        of: u64,
    },
    /// Load runs, nothing moves.
    Serving {
        /// Set after the move.
        moved: bool,
    },
    /// Slots move.
    Moving,
    /// A server is dead, and not all of its data is served again.
    Recovering,
    /// Everything is served again.
    Recovered,
    /// Records are read back.
    Verifying {
        /// Records so far.
        done: u64,
        /// Records in total.
        of: u64,
    },
}

/// Result of the scenario.
#[derive(Debug)]
pub struct Outcome {
    /// Records written per second while loading.
    pub load_rate: f64,
    /// Memory of the first server after loading.
    pub memory: Memory,
    /// The move.
    pub moved: Moved,
    /// Resources that the move used.
    pub cost: Cost,
    /// Measurements under load, if there was any.
    pub under_load: Option<Loaded>,
    /// Result of reading every record back.
    pub verified: Findings,
}

/// Measurements of the load around a move.
#[derive(Debug)]
pub struct Loaded {
    /// Measurements of the clients.
    pub timeline: Timeline,
    /// Seconds of steal time before, during and after the move.
    pub steal: [f64; 3],
}

/// Memory of a server that holds all records.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Memory {
    /// Growth of its resident memory through loading, in bytes per record.
    pub resident_bytes_per_record: f64,
    /// All of its resident memory, in bytes per record.
    pub total_bytes_per_record: f64,
    /// Bytes in huge pages.
    pub huge_page_bytes: u64,
}

/// Resources that the move used besides time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// Processor nanoseconds of the source per moved record, from the command to success. Means
    /// little under load.
    pub source_ns_per_record: f64,
    /// The same for the target.
    pub target_ns_per_record: f64,
    /// Processor nanoseconds of both servers per moved record, from success until they rest:
    /// deletion at the source, preparation of memory. 0 under load.
    pub later_ns_per_record: f64,
    /// Processor seconds of unrelated processes until success.
    pub foreign_cpu_seconds: f64,
    /// Seconds of steal time until success.
    pub steal_seconds: f64,
}

impl Scenario {
    /// Plays the scenario on a cluster with all slots at the first server.
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
        // Work that remains from loading, mainly the preparation of memory, is not part of the
        // measurement.
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

/// Migrates under load, with load before and after.
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
