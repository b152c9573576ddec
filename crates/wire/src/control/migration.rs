//! Messages about migrations, and the parameters of a migration.

use crate::bounded::incarnations;
use crate::text::{list, verdict};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use types::limits::LATENCY_TARGET_MICROS_MAX;
use types::{HashRange, Incarnation, MigrationId, OwnershipEpoch, ServerId};

/// A message of the source or the target of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationUpdate {
    /// The source reports the size of the range, for the target's reservation.
    Measured {
        /// The migration.
        migration: MigrationId,
        /// Live records of the range.
        records: u64,
        /// Memory that they will take at the target.
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
    /// The target's answer to [`MigrationRequest::Decide`]. If it has not accepted, it never will.
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
}

impl fmt::Display for MigrationUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MigrationUpdate::Measured { migration, records, bytes } => {
                write!(f, "measured {migration}: {records} records, {bytes} bytes")
            }
            MigrationUpdate::Prepared { migration, refused: None } => {
                write!(f, "prepared {migration}")
            }
            MigrationUpdate::Prepared { migration, refused: Some(reason) } => {
                write!(f, "refused {migration}: {reason}")
            }
            MigrationUpdate::FlipUnanswered { migration } => {
                write!(f, "flip-unanswered {migration}")
            }
            MigrationUpdate::Flipped { migration } => write!(f, "flipped {migration}"),
            MigrationUpdate::Decided { migration, accepted } => {
                write!(f, "decided {migration} {}", verdict(*accepted))
            }
            MigrationUpdate::Shrink { migration, remaining } => {
                write!(f, "shrink {migration} to {}", list(remaining))
            }
            MigrationUpdate::Progress { migration, progress } => {
                let MigrationProgress { records, records_total, .. } = progress;
                write!(f, "progress {migration}: {records} of {records_total} records")
            }
            MigrationUpdate::Released { migration } => write!(f, "released {migration}"),
        }
    }
}

/// A message of the coordinator to the source or the target of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationRequest {
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
    /// range that returned to the source from a dead target, in a `RecoveryPartition`, left the
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
}

impl fmt::Display for MigrationRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MigrationRequest::Measure { migration, range } => {
                write!(f, "measure {migration} {range}")
            }
            MigrationRequest::Prepare(intent) => write!(f, "prepare {intent}"),
            MigrationRequest::Start(intent) => write!(f, "start {intent}"),
            MigrationRequest::Decide { migration } => write!(f, "decide {migration}"),
            MigrationRequest::Outcome { migration, accepted } => {
                write!(f, "outcome {migration} {}", verdict(*accepted))
            }
            MigrationRequest::Forget { migration, remaining } => {
                write!(f, "keep only {migration} {}", list(remaining))
            }
            MigrationRequest::Finished { migration } => write!(f, "finished {migration}"),
        }
    }
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
    /// Incarnations (`Incarnation`) under which the target will hold the range, by table.
    #[serde(deserialize_with = "incarnations")]
    pub target_incarnations: Vec<Incarnation>,
    /// Memory that the records of the range will take at the target, when the source measured it.
    /// The target reserves 1.1 times as much.
    pub bytes: u64,
    /// The parameters of the move.
    pub policy: MigrationPolicy,
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Intent { migration, range, source, target, source_epoch, target_epoch, .. } = self;
        write!(f, "{migration} {range} from {source} {source_epoch} to {target} {target_epoch}")
    }
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
    /// 100. With 100, background quanta and client turns alternate. With a latency target it is
    /// the maximum of the share that the target allows.
    pub background_share: u8,
    /// Delay in microseconds that 99 % of the requests on source and target are not to exceed, at
    /// most [`LATENCY_TARGET_MICROS_MAX`]. 0: none.
    pub latency_p99_micros: u32,
}

impl MigrationPolicy {
    /// Returns the latency target.
    pub fn latency_target(&self) -> Option<Duration> {
        let micros = self.latency_p99_micros.min(LATENCY_TARGET_MICROS_MAX);
        (micros > 0).then_some(Duration::from_micros(micros.into()))
    }
}

impl Default for MigrationPolicy {
    fn default() -> MigrationPolicy {
        MigrationPolicy {
            partitions: 8,
            pull_bytes: 64 << 10,
            pulls_ahead: 2,
            priority: PriorityPullMode::Batched { hashes_max: 16 },
            background_share: 10,
            latency_p99_micros: 0,
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
