//! Performance counters of a reactor, written by the reactor and read from any thread.
//!
//! Each update is a plain load and store, without a locked instruction. Readers see exact values,
//! but not all from the same moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::ReactorCounts;

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The live counters of one reactor.
        #[derive(Debug, Default)]
        pub(crate) struct ReactorCounters { $(pub(crate) $name: LocalCounter),* }

        impl ReactorCounters {
            pub(crate) fn read(&self) -> ReactorCounts {
                ReactorCounts { $($name: self.$name.read()),* }
            }
        }
    };
}

counters! { turns, quanta, sleeps, priority_ns, work_ns, background_ns, waiting_ns, accepted, closed, bytes_in, bytes_out, steered_share, seen_p99_ns }

#[derive(Debug, Default)]
pub(crate) struct LocalCounter(AtomicU64);

impl LocalCounter {
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.read().wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, spent: Duration) {
        self.add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX));
    }
}
