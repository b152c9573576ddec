//! What happens to a [`Replicator`](super::Replicator), and what it wants done.

use super::placement::{Candidate, Misplaced, Rack};
use types::{Instant, SegmentId, ServerId};
use wire::peer::Appended;
use wire::replica::{ReplicaId, ReplicaKind};

/// When bytes are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// When every backup has them.
    Taken,
    /// When they survive a loss of power at every backup.
    Stable,
}

/// What a replicator is for.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The master.
    pub log: ServerId,
    /// Data, or the log directory.
    pub kind: ReplicaKind,
    /// Replicas of each segment, at least one: R.
    pub replicas: usize,
    /// When bytes are acknowledged.
    pub promise: Promise,
}

/// What happens to a replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicatorEvent {
    /// These servers live, and no others.
    Candidates {
        /// The rack of the master.
        own: Rack,
        /// The master itself alone, if it is to keep its log on its own disk since no other lives.
        /// Else it is not among them.
        servers: Vec<Candidate>,
    },
    /// There is a new segment. One of the chain begins with a snapshot.
    Opened {
        /// Which: never one that there was before.
        segment: SegmentId,
        /// Bytes that it has already.
        length: u32,
        /// Decides who its backups are.
        random: u64,
    },
    /// The segment has so many bytes.
    Appended {
        /// Which.
        segment: SegmentId,
        /// All of its bytes. At the end of a turn: here a piece may end.
        length: u32,
    },
    /// The segment will get nothing more.
    Closed {
        /// Which.
        segment: SegmentId,
    },
    /// From here on a recovery finds the segment: what the chain has acknowledged names it (see
    /// [`ReplicatorEffect::Name`]). Of a segment of the chain: the coordinator has stored its number. All earlier ones of the chain
    /// are not needed any more.
    Listed {
        /// Which.
        segment: SegmentId,
    },
    /// What the chain has acknowledged says that the segment is closed, and what it contains.
    CloseListed {
        /// Which.
        segment: SegmentId,
    },
    /// The closed segment's memory is used for something else from here on. What made everything in
    /// it dead is safe elsewhere, so nobody has to wait for it any more.
    Leaving {
        /// Which.
        segment: SegmentId,
    },
    /// What the chain has acknowledged says that the segment is no part of the log any more.
    Dropped {
        /// Which.
        segment: SegmentId,
    },
    /// An answer to a [`ReplicatorEffect::Send`].
    Answered {
        /// Who says so.
        backup: ServerId,
        /// What.
        answer: Appended,
    },
    /// An answer to a [`ReplicatorEffect::Release`].
    Released {
        /// Who says so.
        backup: ServerId,
        /// Which are gone.
        replicas: Vec<ReplicaId>,
    },
    /// A backup has heard nothing of these replicas for long. Those that nobody needs are released;
    /// it asks again about the others.
    Needed {
        /// Who asks.
        backup: ServerId,
        /// About what.
        replicas: Vec<ReplicaId>,
    },
    /// An answer to a [`ReplicatorEffect::Probe`].
    Heard {
        /// Who says so.
        backup: ServerId,
    },
    /// What was sent to this server and not answered may be lost.
    ConnectionLost {
        /// To whom.
        backup: ServerId,
    },
    /// The coordinator has declared the server dead.
    Died {
        /// Which.
        backup: ServerId,
    },
    /// This server begins to replay what clients wait for, or has replayed it.
    Replaying {
        /// Which of both.
        is_on: bool,
    },
    /// Time has passed: [`Replicator::next_deadline`](super::Replicator::next_deadline).
    Tick,
}

/// Bytes of a segment for one of its replicas. Without bytes it is a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which replica.
    pub replica: ReplicaId,
    /// Where the bytes begin in the segment.
    pub from: u32,
    /// Where they end. When the same piece is sent again, it ends where it did.
    pub to: u32,
    /// Up to where this replica is stable.
    pub stable: u32,
    /// The segment is closed and ends here.
    pub is_last: bool,
    /// When it was sent.
    pub sent: Instant,
}

/// What a replicator wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicatorEffect {
    /// Send this to a backup, on a connection that keeps the order.
    Send {
        /// To whom.
        backup: ServerId,
        /// What.
        piece: Piece,
    },
    /// Name the segment in the directory as open: every backup has begun its replica, so that a
    /// recovery that is told of the segment will find one. Said once; never of the chain.
    Name {
        /// Which.
        segment: SegmentId,
    },
    /// The segment is safe up to here: whoever depends on that may be answered.
    Acknowledged {
        /// Which.
        segment: SegmentId,
        /// Up to where.
        length: u32,
    },
    /// And survives a loss of power up to here.
    Stable {
        /// Which.
        segment: SegmentId,
        /// Up to where.
        length: u32,
    },
    /// Go on in another segment, close this one and say [`ReplicatorEvent::Closed`]: it has lost a
    /// replica, or could have more than it has. Said once.
    Close {
        /// Which.
        segment: SegmentId,
    },
    /// The closed segment is stable on all of its backups: write that into the directory, in one
    /// piece with its naming if that has not been written yet, then say
    /// [`ReplicatorEvent::CloseListed`]. Said once; never of the chain.
    Whole {
        /// Which.
        segment: SegmentId,
    },
    /// So many segments have fewer replicas than wanted.
    UnderReplicated {
        /// How many; 0 is good.
        segments: usize,
    },
    /// So many replicas were placed against the rules about racks so far, for lack of others.
    Misplaced(Misplaced),
    /// Send this to a backup: these are not needed any more.
    Release {
        /// To whom.
        backup: ServerId,
        /// At most [`wire::peer::REPLICAS_MAX`].
        replicas: Vec<ReplicaId>,
    },
    /// Ask this backup whether it is there. Repeated while it is not used because it was silent.
    Probe {
        /// Who.
        backup: ServerId,
    },
    /// This backup is silent, and is replaced wherever the log waits for it. For people.
    Silent {
        /// Who.
        backup: ServerId,
    },
    /// Tell the coordinator that this backup does not answer.
    Suspect {
        /// Who.
        backup: ServerId,
    },
    /// Of the chain: until when operations may be executed, until told otherwise. `None`: not now.
    Lease {
        /// Until when.
        until: Option<Instant>,
    },
    /// Of the chain: tell the coordinator that the directory is in this segment, then say
    /// [`ReplicatorEvent::Listed`]. Repeated until then.
    Announce {
        /// Which.
        segment: SegmentId,
    },
    /// The coordinator takes this server for dead. Nothing will be acknowledged any more: stop.
    Fenced,
}
