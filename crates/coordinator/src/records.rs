//! Persistent records of the coordinator, behind the keys of the metadata store.
//!
//! | key | value |
//! | --- | --- |
//! | `identity` | [`FORMAT`], then [`ClusterIdentity`]: written once |
//! | `term` | number of the coordinator that may write; rises each time the store is opened |
//! | `counters` | [`Sequences`]: the next number of every numbered kind |
//! | `server/<number>` | [`Server`] |
//! | `tablet/<first hash>` | [`TabletRecord`] |
//! | `migration/<number>` | [`Migration`] |
//! | `recovery/<number of the dead server>` | [`RecoveryRecord`] |
//! | `will/<number of the server>` | [`LoadProfileRecord`]: the server's load profile |
//! | `history/<term>` | [`Term`]; the record's revision marks the term's beginning |
//! | `doubt` | text: the reason why no new server is admitted. Usually absent |
//!
//! Numbers in keys have 16 hexadecimal digits, so keys sort in numerical order. Values are
//! encoded with `postcard`. Every change of a record raises the format. Stores of earlier formats
//! are converted.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use types::limits::{DATABASES, TABLES_MAX};
use types::{
    ClusterId, HashRange, Incarnation, KeyHash, MigrationId, OwnershipEpoch, SegmentId, ServerId,
    TableId, UnixMillis,
};
use wire::control::{Intent, MigrationPolicy, MigrationProgress, MigrationState};

/// Version of the record format.
pub(crate) const FORMAT: u16 = 11;

/// The earliest format that can be opened (`earlier_formats.rs`).
pub(crate) const FORMAT_EARLIEST: u16 = 6;

/// The identity of a cluster, drawn at random when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterIdentity {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Seed of the cluster's key hash. Never sent to clients.
    pub seed: u64,
}

/// Random numbers for a starting coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Identity of the cluster, if the store is empty.
    pub fresh: ClusterIdentity,
    /// Random id of this coordinator's term. A copy of the store may have a term with the same
    /// number, but not with the same id.
    pub term: u64,
}

/// The next number of every numbered kind. No number is assigned twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequences {
    pub(crate) server: ServerId,
    pub(crate) migration: MigrationId,
    pub(crate) epoch: OwnershipEpoch,
    pub(crate) incarnation: Incarnation,
}

impl Sequences {
    /// Sequences of an empty cluster. Every kind reserves 0 for "none".
    pub(crate) const FIRST: Sequences = Sequences {
        server: ServerId(1),
        migration: MigrationId(1),
        epoch: OwnershipEpoch(1),
        incarnation: Incarnation(1),
    };

    /// Returns whether no number would be assigned again after those before.
    pub(crate) fn are_at_least(&self, before: &Sequences) -> bool {
        self.server >= before.server
            && self.migration >= before.migration
            && self.epoch >= before.epoch
            && self.incarnation >= before.incarnation
    }

    pub(crate) fn draw_server(&mut self) -> ServerId {
        let drawn = self.server;
        self.server = ServerId(drawn.0.checked_add(1).expect("2^32 servers have never started"));
        drawn
    }

    pub(crate) fn draw_migration(&mut self) -> MigrationId {
        let drawn = self.migration;
        self.migration = MigrationId(drawn.0 + 1);
        drawn
    }

    /// Draws from one counter for all tablets. Epochs therefore also rise between two withdrawn
    /// intents for the same range.
    pub(crate) fn draw_epoch(&mut self) -> OwnershipEpoch {
        let drawn = self.epoch;
        self.epoch = OwnershipEpoch(drawn.0 + 1);
        drawn
    }

    pub(crate) fn draw_incarnation(&mut self) -> Incarnation {
        let drawn = self.incarnation;
        assert!(drawn < Incarnation::FIRST_DERIVED, "2^47 incarnations have never been given");
        self.incarnation = Incarnation(drawn.0 + 1);
        drawn
    }

    /// Draws an incarnation for each table.
    pub(crate) fn draw_incarnations(&mut self) -> Vec<Incarnation> {
        let drawn: Vec<Incarnation> = (0..TABLES_MAX).map(|_| self.draw_incarnation()).collect();
        assert!(
            drawn.iter().all(|it| *it < self.incarnation),
            "an incarnation would be drawn again"
        );
        drawn
    }
}

/// One run of a server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) host: String,
    pub(crate) client_port: u16,
    pub(crate) bus_port: u16,
    /// Failure domain of the server. Empty: the server is its own failure domain.
    pub(crate) rack: String,
    /// Replicas of each segment of its log. 0: the log is not replicated and dies with the server.
    pub(crate) replicas: u16,
    /// Newest recorded segment of its manifest log. `None`: none is recorded, so
    /// nothing in its log has been acknowledged.
    pub(crate) manifest_log: Option<SegmentId>,
    /// The server is never admitted again: it was declared dead, or while away it accepted a flip
    /// that had been decided against.
    pub(crate) declared_dead: bool,
}

impl Server {
    /// Returns whether the server can tell if this record is outdated: it is presumed alive, and
    /// has written data that outlives its process.
    pub(crate) fn can_confirm(&self) -> bool {
        self.keeps_log() && !self.declared_dead && self.manifest_log.is_some()
    }

    /// Returns whether the server's log is replicated, so that its ranges can be recovered.
    pub(crate) fn keeps_log(&self) -> bool {
        self.replicas > 0
    }
}

/// A range of key hashes and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TabletRecord {
    pub(crate) range: HashRange,
    pub(crate) owner: ServerId,
    pub(crate) epoch: OwnershipEpoch,
    /// Incarnation of each table, by table number. A incarnation (incarnation) identifies one stay of
    /// a range on a server.
    #[serde(deserialize_with = "wire::incarnations")]
    pub(crate) incarnations: Vec<Incarnation>,
    /// The range is new: its first owner has not yet confirmed that it holds the range.
    pub(crate) is_born: bool,
    /// The owner serves the range before all of it is durable in the owner's log.
    pub(crate) depends_on: Option<RecoveryDependency>,
}

impl TabletRecord {
    /// Returns whether the owner holds the range durably. Until then no migration may move it.
    pub(crate) fn is_durable(&self) -> bool {
        !self.is_born && self.depends_on.is_none()
    }
}

/// The dependency of a tablet on the dead server's log from which its owner has recovered it.
///
/// It begins when the owner has replayed the range. It ends when the owner's log has all of it. If
/// the owner dies before that, the range is recovered from both logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecoveryDependency {
    pub(crate) dead: ServerId,
    /// The dead server's incarnation of each table. 0 occurs in no entry: the owner has flushed
    /// the table, and the dead server's records of it are invalid.
    #[serde(deserialize_with = "wire::incarnations")]
    pub(crate) old_incarnations: Vec<Incarnation>,
}

/// The term of one coordinator: the time from its start until another one opens the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Term {
    pub(crate) number: u64,
    /// Random id. Two copies of one store continue with the same numbers, but with different ids.
    pub(crate) id: u64,
}

/// One migration, from its request until it drops out of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Migration {
    pub(crate) id: MigrationId,
    /// The first migration of the same request.
    pub(crate) task: MigrationId,
    pub(crate) range: HashRange,
    pub(crate) source: ServerId,
    pub(crate) target: ServerId,
    pub(crate) policy: MigrationPolicy,
    pub(crate) created: UnixMillis,
    pub(crate) updated: UnixMillis,
    /// Newest committed progress. Later reports are kept in memory only; operators can do without
    /// them after a restart.
    pub(crate) progress: MigrationProgress,
    pub(crate) stage: MigrationStage,
}

/// The stage of a migration, in the order in which stages follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MigrationStage {
    /// An earlier migration with some of the same hashes has not ended.
    Queued,
    /// The source is asked for the size of the range. Nothing has been promised.
    Measuring,
    /// The intent is committed; the target is asked to reserve memory. No side may flip.
    Preparing(Terms),
    /// The source is asked to flip. From now on only the target knows whether it has accepted.
    Flipping(Terms),
    /// The intent is being withdrawn before any side could flip; the target is asked to drop it.
    Withdrawing { terms: Terms, ending: Ending },
    /// The target is asked to answer whether it has accepted or never will.
    Deciding {
        terms: Terms,
        /// Ending of the migration if the target has not accepted.
        otherwise: Ending,
    },
    /// The target is gone. It can no longer accept, but may have accepted before. The source is
    /// asked whether it had an answer.
    Orphaned {
        terms: Terms,
        /// Ending of the migration if the source had no answer.
        otherwise: Ending,
    },
    /// The target owns the range.
    Moving(LineageDependency),
    /// A side died before the target had everything. The ranges that depended on the source are
    /// being recovered: by the other side from the dead side's log, or from both logs if both died.
    Recovering(LineageDependency),
    /// Nothing depends on the source, which is asked to drop its remaining copy.
    Releasing { ending: Ending },
    /// The migration is over.
    Ended {
        ending: Ending,
        /// The intent of a migration that ended without the answer of its absent target. If the
        /// target returns, it is asked, and is admitted only if it never accepted.
        unheard: Option<Terms>,
    },
}

/// The ranges for which the target still needs the source's copy or log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineageDependency {
    /// The ranges, in ascending order. Never empty.
    pub(crate) remaining: Vec<HashRange>,
    /// The source's incarnation of each table. 0 occurs in no entry: the target has flushed the
    /// table, and the source's records of it are invalid.
    #[serde(deserialize_with = "wire::incarnations")]
    pub(crate) source_incarnations: Vec<Incarnation>,
}

/// The terms of a binding intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) source_epoch: OwnershipEpoch,
    pub(crate) target_epoch: OwnershipEpoch,
    #[serde(deserialize_with = "wire::incarnations")]
    pub(crate) target_incarnations: Vec<Incarnation>,
    pub(crate) bytes: u64,
}

/// The outcome of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Success,
    Cancelled,
    /// The text gives the reason.
    Failed(String),
}

impl MigrationStage {
    /// Checks that this stage may be followed by another one.
    ///
    /// # Panics
    /// If it may not: the transition is a bug of the coordinator.
    pub(crate) fn assert_leads_to(&self, next: &MigrationStage, id: MigrationId) {
        use MigrationStage::{
            Deciding, Ended, Flipping, Measuring, Moving, Orphaned, Preparing, Queued, Recovering,
            Releasing, Withdrawing,
        };
        let is_allowed = match self {
            Queued => matches!(next, Measuring | Ended { .. }),
            Measuring => matches!(next, Preparing(_) | Ended { .. }),
            Preparing(_) => matches!(next, Flipping(_) | Withdrawing { .. } | Ended { .. }),
            Withdrawing { .. } => matches!(next, Withdrawing { .. } | Ended { .. }),
            Flipping(_) => matches!(next, Deciding { .. } | Orphaned { .. } | Moving(_)),
            Deciding { .. } | Orphaned { .. } => {
                matches!(next, Deciding { .. } | Orphaned { .. } | Moving(_) | Ended { .. })
            }
            Moving(_) => matches!(next, Moving(_) | Recovering(_) | Releasing { .. }),
            Recovering(_) => matches!(next, Recovering(_) | Releasing { .. }),
            Releasing { .. } => matches!(next, Ended { unheard: None, .. }),
            // The target returns, or its source turns out to have had its answer.
            Ended { unheard: Some(_), .. } => {
                matches!(next, Moving(_) | Ended { unheard: None, .. })
            }
            Ended { unheard: None, .. } => false,
        };
        assert!(is_allowed, "{id} goes from {self:?} to {next:?}");
    }
}

impl Migration {
    /// Returns whether the server is the source or the target.
    pub(crate) fn has_side(&self, server: ServerId) -> bool {
        server == self.source || server == self.target
    }

    /// Returns whether the migration has not ended.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(self.stage, MigrationStage::Ended { .. })
    }

    /// Returns whether the migration has started and not ended. It then blocks later migrations
    /// of its hashes.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_live() && self.stage != MigrationStage::Queued
    }

    /// Returns whether the migration can still end with the source as owner.
    pub(crate) fn can_be_withdrawn(&self) -> bool {
        self.is_undecided()
            || matches!(
                self.stage,
                MigrationStage::Queued
                    | MigrationStage::Measuring
                    | MigrationStage::Preparing(_)
                    | MigrationStage::Withdrawing { .. }
            )
    }

    /// Returns whether the target may have accepted the flip without the coordinator's knowledge.
    pub(crate) fn is_undecided(&self) -> bool {
        matches!(
            self.stage,
            MigrationStage::Flipping(_)
                | MigrationStage::Deciding { .. }
                | MigrationStage::Orphaned { .. }
        )
    }

    /// Returns the intent as sent to servers.
    pub(crate) fn intent(&self, terms: &Terms) -> Intent {
        Intent {
            migration: self.id,
            range: self.range,
            source: self.source,
            target: self.target,
            source_epoch: terms.source_epoch,
            target_epoch: terms.target_epoch,
            target_incarnations: terms.target_incarnations.clone(),
            bytes: terms.bytes,
            policy: self.policy,
        }
    }

    /// Returns the ranges that have not arrived, if any depend on the source.
    pub(crate) fn dependency(&self) -> Option<&LineageDependency> {
        match &self.stage {
            MigrationStage::Moving(dependency) | MigrationStage::Recovering(dependency) => {
                Some(dependency)
            }
            _ => None,
        }
    }

    /// Returns whether ranges that have not arrived are being recovered because a side is dead.
    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self.stage, MigrationStage::Recovering(_))
    }
}

impl Ending {
    /// Returns the state and message shown to operators.
    pub(crate) fn state(&self) -> (MigrationState, String) {
        match self {
            Ending::Success => (MigrationState::Success, String::new()),
            Ending::Cancelled => (MigrationState::Cancelled, String::new()),
            Ending::Failed(message) => (MigrationState::Failed, message.clone()),
        }
    }
}

/// The recovery of a dead server's ranges. It begins with the transaction that declares the server
/// dead, and ends when every backup has freed its replicas of the server's log.
///
/// The replica inventory reported by backups is not persistent: the coordinator asks for it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecoveryRecord {
    pub(crate) dead: ServerId,
    pub(crate) created: UnixMillis,
    pub(crate) stage: RecoveryStage,
}

/// The stage of a recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RecoveryStage {
    /// The dead server still owns a range, or a migration or tablet needs its log.
    Recovering {
        /// Recovery partitions that are assigned and not yet served. In no order, without
        /// overlap, each within one tablet of the dead server.
        parts: Vec<AssignedPartition>,
        loss: AcceptedLoss,
    },
    /// Nothing depends on the log any more.
    Freeing,
}

/// A recovery partition: a range assigned to a recovery master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssignedPartition {
    pub(crate) range: HashRange,
    pub(crate) master: ServerId,
    pub(crate) epoch: OwnershipEpoch,
    #[serde(deserialize_with = "wire::incarnations")]
    pub(crate) incarnations: Vec<Incarnation>,
    /// The migration that was moving the range, if its target did not have all of it. A recovery
    /// master that is a side of the migration keeps its data.
    pub(crate) lineage: Option<MigrationId>,
}

/// Losses accepted by operators. Replicas that went missing later are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptedLoss {
    /// The segment manifest is lost. All segments with any known replica then make up the log.
    pub(crate) manifest: bool,
    pub(crate) segments: BTreeSet<SegmentId>,
}

impl RecoveryRecord {
    pub(crate) fn new(dead: ServerId, created: UnixMillis) -> RecoveryRecord {
        let stage = RecoveryStage::Recovering { parts: Vec::new(), loss: AcceptedLoss::default() };
        RecoveryRecord { dead, created, stage }
    }

    /// Returns the recovery partitions that are assigned and not yet served.
    pub(crate) fn parts(&self) -> &[AssignedPartition] {
        match &self.stage {
            RecoveryStage::Recovering { parts, .. } => parts,
            RecoveryStage::Freeing => &[],
        }
    }

    /// Returns this recovery with only the matching partitions, or `None` if all match.
    pub(crate) fn with_parts(
        &self,
        fits: impl Fn(&AssignedPartition) -> bool,
    ) -> Option<RecoveryRecord> {
        let RecoveryStage::Recovering { parts, loss } = &self.stage else { return None };
        if parts.iter().all(&fits) {
            return None;
        }
        let before = parts.len();
        let parts: Vec<_> = parts.iter().filter(|part| fits(part)).cloned().collect();
        assert!(parts.len() < before, "no partition of {} is taken away", self.dead);
        let stage = RecoveryStage::Recovering { parts, loss: loss.clone() };
        Some(RecoveryRecord { stage, ..self.clone() })
    }
}

/// The persisted load profile of a server (RAMCloud: will).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoadProfileRecord {
    pub(crate) server: ServerId,
    pub(crate) will: wire::control::LoadProfile,
}

/// The initial content of a rebuilt file.
#[derive(Debug)]
pub(crate) struct InitialRecords {
    pub(crate) term: u64,
    pub(crate) counters: Sequences,
    pub(crate) servers: Vec<Server>,
    pub(crate) tablets: Vec<TabletRecord>,
    pub(crate) migrations: Vec<Migration>,
    pub(crate) recoveries: Vec<RecoveryRecord>,
}

/// A key of the metadata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MetaKey {
    Identity,
    Term,
    Counters,
    /// The reason for doubting that this is the intended cluster.
    Doubt,
    /// The term with this number.
    History(u64),
    Server(ServerId),
    Tablet(KeyHash),
    Migration(MigrationId),
    /// The recovery of this dead server.
    Recovery(ServerId),
    LoadProfile(ServerId),
}

pub(crate) const HISTORY: &str = "history/";
pub(crate) const SERVERS: &str = "server/";
pub(crate) const TABLETS: &str = "tablet/";
pub(crate) const MIGRATIONS: &str = "migration/";
pub(crate) const RECOVERIES: &str = "recovery/";
pub(crate) const LOAD_PROFILES: &str = "will/";

impl MetaKey {
    /// Returns the key's text in the metadata store.
    pub(crate) fn text(self) -> String {
        match self {
            MetaKey::Identity => "identity".to_owned(),
            MetaKey::Term => "term".to_owned(),
            MetaKey::Counters => "counters".to_owned(),
            MetaKey::Doubt => "doubt".to_owned(),
            MetaKey::History(term) => format!("{HISTORY}{term:016x}"),
            MetaKey::Server(server) => format!("{SERVERS}{:016x}", server.0),
            MetaKey::Tablet(first) => format!("{TABLETS}{:016x}", first.0),
            MetaKey::Migration(migration) => format!("{MIGRATIONS}{:016x}", migration.0),
            MetaKey::Recovery(dead) => format!("{RECOVERIES}{:016x}", dead.0),
            MetaKey::LoadProfile(server) => format!("{LOAD_PROFILES}{:016x}", server.0),
        }
    }
}

/// Makes the records of one table invalid, or of all: no entry has incarnation 0.
pub(crate) fn invalidate(incarnations: &mut [Incarnation], table: Option<TableId>) {
    match table {
        Some(table) => incarnations[usize::from(table.0)] = Incarnation(0),
        // Completion records outlive a flush.
        None => incarnations.iter_mut().take(DATABASES).for_each(|it| *it = Incarnation(0)),
    }
}

/// Decodes the value of a key. `None`: it is not such a value.
pub(crate) fn decode<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Some(value),
        Ok(_) | Err(_) => None,
    }
}

/// Encodes the value of a key.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data can be serialized")
}
