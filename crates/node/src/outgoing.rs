//! Output of an engine as plain data. The shell, or the simulator, sends and executes it.

use crate::messages::{Sending, To};
use crate::recovering::{ReadDone, ReadJob};
use crate::replicated::{BackupDone, BackupJob};
use types::ServerId;
use wire::control::{Answer, ToCoordinator};
use wire::peer::PeerMessage;

/// An event that parked operations of this reactor wait for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wake {
    /// This record has arrived, or is known not to exist.
    Record(types::TableId, types::KeyHash),
    /// The progress of some migration has changed.
    Progress,
    /// The tablets have changed.
    Tablets,
    /// Another map is known, with the same tablets.
    Map,
    /// The answer to the request with this number, from the coordinator or the process.
    Answer(u64, Answer),
}

/// Work for the disk that may take longer than a turn.
#[derive(Debug)]
pub enum DiskJob {
    /// A job on the replicas that this server holds.
    Backup(BackupJob),
    /// A read of a dead server's replica. Many may be queued; no other job should wait.
    Read(ReadJob),
}

/// Result of a [`DiskJob`].
#[derive(Debug)]
pub enum DiskDone {
    /// Result of [`DiskJob::Backup`].
    Backup(BackupDone),
    /// Result of [`DiskJob::Read`].
    Read(ReadDone),
}

impl DiskJob {
    /// Returns whether the job only reads. Jobs that write need not wait for it.
    pub fn is_reading(&self) -> bool {
        match self {
            DiskJob::Backup(job) => job.is_reading(),
            DiskJob::Read(_) => true,
        }
    }

    /// Returns whether no acknowledgment depends on the job: it frees a replica, or prepares files.
    /// Jobs that acknowledgments depend on need not wait for it.
    pub fn is_housekeeping(&self) -> bool {
        match self {
            DiskJob::Backup(job) => job.is_housekeeping(),
            DiskJob::Read(_) => false,
        }
    }

    /// Runs the job. This may take milliseconds, and seconds on a busy disk.
    pub fn carry_out(self) -> DiskDone {
        match self {
            DiskJob::Backup(job) => DiskDone::Backup(job.carry_out()),
            DiskJob::Read(job) => DiskDone::Read(job.carry_out()),
        }
    }
}

/// All output of an engine, in order.
#[derive(Debug, Default)]
pub struct EngineOutput {
    /// Messages to servers.
    pub peers: Vec<Sending>,
    /// Messages to the coordinator.
    pub control: Vec<ToCoordinator>,
    /// Jobs for the disk, in order. [`crate::Engine::on_disk`] follows each.
    pub disk: Vec<DiskJob>,
    /// Wakes for parked operations.
    pub wakes: Vec<Wake>,
}

impl EngineOutput {
    /// Queues a message to a server that no operation waits for.
    pub(crate) fn send(&mut self, to: ServerId, message: PeerMessage) {
        let to = To::Server(to);
        self.peers.push(Sending { to, is_priority: false, message, payload: Vec::new() });
    }
}
