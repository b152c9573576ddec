//! What operators see and change while a server runs: its settings, who is connected, what was
//! counted and what was slow. Shared by all reactors, beside the data path.
//!
//! - [`clients`]: who is connected, on which reactor, and who of them is to be sent away;
//! - [`counts`]: what each reactor counts, of commands and beside them;
//! - [`executions`]: what of a command is shown to those who monitor, and noted if it was slow;
//! - [`slow`]: the slow log, and what `LATENCY` remembers;
//! - [`pause`]: requests that wait because somebody said `CLIENT PAUSE`;
//! - [`monitor`]: the lines of `MONITOR`;
//! - [`host`]: what only the process can do.
//!
//! **Invariant:** a request looks here at words that change rarely, and writes only to what belongs
//! to its reactor alone. Locks are taken when a client comes, goes, or asks.

pub(crate) mod clients;
pub(crate) mod counts;
pub(crate) mod executions;
pub mod host;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod pause;
pub(crate) mod slow;

use crate::Configuration;
use arc_swap::ArcSwap;
use clients::Clients;
use counts::{Counts, Rate};
use host::Host;
use monitor::Monitors;
use pause::Pause;
use slow::{Latency, SlowLog};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use types::{Instant, ReactorId, ServerId};

/// The settings, clients and counters that operators see and change.
pub(crate) struct Operators {
    configuration: ArcSwap<Configuration>,
    counts: Box<[ArcSwap<Counts>]>,
    /// Rises when settings or counts are replaced: reactors look at it once per turn.
    version: AtomicU64,
    pub(crate) clients: Clients,
    pub(crate) monitors: Monitors,
    pub(crate) pause: Pause,
    pub(crate) rate: Mutex<Rate>,
    pub(crate) baseline: Mutex<Baseline>,
    pub(crate) slow_log: Mutex<SlowLog>,
    pub(crate) latency: Mutex<Latency>,
    /// Slots whose move to another server was announced by `CLUSTER SETSLOT`, with the server.
    pub(crate) announced: Mutex<BTreeMap<u16, ServerId>>,
    /// When an attack on a client's browser was told of in the log.
    pub(crate) attacks: Occasions,
    host: OnceLock<Box<dyn Host>>,
    /// Messages to servers that no frame can carry, and that were dropped.
    pub(crate) frames_too_long: Arc<AtomicU64>,
}

impl Operators {
    pub(crate) fn new(reactors: u16) -> Operators {
        Operators {
            configuration: ArcSwap::default(),
            counts: (0..reactors).map(|_| ArcSwap::default()).collect(),
            version: AtomicU64::new(1),
            clients: Clients::new(reactors),
            monitors: Monitors::new(reactors),
            pause: Pause::default(),
            rate: Mutex::default(),
            baseline: Mutex::default(),
            slow_log: Mutex::default(),
            latency: Mutex::default(),
            announced: Mutex::default(),
            attacks: Occasions::default(),
            host: OnceLock::new(),
            frames_too_long: Arc::default(),
        }
    }

    /// The settings as they are now.
    pub(crate) fn configuration(&self) -> Arc<Configuration> {
        self.configuration.load_full()
    }

    /// Replaces the settings.
    pub(crate) fn configure(&self, configuration: Configuration) {
        self.configuration.store(Arc::new(configuration));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// What a reactor counts from now on. It belongs to the reactor; everybody may read it.
    pub(crate) fn counts_of(&self, reactor: ReactorId) -> Arc<Counts> {
        self.counts[usize::from(reactor.0)].load_full()
    }

    /// What all reactors have counted since the last reset.
    pub(crate) fn counts(&self) -> Vec<Arc<Counts>> {
        self.counts.iter().map(ArcSwap::load_full).collect()
    }

    /// Everything is counted from 0 again.
    pub(crate) fn reset_counts(&self) {
        self.counts.iter().for_each(|counts| counts.store(Arc::default()));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Rises when settings or counts have been replaced.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Says what the process can do. Once, before the first turn.
    pub(crate) fn set_host(&self, host: Box<dyn Host>) {
        assert!(self.host.set(host).is_ok(), "a server has one host");
    }

    /// What the process can do; `None` in a simulation.
    pub(crate) fn host(&self) -> Option<&dyn Host> {
        self.host.get().map(|host| &**host)
    }
}

/// Values that some numbers had when everything was counted from 0 again: those that others count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Baseline {
    pub(crate) expired: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// Something that is told of at most once a minute.
#[derive(Debug, Default)]
pub(crate) struct Occasions {
    /// When it may be told of again, in nanoseconds.
    next: AtomicU64,
}

const OCCASIONS_PAUSE: Duration = Duration::from_secs(60);

impl Occasions {
    /// Returns whether it is to be told of now; then not again for a while.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let next = (now + OCCASIONS_PAUSE).0;
        let pass = |before| (before <= now.0).then_some(next);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok()
    }
}

/// A lock that nobody leaves broken: what is behind it makes sense after each change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
