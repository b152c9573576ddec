//! What a reactor has done, counted by itself and read by anybody.
//!
//! Only the reactor writes: a plain load and store each, no locked instruction. Readers see each
//! number exactly, but not all of one moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The live numbers of one reactor.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        /// The numbers of one reactor, as they were read.
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
    /// Turns of the loop, those that found nothing to do included.
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
    /// Nanoseconds without anything to do, spinning or blocked.
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
    /// How much of the time between `earlier` and these counts the reactor had something to do,
    /// from 0 to 1.
    pub fn utilization_since(&self, earlier: &Counts) -> f64 {
        let busy = |counts: &Counts| counts.priority_ns + counts.work_ns + counts.background_ns;
        let busy = busy(self).saturating_sub(busy(earlier)) as f64;
        let waiting = self.waiting_ns.saturating_sub(earlier.waiting_ns) as f64;
        if busy + waiting > 0.0 { busy / (busy + waiting) } else { 0.0 }
    }
}
