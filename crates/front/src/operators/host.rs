//! Services of the process around a server: resource usage, long jobs, and its end.

use super::Operators;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use types::ReactorCounts;

/// The resource usage of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUsage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Resident memory in bytes, now and at its peak.
    pub resident_bytes: u64,
    /// See `resident_bytes`.
    pub resident_bytes_peak: u64,
    /// Memory of the machine in bytes.
    pub machine_bytes: u64,
}

/// A job that takes longer than a turn may. The process runs it on a thread of its own, and then
/// sends `FromCoordinator::Answer` under the request's number: `Flushed` on success, or `Refused`.
#[derive(Clone, Debug)]
pub enum HostJob {
    /// Write the settings at that time back into the file that they came from.
    Rewrite(Arc<Operators>),
    /// Sleep for this duration (`DEBUG SLEEP`).
    Sleep(Duration),
}

/// The process around a server: its resource usage, its files and its end.
pub trait HostProcess: Send + Sync {
    /// Returns the resource usage of the process so far.
    fn usage(&self) -> ProcessUsage;

    /// Returns the counters of each reactor.
    fn reactors(&self) -> Vec<ReactorCounts>;

    /// Runs a job for this request. See [`HostJob`].
    fn begin(&self, request: u64, job: HostJob);

    /// Ends the process in order, after all replies have left.
    fn shut_down(&self);

    /// Returns the file that the settings came from, if any.
    fn file(&self) -> Option<String>;

    /// Returns how many client connections the file descriptors of the process allow.
    fn clients_max(&self) -> u32;

    /// Returns the name of the I/O driver, for `INFO`.
    fn driver(&self) -> &'static str;
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operators")
    }
}

impl fmt::Debug for dyn HostProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}
