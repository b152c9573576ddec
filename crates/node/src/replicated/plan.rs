//! Parameters of the durability of a server's log: where its replicas are, how many there are,
//! and when a write is acknowledged.

use protocols::replication::Promise;
use std::time::Duration;

/// Durability mode of a log: when a write is acknowledged, and when it is durable (`synced` in
/// identifiers). See `docs/design/durability.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Acknowledged once the operating system has the bytes. Of a log on other servers they count as
    /// durable then; a standalone server syncs them within a few seconds.
    Memory,
    /// Acknowledged once the operating system has the bytes, durable once synced, in about 1 s.
    Interval,
    /// Acknowledged and durable once the bytes are synced.
    Disk,
}

impl Mode {
    /// Returns the name of the mode in settings and `INFO`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Memory => "memory",
            Mode::Interval => "interval",
            Mode::Disk => "disk",
        }
    }
}

/// The disks with the replicas of a server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlacement {
    /// None: the log is in memory only, and all data is lost with the process.
    Nowhere,
    /// The disk of the server itself, which has no cluster.
    OwnDisk,
    /// The disks of other servers; this server's own only while no other server lives.
    OtherServers,
}

/// Parameters of the replication of a server's log to other servers.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Durability mode: determines when a write is acknowledged.
    pub mode: Mode,
    /// Number of replicas of each segment, at least one.
    pub replicas: u16,
    /// Interval of the scrub, which rereads held replicas to detect damage. `None`: never.
    pub scrub: Option<Duration>,
}

impl Plan {
    pub(super) fn promise(self) -> Promise {
        match self.mode {
            Mode::Memory | Mode::Interval => Promise::Taken,
            Mode::Disk => Promise::Synced,
        }
    }
}
