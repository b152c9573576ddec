//! Begin and end of a scenario: write every record once, read every record once, and wait until
//! the servers rest.

use crate::clock;
use crate::pace::Pace;
use crate::processes::Usage;
use crate::recorder::Findings;
use crate::routes::{Routes, Slots};
use crate::run::{Dataset, Plan, Wiring, run};
use crate::scenario::Progress;
use crate::timeline::Timeline;
use crate::workload::Workload;
use anyhow::{Result, bail};
use std::time::Duration;

/// Number of clients that load and read back a data set: enough to keep every server busy.
const CLIENTS: u32 = 512;
/// Definition of rest, after loading and after a move without load: less than this share of a
/// processor over this time, at most this long. Deferred work (such as deleting the moved data)
/// is thus counted.
const REST: (f64, Duration, Duration) = (0.05, Duration::from_millis(100), Duration::from_secs(5));

/// Parameters of loading and reading back.
pub(crate) struct Bulk<'r> {
    pub routes: &'r Routes,
    pub wiring: Wiring,
    pub patience: Duration,
    pub seed: u64,
}

impl Bulk<'_> {
    /// Writes every record once. A store that refuses a record cannot be measured.
    pub(crate) fn load(
        &self,
        dataset: Dataset,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Dataset, Timeline)> {
        let of = u64::from(dataset.records.count());
        let told = |done| progress(Progress::Loading { done, of });
        let (dataset, loaded) = run(&self.plan(Workload::Load), dataset, self.routes, told)?;
        ensure_loaded(&loaded.findings)?;
        Ok((dataset, loaded))
    }

    /// Reads every record once.
    pub(crate) fn verify(
        &self,
        dataset: Dataset,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Dataset, Timeline)> {
        let of = u64::from(dataset.records.count());
        let told = |done| progress(Progress::Verifying { done, of });
        run(&self.plan(Workload::Verify), dataset, self.routes, told)
    }

    fn plan(&self, workload: Workload) -> Plan {
        Plan {
            workload,
            pace: Pace::Closed { clients: CLIENTS },
            duration: None,
            warm_up: Duration::ZERO,
            wiring: self.wiring,
            patience: self.patience,
            watched: Slots::default(),
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
        let usage = Usage::of(processes)?;
        clock::sleep(over);
        let more = usage.since()?.total();
        used += more;
        if more < over.mul_f64(share) {
            break;
        }
    }
    Ok(used)
}
