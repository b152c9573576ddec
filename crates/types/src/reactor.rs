//! Facts about reactors that several crates share.

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
}
