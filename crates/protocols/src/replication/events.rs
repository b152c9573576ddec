//! Events, effects and settings of a [`Replicator`](super::Replicator).

use super::placement::{BackupCandidate, Misplaced, Rack};
use types::{Instant, SegmentId, ServerId};
use wire::peer::Appended;
use wire::replica::{ReplicaEpoch, ReplicaId, ReplicaKind};

/// The condition under which bytes are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every backup has written the bytes to its file.
    Taken,
    /// Every backup has synced the bytes, so that they survive a power loss.
    Synced,
}

/// The settings of one replicator.
#[derive(Clone, Copy, Debug)]
pub struct ReplicatorSettings {
    /// The master; its id also identifies the log.
    pub log: ServerId,
    /// The kind of log: data, or the segment manifest.
    pub kind: ReplicaKind,
    /// Replicas of each segment (R), at least one.
    pub replicas: usize,
    /// The condition under which bytes are acknowledged.
    pub promise: Promise,
    /// Set if the server is standalone: it has no cluster, its own disk is its only backup, and no other server
    /// ever takes over its ranges. The manifest log then has neither lease nor heartbeats.
    pub is_standalone: bool,
}

/// An event at a replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicatorEvent {
    /// The complete list of living servers.
    Candidates {
        /// The rack of the master.
        own: Rack,
        /// The candidates for replicas, without the master. If no other server lives and the
        /// master is to keep its log on its own disk, the list contains the master alone.
        servers: Vec<BackupCandidate>,
    },
    /// A write needs this many answering backups, and is refused while there are fewer: then
    /// backups that were left out are used again sooner.
    WritesNeed {
        /// The number of backups.
        backups: usize,
    },
    /// The writer began a new segment. A manifest segment begins with a snapshot.
    Opened {
        /// The segment; ids are never reused.
        segment: SegmentId,
        /// Bytes that the segment already has.
        length: u32,
        /// The random seed from which the backups are drawn.
        random: u64,
    },
    /// An earlier process of this server wrote the segment. It is closed, and its only replica,
    /// on this server's own disk, has all of it, synced. For a data segment,
    /// [`ReplicatorEvent::Sealed`] follows when the manifest has its content.
    Adopted {
        /// The segment.
        segment: SegmentId,
        /// The epoch of its replica.
        epoch: ReplicaEpoch,
        /// Its length in bytes.
        length: u32,
    },
    /// The segment has grown.
    Appended {
        /// The segment.
        segment: SegmentId,
        /// The segment's whole length in bytes at the end of a turn: a piece may end here.
        length: u32,
    },
    /// The writer appends nothing more to the segment.
    Closed {
        /// The segment.
        segment: SegmentId,
    },
    /// A recovery finds the segment from now on. For a data segment, the manifest lists it and
    /// that entry is acknowledged (see [`ReplicatorEffect::Register`]). For a manifest segment, the
    /// coordinator has stored its id, and all earlier manifest segments are obsolete.
    Registered {
        /// The segment.
        segment: SegmentId,
    },
    /// The manifest entry of a data segment is synced, not only acknowledged: from now on a
    /// recovery after a loss of power finds the segment, too.
    RegistrationSynced {
        /// The segment.
        segment: SegmentId,
    },
    /// The manifest's close entry of the segment is synced: the segment is sealed.
    Sealed {
        /// The segment.
        segment: SegmentId,
    },
    /// The memory of the closed segment is about to be reused. The entries that superseded its
    /// content are acknowledged elsewhere, so no reply depends on the segment any more.
    Leaving {
        /// The segment.
        segment: SegmentId,
    },
    /// The manifest entry that removes the segment from the log is synced.
    Dropped {
        /// The segment.
        segment: SegmentId,
    },
    /// A backup answered a [`ReplicatorEffect::Send`].
    Answered {
        /// The backup.
        backup: ServerId,
        /// The answer.
        answer: Appended,
    },
    /// A backup answered a [`ReplicatorEffect::Release`].
    Released {
        /// The backup.
        backup: ServerId,
        /// The replicas that it has freed.
        replicas: Vec<ReplicaId>,
    },
    /// A backup asks whether these replicas, of which it has not heard for long, are still needed.
    /// The replicator releases those that are not; the backup asks again about the others.
    Needed {
        /// The backup.
        backup: ServerId,
        /// The replicas.
        replicas: Vec<ReplicaId>,
    },
    /// A backup answered a [`ReplicatorEffect::Probe`].
    Heard {
        /// The backup.
        backup: ServerId,
    },
    /// The connection to a backup broke: messages that it has not answered may be lost.
    ConnectionLost {
        /// The backup.
        backup: ServerId,
    },
    /// The coordinator has declared the server dead.
    Died {
        /// The server.
        backup: ServerId,
    },
    /// This server started or finished a recovery replay that clients wait for.
    Replaying {
        /// Set while the replay is running.
        is_on: bool,
    },
    /// A deadline has passed: [`Replicator::next_deadline`](super::Replicator::next_deadline).
    Tick,
}

/// A range of a segment's bytes for one of its replicas. An empty piece is a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The replica.
    pub replica: ReplicaId,
    /// Offset in the segment at which the bytes begin.
    pub from: u32,
    /// Offset at which the bytes end. A repeated piece ends at the same offset.
    pub to: u32,
    /// Bytes of this replica that are known to be synced.
    pub synced: u32,
    /// Set if the segment is closed and ends at `to`.
    pub is_last: bool,
    /// Send time by the master's clock.
    pub sent: Instant,
}

/// An action that a replicator asks its driver to take; the driver applies actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicatorEffect {
    /// Sends a piece to a backup, on a connection that keeps the order.
    Send {
        /// The backup.
        backup: ServerId,
        /// The piece.
        piece: Piece,
    },
    /// Registers the data segment in the manifest as open. Every backup has begun its replica, so
    /// a recovery that reads the entry finds one. Emitted once per data segment, never for a
    /// manifest segment.
    Register {
        /// The segment.
        segment: SegmentId,
    },
    /// Raises the acknowledged length of the segment: replies that depend on these bytes may leave.
    Acknowledged {
        /// The segment.
        segment: SegmentId,
        /// The acknowledged length in bytes.
        length: u32,
    },
    /// Raises the held length of a segment that has lost a replica and must be closed and copied
    /// before more of it is acknowledged: all replicas that are left have these bytes. Bytes of
    /// other segments that depend on them may be sent.
    Held {
        /// The segment.
        segment: SegmentId,
        /// The held length in bytes.
        length: u32,
    },
    /// Raises the synced length of the segment: these bytes survive a power loss.
    Synced {
        /// The segment.
        segment: SegmentId,
        /// The synced length in bytes.
        length: u32,
    },
    /// Asks the writer to go on in another segment, close this one and report
    /// [`ReplicatorEvent::Closed`]. The segment has lost a replica, or has fewer than it could
    /// have. Emitted once per segment.
    Close {
        /// The segment.
        segment: SegmentId,
    },
    /// Asks the driver to record the close of the segment in the manifest, then to report
    /// [`ReplicatorEvent::Sealed`]. The segment is complete and synced on all its backups.
    /// If its open entry is not written yet, both go into one piece. Emitted once, never for a
    /// manifest segment.
    Seal {
        /// The segment.
        segment: SegmentId,
    },
    /// Reports how many segments have fewer replicas than wanted.
    UnderReplicated {
        /// The number of segments; 0 is the healthy state.
        segments: usize,
    },
    /// Reports how many replicas were placed against the rack rules so far.
    Misplaced(Misplaced),
    /// Tells a backup that these replicas are no longer needed.
    Release {
        /// The backup.
        backup: ServerId,
        /// At most [`wire::peer::REPLICAS_MAX`] replicas.
        replicas: Vec<ReplicaId>,
    },
    /// Asks a silent backup for a sign of life. Repeated until the backup may be used again.
    Probe {
        /// The backup.
        backup: ServerId,
    },
    /// Reports to operators that this backup is silent and is being replaced.
    Silent {
        /// The backup.
        backup: ServerId,
    },
    /// Tells the coordinator that this backup does not answer.
    Suspect {
        /// The backup.
        backup: ServerId,
    },
    /// Sets the read lease, under which operations may run until the next change. Emitted by the
    /// replicator of the manifest only.
    Lease {
        /// End of the lease; `None`: no lease.
        until: Option<Instant>,
    },
    /// Tells the coordinator that the manifest continues in this segment;
    /// [`ReplicatorEvent::Registered`] follows when the coordinator has stored that. Repeated until
    /// then.
    Announce {
        /// The manifest segment.
        segment: SegmentId,
    },
    /// Reports that the coordinator has declared this server dead. The master must stop, since
    /// nothing will be acknowledged any more.
    Fenced,
}
