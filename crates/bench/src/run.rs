//! A run: all threads of the generator on one data set, from the start to the merged result.

use crate::clock;
use crate::generator::{Generator, Task};
use crate::judge::Shared;
use crate::ledger::{Ledger, Share};
use crate::pace::Pace;
use crate::recorder::{Marks, Phase, Recording};
use crate::records::Records;
use crate::routes::{Routes, Slots};
use crate::timeline::Timeline;
use crate::workload::{Operations, Workload};
use anyhow::{Context, Result, anyhow};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;
use types::Instant;

/// Connections are opened before the first operation is due.
const LEAD: Duration = Duration::from_millis(20);

/// A data set and what the clients know about it, divided among the generator's threads. Runs
/// borrow it one after the other.
#[derive(Debug)]
pub struct Dataset {
    /// What its records look like.
    pub records: Records,
    ledgers: Vec<Ledger>,
}

impl Dataset {
    /// A data set that nobody has written yet, for a generator of so many threads.
    pub fn new(records: Records, threads: u32) -> Dataset {
        let share = |thread| Share::new(thread, threads);
        let ledgers = (0..threads).map(|t| Ledger::new(share(t), records.count())).collect();
        Dataset { records, ledgers }
    }

    /// Threads of the generator.
    pub fn threads(&self) -> u32 {
        self.ledgers.len() as u32
    }
}

/// What a run does, how fast and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What its operations are.
    pub workload: Workload,
    /// When they start.
    pub pace: Pace,
    /// How long they start; `None` lasts until every record has had its turn.
    pub duration: Option<Duration>,
    /// Operations that start this early are in no figure but the timeline.
    pub warm_up: Duration,
    /// How clients connect.
    pub wiring: Wiring,
    /// How long after its intended start an operation is tried again whose server is gone or
    /// says that it cannot for now. With 0 such an operation has failed.
    pub patience: Duration,
    /// Slots whose answers are also looked at by themselves.
    pub watched: Slots,
    /// Everything that is drawn is drawn from this.
    pub seed: u64,
}

/// How the generator's threads connect and how often they send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// Connections of each thread to each server.
    pub connections: u32,
    /// How often the threads of an open loop look at clock and sockets; 0 for at once.
    pub tick: Duration,
}

impl Default for Wiring {
    fn default() -> Wiring {
        Wiring { connections: 16, tick: Duration::from_micros(100) }
    }
}

/// A run that is under way.
#[derive(Debug)]
pub struct Running {
    records: Records,
    start: Instant,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(Ledger, Recording)>>>,
}

/// Starts a run against the cluster that `routes` describes.
pub fn start(plan: &Plan, dataset: Dataset, routes: &Routes) -> Result<Running> {
    let start = clock::now() + LEAD;
    let end = plan.duration.map_or(Instant(u64::MAX), |duration| start + duration);
    let shared = Arc::new(Shared {
        marks: Marks::new(start + plan.warm_up),
        ended: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let records = dataset.records;
    let count = dataset.threads();
    let threads = dataset.ledgers.into_iter().zip(0..).map(|(ledger, thread)| {
        let seed = plan.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(thread));
        let task = Task {
            operations: Operations::new(plan.workload, ledger.share(), records.count(), seed),
            pace: plan.pace.of_thread(thread, count),
            start,
            end,
            tick: plan.wiring.tick,
            patience: plan.patience,
            watched: plan.watched.clone(),
            seed: !seed,
            lines_per_node: plan.wiring.connections,
        };
        let generator =
            Generator::new(task, (records, ledger), routes.clone(), Arc::clone(&shared))?;
        let body = move || {
            // Sleeps end when they should, not up to 50 us later.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
            generator.run()
        };
        Ok(std::thread::Builder::new().name(format!("load-{thread}")).spawn(body)?)
    });
    let threads = threads.collect::<Result<Vec<_>>>()?;
    Ok(Running { records, start, shared, threads })
}

impl Running {
    /// When its first operation was due.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// To divide it into phases.
    pub fn marks(&self) -> &Marks {
        &self.shared.marks
    }

    /// Operations that have ended so far.
    pub fn ended(&self) -> u64 {
        self.shared.ended.load(Relaxed)
    }

    /// Whether [`Running::finish`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Starts no more operations.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Waits for the end, and merges what the threads have seen.
    pub fn finish(self) -> Result<(Dataset, Timeline)> {
        let mut ledgers = Vec::new();
        let mut recordings = Vec::new();
        for thread in self.threads {
            let ended = thread.join().map_err(|_| anyhow!("a thread of the generator panicked"))?;
            let (ledger, recording) = ended.context("the load generator")?;
            ledgers.push(ledger);
            recordings.push(recording);
        }
        let begins = Phase::ALL.map(|phase| self.shared.marks.begin_of(phase));
        let timeline = Timeline::merge(self.start, clock::now(), begins, recordings);
        Ok((Dataset { records: self.records, ledgers }, timeline))
    }
}

/// Does a run to its end. `progress` is called a few times a second with the operations so far.
pub fn run(
    plan: &Plan,
    dataset: Dataset,
    routes: &Routes,
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
