//! Processors available to this process, and binding a thread to one of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::num::NonZeroU64;

/// Returns the number of processors whose time this process may use, at least 1. It respects the
/// affinity and the limits of the control groups (`cpu.max`, or `cpu.cfs_quota_us` of version 1).
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the numbers of the processors on which this process may run, in ascending order.
pub(crate) fn cpu_numbers() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// Binds the calling thread to these processors. A refusal by the system is ignored: the binding
/// only affects speed.
pub(crate) fn pin_to(cpus: &[usize]) {
    let mut only = CpuSet::new();
    cpus.iter().for_each(|&cpu| only.set(cpu));
    let _ = sched_setaffinity(None, &only);
}

/// Makes timed waits of the calling thread end on time, instead of up to 50 us later. The system
/// delays them by default to save power.
pub(crate) fn wake_punctually() {
    // A system without this setting keeps its default.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_processor_and_no_more_than_may_be_used() {
        assert!(cpu_count() >= 1);
        assert!(cpu_count() <= cpu_numbers().len().max(1));
    }

    #[test]
    fn a_bound_thread_runs_where_it_was_bound() {
        let last = cpu_numbers().pop().expect("this test runs on some processor");
        let ran_on = std::thread::spawn(move || {
            pin_to(&[last]);
            cpu_numbers()
        });
        assert_eq!(ran_on.join().expect("the thread ends"), vec![last]);
    }
}
