//! Helper threads that make segments ready before reactors need them: see
//! `docs/design/memory.md`.

use anyhow::Context;
use node::Node;
use runtime::spawn_vital;
use rustix::process::setpriority_process;
use std::sync::Arc;
use std::thread::Thread;
use std::time::{Duration, Instant};
use store::log::{Log, Preparation};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};
use types::limits::SEGMENT_BYTES;

/// Interval at which ready memory that nobody has used is given back to the operating system.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// Least number of segments in the stock.
const STOCK_MIN: usize = 2;

/// Most threads that prepare memory on idle processors: enough for a move at 2 GB/s where each
/// touches 0.5 GB/s.
const IDLE_THREADS_MAX: usize = 4;

/// Time for which needed segments may be missing before the impatient thread prepares one of full
/// size; half of it for one of half the size.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time after which a writer that waits for memory gets some from a thread of normal priority,
/// because the other helpers do not run. Well below the time for which a write waits.
const URGENT_AFTER: Duration = Duration::from_millis(500);

/// Niceness of the impatient thread: it gets a tenth of a processor that others want as well.
const NICENESS: i32 = 10;

/// Starts the helper threads of a node's log. `stock_bytes` is the memory to keep ready at idle
/// times.
pub(crate) fn keep_ready(node: &Arc<Node>, stock_bytes: usize) -> anyhow::Result<()> {
    let log = node.store().log();
    let stock = stock_bytes.div_ceil(log.segment_bytes()).max(STOCK_MIN);
    let impatient =
        start_impatient(Arc::clone(node)).context("cannot start a thread for memory")?;
    let urgent = start_urgent(Arc::clone(node)).context("cannot start a thread for memory")?;
    let start = |number| start_idle(number, Arc::clone(log), impatient.clone());
    let count = runtime::cpu_count().min(IDLE_THREADS_MAX);
    let idle: Result<Vec<Thread>, _> = (0..count).map(start).collect();
    let idle = idle.context("cannot start a thread for memory")?;
    log.ready_segments().set_helpers(
        stock,
        Box::new(move |why| {
            idle.iter().for_each(Thread::unpark);
            match why {
                Preparation::Needed => {
                    impatient.unpark();
                    urgent.unpark();
                }
                Preparation::Stock => {}
            }
        }),
    );
    // They look for work now that there is a stock to keep.
    log.ready_segments().wake_helpers();
    Ok(())
}

/// Starts a thread that prepares memory while a processor is idle. The system places a thread that
/// wakes on the processor of such a thread as if that were idle.
fn start_idle(number: usize, log: Arc<Log>, impatient: Thread) -> std::io::Result<Thread> {
    let name = format!("memory-idle-{number}");
    let thread = runtime::spawn_without_descriptors(&name, move |left| {
        if let Err(error) = left {
            // If this process is killed, peers see its connections end only with this thread.
            tracing::debug!(%error, "the memory thread shares the process's file descriptors");
        }
        yield_to_everybody();
        loop {
            while log.ready_segments().prepare(Preparation::Stock) {
                if log.ready_segments().is_awaited() {
                    impatient.unpark();
                }
            }
            std::thread::park();
        }
    })?;
    Ok(thread.thread().clone())
}

/// Starts the thread that wakes the reactors that wait for ready memory, and prepares some itself
/// when no processor is idle for long. It also trims.
fn start_impatient(node: Arc<Node>) -> std::io::Result<Thread> {
    let thread = spawn_vital("memory", move || {
        let lowered = setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        if let Err(error) = lowered {
            tracing::debug!(%error, "cannot lower the priority of the memory thread");
        }
        let patience = patience(node.store().log().segment_bytes());
        let mut shortage = Shortage::default();
        let mut trimmed = now();
        loop {
            let segments = node.store().log().ready_segments();
            wake_waiting(&node);
            let pause = match segments.lack(Preparation::Needed) {
                true if shortage.lasts(segments.prepared(), now(), patience) => {
                    segments.prepare(Preparation::Needed);
                    continue;
                }
                true => patience,
                false => {
                    shortage = Shortage::default();
                    TRIM_INTERVAL
                }
            };
            if now().duration_since(trimmed) >= TRIM_INTERVAL {
                trimmed = now();
                segments.trim();
            }
            std::thread::park_timeout(pause);
        }
    })?;
    Ok(thread.thread().clone())
}

fn patience(segment_bytes: usize) -> Duration {
    PATIENCE.mul_f64(segment_bytes as f64 / SEGMENT_BYTES as f64)
}

/// Starts the thread that prepares what is needed at normal priority when writers have waited for
/// [`URGENT_AFTER`] and no segment became ready. On a busy machine the others may not run for
/// longer than a write waits.
fn start_urgent(node: Arc<Node>) -> std::io::Result<Thread> {
    let thread = spawn_vital("memory-urgent", move || {
        loop {
            let segments = node.store().log().ready_segments();
            let mut shortage = Shortage::default();
            while segments.lack(Preparation::Needed) && segments.is_awaited() {
                if shortage.lasts(segments.prepared(), now(), URGENT_AFTER) {
                    while segments.prepare(Preparation::Needed) {
                        wake_waiting(&node);
                    }
                }
                std::thread::park_timeout(URGENT_AFTER);
            }
            std::thread::park();
        }
    })?;
    Ok(thread.thread().clone())
}

/// Wakes the reactors if they wait for ready memory and there is some.
fn wake_waiting(node: &Node) {
    let segments = node.store().log().ready_segments();
    if segments.has_one() && segments.take_awaited() {
        node.wake_all();
    }
}

/// A period in which needed segments were missing and none was prepared.
#[derive(Default)]
struct Shortage {
    /// The number of segments prepared until then, and the begin of the period.
    begun: Option<(u64, Instant)>,
}

impl Shortage {
    /// Returns whether the shortage has lasted for longer than `patience`. `prepared` is the number
    /// of segments that were prepared so far.
    fn lasts(&mut self, prepared: u64, now: Instant, patience: Duration) -> bool {
        let begun = self.begun.filter(|(before, _)| *before == prepared);
        let (_, since) = *self.begun.insert(begun.unwrap_or((prepared, now)));
        now.duration_since(since) >= patience
    }
}

#[expect(clippy::disallowed_methods, reason = "a helper thread that waits for other threads")]
fn now() -> Instant {
    Instant::now()
}

/// Runs this thread only when a processor is idle, and lets any other thread preempt it. (The worst
/// niceness is not enough: such a thread still finishes a time slice of milliseconds.) The thread
/// must hold nothing that a reactor waits for, since it may not run for seconds on a busy machine.
fn yield_to_everybody() {
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    let thread = thread_native_id();
    if let Err(error) = set_thread_priority_and_policy(thread, ThreadPriority::Min, idle) {
        tracing::debug!(?error, "cannot lower the priority of the memory thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shortage_without_progress_lasts() {
        let begin = now();
        let mut shortage = Shortage::default();
        assert!(!shortage.lasts(7, begin, PATIENCE));
        assert!(!shortage.lasts(8, begin + PATIENCE, PATIENCE), "one was prepared meanwhile");
        assert!(!shortage.lasts(8, begin + 3 * PATIENCE / 2, PATIENCE));
        assert!(shortage.lasts(8, begin + 2 * PATIENCE, PATIENCE));
    }
}
