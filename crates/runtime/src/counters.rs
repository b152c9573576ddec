//! Performance counters of a reactor, written by the reactor and read from any thread.
//!
//! Each update is a plain load and store, without a locked instruction. Readers see exact values,
//! but not all from the same moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live counters of one reactor.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        /// A snapshot of one reactor's counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.read()),* }
            }
        }
    };
}

counters! {
    /// Turns of the loop, including idle ones.
    turns,
    /// Quanta of background work.
    quanta,
    /// Times the reactor blocked.
    sleeps,
    /// Nanoseconds spent on priority connections.
    priority_ns,
    /// Nanoseconds spent on all other input, mail, timers and output.
    work_ns,
    /// Nanoseconds spent on background work.
    background_ns,
    /// Nanoseconds spent idle, spinning or blocked.
    waiting_ns,
    /// Connections accepted for this reactor.
    accepted,
    /// Connections that have ended.
    closed,
    /// Bytes received.
    bytes_in,
    /// Bytes sent.
    bytes_out,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.read().wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, spent: Duration) {
        self.add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl Counts {
    /// Returns the fraction of the time since `earlier` in which the reactor was busy, from 0 to 1.
    pub fn utilization_since(&self, earlier: &Counts) -> f64 {
        let busy = |counts: &Counts| counts.priority_ns + counts.work_ns + counts.background_ns;
        let busy = busy(self).saturating_sub(busy(earlier)) as f64;
        let waiting = self.waiting_ns.saturating_sub(earlier.waiting_ns) as f64;
        if busy + waiting > 0.0 { busy / (busy + waiting) } else { 0.0 }
    }
}
