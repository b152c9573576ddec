//! Events and effects of a backup.

#[cfg(doc)]
use super::Backup;
use crate::Ticket;
use types::{Instant, ServerId, UnixMillis};
use wire::peer::Appended;
#[cfg(doc)]
use wire::peer::REPLICAS_MAX;
use wire::replica::ReplicaId;

/// The result of reading a replica again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrubbed {
    /// This many bytes of the segment are as they were written.
    Whole(u32),
    /// The disk cannot read it, or what stands there was never written.
    Damaged,
    /// It could not be tried.
    Unknown,
}

/// An append, less its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The replica that it is for.
    pub replica: ReplicaId,
    /// Offset in the segment at which its bytes begin.
    pub from: u32,
    /// Offset at which they end.
    pub to: u32,
    /// The segment ends there.
    pub is_last: bool,
    /// When it was sent, by its master's clock.
    pub sent: Instant,
    /// Its master's expiry clock. What is acknowledged binds: the master answers nobody by a clock
    /// that is later by more than [`crate::replication::timing::CLOCK_LEASE`].
    pub clock: UnixMillis,
}

/// An event at a backup.
#[derive(Clone, Debug, PartialEq)]
pub enum BackupEvent {
    /// At the start: a replica was found on the disk. Nothing follows before another event.
    Found {
        /// The replica.
        replica: ReplicaId,
    },
    /// A [`BackupEffect::Measure`] was carried out.
    Measured {
        /// The replica.
        replica: ReplicaId,
        /// Bytes of the segment.
        length: u32,
        /// Bytes of these that survive a loss of power, as far as the mode promises.
        stable: u32,
        /// The latest expiry clock in its pieces.
        clock: UnixMillis,
    },
    /// A replica that was found is damaged or cannot be read: it counts as absent.
    Unreadable {
        /// The replica.
        replica: ReplicaId,
    },
    /// A master has sent an append. Its bytes are not needed any more if no
    /// [`BackupEffect::Take`] follows at once.
    Append {
        /// The server that sent it.
        from: ServerId,
        /// Its header.
        asked: Asked,
        /// Its bytes, if it has any.
        payload: Option<Ticket>,
    },
    /// A [`BackupEffect::Take`] was carried out.
    Taken {
        /// The replica.
        replica: ReplicaId,
        /// Bytes of the segment that it has.
        length: u32,
        /// Bytes of these that survive a loss of power, as far as the mode promises.
        stable: u32,
    },
    /// More of a replica has become stable, whoever asked for it.
    Synced {
        /// The replica.
        replica: ReplicaId,
        /// Bytes of the segment that survive a loss of power.
        stable: u32,
    },
    /// There is no room to begin a replica. Nothing of it is on the disk.
    Full {
        /// The replica.
        replica: ReplicaId,
    },
    /// It can take nothing more, since the disk is full, or fails; what it was told to have it has.
    Stopped {
        /// The replica.
        replica: ReplicaId,
        /// Bytes of the segment that it has.
        length: u32,
        /// Bytes of these that survive a loss of power, as far as the mode promises.
        stable: u32,
    },
    /// It can take nothing more, and nobody knows what it has. The driver makes sure that it is not
    /// found at the next start.
    Failed {
        /// The replica.
        replica: ReplicaId,
    },
    /// A [`BackupEffect::Scrub`] was carried out.
    Scrubbed {
        /// The replica.
        replica: ReplicaId,
        /// The result.
        found: Scrubbed,
    },
    /// A [`BackupEffect::Free`] was carried out.
    Freed {
        /// The replica.
        replica: ReplicaId,
    },
    /// A master does not need these any more; or the coordinator says so of a log that is
    /// recovered.
    Release {
        /// The log that they belong to; replicas of other logs are kept.
        log: ServerId,
        /// The replicas.
        replicas: Vec<ReplicaId>,
    },
    /// The coordinator takes the log's master for dead.
    Fence {
        /// The log.
        log: ServerId,
    },
    /// The coordinator says that nobody needs anything of this log any more; it is as if fenced.
    Recovered {
        /// The log.
        log: ServerId,
    },
    /// Time has passed: [`Backup::next_deadline`].
    Tick,
}

/// An action that a backup asks its driver to take; actions are taken in order.
#[derive(Clone, Debug, PartialEq)]
pub enum BackupEffect {
    /// Have the disk take the bytes of the append that has just come; then say
    /// [`BackupEvent::Taken`], [`BackupEvent::Full`] or [`BackupEvent::Failed`].
    Take {
        /// The replica that it is for.
        replica: ReplicaId,
        /// It is to be made first. All or nothing: see [`BackupEvent::Full`].
        is_new: bool,
        /// The bytes; `None` only if it is new.
        payload: Option<Ticket>,
    },
    /// Sync the replica without delay; then say [`BackupEvent::Synced`] or [`BackupEvent::Failed`].
    Sync {
        /// The replica.
        replica: ReplicaId,
    },
    /// Read a replica that was found; then say [`BackupEvent::Measured`] or
    /// [`BackupEvent::Unreadable`].
    Measure {
        /// The replica.
        replica: ReplicaId,
    },
    /// Read a replica from the disk, when nothing else has to be read; then say
    /// [`BackupEvent::Scrubbed`].
    Scrub {
        /// The replica.
        replica: ReplicaId,
    },
    /// Make sure that the replica is not found at the next start: it is damaged.
    GiveUp {
        /// The replica.
        replica: ReplicaId,
    },
    /// Tell the replica's master, which has not asked.
    Complain(Appended),
    /// Free what there is of the replica; then say [`BackupEvent::Freed`].
    Free {
        /// The replica.
        replica: ReplicaId,
    },
    /// Tell the replica's master.
    Answer(Appended),
    /// Tell the master that these are gone.
    Released {
        /// The log, whose master is told.
        log: ServerId,
        /// The replicas.
        replicas: Vec<ReplicaId>,
    },
    /// Ask whether these are needed: their master, or the coordinator if that is gone.
    Ask {
        /// The log that they belong to.
        log: ServerId,
        /// At most [`REPLICAS_MAX`].
        replicas: Vec<ReplicaId>,
    },
    /// The log is fenced, and what there is of it stands still: tell the coordinator
    /// [`Backup::kept`].
    Report {
        /// The log.
        log: ServerId,
    },
    /// Nothing is here of a log that is recovered: tell the coordinator.
    LogFreed {
        /// The log.
        log: ServerId,
    },
}
