//! Migration scenario of the demo, the comparison and the figures: load two servers, offer load,
//! move slots from the first to the second, and read every record back.

use crate::control::Control;
use crate::migrate::{DataVolume, Move, Moved};
use crate::peers::Cluster;
use crate::processes::{self, UsageSnapshot};
use crate::recorder::{Findings, LoadPhase};
use crate::records::RecordSet;
use crate::run::{Dataset, Wiring};
use crate::series::{
    LoadMeasurements, OfferedLoad, RunSeries, ScenarioProgress, used_until_resting,
};
use crate::slot_map::SlotSet;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::Duration;
use types::Slot;

/// Parameters of the scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The data set.
    pub records: RecordSet,
    /// Number of threads of the load generator.
    pub threads: u32,
    /// Connections of the clients.
    pub wiring: Wiring,
    /// Load while slots move; `None` for none.
    pub load: Option<OfferedLoad>,
    /// First and last slot that move.
    pub slots: (Slot, Slot),
    /// Arguments of `CLUSTER MIGRATESLOTS` for the policy: Ballast's `POLICY ...`, or none.
    pub policy: Vec<String>,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Result of the scenario.
pub struct ScenarioResult {
    /// Records written per second while loading.
    pub load_rate: f64,
    /// Memory of the first server after loading.
    pub memory: Memory,
    /// The move.
    pub moved: Moved,
    /// Resources that the move used.
    pub cost: Cost,
    /// Measurements under load, if there was any.
    pub under_load: Option<LoadMeasurements>,
    /// Result of reading every record back.
    pub verified: Findings,
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
        progress: &mut dyn FnMut(ScenarioProgress),
    ) -> Result<ScenarioResult> {
        ensure!(cluster.servers().len() > 1, "a migration needs two servers");
        let mut routes = Control::connect(cluster.servers()[0].address)?.routes()?;
        for address in cluster.addresses() {
            routes.node(address);
        }
        let (wiring, patience, seed) = (self.wiring, Duration::ZERO, self.seed);
        let series = RunSeries { routes: &routes, wiring, patience, seed };
        let empty = processes::resident_bytes(cluster.processes()[0])?;
        let dataset = Dataset::new(self.records, self.threads);
        let (dataset, loaded) = series.load(dataset, progress)?;
        let memory = self.memory(cluster.processes()[0], empty)?;
        // Work that remains from loading, mainly the preparation of memory, is not part of the
        // measurement.
        used_until_resting(&cluster.processes())?;
        let (first, last) = self.slots;
        let target = cluster.servers()[1].name.clone();
        let moving = Move { first, last, target, policy: self.policy.clone() };
        let volume = moving.volume(&self.records);
        let (dataset, (moved, cost), under_load) = match self.load {
            None => (dataset, self.migrate(&moving, volume, cluster, progress)?, None),
            Some(load) => {
                progress(ScenarioProgress::Serving { moved: false });
                let event = |_| {
                    let migrated = self.migrate(&moving, volume, cluster, progress);
                    progress(ScenarioProgress::Serving { moved: true });
                    migrated
                };
                let (dataset, migrated, loaded) =
                    series.around(event, load, SlotSet::default(), dataset)?;
                (dataset, migrated, Some(loaded))
            }
        };
        cluster.check()?;
        let (_, verified) = series.verify(dataset, progress)?;
        let load_rate = loaded.phase(LoadPhase::Before).map_or(0.0, |phase| phase.throughput);
        let verified = verified.recording.findings;
        Ok(ScenarioResult { load_rate, memory, moved, cost, under_load, verified })
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

    fn migrate(
        &self,
        moving: &Move,
        volume: DataVolume,
        cluster: &Cluster,
        progress: &mut dyn FnMut(ScenarioProgress),
    ) -> Result<(Moved, Cost)> {
        let mut source = Control::connect(cluster.servers()[0].address)?;
        let mut target = Control::connect(cluster.servers()[1].address)?;
        let usage = UsageSnapshot::of(&cluster.processes()[..2])?;
        let watch = |_: &_| progress(ScenarioProgress::Moving);
        let moved = moving.run(&mut source, &mut target, volume, watch)?;
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
