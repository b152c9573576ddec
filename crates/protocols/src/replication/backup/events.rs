//! Events and effects of a [`Backup`].

#[cfg(doc)]
use super::Backup;
use crate::Ticket;
use types::{Instant, ServerId, UnixMillis};
use wire::peer::Appended;
#[cfg(doc)]
use wire::peer::REPLICAS_MAX;
use wire::replica::ReplicaId;

/// The result of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubResult {
    /// The number of bytes of the segment that are intact.
    Intact(u32),
    /// The disk cannot read the replica, or its content differs from what was written.
    Damaged,
    /// The read could not be attempted.
    Unknown,
}

/// The header of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendHeader {
    /// The replica.
    pub replica: ReplicaId,
    /// Offset in the segment at which the bytes begin.
    pub from: u32,
    /// Offset at which the bytes end.
    pub to: u32,
    /// Set if the master wants a sync without delay: the segment is closed and ends there, or the
    /// master needs the memory that is reusable after the sync.
    pub syncs_at_once: bool,
    /// Send time by the master's clock.
    pub sent: Instant,
    /// The master's expiry clock. Once the append is acknowledged, the master judges no reply by
    /// a clock that is more than [`crate::replication::timing::CLOCK_LEASE`] later.
    pub clock: UnixMillis,
}

/// An event at a backup.
#[derive(Clone, Debug, PartialEq)]
pub enum BackupEvent {
    /// A replica was found on the disk at the start. No effect follows before the next event.
    Found {
        /// The replica.
        replica: ReplicaId,
    },
    /// An earlier process of this server, which has no cluster, has left a replica of the server's
    /// own log. It is complete and synced. No effect follows.
    Adopted {
        /// The replica.
        replica: ReplicaId,
        /// Its length in bytes.
        length: u32,
    },
    /// The driver has completed a [`BackupEffect::Measure`].
    Measured {
        /// The replica.
        replica: ReplicaId,
        /// Length of the replica in bytes.
        length: u32,
        /// The part of these bytes that counts as synced in the configured durability mode.
        synced: u32,
        /// The latest expiry clock in the replica's pieces.
        clock: UnixMillis,
    },
    /// A replica that was found is damaged; the backup treats it as absent.
    Damaged {
        /// The replica.
        replica: ReplicaId,
    },
    /// The disk has failed to read or sync a replica that was found. Its content may be intact.
    NotMeasured {
        /// The replica.
        replica: ReplicaId,
    },
    /// A master has sent an append. The driver may drop the bytes if no [`BackupEffect::Take`]
    /// follows at once.
    Append {
        /// The sender.
        from: ServerId,
        /// The header of the append.
        header: AppendHeader,
        /// The bytes, if the append has any.
        payload: Option<Ticket>,
    },
    /// The driver has completed a [`BackupEffect::Take`].
    Taken {
        /// The replica.
        replica: ReplicaId,
        /// Length of the replica in bytes.
        length: u32,
        /// The part of these bytes that counts as synced in the configured durability mode.
        synced: u32,
    },
    /// More of a replica has been synced, for whatever reason.
    Synced {
        /// The replica.
        replica: ReplicaId,
        /// Synced length in bytes.
        synced: u32,
    },
    /// The disk has no room for a new replica, and nothing of the replica is on it.
    Full {
        /// The replica.
        replica: ReplicaId,
    },
    /// The replica takes no more bytes, since the disk is full or fails. Acknowledged bytes exist.
    Stopped {
        /// The replica.
        replica: ReplicaId,
        /// Length of the replica in bytes.
        length: u32,
        /// The part of these bytes that counts as synced in the configured durability mode.
        synced: u32,
    },
    /// The replica takes no more bytes, and its content is unknown. The driver makes sure that
    /// the replica is not found at the next start.
    Failed {
        /// The replica.
        replica: ReplicaId,
    },
    /// The driver has completed a [`BackupEffect::Scrub`].
    Scrubbed {
        /// The replica.
        replica: ReplicaId,
        /// The result.
        found: ScrubResult,
    },
    /// The driver has completed a [`BackupEffect::Free`].
    Freed {
        /// The replica.
        replica: ReplicaId,
    },
    /// These replicas are no longer needed, according to their master or, for a recovered log,
    /// the coordinator.
    Release {
        /// The log; listed replicas of other logs are kept.
        log: ServerId,
        /// The replicas.
        replicas: Vec<ReplicaId>,
    },
    /// The coordinator has declared the log's master dead.
    Fence {
        /// The log.
        log: ServerId,
    },
    /// The coordinator reports that this log is no longer needed. This fences the log too.
    Recovered {
        /// The log.
        log: ServerId,
    },
    /// A deadline has passed: [`Backup::next_deadline`].
    Tick,
}

/// An action that a backup asks its driver to take; the driver applies actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum BackupEffect {
    /// Writes the bytes of the append that was just received; then report [`BackupEvent::Taken`],
    /// [`BackupEvent::Full`], [`BackupEvent::Stopped`] or [`BackupEvent::Failed`].
    Take {
        /// The replica.
        replica: ReplicaId,
        /// Set if the replica must be created first. If that fails, nothing may remain of it: see
        /// [`BackupEvent::Full`].
        is_new: bool,
        /// The bytes; `None` only for a new replica.
        payload: Option<Ticket>,
    },
    /// Syncs the replica without delay; then report [`BackupEvent::Synced`] or
    /// [`BackupEvent::Failed`].
    Sync {
        /// The replica.
        replica: ReplicaId,
    },
    /// Measures a replica that was found; then report [`BackupEvent::Measured`],
    /// [`BackupEvent::Damaged`] or [`BackupEvent::NotMeasured`].
    Measure {
        /// The replica.
        replica: ReplicaId,
    },
    /// Scrubs a replica when no other read is waiting; then report [`BackupEvent::Scrubbed`].
    Scrub {
        /// The replica.
        replica: ReplicaId,
    },
    /// Makes sure that the damaged replica is not found at the next start.
    GiveUp {
        /// The replica.
        replica: ReplicaId,
    },
    /// Sends this answer to the replica's master, which has not asked for it.
    Complain(Appended),
    /// Frees the replica's space; then report [`BackupEvent::Freed`].
    Free {
        /// The replica.
        replica: ReplicaId,
    },
    /// Sends this answer to the replica's master.
    Answer(Appended),
    /// Tells the master that these replicas are freed.
    Released {
        /// The log of that master.
        log: ServerId,
        /// The replicas.
        replicas: Vec<ReplicaId>,
    },
    /// Asks the master, or the coordinator in its absence, whether these replicas are needed.
    Ask {
        /// The log of the replicas.
        log: ServerId,
        /// At most [`REPLICAS_MAX`] replicas.
        replicas: Vec<ReplicaId>,
    },
    /// Sends [`Backup::kept`] to the coordinator: the log is fenced, its replicas are final.
    Report {
        /// The log.
        log: ServerId,
    },
    /// Tells the coordinator that no replica of a recovered log is left here.
    LogFreed {
        /// The log.
        log: ServerId,
    },
}
