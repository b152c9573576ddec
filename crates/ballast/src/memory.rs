//! Helper threads that make segments ready before reactors need them: see
//! `docs/design/memory.md`.

use anyhow::Context;
use node::Node;
use rustix::process::setpriority_process;
use std::sync::Arc;
use std::thread::{Builder, Thread};
use std::time::Duration;
use store::log::{Log, Preparation};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// Interval at which ready memory that nobody has used is given back to the operating system.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// Least number of segments in the stock.
const STOCK_MIN: usize = 2;

/// Starts the helper threads of a node's log. `stock_bytes` is the memory to keep ready at idle
/// times.
pub(crate) fn keep_ready(node: &Arc<Node>, stock_bytes: usize) -> anyhow::Result<()> {
    let log = node.store().log();
    let stock = stock_bytes.div_ceil(log.segment_bytes()).max(STOCK_MIN);
    let needed = start_needed(Arc::clone(node)).context("cannot start a thread for memory")?;
    let stocked = start_stock(Arc::clone(log)).context("cannot start a thread for memory")?;
    log.set_helpers(
        stock,
        Box::new(move |why| match why {
            Preparation::Needed => needed.unpark(),
            Preparation::Stock => stocked.unpark(),
        }),
    );
    // Both look for work now that there is a stock to keep.
    log.wake_helpers();
    Ok(())
}

/// Niceness of the thread for needed segments. It must run although the processors are busy, and
/// leave most of them to reactors and other processes: it gets a tenth of a contended processor.
const NEEDED_NICENESS: i32 = 10;

/// Starts the thread that prepares segments which reactors need soon, and wakes the reactors that
/// wait for one.
fn start_needed(node: Arc<Node>) -> std::io::Result<Thread> {
    let thread = Builder::new().name("memory-needed".into()).spawn(move || {
        let log = node.store().log();
        let lowered = setpriority_process(Some(rustix::thread::gettid()), NEEDED_NICENESS);
        if let Err(error) = lowered {
            tracing::debug!(%error, "cannot lower the priority of the memory thread");
        }
        loop {
            while log.prepare(Preparation::Needed) {
                if log.take_awaited() {
                    node.wake_all();
                }
            }
            // The other thread may have prepared the last one.
            if log.take_awaited() {
                node.wake_all();
            }
            std::thread::park_timeout(TRIM_INTERVAL);
        }
    })?;
    Ok(thread.thread().clone())
}

/// Starts the thread that refills the stock when a processor is idle.
fn start_stock(log: Arc<Log>) -> std::io::Result<Thread> {
    let thread = runtime::spawn_without_descriptors("memory-stock", move |left| {
        if let Err(error) = left {
            // If this process is killed, peers see its connections end only with this thread.
            tracing::debug!(%error, "the memory thread shares the process's file descriptors");
        }
        yield_to_everybody();
        loop {
            while log.prepare(Preparation::Stock) {}
            std::thread::park();
        }
    })?;
    Ok(thread.thread().clone())
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
