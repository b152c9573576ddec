//! What the recovery of a dead server's log is told in: who holds which replicas, which part is
//! served by whom from there on, and how far it is.
//!
//! Lists that grow with the length of a log are told in several messages of at most so many
//! elements each, so that no log is too long for a frame.

use crate::bounded::at_most;
use crate::directory::Content;
use crate::frame::MESSAGE_BYTES_MAX;
use crate::replica::ReplicaEpoch;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::limits::TABLES_MAX;
use types::{HashRange, MigrationId, OwnershipEpoch, SegmentId, ServerId, Tenure, UnixMillis};

/// One replica of a log's segment, as the backup that holds it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// Of which segment: of the log, or of the chain that is its directory.
    pub segment: SegmentId,
    /// Which replica of that segment.
    pub epoch: ReplicaEpoch,
    /// Whether the segment is one of the chain. Its numbers are counted apart.
    pub is_directory: bool,
    /// Bytes of the bodies of all its whole pieces.
    pub length: u32,
    /// It was written before the backup's machine started, by a backup that does not wait for its disk: a
    /// loss of power may have taken the end of it.
    pub may_be_short: bool,
}

/// A place in a replica of a log's directory: so many pieces stand before it, and so many bytes of the
/// piece that it lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DirectoryPlace {
    /// Whole pieces.
    pub pieces: u32,
    /// Bytes of the next one.
    pub bytes: u32,
}

/// As `3`, or `3+512` for the 512th byte of a piece.
impl fmt::Display for DirectoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            0 => write!(f, "{}", self.pieces),
            bytes => write!(f, "{}+{bytes}", self.pieces),
        }
    }
}

/// Where one replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplicaPlace {
    /// Who holds it.
    pub backup: ServerId,
    /// Which replica of the segment.
    pub epoch: ReplicaEpoch,
    /// Its bytes, as far as is known.
    pub length: u32,
}

/// A segment of a dead server's log, and where it can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverySegment {
    /// Whose log it is of: one of the part's. Each log numbers its segments by itself.
    pub log: ServerId,
    /// The segment.
    pub segment: SegmentId,
    /// What it holds, if it was whole. `None`: any replica will do, and the first is the longest.
    pub content: Option<Content>,
    /// In the order in which they should be tried. Never empty.
    #[serde(deserialize_with = "at_most::<_, _, PLACES_MAX>")]
    pub places: Vec<ReplicaPlace>,
    /// Bytes from its beginning that every replica has, as far as is known, by which somebody might
    /// recover it once more. Of what lies behind nothing was acknowledged: whoever shows it to
    /// anybody has to keep it himself first.
    pub settled: u32,
}

/// A dead server's log that a part is recovered from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryLog {
    /// Whose log it is.
    pub dead: ServerId,
    /// By table: the log's entries of the range count if they carry one of these. 0, which no entry
    /// carries: none of the table count.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub old_tenures: Vec<Tenure>,
}

/// A part of what a dead server held, to be served by its receiver.
///
/// What counts is, of each key, the entry of the highest version: over all logs together, and over
/// what the receiver keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPart {
    /// The part.
    pub range: HashRange,
    /// The part's epoch under its new owner. Also its name: it is given for one part, once.
    pub epoch: OwnershipEpoch,
    /// By table: the tenures of what the new owner writes.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub tenures: Vec<Tenure>,
    /// The receiver is the living side of a migration: what it holds of the range counts too, and
    /// carries these tenures already; of a table for which it has another tenure nothing counts.
    /// If it hands the part back it holds what it held before. A source may be serving the range
    /// still, if nobody knows whether it had flipped. Without this the receiver holds nothing of it.
    pub keeps: bool,
    /// The range's expiry clock goes on from here: the dead cannot have judged by a later one.
    pub clock_floor: UnixMillis,
    /// One log; both sides' if the range was moving and neither side is left. The first names the
    /// part together with its epoch and range.
    #[serde(deserialize_with = "at_most::<_, _, LOGS_MAX>")]
    pub logs: Vec<RecoveryLog>,
    /// Which list of segments this belongs to. A higher one takes the place of all lower ones;
    /// what has been read by a lower one needs not be read again.
    pub list: u64,
    /// How many segments the list has, over all its messages.
    pub segments_total: u32,
    /// At most [`SEGMENTS_PER_MESSAGE`] of them.
    #[serde(deserialize_with = "at_most::<_, _, SEGMENTS_PER_MESSAGE>")]
    pub segments: Vec<RecoverySegment>,
}

impl RecoveryPart {
    /// Whose part it is called: the first log's dead server. `None`: no coordinator sends this.
    pub fn dead(&self) -> Option<ServerId> {
        self.logs.first().map(|log| log.dead)
    }
}

/// Where the recovery of a dead server stands. Each state says what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryState {
    /// For connected servers to say what they hold of the log.
    Collecting,
    /// For the log's directory from a backup.
    ReadingDirectory,
    /// For a server that holds the log's directory, or an operator who goes on without it.
    DirectoryMissing,
    /// For servers that hold the missing segments, or an operator who goes on without them.
    SegmentsMissing,
    /// For the end of the dead server's read lease.
    WaitingForLease,
    /// For a server that keeps its log and has room for more.
    WaitingForServers,
    /// For the servers to which parts were handed out.
    Recovering,
    /// For migrations: to be decided, for their sources to forget, or for the log of the other side,
    /// which is dead as well. Everything else of it is served.
    WaitingForMigrations,
    /// For servers to free what they hold of the log. Everything is served.
    Freeing,
}

/// The recovery of one dead server, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Who died.
    pub dead: ServerId,
    /// What is being waited for.
    pub state: RecoveryState,
    /// When it was declared dead.
    pub created: UnixMillis,
    /// What it owned and nobody serves yet.
    pub ranges: Vec<HashRange>,
    /// Which parts are being recovered, by whom: of these, and of what is served already and depends
    /// on the log still.
    pub parts: Vec<(HashRange, ServerId)>,
    /// Segments of which no connected server holds a replica.
    pub missing_total: u32,
    /// The first of them, at most [`MISSING_SHOWN_MAX`].
    pub missing: Vec<SegmentId>,
    /// Migrations that must have gone on or ended before the rest can be recovered.
    pub waits_for: Vec<MigrationId>,
    /// Why a part was last handed back, or empty.
    pub message: String,
}

impl RecoveryReport {
    /// What is missing of the log, if that is what the recovery waits for.
    pub fn loss(&self) -> Option<Loss> {
        match self.state {
            RecoveryState::DirectoryMissing => Some(Loss::Directory),
            RecoveryState::SegmentsMissing => {
                Some(Loss::Segments { first: self.missing.clone(), total: self.missing_total })
            }
            RecoveryState::Collecting
            | RecoveryState::ReadingDirectory
            | RecoveryState::WaitingForLease
            | RecoveryState::WaitingForServers
            | RecoveryState::Recovering
            | RecoveryState::WaitingForMigrations
            | RecoveryState::Freeing => None,
        }
    }
}

/// What is missing of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Its directory: nobody knows what else is.
    Directory,
    /// Segments.
    Segments {
        /// The first of them, at most [`MISSING_SHOWN_MAX`].
        first: Vec<SegmentId>,
        /// How many there are.
        total: u32,
    },
}

/// As operators read and write it: `directory`, or `segments 3,4,9`, or `segments 3,4,9+120` for 120
/// more than are named.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss::Segments { first, total } = self else { return f.write_str("directory") };
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

/// Missing segments that a report names.
pub const MISSING_SHOWN_MAX: usize = 16;

/// Logs that a part is recovered from: those of both sides of a migration.
pub const LOGS_MAX: usize = 2;

/// Places of a segment that a recovery is told of: as many as there are replicas, usually.
pub const PLACES_MAX: usize = 4;

/// Segments of a list that one message carries.
pub const SEGMENTS_PER_MESSAGE: usize = 8192;

/// Replicas that one message of a backup reports.
pub const REPLICAS_PER_MESSAGE: usize = 32_768;

/// Bytes of the log's directory that one message carries.
pub const DIRECTORY_BYTES_PER_MESSAGE: usize = 500 << 10;

/// Most bytes of a place, a segment, a replica: seven bits to a byte.
const PLACE_BYTES: usize = 5 + 5 + 5;
const SEGMENT_BYTES: usize = 5 + 10 + 1 + 10 + 1 + PLACES_MAX * PLACE_BYTES;
const REPLICA_BYTES: usize = 10 + 5 + 1 + 5 + 1;
/// Far more than the other fields of a message take.
const REST: usize = 8 << 10;

const _: () = assert!(SEGMENTS_PER_MESSAGE * SEGMENT_BYTES + REST <= MESSAGE_BYTES_MAX);
const _: () = assert!(REPLICAS_PER_MESSAGE * REPLICA_BYTES + REST <= MESSAGE_BYTES_MAX);
// Each body has a byte at least, and less than that for its length.
const _: () = assert!(2 * DIRECTORY_BYTES_PER_MESSAGE + REST <= MESSAGE_BYTES_MAX);
