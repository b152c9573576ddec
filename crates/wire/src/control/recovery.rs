//! Messages about the recovery of a dead server's log: the replicas of the log, the parts and
//! their recovery masters, and the progress.
//!
//! Lists that grow with the length of a log are split over several messages of bounded size, so
//! that no log is too long for a frame.

use crate::bounded::{at_most, incarnations};
use crate::frame::MESSAGE_BYTES_MAX;
use crate::manifest::SegmentContent;
use crate::replica::ReplicaEpoch;
use crate::text::list;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::{HashRange, Incarnation, MigrationId, OwnershipEpoch, SegmentId, ServerId, UnixMillis};

/// A message of a recovery master about a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryUpdate {
    /// The recovery master has all entries of the part in memory and could serve it. Repeated
    /// until the map shows this server as the owner. Not sent for a part that depends on several
    /// logs, or of which the server held records before.
    Replayed {
        /// The master of the log.
        dead: ServerId,
        /// The range of the part.
        range: HashRange,
        /// The epoch of the part, from the request.
        epoch: OwnershipEpoch,
    },
    /// All entries of the part are in the recovery master's log and acknowledged by its backups.
    /// Repeated until [`RecoveryRequest::RecoveryConfirmed`].
    Recovered {
        /// The dead server of the part's first log.
        dead: ServerId,
        /// The range of the part.
        range: HashRange,
        /// The epoch of the part, from the request.
        epoch: OwnershipEpoch,
    },
    /// The recovery master cannot recover the part; the records that it replayed do not count.
    /// Never sent after [`RecoveryUpdate::Replayed`] or [`RecoveryUpdate::Recovered`], because the
    /// server may own the part by then.
    NotRecovered {
        /// The dead server of the part's first log.
        dead: ServerId,
        /// The range of the part.
        range: HashRange,
        /// The epoch of the part, from the request.
        epoch: OwnershipEpoch,
        /// The reason, for the operator.
        reason: String,
    },
}

impl fmt::Display for RecoveryUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryUpdate::Replayed { dead, range, epoch } => {
                write!(f, "replayed {dead} {range} {epoch}")
            }
            RecoveryUpdate::Recovered { dead, range, epoch } => {
                write!(f, "recovered {dead} {range} {epoch}")
            }
            RecoveryUpdate::NotRecovered { dead, range, epoch, reason } => {
                write!(f, "not recovered {dead} {range} {epoch}: {reason}")
            }
        }
    }
}

/// A message of the coordinator to a recovery master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryRequest {
    /// Tells a recovery master to recover this part. Its segments may span several messages.
    Recover(Box<RecoveryPartition>),
    /// Answer to a [`RecoveryUpdate::Recovered`]: the part belongs to the receiver and no longer
    /// depends on the dead server's log.
    RecoveryConfirmed {
        /// The range of the part.
        range: HashRange,
        /// The epoch of the part.
        epoch: OwnershipEpoch,
    },
}

impl fmt::Display for RecoveryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryRequest::Recover(part) => write!(f, "recover {part}"),
            RecoveryRequest::RecoveryConfirmed { range, epoch } => {
                write!(f, "kept {range} {epoch}")
            }
        }
    }
}

/// A replica of a log's segment, as reported by its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The segment: of the log, or of its manifest log.
    pub segment: SegmentId,
    /// The replica of that segment.
    pub epoch: ReplicaEpoch,
    /// Set for a manifest segment. Manifest segments are numbered separately.
    pub is_manifest: bool,
    /// Bytes of the bodies of all its intact pieces.
    pub length: u32,
    /// Set if the replica was written before the last start of the backup's machine, by a backup
    /// that does not wait for its disk. A power loss may have shortened the replica.
    pub may_be_short: bool,
}

/// A position in a replica of a log's manifest: the number of whole pieces before it, and an
/// offset in the piece that contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ManifestPosition {
    /// Number of whole pieces.
    pub pieces: u32,
    /// Offset in the next piece, in bytes.
    pub bytes: u32,
}

/// Formats as `3`, or as `3+512` for the 512th byte of a piece.
impl fmt::Display for ManifestPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            0 => write!(f, "{}", self.pieces),
            bytes => write!(f, "{}+{bytes}", self.pieces),
        }
    }
}

/// The location of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplicaPlace {
    /// The backup that holds it.
    pub backup: ServerId,
    /// The replica of the segment.
    pub epoch: ReplicaEpoch,
    /// Its length in bytes, as far as it is known.
    pub length: u32,
}

/// A segment of a dead server's log, with the places of its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverySegment {
    /// The log, one of the part's logs. Each log numbers its segments separately.
    pub log: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// The content of a closed segment. `None`: the segment was open, any replica will do, and
    /// the first is the longest.
    pub content: Option<SegmentContent>,
    /// The places in the order in which they should be tried; never empty.
    #[serde(deserialize_with = "at_most::<_, _, PLACES_MAX>")]
    pub places: Vec<ReplicaPlace>,
    /// Bytes from the beginning that every later recovery finds as well, whichever backups are left
    /// then. Later bytes may never have been acknowledged: a server that shows them to a client
    /// must first write them to its own log.
    pub common_prefix: u32,
}

/// A dead server's log from which a part is recovered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryLog {
    /// The dead server.
    pub dead: ServerId,
    /// The incarnations (`Incarnation`) of the range by table. An entry of the range counts if it
    /// carries one of them. 0, which no entry carries, excludes the table.
    #[serde(deserialize_with = "incarnations")]
    pub old_incarnations: Vec<Incarnation>,
}

/// A part of a dead server's ranges, to be served by the receiver.
///
/// The current value of a key is its entry with the highest version, over all logs and the
/// records that the receiver keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPartition {
    /// The range of the part.
    pub range: HashRange,
    /// The epoch of the part under its new owner. It is issued once and identifies the part.
    pub epoch: OwnershipEpoch,
    /// The incarnations (`Incarnation`) of the new owner's entries, by table.
    #[serde(deserialize_with = "incarnations")]
    pub incarnations: Vec<Incarnation>,
    /// Set if the receiver is the living side of a migration. Its records of the range then count
    /// too and already carry these incarnations; a table in which it has another incarnation
    /// counts as empty. If it hands the part back, it keeps its previous records. A source may
    /// still be serving the range if the outcome of the flip is unknown. Without this flag the
    /// receiver holds nothing of the range.
    pub keeps: bool,
    /// Start of the range's expiry clock: the dead server cannot have judged by a later time.
    pub clock_floor: UnixMillis,
    /// The log, or both sides' logs if the range was moving and both sides are dead. The first
    /// log identifies the part, together with epoch and range.
    #[serde(deserialize_with = "at_most::<_, _, LOGS_MAX>")]
    pub logs: Vec<RecoveryLog>,
    /// Number of the list to which these segments belong. A higher list replaces all lower ones;
    /// segments that were read under a lower list need not be read again.
    pub list: u64,
    /// Number of segments in the list, over all its messages.
    pub segments_total: u32,
    /// The segments of this message, at most [`SEGMENTS_PER_MESSAGE`].
    #[serde(deserialize_with = "at_most::<_, _, SEGMENTS_PER_MESSAGE>")]
    pub segments: Vec<RecoverySegment>,
}

impl fmt::Display for RecoveryPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecoveryPartition { range, epoch, logs, segments, segments_total, .. } = self;
        let logs: Vec<ServerId> = logs.iter().map(|log| log.dead).collect();
        let sent = segments.len();
        write!(f, "{range} of {} {epoch}: {sent} of {segments_total} segments", list(&logs))
    }
}

impl RecoveryPartition {
    /// Returns the dead server of the first log, which identifies the part. `None`: the message
    /// is invalid.
    pub fn dead(&self) -> Option<ServerId> {
        self.logs.first().map(|log| log.dead)
    }
}

/// The state of the recovery of a dead server, by the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryState {
    /// Connected servers must report their replicas of the log.
    Collecting,
    /// A backup must deliver the log's manifest.
    ReadingManifest,
    /// A server with the manifest must return, or an operator must accept the loss.
    ManifestMissing,
    /// Servers with the missing segments must return, or an operator must accept the loss.
    SegmentsMissing,
    /// The dead server's read lease must end.
    WaitingForLease,
    /// A server with a replicated log and free memory must become available.
    WaitingForServers,
    /// The recovery masters of the parts must finish.
    Recovering,
    /// Migrations must be decided, their sources must delete their copies, or the log of the
    /// other, dead side must be recovered. Everything else of the log is served.
    WaitingForMigrations,
    /// Servers must free their replicas of the log. Everything is served.
    Freeing,
}

/// The recovery of one dead server, for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// The dead server.
    pub dead: ServerId,
    /// The state.
    pub state: RecoveryState,
    /// Time at which the server was declared dead.
    pub created: UnixMillis,
    /// Ranges of the dead server that no server serves yet.
    pub ranges: Vec<HashRange>,
    /// The parts with their recovery masters: those under recovery, and those that are served but
    /// still depend on the log.
    pub parts: Vec<(HashRange, ServerId)>,
    /// Number of segments without a replica on a connected server.
    pub missing_total: u32,
    /// The first missing segments, at most [`MISSING_SHOWN_MAX`].
    pub missing: Vec<SegmentId>,
    /// Migrations that must progress or end before the rest can be recovered.
    pub waits_for: Vec<MigrationId>,
    /// The reason why a part was last handed back, or empty.
    pub message: String,
}

impl RecoveryReport {
    /// Returns the missing part of the log, if the recovery waits for it.
    pub fn loss(&self) -> Option<LogLoss> {
        match self.state {
            RecoveryState::ManifestMissing => Some(LogLoss::Manifest),
            RecoveryState::SegmentsMissing => {
                Some(LogLoss::Segments { first: self.missing.clone(), total: self.missing_total })
            }
            RecoveryState::Collecting
            | RecoveryState::ReadingManifest
            | RecoveryState::WaitingForLease
            | RecoveryState::WaitingForServers
            | RecoveryState::Recovering
            | RecoveryState::WaitingForMigrations
            | RecoveryState::Freeing => None,
        }
    }
}

/// The missing part of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLoss {
    /// The manifest; without it other losses are unknown.
    Manifest,
    /// Some segments.
    Segments {
        /// The first missing segments, at most [`MISSING_SHOWN_MAX`].
        first: Vec<SegmentId>,
        /// The number of missing segments.
        total: u32,
    },
}

/// Formats as operators read and write it: `manifest`, `segments 3,4,9`, or `segments 3,4,9+120`
/// for 120 more than are named.
impl fmt::Display for LogLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LogLoss::Segments { first, total } = self else { return f.write_str("manifest") };
        f.write_str("segments ")?;
        for (place, segment) in first.iter().enumerate() {
            write!(f, "{}{}", if place == 0 { "" } else { "," }, segment.0)?;
        }
        match (*total as usize).saturating_sub(first.len()) {
            0 => Ok(()),
            more => write!(f, "+{more}"),
        }
    }
}

/// Maximum number of missing segments that a report names.
pub const MISSING_SHOWN_MAX: usize = 16;

/// Maximum number of logs from which a part is recovered: those of both sides of a migration.
pub const LOGS_MAX: usize = 2;

/// Maximum number of places per segment; usually the number of replicas.
pub const PLACES_MAX: usize = 4;

/// Maximum number of segments in one message.
pub const SEGMENTS_PER_MESSAGE: usize = 8192;

/// Maximum number of replicas in one message of a backup's report.
pub const REPLICAS_PER_MESSAGE: usize = 32_768;

/// Bytes of the log's manifest in one message.
pub const MANIFEST_BYTES_PER_MESSAGE: usize = 500 << 10;

/// Maximum bytes of an encoded place, segment and replica, at seven bits per byte.
const PLACE_BYTES: usize = 5 + 5 + 5;
const SEGMENT_BYTES: usize = 5 + 10 + 1 + 10 + 1 + PLACES_MAX * PLACE_BYTES;
const REPLICA_BYTES: usize = 10 + 5 + 1 + 5 + 1;
/// Upper bound of the bytes of a message's other fields.
const REST: usize = 8 << 10;

const _: () = assert!(SEGMENTS_PER_MESSAGE * SEGMENT_BYTES + REST <= MESSAGE_BYTES_MAX);
const _: () = assert!(REPLICAS_PER_MESSAGE * REPLICA_BYTES + REST <= MESSAGE_BYTES_MAX);
// Each body has at least one byte, and its length takes no more bytes than its content.
const _: () = assert!(2 * MANIFEST_BYTES_PER_MESSAGE + REST <= MESSAGE_BYTES_MAX);
