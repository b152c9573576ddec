//! State that operators see and change while a server runs: settings, clients, counters and slow
//! commands. All reactors share it, beside the data path.
//!
//! - `blocked`: requests that wait for keys, by key;
//! - `clients`: connected clients by reactor, and those that must be closed;
//! - `counts`: the counters of each reactor;
//! - `executions`: executed commands, for `MONITOR` and the slow log;
//! - `slow`: the slow log, and the samples of `LATENCY`;
//! - `pause`: requests delayed by `CLIENT PAUSE`;
//! - `monitor`: the lines of `MONITOR`;
//! - `sources`: the state from which numbers are computed;
//! - [`metrics`]: the registry of numbers, and the metrics page ([`metric_page`]);
//! - `info`: the sections of `INFO`;
//! - [`host`]: services of the process.
//!
//! **Invariant:** a request reads only words here that rarely change, and writes only words of its
//! own reactor. Locks are taken only when clients connect, disconnect, or use operator commands, and
//! while requests wait for keys.

pub(crate) mod blocked;
pub(crate) mod clients;
pub(crate) mod counts;
pub(crate) mod executions;
pub mod host;
pub(crate) mod info;
pub mod metric_page;
pub mod metrics;
pub(crate) mod monitor;
pub(crate) mod pause;
pub(crate) mod slow;
pub(crate) mod sources;

use arc_swap::ArcSwap;
use blocked::BlockedRequests;
use clients::ClientRegistry;
use counts::{FrontEndCounters, Rate};
use host::HostProcess;
use monitor::Monitors;
use node::{LiveSettings, MinReplicas, Node};
use pause::Pause;
use settings::{DurabilitySettings, MemorySettings, ReplicaMinimum, ServerConfiguration};
use slow::{Latency, SlowLog};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use store::EvictionRule;
use types::{Instant, ReactorId, ServerId};

/// The settings, clients and counters that operators see and change.
pub struct Operators {
    configuration: ArcSwap<ServerConfiguration>,
    /// Held while the settings are replaced.
    replacing: Mutex<()>,
    counts: Box<[ArcSwap<FrontEndCounters>]>,
    /// Version of settings and counters. Reactors check it once per turn.
    version: AtomicU64,
    pub(crate) clients: ClientRegistry,
    pub(crate) blocked: BlockedRequests,
    pub(crate) monitors: Monitors,
    pub(crate) pause: Pause,
    pub(crate) rate: Mutex<Rate>,
    pub(crate) baseline: Mutex<Baseline>,
    pub(crate) slow_log: Mutex<SlowLog>,
    pub(crate) latency: Mutex<Latency>,
    /// Slots whose move was announced by `CLUSTER SETSLOT`, with the target.
    pub(crate) announced: Mutex<BTreeMap<u16, ServerId>>,
    /// Rate limit for the log warning about HTTP requests.
    pub(crate) attacks: Occasions,
    host: OnceLock<Box<dyn HostProcess>>,
    /// Messages to servers that were dropped because they do not fit a frame.
    pub frames_too_long: Arc<AtomicU64>,
}

impl Operators {
    /// Creates the state of a server with this number of reactors.
    pub fn new(reactors: u16) -> Operators {
        Operators {
            configuration: ArcSwap::default(),
            replacing: Mutex::default(),
            counts: (0..reactors).map(|_| ArcSwap::default()).collect(),
            version: AtomicU64::new(1),
            clients: ClientRegistry::new(reactors),
            blocked: BlockedRequests::new(reactors),
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

    /// Returns the current settings.
    pub fn configuration(&self) -> Arc<ServerConfiguration> {
        self.configuration.load_full()
    }

    /// Replaces the setting `max-packed-bytes`: for simulations.
    pub fn set_packed_bytes(&self, bytes: usize) {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut configuration = ServerConfiguration::clone(&self.configuration());
        configuration.memory.packed.0 = bytes;
        self.configuration.store(Arc::new(configuration));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Replaces the settings, with those that concern the node.
    pub fn configure(&self, node: &Node, configuration: ServerConfiguration) {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace(node, configuration);
    }

    /// Changes a copy of the settings, and replaces them by it. Concurrent changes of several
    /// reactors follow each other, so none is lost.
    ///
    /// # Errors
    /// If `change` refuses. The settings are not changed then.
    pub fn reconfigure<E>(
        &self,
        node: &Node,
        change: impl FnOnce(&mut ServerConfiguration) -> Result<(), E>,
    ) -> Result<(), E> {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut configuration = ServerConfiguration::clone(&self.configuration());
        change(&mut configuration)?;
        self.replace(node, configuration);
        Ok(())
    }

    fn replace(&self, node: &Node, configuration: ServerConfiguration) {
        let DurabilitySettings { strict_reads, min_replicas, .. } = configuration.durability;
        let min_replicas = match min_replicas {
            ReplicaMinimum::Auto => MinReplicas::Auto,
            ReplicaMinimum::Count(count) => MinReplicas::Count(count),
        };
        let MemorySettings { limit, policy, samples, .. } = configuration.memory;
        let eviction = EvictionRule { policy, samples };
        let memory_limit = limit.0 as u64;
        node.set_live(LiveSettings { strict_reads, min_replicas, eviction, memory_limit });
        self.configuration.store(Arc::new(configuration));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns a reactor's current counters. Only that reactor writes them.
    pub(crate) fn counts_of(&self, reactor: ReactorId) -> Arc<FrontEndCounters> {
        self.counts[usize::from(reactor.0)].load_full()
    }

    /// Returns the counters of all reactors since the last reset.
    pub(crate) fn counts(&self) -> Vec<Arc<FrontEndCounters>> {
        self.counts.iter().map(ArcSwap::load_full).collect()
    }

    /// Resets all counters.
    pub(crate) fn reset_counts(&self) {
        self.counts.iter().for_each(|counts| counts.store(Arc::default()));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the version, which rises when settings or counters are replaced.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Sets the services of the process. Must be called once, before the first turn.
    pub fn set_host(&self, host: Box<dyn HostProcess>) {
        assert!(self.host.set(host).is_ok(), "the host of a server is set once");
    }

    /// Returns the services of the process; `None` in a simulation.
    pub(crate) fn host(&self) -> Option<&dyn HostProcess> {
        self.host.get().map(|host| &**host)
    }
}

/// Values at the last reset of numbers that are counted elsewhere and cannot be reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Baseline {
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// A limit of one log message per minute.
#[derive(Debug, Default)]
pub(crate) struct Occasions {
    /// Time from which the next message is allowed, in nanoseconds.
    next: AtomicU64,
}

const OCCASIONS_PAUSE: Duration = Duration::from_secs(60);

impl Occasions {
    /// Returns whether to log a message now. If so, the next one is allowed after a pause.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let next = (now + OCCASIONS_PAUSE).0;
        let pass = |before| (before <= now.0).then_some(next);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok()
    }
}

/// Locks a mutex, ignoring poison: the protected data is valid after each single change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_need_one_backup_less_than_there_are_to_be() {
        let auto = |replicas, members| MinReplicas::Auto.count(replicas, members);
        assert_eq!([auto(3, 5), auto(3, 4), auto(3, 3), auto(3, 2)], [2, 2, 1, 1]);
        assert_eq!([auto(2, 4), auto(1, 2), auto(1, 0)], [1, 1, 1], "one that lives has it");
        assert_eq!(MinReplicas::Count(2).count(3, 2), 2, "an operator is obeyed");
        assert_eq!(MinReplicas::Count(16).count(2, 9), 2, "more are never made");
        assert_eq!(MinReplicas::Count(0).count(3, 4), 0);
    }
}
