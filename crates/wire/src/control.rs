//! Messages between a server and the coordinator. Each may arrive twice or late: it names the
//! migration, epoch or map version that it is about, and a receiver that has gone on ignores it.
//!
//! Either side of a connection that has nothing to say sends an empty frame every [`ALIVE_AGAIN`],
//! so that a peer that hangs or is cut off is told from one that is silent.

mod clock;
mod mark;
mod rebuild;
mod recovery;
mod will;

pub use clock::{ClockQuestion, ClockReading, ClockReport};
pub use mark::Mark;
pub use rebuild::{HeldMigration, HeldState, HeldTablet, Holdings, RebuildReport};
pub use recovery::{
    DIRECTORY_BYTES_PER_MESSAGE, DirectoryPlace, LOGS_MAX, Loss, MISSING_SHOWN_MAX, PLACES_MAX,
    REPLICAS_PER_MESSAGE, RecoveryLog, RecoveryPart, RecoveryReport, RecoverySegment,
    RecoveryState, ReplicaInfo, ReplicaPlace, SEGMENTS_PER_MESSAGE,
};
pub use will::{BadWill, WILL_SHARES_MAX, Will, WillShare};

use crate::bounded::at_most;
use crate::replica::ReplicaEpoch;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use types::limits::TABLES_MAX;
use types::{
    ClusterId, HashRange, MigrationId, OwnershipEpoch, SegmentId, ServerId, TableId, Tenure,
    UnixMillis,
};

/// Pause between two signs of life on a control connection. A sign of life is a frame without
/// message and payload, the encoding of `()`.
pub const ALIVE_AGAIN: Duration = Duration::from_secs(1);

/// A control connection on which nothing came for so long is closed.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// From a server to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// First on every connection of a server, under the number that its handshake named.
    Join(Join),
    /// Source: how much the range holds, for the target's reservation.
    Measured {
        /// The migration.
        migration: MigrationId,
        /// Live records of the range.
        records: u64,
        /// Their bytes in the log.
        bytes: u64,
    },
    /// Target: I know the intent and have (or have not) reserved the memory.
    Prepared {
        /// The migration.
        migration: MigrationId,
        /// The reason, if it refuses.
        refused: Option<String>,
    },
    /// Source: I have sent the flip and got no answer in time; or freezing took too long and I
    /// serve again. Please find out and decide.
    FlipUnanswered {
        /// The migration.
        migration: MigrationId,
    },
    /// Source or target: the target has accepted the flip.
    Flipped {
        /// The migration.
        migration: MigrationId,
    },
    /// Target, asked by [`FromCoordinator::Decide`]: whether it has accepted the flip. If not, it
    /// never will.
    Decided {
        /// The migration.
        migration: MigrationId,
        /// Whether it serves the range.
        accepted: bool,
    },
    /// Target: a cut has been committed; only these ranges still depend on the source.
    Shrink {
        /// The migration.
        migration: MigrationId,
        /// In ascending order; empty: nothing depends on the source any more.
        remaining: Vec<HashRange>,
    },
    /// Target: how far it is, for people who watch.
    Progress {
        /// The migration.
        migration: MigrationId,
        /// Counters since the flip.
        progress: Progress,
    },
    /// Source: my index holds no entry of the range any more.
    Released {
        /// The migration.
        migration: MigrationId,
    },
    /// A request of an operator, or passed on by the server that a client sent it to.
    Ask {
        /// Returned with the answer.
        request: u64,
        /// What is wanted.
        ask: Ask,
    },
    /// Master: the chain of my log's directory has come to this segment, which begins with a whole
    /// snapshot on all its backups. Nothing in it counts before [`FromCoordinator::ChainNoted`],
    /// and nothing more is written to the one before.
    Chain {
        /// Rises from one segment of the chain to the next.
        number: SegmentId,
    },
    /// Backup: I take nothing more for this log, and hold these replicas of it. In several
    /// messages, if one cannot carry all.
    Fenced {
        /// The server whose log it is.
        log: ServerId,
        /// Replicas that the messages of this report before had: one may get lost.
        first: u32,
        /// At most [`REPLICAS_PER_MESSAGE`].
        #[serde(deserialize_with = "at_most::<_, _, REPLICAS_PER_MESSAGE>")]
        replicas: Vec<ReplicaInfo>,
        /// The latest expiry clock that the log's server told.
        clock: UnixMillis,
        /// Another message follows.
        more: bool,
    },
    /// Backup: pieces of a replica of the log's directory.
    DirectoryRead {
        /// The server whose log it is.
        log: ServerId,
        /// Segment and epoch of the replica.
        replica: (SegmentId, ReplicaEpoch),
        /// As asked: what stands before these.
        first: DirectoryPlace,
        /// The pieces' bodies, in which the first and last may be cut. None at all: it cannot be read.
        /// Together all messages have as many bytes as the replica was said to have.
        bodies: Vec<Vec<u8>>,
        /// Where the rest begins, if there is any.
        next: Option<DirectoryPlace>,
    },
    /// Recovery master: all entries of the part are in my memory, and I could serve it. Repeated until
    /// the map says that the part is mine. Not of a part that is in several logs, or of which I had
    /// something before.
    Replayed {
        /// The server whose log it is.
        dead: ServerId,
        /// The part.
        range: HashRange,
        /// As handed out.
        epoch: OwnershipEpoch,
    },
    /// Recovery master: all entries of the part are in my log, and on my backups. Repeated until
    /// [`FromCoordinator::Kept`].
    Recovered {
        /// The dead server whose log it is: the first one of the part.
        dead: ServerId,
        /// The part.
        range: HashRange,
        /// As handed out.
        epoch: OwnershipEpoch,
    },
    /// Recovery master: I cannot recover the part, and what I had of it counts for nothing. Never after
    /// [`ToCoordinator::Replayed`] or [`ToCoordinator::Recovered`]: the part may be mine already.
    NotRecovered {
        /// The dead server whose log it is: the first one of the part.
        dead: ServerId,
        /// The part.
        range: HashRange,
        /// As handed out.
        epoch: OwnershipEpoch,
        /// For the operator.
        reason: String,
    },
    /// Backup: a replica that I have reported in [`ToCoordinator::Fenced`] cannot be read, or has
    /// less than I said. Others are to be read instead.
    Damaged {
        /// The server whose log it is.
        log: ServerId,
        /// The segment of that log.
        segment: SegmentId,
        /// The epoch of the replica of that segment.
        epoch: ReplicaEpoch,
    },
    /// Backup: I hold nothing of this log any more.
    LogFreed {
        /// The server whose log it is.
        log: ServerId,
    },
    /// Backup: I hold replicas of a log, and its master is not to be found. If nobody needs them
    /// the answer is [`FromCoordinator::FreeLog`], else there is none.
    IsNeeded {
        /// The server whose log it is.
        log: ServerId,
    },
    /// Answer to a [`FromCoordinator::Ping`], from the link's own thread.
    Pong {
        /// Since an earlier ping some reactor has neither begun a turn nor slept: the thread that
        /// answers may live while a reactor hangs, and only reactors serve.
        is_stalled: bool,
    },
    /// Master: this backup does not answer. The coordinator finds out for itself.
    Suspect {
        /// Who is silent.
        server: ServerId,
    },
    /// Answer to a [`FromCoordinator::Describe`], first part: the newest map that I have.
    KnownMap(Box<ClusterMap>),
    /// Second part: what I hold.
    Holds(Box<Holdings>),
    /// Owner of a range that was born: from the map on that says that it is not any more, I serve
    /// it, and hold every write to it.
    Holding {
        /// The range, as the map has it.
        range: HashRange,
        /// Its epoch.
        epoch: OwnershipEpoch,
    },
    /// Master: what my ranges would cost whoever recovers them. Now and then, whether it has
    /// changed or not.
    Will(Will),
    /// Answer to a [`FromCoordinator::Clock`], from the link's own thread.
    Clock(ClockReading),
    /// Answer to a [`FromCoordinator::Witness`]: this server has answered me.
    Witnessed {
        /// Who was asked.
        server: ServerId,
    },
}

/// From the coordinator to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// Answer to a join.
    Welcome {
        /// The server's number from here on.
        server: ServerId,
        /// The cluster.
        cluster: ClusterId,
        /// Seed of the key hash.
        seed: u64,
    },
    /// The join cannot be granted; the text says why and what to do.
    Rejected {
        /// For the operator.
        reason: String,
        /// The server holds what another one serves: it must stop at once.
        is_fenced: bool,
    },
    /// The whole map; an older version than the one known changes nothing.
    Map(ClusterMap),
    /// To the source: how much does the range hold?
    Measure {
        /// The migration.
        migration: MigrationId,
        /// The range.
        range: HashRange,
    },
    /// To the target: an intent exists; reserve the memory and answer `Prepared`.
    Prepare(Intent),
    /// To the source: the target is prepared; freeze and flip.
    Start(Intent),
    /// To the target: have you accepted this flip, or will you never?
    Decide {
        /// The migration.
        migration: MigrationId,
    },
    /// To the source: what the target answered. `false`: thaw, the intent is withdrawn.
    Outcome {
        /// The migration.
        migration: MigrationId,
        /// Whether the target serves the range.
        accepted: bool,
    },
    /// To the source: only these ranges are still needed; forget the rest. What returned to it from
    /// a dead target, in a [`RecoveryPart`], is none of the migration's any more, and stays.
    Forget {
        /// The migration.
        migration: MigrationId,
        /// In ascending order; empty: forget everything, then answer `Released`.
        remaining: Vec<HashRange>,
    },
    /// To the target: the migration is over (source released, or intent withdrawn).
    Finished {
        /// The migration.
        migration: MigrationId,
    },
    /// Answer to an `Ask`.
    Answer {
        /// As asked.
        request: u64,
        /// What came of it.
        answer: Answer,
    },
    /// To a master: it is written down that its chain has come so far.
    ChainNoted {
        /// The highest number that was told.
        number: SegmentId,
    },
    /// To a backup: the master of this log is dead. Take nothing more for it, for good, and say
    /// what you hold of it, even if that is nothing.
    Fence {
        /// The server whose log it is.
        log: ServerId,
    },
    /// To a backup: send this replica of the log's directory, from this piece on.
    ReadDirectory {
        /// The server whose log it is.
        log: ServerId,
        /// Segment and epoch of the replica.
        replica: (SegmentId, ReplicaEpoch),
        /// What is here already.
        first: DirectoryPlace,
    },
    /// To a recovery master: recover this part. In several messages, if one cannot carry the list
    /// of segments.
    Recover(Box<RecoveryPart>),
    /// Answer to a [`ToCoordinator::Recovered`]: the part is yours, and does not depend on the log that
    /// it was recovered from.
    Kept {
        /// The part.
        range: HashRange,
        /// As handed out.
        epoch: OwnershipEpoch,
    },
    /// To a backup: nobody needs this log any more. Take nothing more for it, for good, as if you
    /// had been told to [`FromCoordinator::Fence`] it; free what you hold of it, and say so.
    FreeLog {
        /// The server whose log it is.
        log: ServerId,
    },
    /// Are you there? Only to servers whose log others keep, all the time.
    Ping,
    /// Answer to a join, of a coordinator whose file is lost: what do you know of the cluster?
    Describe,
    /// To every server once a second, and to a new one before its join is answered.
    Clock(ClockQuestion),
    /// I do not hear this server. Ask it over the bus whether it is there, and tell me if it answers.
    Witness {
        /// Who is to be asked.
        server: ServerId,
    },
    /// Nothing that follows on this connection depends on a transaction after this one, up to the
    /// next mark.
    Mark(Mark),
    /// The join is neither granted nor refused yet; the text says why.
    Waiting {
        /// For the operator.
        reason: String,
    },
}

/// A process that wants to be a server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Host that clients and servers reach it under.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// Number and cluster it got from an earlier connection of the same process.
    pub rejoin: Option<(ClusterId, ServerId)>,
    /// Replicas that other servers keep of each segment of its log. 0: its data dies with it, and
    /// it is waited for however long it stays away. Else it is declared dead soon, and recovered.
    pub replicas: u16,
    /// What fails together with it, by a name. Empty: it fails alone.
    pub rack: String,
    /// Cluster of the replicas that stood on its disk when it started. `None`: there were none.
    pub disk: Option<ClusterId>,
    /// Number and cluster of the last process that served on its disk, as far as the disk tells.
    pub former: Option<(ClusterId, ServerId)>,
    /// The highest mark that this process, or that one, has heard of.
    pub mark: Option<Mark>,
}

/// One server, as the map shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Its number.
    pub id: ServerId,
    /// Host that clients and servers reach it under.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// Whether its connection to the coordinator stands.
    pub connected: bool,
    /// What fails together with it. Empty: it fails alone.
    pub rack: String,
    /// It was given up, and never comes back under this number. Who is listed no more is dead too.
    pub is_dead: bool,
    /// What it owns is being recovered from its log.
    pub in_recovery: bool,
}

/// A range, its owner, and the numbers under which it is held. The same for all tables, but for
/// the tenures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletInfo {
    /// The range.
    pub range: HashRange,
    /// Who serves it.
    pub owner: ServerId,
    /// Rises with every change of owner.
    pub epoch: OwnershipEpoch,
    /// By table, [`TABLES_MAX`] of them.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub tenures: Vec<Tenure>,
    /// Nobody has ever served it: its owner is to begin it empty, and to say
    /// [`ToCoordinator::Holding`]. A range of which this is not said is held by its owner, or lost.
    pub is_born: bool,
}

/// Who owns what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Rises with every change.
    pub version: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// In ascending order of number.
    pub servers: Vec<ServerInfo>,
    /// In ascending order, without overlap. A hash in none has no owner.
    #[serde(deserialize_with = "disjoint")]
    pub tablets: Vec<TabletInfo>,
    /// Migrations that have not ended, as (range, source, target).
    pub moving: Vec<(HashRange, ServerId, ServerId)>,
}

/// Decodes tablets, and refuses them if they do not ascend or overlap.
fn disjoint<'de, D: Deserializer<'de>>(decoder: D) -> Result<Vec<TabletInfo>, D::Error> {
    let tablets = Vec::<TabletInfo>::deserialize(decoder)?;
    let are_disjoint = tablets.is_sorted_by(|low, high| low.range.last() < high.range.first());
    are_disjoint.then_some(tablets).ok_or_else(|| D::Error::custom("the tablets of a map overlap"))
}

/// A move that the coordinator has written down before anybody acts on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The migration.
    pub migration: MigrationId,
    /// What moves.
    pub range: HashRange,
    /// Who owns it.
    pub source: ServerId,
    /// Who will own it.
    pub target: ServerId,
    /// Epoch under which the source owns it.
    pub source_epoch: OwnershipEpoch,
    /// Epoch under which the target will own it.
    pub target_epoch: OwnershipEpoch,
    /// Tenures under which the target will hold it, by table.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub target_tenures: Vec<Tenure>,
    /// Live bytes of the range when the source was asked: the target reserves 1.1 times as much.
    pub bytes: u64,
    /// How to move it.
    pub policy: MigrationPolicy,
}

/// How reads that miss a record get it before the bulk does (Rocksteady §3.3 and its ablations).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PriorityPulls {
    /// Not at all: operations wait for the bulk.
    Off,
    /// Many hashes in one pull, one pull in flight per reactor.
    Batched {
        /// Most hashes of one pull.
        hashes_max: u16,
    },
    /// One pull per missing record, at once, however many are in flight.
    Immediate,
}

/// One value per variant that the papers compare, so that one binary measures them side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationPolicy {
    /// Parts of the range that are pulled side by side, 1 to [`types::limits::PARTITIONS_MAX`].
    pub partitions: u16,
    /// Most bytes of one pull (it ends with the bucket that reaches them).
    pub pull_bytes: u32,
    /// Replies of one partition that may wait for their replay before it is pulled on.
    pub pulls_ahead: u16,
    /// Whether and how missing records are fetched early.
    pub priority: PriorityPulls,
    /// Percent of each reactor's running time that the move may take even when clients wait, 1 to
    /// 100. 100 is "best effort": background quanta and client turns alternate.
    pub background_share: u8,
}

impl Default for MigrationPolicy {
    fn default() -> MigrationPolicy {
        MigrationPolicy {
            partitions: 8,
            pull_bytes: 64 << 10,
            pulls_ahead: 2,
            priority: PriorityPulls::Batched { hashes_max: 16 },
            background_share: 10,
        }
    }
}

/// Counters of one migration since its flip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Records of the source when it flipped.
    pub records_total: u64,
    /// Records replayed, by pulls of either kind.
    pub records: u64,
    /// Their bytes in the log.
    pub bytes: u64,
    /// Records that priority pulls brought.
    pub priority_records: u64,
    /// Nanoseconds from the flip to the last replay, or so far.
    pub elapsed_ns: u64,
}

/// What operators ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Move these slot ranges to a server; each becomes one migration.
    Migrate {
        /// Ranges of whole slots.
        ranges: Vec<HashRange>,
        /// Who owns them, if the asker insists.
        source: Option<ServerId>,
        /// Where to.
        target: ServerId,
        /// How.
        policy: MigrationPolicy,
    },
    /// Withdraw every migration that has not flipped yet: all, or those away from one server, or
    /// those of one request.
    Cancel {
        /// Only migrations with this source.
        source: Option<ServerId>,
        /// Only migrations of this task.
        task: Option<MigrationId>,
    },
    /// Migrations, newest first: all that are known, or those of one request.
    List {
        /// Only migrations of this task.
        task: Option<MigrationId>,
    },
    /// New tenures for one table on the asking server, before it empties it; all tables if `None`.
    Flush {
        /// Which table.
        table: Option<TableId>,
    },
    /// All recoveries under way.
    Recoveries,
    /// Recover a dead server without what is missing of its log. Refused if that is anything else
    /// than what is named here: nothing is given up unseen.
    AcceptLoss {
        /// Who died.
        dead: ServerId,
        /// What is given up, as [`RecoveryReport::loss`] tells it.
        loss: Loss,
    },
    /// Who owns what.
    Map,
    /// How the coordinator itself is doing.
    Health,
    /// Standing of the coordinator's file: is it the cluster's?
    Standing,
    /// Write the file of a cluster anew from what its servers have told, or say what that would come
    /// to. Only of a coordinator that was started for that.
    Rebuild {
        /// Servers that are taken for dead because they are not there: all of them, and no others.
        without: Vec<ServerId>,
        /// Whether to do it.
        go: bool,
    },
    /// Members whose clocks differ too much.
    Clocks,
}

/// What came of an [`Ask`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Accepted; these migrations exist now.
    Started(Vec<MigrationId>),
    /// So many were withdrawn or are being asked about.
    Cancelled(u32),
    /// How the coordinator is doing.
    Health(Health),
    /// Migrations, as asked for.
    Migrations(Vec<MigrationReport>),
    /// Done; the new tenures come with this map.
    Flushed {
        /// The map's version.
        map: u64,
    },
    /// All recoveries under way.
    Recoveries(Vec<RecoveryReport>),
    /// The recovery goes on without what was missing: so many segments, or the directory (0).
    LossAccepted(u32),
    /// Not possible; the text says why and what to do, without a trailing period.
    Refused(String),
    /// Who owns what.
    Map(Box<ClusterMap>),
    /// What a rebuild comes to.
    Rebuild(RebuildReport),
    /// Why the coordinator's file may not be the cluster's, with what to do; `None`: it seems to
    /// be.
    Standing(Option<String>),
    /// Members whose clocks differ too much.
    Clocks(Vec<ClockReport>),
}

/// Where a migration stands, in Valkey's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationState {
    /// Another migration of the same hashes is in the way.
    Queued,
    /// The intent exists; the source still owns the range.
    Preparing,
    /// The target owns the range and pulls.
    Moving,
    /// Everything is at the target; the source forgets its copy.
    Releasing,
    /// Over, as wanted.
    Success,
    /// Withdrawn because somebody asked.
    Cancelled,
    /// Over without a change of owner; the report's message says why.
    Failed,
}

/// How a coordinator is doing, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Starts of coordinators that the file remembers, this one's included.
    pub term: u64,
    /// Transactions of this one.
    pub commits: u64,
    /// How many milliseconds ago something was last heard of each connected server whose log others
    /// keep.
    pub silence: Vec<(ServerId, u32)>,
    /// Servers whose log is on their own disk only: no other server lives, or one has just joined.
    pub on_own_disk: Vec<ServerId>,
}

/// One migration, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MigrationReport {
    /// The migration.
    pub migration: MigrationId,
    /// The first migration of the request that asked for it: all that were asked for together are
    /// one task.
    pub task: MigrationId,
    /// What moves.
    pub range: HashRange,
    /// From.
    pub source: ServerId,
    /// To.
    pub target: ServerId,
    /// Where it stands.
    pub state: MigrationState,
    /// Why it failed, or empty.
    pub message: String,
    /// When it was asked for.
    pub created: UnixMillis,
    /// When anything was last heard of it.
    pub updated: UnixMillis,
    /// How far it is.
    pub progress: Progress,
}
