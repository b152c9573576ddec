//! Messages about logs: the segment manifest of a master, and the replicas on its backups.

use super::{LoadProfile, ManifestPosition, REPLICAS_PER_MESSAGE, ReplicaInfo};
use crate::bounded::at_most;
use crate::replica::ReplicaEpoch;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::{SegmentId, ServerId, UnixMillis};

/// A message of a master about its log, or of a backup about the log of another server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogUpdate {
    /// The master's manifest continues in this segment, which begins with a complete snapshot on
    /// a quorum of its backups. No record counts that is only in this segment before
    /// [`LogRequest::ManifestRecorded`]. Until then the earlier segment is written as well.
    ManifestContinues {
        /// The manifest segment; ids rise from one manifest segment to the next.
        number: SegmentId,
    },
    /// The load profile of the master's ranges. Sent periodically, changed or not.
    LoadProfile(LoadProfile),
    /// The backup has fenced this log and holds these replicas, in one or several messages.
    Fenced {
        /// The master of the log.
        log: ServerId,
        /// Number of replicas in the earlier messages of this report; reveals a lost message.
        first: u32,
        /// The replicas, at most [`REPLICAS_PER_MESSAGE`].
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_PER_MESSAGE>")]
        replicas: Vec<ReplicaInfo>,
        /// The latest known expiry clock of the log's server.
        clock: UnixMillis,
        /// Set if another message of the report follows.
        more: bool,
    },
    /// The backup sends pieces of a replica of the log's manifest.
    ManifestRead {
        /// The master of the log.
        log: ServerId,
        /// Segment and epoch of the replica.
        replica: (SegmentId, ReplicaEpoch),
        /// The position of these pieces, from the request.
        first: ManifestPosition,
        /// The bodies of the pieces; the first and last may be partial. An empty list: the replica
        /// cannot be read. All messages together contain exactly the reported bytes of the replica.
        bodies: Vec<Vec<u8>>,
        /// The position of the rest, if there is any.
        next: Option<ManifestPosition>,
    },
    /// A replica that the backup reported in [`LogUpdate::Fenced`] is unreadable or shorter
    /// than reported. Other replicas must be read instead.
    Damaged {
        /// The master of the log.
        log: ServerId,
        /// The segment of that log.
        segment: SegmentId,
        /// The epoch of the replica.
        epoch: ReplicaEpoch,
    },
    /// The backup holds nothing of this log any more.
    LogFreed {
        /// The master of the log.
        log: ServerId,
    },
    /// The backup holds replicas of a log and cannot find its master. If they are not needed, the
    /// answer is [`LogRequest::FreeLog`]; otherwise there is none.
    IsNeeded {
        /// The master of the log.
        log: ServerId,
    },
}

impl fmt::Display for LogUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogUpdate::ManifestContinues { number } => {
                write!(f, "manifest log continues in {number}")
            }
            LogUpdate::LoadProfile(profile) => {
                write!(f, "load profile of {} shares", profile.shares().len())
            }
            LogUpdate::Fenced { log, replicas, more, .. } => {
                let more = if *more { ", more to come" } else { "" };
                write!(f, "fenced {log}: {} replicas{more}", replicas.len())
            }
            LogUpdate::ManifestRead { log, replica: (segment, epoch), first, bodies, .. } => {
                let pieces = bodies.len();
                write!(f, "manifest {log} {segment}.{}: {pieces} pieces from {first}", epoch.0)
            }
            LogUpdate::Damaged { log, segment, epoch } => {
                write!(f, "cannot read seg{}.{} of {log}", segment.0, epoch.0)
            }
            LogUpdate::LogFreed { log } => write!(f, "freed {log}"),
            LogUpdate::IsNeeded { log } => write!(f, "is {log} needed?"),
        }
    }
}

/// A message of the coordinator to a master about its log, or to a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogRequest {
    /// Tells a master that the coordinator has recorded its manifest segment.
    ManifestRecorded {
        /// The highest recorded segment.
        number: SegmentId,
    },
    /// Tells a backup that the master of this log is dead. The backup fences the log permanently
    /// and reports its replicas, even if it has none.
    Fence {
        /// The master of the log.
        log: ServerId,
    },
    /// Asks a backup for this replica of the log's manifest, from this position.
    ReadManifest {
        /// The master of the log.
        log: ServerId,
        /// Segment and epoch of the replica.
        replica: (SegmentId, ReplicaEpoch),
        /// The position up to which the coordinator has the replica.
        first: ManifestPosition,
    },
    /// Tells a backup that this log is no longer needed. The backup fences it permanently, as
    /// after [`LogRequest::Fence`], frees all its replicas, and reports that.
    FreeLog {
        /// The master of the log.
        log: ServerId,
    },
}

impl fmt::Display for LogRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogRequest::ManifestRecorded { number } => write!(f, "manifest log {number} recorded"),
            LogRequest::Fence { log } => write!(f, "fence {log}"),
            LogRequest::ReadManifest { log, replica: (segment, epoch), first } => {
                write!(f, "read manifest {log} {segment}.{} from {first}", epoch.0)
            }
            LogRequest::FreeLog { log } => write!(f, "free {log}"),
        }
    }
}
