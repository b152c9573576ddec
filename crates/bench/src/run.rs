//! Run: all threads of the generator on one data set, from the start to the merged result.

use crate::clock;
use crate::generator::{Generator, GeneratorTask};
use crate::judge::SharedRunState;
use crate::ledger::{Share, WriteLedger};
use crate::pace::LoadPace;
use crate::recorder::{LoadPhase, PhaseBoundaries, Recording};
use crate::records::RecordSet;
use crate::slot_map::{SlotMap, SlotSet};
use crate::timeline::Timeline;
use crate::workload::{Operations, RunWorkload};
use anyhow::{Context, Result, anyhow};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use types::Instant;

/// Time before the first operation in which connections are opened.
const LEAD: Duration = Duration::from_millis(20);

/// Data set and its ledgers, divided among the generator's threads. Runs borrow it one after the
/// other.
pub struct Dataset {
    /// Shape of the records.
    pub records: RecordSet,
    ledgers: Vec<WriteLedger>,
}

impl Dataset {
    /// Creates an unwritten data set for a generator with this many threads.
    pub fn new(records: RecordSet, threads: u32) -> Dataset {
        let share = |thread| Share::new(thread, threads);
        let ledgers = (0..threads).map(|t| WriteLedger::new(share(t), records.count())).collect();
        Dataset { records, ledgers }
    }

    /// Returns the number of threads of the generator.
    pub fn threads(&self) -> u32 {
        self.ledgers.len() as u32
    }
}

/// Operations, speed and duration of a run.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The operations.
    pub workload: RunWorkload,
    /// Start times of the operations.
    pub pace: LoadPace,
    /// Period in which operations start; `None` until every record had its turn.
    pub duration: Option<Duration>,
    /// Time at the start during which operations count in no figure but the timeline.
    pub warm_up: Duration,
    /// Connections of the clients.
    pub wiring: Wiring,
    /// Time after its intended start during which an operation is retried if its server is gone
    /// or reports a temporary error. With 0 such an operation fails.
    pub patience: Duration,
    /// Slots that are also measured separately.
    pub watched: SlotSet,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Connections of the generator's threads, and how often the threads send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// Number of connections of each thread to each server.
    pub connections: u32,
    /// Interval at which the threads of an open loop check clock and sockets; 0 for at once.
    pub tick: Duration,
    /// Least processor time of an open loop per operation. The threads spin for what they do not
    /// need, as a costlier client would.
    pub cost: Duration,
}

impl Default for Wiring {
    fn default() -> Wiring {
        Wiring { connections: 16, tick: Duration::from_micros(100), cost: Duration::ZERO }
    }
}

/// Run in progress.
pub struct ActiveRun {
    records: RecordSet,
    start: Instant,
    shared: Arc<SharedRunState>,
    threads: Vec<JoinHandle<Result<(WriteLedger, Recording)>>>,
}

/// Starts a run against the cluster that `routes` describes.
pub fn start(plan: &RunPlan, dataset: Dataset, routes: &SlotMap) -> Result<ActiveRun> {
    let start = clock::now() + LEAD;
    let end = plan.duration.map_or(Instant(u64::MAX), |duration| start + duration);
    let shared = Arc::new(SharedRunState {
        boundaries: PhaseBoundaries::new(start + plan.warm_up),
        ended: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let records = dataset.records;
    let count = dataset.threads();
    let threads = dataset.ledgers.into_iter().zip(0..).map(|(ledger, thread)| {
        let seed = plan.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(thread));
        let task = GeneratorTask {
            operations: Operations::new(plan.workload, ledger.share(), records.count(), seed),
            pace: plan.pace.of_thread(thread, count),
            start,
            end,
            tick: plan.wiring.tick,
            cost: plan.wiring.cost,
            patience: plan.patience,
            watched: plan.watched.clone(),
            seed: !seed,
            lines_per_node: plan.wiring.connections,
        };
        let generator = Generator::new(task, records, ledger, routes.clone(), Arc::clone(&shared))?;
        let body = move || {
            // Makes sleeps end on time, not up to 50 us later.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
            generator.run()
        };
        Ok(std::thread::Builder::new().name(format!("load-{thread}")).spawn(body)?)
    });
    let threads = threads.collect::<Result<Vec<_>>>()?;
    Ok(ActiveRun { records, start, shared, threads })
}

impl ActiveRun {
    /// Returns the boundaries that divide the run into phases.
    pub fn boundaries(&self) -> &PhaseBoundaries {
        &self.shared.boundaries
    }

    /// Returns the number of operations that have ended so far.
    pub fn ended(&self) -> u64 {
        self.shared.ended.load(Relaxed)
    }

    /// Returns whether [`ActiveRun::finish`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Starts no more operations.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Waits for the end, and merges the recordings of the threads.
    pub fn finish(self) -> Result<(Dataset, Timeline)> {
        let mut ledgers = Vec::new();
        let mut recordings = Vec::new();
        for thread in self.threads {
            let ended = thread.join().map_err(|_| anyhow!("a thread of the generator panicked"))?;
            let (ledger, recording) = ended.context("the load generator")?;
            ledgers.push(ledger);
            recordings.push(recording);
        }
        let begins = LoadPhase::ALL.map(|phase| self.shared.boundaries.begin_of(phase));
        let timeline = Timeline::merge(self.start, clock::now(), begins, recordings);
        Ok((Dataset { records: self.records, ledgers }, timeline))
    }
}

/// Runs to the end. `progress` is called a few times a second with the operations so far.
pub fn run(
    plan: &RunPlan,
    dataset: Dataset,
    routes: &SlotMap,
    mut progress: impl FnMut(u64),
) -> Result<(Dataset, Timeline)> {
    let running = start(plan, dataset, routes)?;
    while !running.is_finished() {
        progress(running.ended());
        clock::sleep(Duration::from_millis(20));
    }
    progress(running.ended());
    running.finish()
}
