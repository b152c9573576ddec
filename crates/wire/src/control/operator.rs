//! Requests of operators, and their answers.

use super::{
    ClockReport, ClusterMap, LogLoss, MigrationPolicy, MigrationProgress, RebuildReport,
    RecoveryReport,
};
use serde::{Deserialize, Serialize};
use types::{HashRange, LeaseId, MigrationId, ServerId, TableId, UnixMillis};

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
    /// Grants a lease to a client of exactly-once requests, or renews one.
    Lease {
        /// The lease to renew; `None`: a new one.
        renewed: Option<LeaseId>,
    },
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
    /// The granted or renewed lease; `None`: the lease has ended.
    Lease(Option<LeaseGrant>),
}

/// A lease, as granted or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// The lease.
    pub lease: LeaseId,
    /// Milliseconds for which it lasts at least, unless it is renewed.
    pub term: u32,
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
