//! Runs on the data set of one cluster, one after the other: write every record once, offer load
//! around an event, read every record once. Between runs, wait until the servers rest.

use crate::clock;
use crate::distribution::Distribution;
use crate::pace::LoadPace;
use crate::processes::{self, UsageSnapshot};
use crate::recorder::Findings;
use crate::run::{Dataset, RunPlan, Wiring, run, start};
use crate::slot_map::{SlotMap, SlotSet};
use crate::timeline::Timeline;
use crate::workload::{Mix, RunWorkload};
use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Duration;
use types::Instant;

/// Number of clients that load and read back a data set: enough to keep every server busy.
const CLIENTS: u32 = 512;
/// Time that a server works before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Definition of rest, after loading and after a move without load: less than this share of a
/// processor over this time, at most this long. Deferred work (such as deleting the moved data)
/// is thus counted.
const REST: (f64, Duration, Duration) = (0.05, Duration::from_millis(100), Duration::from_secs(5));

/// Parameters that all runs of a series share.
#[derive(Clone, Debug)]
pub struct RunSeries<'r> {
    /// Slot map at the begin of a run.
    pub routes: &'r SlotMap,
    /// Connections of the clients.
    pub wiring: Wiring,
    /// Time after its intended start during which an operation is retried; see [`RunPlan`].
    pub patience: Duration,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Load before, during and after an event.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct OfferedLoad {
    /// Reads and writes.
    pub mix: Mix,
    /// Distribution of the records.
    pub distribution: Distribution,
    /// Start times of the operations.
    pub pace: LoadPace,
    /// Duration before the event, after a second of warm-up.
    pub before: Duration,
    /// Duration after the event.
    pub after: Duration,
}

/// Measurements of the load around an event.
pub struct LoadMeasurements {
    /// Measurements of the clients.
    pub timeline: Timeline,
    /// Seconds of steal time before, during and after the event.
    pub steal: [f64; 3],
}

/// Progress of a scenario, for progress bars.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ScenarioProgress {
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

impl RunSeries<'_> {
    /// Writes every record once. A store that refuses a record cannot be measured.
    pub(crate) fn load(
        &self,
        dataset: Dataset,
        progress: &mut dyn FnMut(ScenarioProgress),
    ) -> Result<(Dataset, Timeline)> {
        let (dataset, loaded) = self.pass(RunWorkload::Load, dataset, progress)?;
        ensure_loaded(&loaded.recording.findings)?;
        Ok((dataset, loaded))
    }

    /// Reads every record once.
    pub fn verify(
        &self,
        dataset: Dataset,
        progress: &mut dyn FnMut(ScenarioProgress),
    ) -> Result<(Dataset, Timeline)> {
        self.pass(RunWorkload::Verify, dataset, progress)
    }

    /// Writes or reads every record once, as fast as the servers can.
    pub fn pass(
        &self,
        workload: RunWorkload,
        dataset: Dataset,
        progress: &mut dyn FnMut(ScenarioProgress),
    ) -> Result<(Dataset, Timeline)> {
        let of = u64::from(dataset.records.count());
        let plan = self.plan(workload, LoadPace::Closed { clients: CLIENTS });
        run(&plan, dataset, self.routes, |done| {
            progress(match workload {
                RunWorkload::Load => ScenarioProgress::Loading { done, of },
                RunWorkload::Verify | RunWorkload::Adopt | RunWorkload::Mixed(..) => {
                    ScenarioProgress::Verifying { done, of }
                }
            });
        })
    }

    /// Offers load, and lets `event` happen in the middle of it. `event` gets the time at which it
    /// begins.
    pub(crate) fn around<T>(
        &self,
        event: impl FnOnce(Instant) -> Result<T>,
        load: OfferedLoad,
        watched: SlotSet,
        dataset: Dataset,
    ) -> Result<(Dataset, T, LoadMeasurements)> {
        let plan = self.plan(RunWorkload::Mixed(load.mix, load.distribution), load.pace);
        let plan = RunPlan { warm_up: WARM_UP, watched, ..plan };
        let running = start(&plan, dataset, self.routes)?;
        clock::sleep(WARM_UP);
        let mut steal = vec![processes::steal_time()?];
        clock::sleep(load.before);
        steal.push(processes::steal_time()?);
        let begun = clock::now();
        running.boundaries().begin(begun);
        let result = event(begun);
        running.boundaries().end(clock::now());
        steal.push(processes::steal_time()?);
        if result.is_ok() {
            clock::sleep(load.after);
        }
        running.stop();
        let (dataset, timeline) = running.finish()?;
        steal.push(processes::steal_time()?);
        let steal = std::array::from_fn(|phase| (steal[phase + 1] - steal[phase]).as_secs_f64());
        Ok((dataset, result?, LoadMeasurements { timeline, steal }))
    }

    /// Returns the plan of a run without a warm-up, which ends when every record had its turn.
    pub fn plan(&self, workload: RunWorkload, pace: LoadPace) -> RunPlan {
        RunPlan {
            workload,
            pace,
            duration: None,
            warm_up: Duration::ZERO,
            wiring: self.wiring,
            patience: self.patience,
            watched: SlotSet::default(),
            seed: self.seed,
        }
    }
}

fn ensure_loaded(findings: &Findings) -> Result<()> {
    let Some((error, _)) = findings.errors.iter().max_by_key(|(_, count)| **count) else {
        return Ok(());
    };
    let refused = findings.errors_total();
    bail!("loading failed for {refused} records: {error}")
}

/// Waits until servers rest, and returns the processor time that they have used until then.
pub(crate) fn used_until_resting(processes: &[u32]) -> Result<Duration> {
    let (share, over, at_most) = REST;
    let until = clock::now() + at_most;
    let mut used = Duration::ZERO;
    while clock::now() < until {
        let usage = UsageSnapshot::of(processes)?;
        clock::sleep(over);
        let more = usage.since()?.total();
        used += more;
        if more < over.mul_f64(share) {
            break;
        }
    }
    Ok(used)
}
