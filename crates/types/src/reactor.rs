//! Facts about reactors that several crates share.

use std::time::Duration;

/// A reactor's waiting policy when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PollPolicy {
    /// Always spins: the lowest latency, and a core at 100 %.
    Busy,
    /// Spins while that is cheaper than waking, then blocks.
    #[default]
    Adaptive,
    /// Blocks at once.
    Sleep,
}

/// The demand of background work on the time of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundDemand {
    /// Minimum share of the running time, in percent. 100 means a quantum after every turn.
    pub share: u8,
    /// The limit of the rest, if clients' latency limits it.
    pub target: Option<LatencyTarget>,
    /// Some of the work must not wait for a time in which the target allows it.
    pub is_urgent: bool,
}

/// A latency that background work must leave to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyTarget {
    /// Delay that 99 % of the requests are not to exceed.
    pub p99: Duration,
    /// Maximum share of background work, in percent.
    pub share_max: u8,
}

/// The counters of a reactor at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorCounts {
    /// Turns of the loop, including idle ones.
    pub turns: u64,
    /// Quanta of background work.
    pub quanta: u64,
    /// Times the reactor blocked.
    pub sleeps: u64,
    /// Nanoseconds spent on priority connections.
    pub priority_ns: u64,
    /// Nanoseconds spent on all other input, mail, timers and output.
    pub work_ns: u64,
    /// Nanoseconds spent on background work.
    pub background_ns: u64,
    /// Nanoseconds spent idle, spinning or blocked.
    pub waiting_ns: u64,
    /// Connections accepted for this reactor.
    pub accepted: u64,
    /// Connections that have ended.
    pub closed: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Share of background work that clients' latency allows, in percent; 0 without a target.
    pub steered_share: u64,
    /// Delay that 99 % of the last requests have not exceeded, in nanoseconds; 0 without a target.
    pub seen_p99_ns: u64,
}
