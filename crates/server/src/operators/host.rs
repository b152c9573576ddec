//! What only the process around a server can do: read its own use of the machine, write files, end.

use crate::Configuration;
pub use runtime::Counts;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a process has used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Resident memory in bytes, and the most that it has been.
    pub resident_bytes: u64,
    /// See `resident_bytes`.
    pub resident_bytes_peak: u64,
    /// Memory of the machine in bytes.
    pub machine_bytes: u64,
}

/// Something that takes longer than a turn may: the process does it on a thread of its own and
/// sends `FromCoordinator::Answer` under the request's number: `Flushed` for done, or `Refused`.
#[derive(Clone, Debug)]
pub enum Job {
    /// Write these settings into the file that they came from.
    Rewrite(Arc<Configuration>),
    /// Do nothing for so long (`DEBUG SLEEP`).
    Sleep(Duration),
}

/// The process around a server: its use of the machine, its files and its end.
pub trait Host: Send + Sync {
    /// What the process has used so far.
    fn usage(&self) -> Usage;

    /// What each reactor has done so far.
    fn reactors(&self) -> Vec<Counts>;

    /// Does a job for this request. See [`Job`].
    fn begin(&self, request: u64, job: Job);

    /// Ends the process in order: replies leave first.
    fn shut_down(&self);

    /// Ends the process: it cannot do its work.
    fn fail(&self, reason: String);

    /// Ends the process and begins it anew: what it held is served by others.
    fn begin_anew(&self, reason: String);

    /// The file that the settings came from, if any.
    fn file(&self) -> Option<String>;

    /// How the network is met, as `INFO` says it.
    fn driver(&self) -> &'static str;
}

impl fmt::Debug for dyn Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}
