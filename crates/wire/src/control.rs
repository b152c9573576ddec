//! Messages between a server and the coordinator. Each message may arrive twice or late. It names
//! its migration, epoch or map version, and a receiver that is past that state ignores it.
//!
//! An idle side of a connection sends an empty frame every [`ALIVE_AGAIN`]. The other side can
//! therefore detect a peer that hangs or is cut off.

mod clock;
mod load_profile;
mod mark;
mod rebuild;
mod recovery;

pub use clock::{ClockQuestion, ClockReading, ClockReport};
pub use load_profile::{BadLoadProfile, LOAD_SHARES_MAX, LoadProfile, LoadShare};
pub use mark::HistoryMark;
pub use rebuild::{HeldMigration, HeldState, HeldTablet, Holdings, RebuildReport};
pub use recovery::{
    DIRECTORY_BYTES_PER_MESSAGE, DirectoryPlace, LOGS_MAX, LogLoss, MISSING_SHOWN_MAX, PLACES_MAX,
    REPLICAS_PER_MESSAGE, RecoveryLog, RecoveryPart, RecoveryReport, RecoverySegment,
    RecoveryState, ReplicaInfo, ReplicaPlace, SEGMENTS_PER_MESSAGE,
};

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

/// Interval between two keep-alive frames on a control connection. A keep-alive is a frame
/// without message and payload, the encoding of `()`.
pub const ALIVE_AGAIN: Duration = Duration::from_secs(1);

/// Time without any frame after which a control connection is closed.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A message from a server to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// Joins the cluster; the first message on every connection of a server, under the id that
    /// its handshake claimed.
    Join(Join),
    /// The source reports the size of the range, for the target's reservation.
    Measured {
        /// The migration.
        migration: MigrationId,
        /// Live records of the range.
        records: u64,
        /// Their bytes in the log.
        bytes: u64,
    },
    /// The target knows the intent and has, or has not, reserved the memory.
    Prepared {
        /// The migration.
        migration: MigrationId,
        /// The reason, if the target refuses.
        refused: Option<String>,
    },
    /// The source asks for a decision: its flip was not answered in time, or freezing took too
    /// long and it serves again.
    FlipUnanswered {
        /// The migration.
        migration: MigrationId,
    },
    /// The source or the target reports that the target has accepted the flip.
    Flipped {
        /// The migration.
        migration: MigrationId,
    },
    /// The target's answer to [`FromCoordinator::Decide`]. If it has not accepted, it never will.
    Decided {
        /// The migration.
        migration: MigrationId,
        /// Set if the target serves the range.
        accepted: bool,
    },
    /// The target has committed a cut: only these ranges still depend on the source.
    Shrink {
        /// The migration.
        migration: MigrationId,
        /// The ranges, ascending; empty: nothing depends on the source any more.
        remaining: Vec<HashRange>,
    },
    /// The target reports its progress, for operators.
    Progress {
        /// The migration.
        migration: MigrationId,
        /// The counters since the flip.
        progress: MigrationProgress,
    },
    /// The source's index holds no entry of the range any more.
    Released {
        /// The migration.
        migration: MigrationId,
    },
    /// A request of an operator, sent directly or forwarded by the server that received it.
    Ask {
        /// Request number, echoed in the answer.
        request: u64,
        /// The request.
        ask: Ask,
    },
    /// The master's manifest continues in this segment, which begins with a complete snapshot on
    /// a quorum of its backups. No record counts that is only in this segment before
    /// [`FromCoordinator::ChainNoted`]. Until then the earlier segment is written as well.
    Chain {
        /// The manifest segment; ids rise from one manifest segment to the next.
        number: SegmentId,
    },
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
    DirectoryRead {
        /// The master of the log.
        log: ServerId,
        /// Segment and epoch of the replica.
        replica: (SegmentId, ReplicaEpoch),
        /// The position of these pieces, from the request.
        first: DirectoryPlace,
        /// The bodies of the pieces; the first and last may be partial. An empty list: the replica
        /// cannot be read. All messages together contain exactly the reported bytes of the replica.
        bodies: Vec<Vec<u8>>,
        /// The position of the rest, if there is any.
        next: Option<DirectoryPlace>,
    },
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
    /// Repeated until [`FromCoordinator::RecoveryConfirmed`].
    Recovered {
        /// The dead server of the part's first log.
        dead: ServerId,
        /// The range of the part.
        range: HashRange,
        /// The epoch of the part, from the request.
        epoch: OwnershipEpoch,
    },
    /// The recovery master cannot recover the part; the records that it replayed do not count.
    /// Never sent after [`ToCoordinator::Replayed`] or [`ToCoordinator::Recovered`], because the
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
    /// A replica that the backup reported in [`ToCoordinator::Fenced`] is unreadable or shorter
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
    /// answer is [`FromCoordinator::FreeLog`]; otherwise there is none.
    IsNeeded {
        /// The master of the log.
        log: ServerId,
    },
    /// Answer to a [`FromCoordinator::Ping`], sent by the link's own thread.
    Pong {
        /// Set if some reactor has neither begun a turn nor slept since an earlier ping. The
        /// link's thread may run while a reactor hangs, and only reactors serve requests.
        is_stalled: bool,
    },
    /// The master's backup does not answer. The coordinator makes its own judgment.
    Suspect {
        /// The backup.
        server: ServerId,
    },
    /// First answer to a [`FromCoordinator::Describe`]: the newest map that the server knows.
    KnownMap(Box<ClusterMap>),
    /// Second answer to a [`FromCoordinator::Describe`]: the state that the server holds.
    Holds(Box<Holdings>),
    /// The owner of a new range confirms it. The owner begins to serve the range with the first
    /// map that no longer marks it as new, and is responsible for every write from then on.
    Holding {
        /// The range, as in the map.
        range: HashRange,
        /// Its epoch.
        epoch: OwnershipEpoch,
    },
    /// The load profile of the master's ranges. Sent periodically, changed or not.
    LoadProfile(LoadProfile),
    /// Answer to a [`FromCoordinator::Clock`], sent by the link's own thread.
    Clock(ClockReading),
    /// Answer to a [`FromCoordinator::Witness`]: the server has answered.
    Witnessed {
        /// The server that was asked.
        server: ServerId,
    },
}

/// A message from the coordinator to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// Grants a join.
    Welcome {
        /// The id of the server from now on.
        server: ServerId,
        /// The cluster.
        cluster: ClusterId,
        /// Seed of the key hash.
        seed: u64,
    },
    /// Refuses a join; the text explains why and what to do.
    Rejected {
        /// The reason, for the operator.
        reason: String,
        /// Set if another server serves this server's ranges: it must stop at once.
        is_fenced: bool,
    },
    /// The complete map. A map older than the known one has no effect.
    Map(ClusterMap),
    /// Asks the source for the size of a range.
    Measure {
        /// The migration.
        migration: MigrationId,
        /// The range.
        range: HashRange,
    },
    /// Announces an intent to the target, which reserves memory and answers `Prepared`.
    Prepare(Intent),
    /// Tells the source that the target is prepared: freeze and flip.
    Start(Intent),
    /// Asks the target whether it has accepted this flip; if not, it must never accept.
    Decide {
        /// The migration.
        migration: MigrationId,
    },
    /// Tells the source the target's decision. `false`: the intent is withdrawn; thaw.
    Outcome {
        /// The migration.
        migration: MigrationId,
        /// Set if the target serves the range.
        accepted: bool,
    },
    /// Tells the source that only these ranges are still needed and the rest must be deleted. A
    /// range that returned to the source from a dead target, in a [`RecoveryPart`], left the
    /// migration and stays.
    Forget {
        /// The migration.
        migration: MigrationId,
        /// The ranges, ascending; empty: delete everything, then answer `Released`.
        remaining: Vec<HashRange>,
    },
    /// Tells the target that the migration is over (source released, or intent withdrawn).
    Finished {
        /// The migration.
        migration: MigrationId,
    },
    /// Answer to an `Ask`.
    Answer {
        /// Request number, from the request.
        request: u64,
        /// The result.
        answer: Answer,
    },
    /// Tells a master that the coordinator has recorded its manifest segment.
    ChainNoted {
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
    ReadDirectory {
        /// The master of the log.
        log: ServerId,
        /// Segment and epoch of the replica.
        replica: (SegmentId, ReplicaEpoch),
        /// The position up to which the coordinator has the replica.
        first: DirectoryPlace,
    },
    /// Tells a recovery master to recover this part. Its segments may span several messages.
    Recover(Box<RecoveryPart>),
    /// Answer to a [`ToCoordinator::Recovered`]: the part belongs to the receiver and no longer
    /// depends on the dead server's log.
    RecoveryConfirmed {
        /// The range of the part.
        range: HashRange,
        /// The epoch of the part.
        epoch: OwnershipEpoch,
    },
    /// Tells a backup that this log is no longer needed. The backup fences it permanently, as
    /// after [`FromCoordinator::Fence`], frees all its replicas, and reports that.
    FreeLog {
        /// The master of the log.
        log: ServerId,
    },
    /// A heartbeat request, sent continuously to servers with log replicas on other servers.
    Ping,
    /// Sent after a join by a coordinator that has lost its store: asks for the server's state.
    Describe,
    /// Sent to every server once a second, and to a new one before its join is answered.
    Clock(ClockQuestion),
    /// Asks the receiver to ping, over the bus, a server that the coordinator does not hear, and
    /// to report an answer.
    Witness {
        /// The server to ping.
        server: ServerId,
    },
    /// Position in the coordinator's history: until the next mark, no message on this connection
    /// depends on a later transaction.
    Mark(HistoryMark),
    /// The join is neither granted nor refused yet; the text explains why.
    Waiting {
        /// The reason, for the operator.
        reason: String,
    },
}

/// The request of a process to join the cluster as a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Host at which clients and servers reach it.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// The cluster and server id from an earlier connection of the same process.
    pub rejoin: Option<(ClusterId, ServerId)>,
    /// Replicas that other servers keep of each segment of its log. With 0 the server's data dies
    /// with it, and the coordinator waits for it indefinitely. Otherwise a silent server is soon
    /// declared dead and recovered.
    pub replicas: u16,
    /// Name of its failure domain. Empty: it fails alone.
    pub rack: String,
    /// The cluster of the replicas found on its disk at its start; `None`: there were none.
    pub disk: Option<ClusterId>,
    /// The cluster and server id of the last process on this disk, as far as the disk records them.
    pub former: Option<(ClusterId, ServerId)>,
    /// The highest mark known to this process or to its predecessor on the disk.
    pub mark: Option<HistoryMark>,
}

/// A server in the cluster map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Its id.
    pub id: ServerId,
    /// Host at which clients and servers reach it.
    pub host: String,
    /// Port of the Redis protocol.
    pub client_port: u16,
    /// Port of the bus.
    pub bus_port: u16,
    /// Set if its connection to the coordinator is up.
    pub connected: bool,
    /// Name of its failure domain. Empty: it fails alone.
    pub rack: String,
    /// Set if it was declared dead, for good. A server missing from the list is dead, too.
    pub is_dead: bool,
    /// Set while its ranges are being recovered from its log.
    pub in_recovery: bool,
}

/// A range, its owner, and the epoch and incarnations under which the owner holds it. All tables
/// have the same owner and epoch; each has its own incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletInfo {
    /// The range.
    pub range: HashRange,
    /// The server that serves it.
    pub owner: ServerId,
    /// The ownership epoch; rises with every change of owner.
    pub epoch: OwnershipEpoch,
    /// The incarnations (`Tenure`) of the range by table, [`TABLES_MAX`] of them.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub tenures: Vec<Tenure>,
    /// Set while the range is new: no server has ever served it. Its owner begins it empty and
    /// reports [`ToCoordinator::Holding`]. Without this mark the range is held by its owner, or
    /// lost.
    pub is_born: bool,
}

/// The cluster map: the servers, the owner of each range, and the running migrations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The version; rises with every change.
    pub version: u64,
    /// The cluster.
    pub cluster: ClusterId,
    /// The servers, by ascending id.
    pub servers: Vec<ServerInfo>,
    /// The tablets, ascending and disjoint. A hash outside all tablets has no owner.
    #[serde(deserialize_with = "disjoint")]
    pub tablets: Vec<TabletInfo>,
    /// The migrations that have not ended, as (range, source, target).
    pub moving: Vec<(HashRange, ServerId, ServerId)>,
}

/// Decodes tablets, and rejects lists that do not ascend or that overlap.
fn disjoint<'de, D: Deserializer<'de>>(decoder: D) -> Result<Vec<TabletInfo>, D::Error> {
    let tablets = Vec::<TabletInfo>::deserialize(decoder)?;
    let are_disjoint = tablets.is_sorted_by(|low, high| low.range.last() < high.range.first());
    are_disjoint.then_some(tablets).ok_or_else(|| D::Error::custom("the tablets of a map overlap"))
}

/// A planned migration, which the coordinator stores before any server acts on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The migration.
    pub migration: MigrationId,
    /// The range that moves.
    pub range: HashRange,
    /// The owner of the range.
    pub source: ServerId,
    /// The future owner.
    pub target: ServerId,
    /// Epoch under which the source owns the range.
    pub source_epoch: OwnershipEpoch,
    /// Epoch under which the target will own the range.
    pub target_epoch: OwnershipEpoch,
    /// Incarnations (`Tenure`) under which the target will hold the range, by table.
    #[serde(deserialize_with = "at_most::<_, _, TABLES_MAX>")]
    pub target_tenures: Vec<Tenure>,
    /// Live bytes of the range when the source measured it; the target reserves 1.1 times as much.
    pub bytes: u64,
    /// The parameters of the move.
    pub policy: MigrationPolicy,
}

/// The mode of reading missing records ahead of the bulk (Rocksteady §3.3 and its ablations).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PriorityPullMode {
    /// No priority pulls: operations wait for the bulk.
    Off,
    /// Many hashes in one pull, one pull in flight per reactor.
    Batched {
        /// Maximum hashes of one pull.
        hashes_max: u16,
    },
    /// One pull per missing record at once, with no limit on pulls in flight.
    Immediate,
}

/// The parameters of a migration. Each variant that the papers compare is a value, so that one
/// binary measures them side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationPolicy {
    /// Parts of the range that are pulled concurrently, 1 to [`types::limits::PARTITIONS_MAX`].
    pub partitions: u16,
    /// Maximum bytes of one pull, which ends with the bucket that reaches the limit.
    pub pull_bytes: u32,
    /// Replies of one partition that may wait for their replay before the next pull.
    pub pulls_ahead: u16,
    /// The mode of priority pulls.
    pub priority: PriorityPullMode,
    /// Percent of each reactor's running time that the move may take even when clients wait, 1 to
    /// 100. With 100, background quanta and client turns alternate.
    pub background_share: u8,
}

impl Default for MigrationPolicy {
    fn default() -> MigrationPolicy {
        MigrationPolicy {
            partitions: 8,
            pull_bytes: 64 << 10,
            pulls_ahead: 2,
            priority: PriorityPullMode::Batched { hashes_max: 16 },
            background_share: 10,
        }
    }
}

/// Counters of one migration since its flip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationProgress {
    /// Records in the range at the source at the time of the flip.
    pub records_total: u64,
    /// Records replayed, from pulls and priority pulls.
    pub records: u64,
    /// Their bytes in the log.
    pub bytes: u64,
    /// Records that arrived by priority pulls.
    pub priority_records: u64,
    /// Nanoseconds from the flip to the latest replay.
    pub elapsed_ns: u64,
}

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Moves these slot ranges to a server; each range becomes one migration.
    Migrate {
        /// Ranges of whole slots.
        ranges: Vec<HashRange>,
        /// The required owner, if the operator names one.
        source: Option<ServerId>,
        /// The receiving server.
        target: ServerId,
        /// The parameters of the move.
        policy: MigrationPolicy,
    },
    /// Withdraws every migration that has not flipped yet: all, those away from one server, or
    /// those of one task.
    Cancel {
        /// Restricts the request to migrations with this source.
        source: Option<ServerId>,
        /// Restricts the request to migrations of this task.
        task: Option<MigrationId>,
    },
    /// Lists migrations, newest first: all known ones, or those of one task.
    List {
        /// Restricts the request to migrations of this task.
        task: Option<MigrationId>,
    },
    /// Requests new incarnations for one table on the asking server, before the server empties
    /// the table; for all tables if `None`.
    Flush {
        /// The table.
        table: Option<TableId>,
    },
    /// Lists all recoveries under way.
    Recoveries,
    /// Recovers a dead server without the missing part of its log. Refused unless the current
    /// loss equals the one named here, so that the operator gives up nothing unseen.
    AcceptLoss {
        /// The dead server.
        dead: ServerId,
        /// The accepted loss, as shown by [`RecoveryReport::loss`].
        loss: LogLoss,
    },
    /// Returns the cluster map.
    Map,
    /// Returns the state of the coordinator itself.
    Health,
    /// Returns whether the coordinator's store belongs to the cluster and is up to date.
    Standing,
    /// Rebuilds the store of a cluster from its servers' reports, or shows the expected result.
    /// Only for a coordinator that was started for a rebuild.
    Rebuild {
        /// The absent servers, which are given up; must be exactly the absent ones.
        without: Vec<ServerId>,
        /// Set to perform the rebuild.
        go: bool,
    },
    /// Lists the members with clocks that differ too much.
    Clocks,
}

/// The result of an [`Ask`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The request is accepted, and these migrations exist now.
    Started(Vec<MigrationId>),
    /// Number of migrations that were withdrawn or are being queried at their targets.
    Cancelled(u32),
    /// The state of the coordinator.
    Health(Health),
    /// The requested migrations.
    Migrations(Vec<MigrationReport>),
    /// The flush is recorded; the new incarnations come with this map.
    Flushed {
        /// The version of the map.
        map: u64,
    },
    /// All recoveries under way.
    Recoveries(Vec<RecoveryReport>),
    /// The recovery continues without this number of segments, or without the manifest (0).
    LossAccepted(u32),
    /// The reason for a refusal and what to do, without a trailing period.
    Refused(String),
    /// The cluster map.
    Map(Box<ClusterMap>),
    /// The result of a rebuild.
    Rebuild(RebuildReport),
    /// The reason to doubt the coordinator's store, with what to do; `None`: no doubt.
    Standing(Option<String>),
    /// The members with clocks that differ too much.
    Clocks(Vec<ClockReport>),
}

/// The state of a migration, in Valkey's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationState {
    /// Another migration of the same hashes must end first.
    Queued,
    /// The intent exists; the source still owns the range.
    Preparing,
    /// The target owns the range and pulls.
    Moving,
    /// Everything is at the target; the source deletes its copy.
    Releasing,
    /// The migration has succeeded.
    Success,
    /// The migration was withdrawn on request.
    Cancelled,
    /// The migration ended without a change of owner; the report's message gives the reason.
    Failed,
}

/// The state of a coordinator, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Number of coordinator starts recorded in the store, this one included.
    pub term: u64,
    /// Number of transactions committed by this coordinator.
    pub commits: u64,
    /// Milliseconds since the last message of each connected server with replicas elsewhere.
    pub silence: Vec<(ServerId, u32)>,
    /// Servers with logs on their own disk only: no other server lives, or one has just joined.
    pub on_own_disk: Vec<ServerId>,
}

/// The state of one migration, for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MigrationReport {
    /// The migration.
    pub migration: MigrationId,
    /// The task, which groups all migrations of one request: the id of the first of them.
    pub task: MigrationId,
    /// The range that moves.
    pub range: HashRange,
    /// The source.
    pub source: ServerId,
    /// The target.
    pub target: ServerId,
    /// The state.
    pub state: MigrationState,
    /// The reason of a failure, or empty.
    pub message: String,
    /// Time of the request.
    pub created: UnixMillis,
    /// Time of the last news about the migration.
    pub updated: UnixMillis,
    /// The progress.
    pub progress: MigrationProgress,
}
