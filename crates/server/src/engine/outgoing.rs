//! What an engine wants sent. Plain data: the shell, or a simulator, carries it out.

use super::durable::{Sync, Synced};
use super::recovering::{ReadDone, ReadJob};
use super::replicated::{BackupDone, BackupJob};
use types::ServerId;
use wire::control::{Answer, ToCoordinator};
use wire::peer::PeerMessage;

/// The connection on which a message came, for its answer. Whoever drives the engine chooses the
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route(pub u64);

impl Route {
    /// The route of what a server has sent to itself: it never leaves the engine. No connection has
    /// this number.
    pub(super) const HERE: Route = Route(u64::MAX);
}

/// Raw bytes that came behind a message, still in the buffer that the whole frame came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// The buffer.
    pub buffer: Vec<u8>,
    /// Where the payload begins in it.
    pub start: usize,
}

impl Payload {
    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To a server, over one of this reactor's own connections.
    Server(ServerId),
    /// Back where a message came from.
    Back(Route),
}

impl To {
    /// Returns whether what goes there from `me` stays there.
    pub(super) fn is_here(self, me: ServerId) -> bool {
        match self {
            To::Server(server) => server == me,
            To::Back(route) => route == Route::HERE,
        }
    }
}

/// One message between servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Where to.
    pub to: To,
    /// Whether somebody waits for it.
    pub is_priority: bool,
    /// The message.
    pub message: PeerMessage,
    /// Raw bytes behind it.
    pub payload: Vec<u8>,
}

/// Something that parked operations of this reactor waited for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wake {
    /// This record has arrived, or is known not to exist.
    Record(types::TableId, types::KeyHash),
    /// The progress of some migration has changed.
    Progress,
    /// Tablets or the map have changed.
    Tablets,
    /// The answer to this request of an operation of ours.
    Answer(u64, Answer),
}

/// Work for the disk that may take longer than any turn.
#[derive(Debug)]
pub enum DiskJob {
    /// Of a server that keeps its own log.
    Sync(Sync),
    /// Of one that keeps others'.
    Backup(BackupJob),
    /// Of what it keeps of the dead. Many may come at a time, and nothing else should wait for them.
    Read(ReadJob),
}

/// What came of a [`DiskJob`].
#[derive(Debug)]
pub enum DiskDone {
    /// See [`DiskJob::Sync`].
    Synced(Synced),
    /// See [`DiskJob::Backup`].
    Backup(BackupDone),
    /// See [`DiskJob::Read`].
    Read(ReadDone),
}

impl DiskJob {
    /// Returns whether it only reads, so that what is written need not wait for it.
    pub fn is_reading(&self) -> bool {
        match self {
            DiskJob::Sync(_) => false,
            DiskJob::Backup(job) => job.is_reading(),
            DiskJob::Read(_) => true,
        }
    }

    /// Does it. May take milliseconds, and seconds on a busy disk.
    pub fn carry_out(self) -> DiskDone {
        match self {
            DiskJob::Sync(sync) => DiskDone::Synced(sync.carry_out()),
            DiskJob::Backup(job) => DiskDone::Backup(job.carry_out()),
            DiskJob::Read(job) => DiskDone::Read(job.carry_out()),
        }
    }
}

/// Everything an engine wants done outside of itself, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// To servers.
    pub peers: Vec<Sending>,
    /// To the coordinator.
    pub control: Vec<ToCoordinator>,
    /// For the disk, in this order; [`crate::core::Core::on_disk`] follows each.
    pub disk: Vec<DiskJob>,
    /// To parked operations.
    pub wakes: Vec<Wake>,
}

impl Outgoing {
    /// A message to a server that nobody waits for.
    pub(super) fn send(&mut self, to: ServerId, message: PeerMessage) {
        let to = To::Server(to);
        self.peers.push(Sending { to, is_priority: false, message, payload: Vec::new() });
    }
}
