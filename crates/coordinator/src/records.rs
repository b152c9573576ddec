//! What the coordinator writes down: the records behind each key of the metadata store.
//!
//! | key | value |
//! | --- | --- |
//! | `identity` | [`FORMAT`], then [`Identity`]: written once |
//! | `term` | number of the coordinator that may write: rises with every one that opens the store |
//! | `counters` | [`Counters`]: the next number of everything that is numbered |
//! | `server/<number>` | [`Server`] |
//! | `tablet/<first hash>` | [`Tablet`] |
//! | `migration/<number>` | [`Migration`] |
//! | `recovery/<number of the dead server>` | [`Recovery`] |
//! | `will/<number of the server>` | [`Will`] |
//! | `history/<term>` | [`Term`]: when it began is the record's revision |
//! | `doubt` | text: why nobody new is let in. Usually absent |
//!
//! Numbers in keys have 16 hexadecimal digits, so that keys are in the order of numbers. Values are
//! `postcard`. The format rises with every change of a record; the one before is converted.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use types::limits::TABLES_MAX;
use types::{
    ClusterId, HashRange, KeyHash, MigrationId, OwnershipEpoch, SegmentId, ServerId, Tenure,
    UnixMillis,
};
use wire::control::{Intent, MigrationPolicy, MigrationState, Progress};

/// Version of the records. A store of another version is not opened.
pub(crate) const FORMAT: u16 = 7;

/// The format before, which is read and converted: tablets lack their last field.
pub(crate) const FORMAT_BEFORE: u16 = 6;

/// What makes a cluster this cluster. Drawn at random by whoever creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// Seed of its key hash. Never told to clients.
    pub seed: u64,
}

/// Random numbers for a coordinator that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Becomes the cluster's, if the store is empty.
    pub fresh: Identity,
    /// Tells this coordinator's term from one of the same number in a copy of the store.
    pub term: u64,
}

/// The next number of everything that is numbered. A number that was given is never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) server: ServerId,
    pub(crate) migration: MigrationId,
    pub(crate) epoch: OwnershipEpoch,
    pub(crate) tenure: Tenure,
}

impl Counters {
    /// Of an empty cluster. 0 is kept for "none" in every one.
    pub(crate) const FIRST: Counters = Counters {
        server: ServerId(1),
        migration: MigrationId(1),
        epoch: OwnershipEpoch(1),
        tenure: Tenure(1),
    };

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

    /// One counter for all tablets, so that an epoch also rises from one withdrawn intent to the
    /// next of the same range.
    pub(crate) fn draw_epoch(&mut self) -> OwnershipEpoch {
        let drawn = self.epoch;
        self.epoch = OwnershipEpoch(drawn.0 + 1);
        drawn
    }

    pub(crate) fn draw_tenure(&mut self) -> Tenure {
        let drawn = self.tenure;
        assert!(drawn <= Tenure::MAX, "2^48 tenures have never been given");
        self.tenure = Tenure(drawn.0 + 1);
        drawn
    }

    /// A tenure for each table.
    pub(crate) fn draw_tenures(&mut self) -> Vec<Tenure> {
        (0..TABLES_MAX).map(|_| self.draw_tenure()).collect()
    }
}

/// One run of a server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) host: String,
    pub(crate) client_port: u16,
    pub(crate) bus_port: u16,
    /// What fails together with it. Empty: it fails alone.
    pub(crate) rack: String,
    /// Of each segment of its log. 0: its data dies with it.
    pub(crate) replicas: u16,
    /// The segment that the chain of its log's directory has come to. `None`: nothing that it was
    /// told counts yet.
    pub(crate) chain: Option<SegmentId>,
    /// It is not let in again: it was declared dead, or it accepted a flip that had been decided
    /// against while it was away.
    pub(crate) fenced: bool,
}

impl Server {
    /// Returns whether it lives, as far as is known, and has written something that outlives its
    /// process: then its disk, or it itself, can tell whether this record is of an older time.
    pub(crate) fn can_confirm(&self) -> bool {
        self.keeps_log() && !self.fenced && self.chain.is_some()
    }

    /// Whether others keep its log, so that what it owns can be recovered when it dies.
    pub(crate) fn keeps_log(&self) -> bool {
        self.replicas > 0
    }
}

/// A range and who serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tablet {
    pub(crate) range: HashRange,
    pub(crate) owner: ServerId,
    pub(crate) epoch: OwnershipEpoch,
    /// By table.
    pub(crate) tenures: Vec<Tenure>,
    /// Its first owner has not said yet that it holds it.
    pub(crate) is_born: bool,
}

/// A tablet in [`FORMAT_BEFORE`].
#[derive(Deserialize)]
pub(crate) struct TabletBefore {
    range: HashRange,
    owner: ServerId,
    epoch: OwnershipEpoch,
    tenures: Vec<Tenure>,
}

impl From<TabletBefore> for Tablet {
    fn from(before: TabletBefore) -> Tablet {
        let TabletBefore { range, owner, epoch, tenures } = before;
        Tablet { range, owner, epoch, tenures, is_born: false }
    }
}

/// The term of one coordinator, from its start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Term {
    pub(crate) number: u64,
    /// Drawn at random: terms of two stores that were copied from one have the same numbers.
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
    /// As last written; newer numbers are in memory only, people can do without them.
    pub(crate) progress: Progress,
    /// Nobody has asked for it: its target has recovered the range from the log of its source, which
    /// is dead, and serves it before what it has read is safe. People do not see it.
    pub(crate) is_inheritance: bool,
    pub(crate) stage: Stage,
}

/// Where a migration stands, in the order in which the stages follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// An earlier migration of some of the same hashes has not ended.
    Queued,
    /// The source is asked how much the range holds. Nothing has been promised.
    Measuring,
    /// The intent stands; the target is asked to reserve memory. Nobody may flip.
    Preparing(Terms),
    /// The source is asked to flip. From here on only the target knows whether it accepted.
    Flipping(Terms),
    /// The intent is being withdrawn before anybody could flip; the target is asked to let go.
    Withdrawing { terms: Terms, ending: Ending },
    /// The target is asked whether it accepted or never will.
    Deciding {
        terms: Terms,
        /// How the migration ends if not.
        otherwise: Ending,
    },
    /// The target is gone. It can accept no more, but it may have: the source is asked whether it
    /// had an answer.
    Orphaned {
        terms: Terms,
        /// How the migration ends if not.
        otherwise: Ending,
    },
    /// The target owns the range.
    Moving(Dependency),
    /// A side died before the target had everything. What depended on the source is being recovered:
    /// by the other side, from the log of the one that died; from both logs if both did.
    Recovering(Dependency),
    /// Of an inheritance: the target serves the range, and makes safe what it has read of the source's
    /// log. If it dies the range is recovered from both logs.
    Securing(Dependency),
    /// Nothing depends on the source, which is asked to forget what it still has.
    Releasing { ending: Ending },
    /// Over.
    Ended {
        ending: Ending,
        /// The intent of a migration that was ended without the word of its target, which was
        /// away. Should the target come back it is asked, and let in only if it never accepted.
        unheard: Option<Terms>,
    },
}

/// What the target of a migration does not have for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dependency {
    /// Of these ranges, in ascending order. Never empty.
    pub(crate) remaining: Vec<HashRange>,
    /// By table: under which the source held them. 0, which no entry has: nothing of the table
    /// counts any more, since the target has flushed it.
    pub(crate) source_tenures: Vec<Tenure>,
}

/// What an intent adds to its migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) source_epoch: OwnershipEpoch,
    pub(crate) target_epoch: OwnershipEpoch,
    pub(crate) target_tenures: Vec<Tenure>,
    pub(crate) bytes: u64,
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Success,
    Cancelled,
    /// The text says why.
    Failed(String),
}

impl Migration {
    /// Whether it has not ended.
    pub(crate) fn is_live(&self) -> bool {
        match self.stage {
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Flipping(_)
            | Stage::Withdrawing { .. }
            | Stage::Deciding { .. }
            | Stage::Orphaned { .. }
            | Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. } => true,
            Stage::Ended { .. } => false,
        }
    }

    /// Whether it keeps later migrations of its hashes waiting, and waits no more itself.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_live() && self.stage != Stage::Queued
    }

    /// Whether the source may still own the range when it ends.
    pub(crate) fn can_be_withdrawn(&self) -> bool {
        match self.stage {
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Flipping(_)
            | Stage::Withdrawing { .. }
            | Stage::Deciding { .. }
            | Stage::Orphaned { .. } => true,
            Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. }
            | Stage::Ended { .. } => false,
        }
    }

    /// Whether the target may have accepted the flip without our knowing.
    pub(crate) fn is_undecided(&self) -> bool {
        match self.stage {
            Stage::Flipping(_) | Stage::Deciding { .. } | Stage::Orphaned { .. } => true,
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Withdrawing { .. }
            | Stage::Moving(_)
            | Stage::Recovering(_)
            | Stage::Securing(_)
            | Stage::Releasing { .. }
            | Stage::Ended { .. } => false,
        }
    }

    /// The intent, as servers see it.
    pub(crate) fn intent(&self, terms: &Terms) -> Intent {
        Intent {
            migration: self.id,
            range: self.range,
            source: self.source,
            target: self.target,
            source_epoch: terms.source_epoch,
            target_epoch: terms.target_epoch,
            target_tenures: terms.target_tenures.clone(),
            bytes: terms.bytes,
            policy: self.policy,
        }
    }

    /// What has not arrived, or is not safe, if anybody still depends on it.
    pub(crate) fn dependency(&self) -> Option<&Dependency> {
        match &self.stage {
            Stage::Moving(dependency)
            | Stage::Recovering(dependency)
            | Stage::Securing(dependency) => Some(dependency),
            Stage::Queued
            | Stage::Measuring
            | Stage::Preparing(_)
            | Stage::Flipping(_)
            | Stage::Withdrawing { .. }
            | Stage::Deciding { .. }
            | Stage::Orphaned { .. }
            | Stage::Releasing { .. }
            | Stage::Ended { .. } => None,
        }
    }

    /// Whether what has not arrived is being recovered, since a side is dead.
    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self.stage, Stage::Recovering(_))
    }
}

impl Ending {
    /// In the words of operators.
    pub(crate) fn state(&self) -> (MigrationState, String) {
        match self {
            Ending::Success => (MigrationState::Success, String::new()),
            Ending::Cancelled => (MigrationState::Cancelled, String::new()),
            Ending::Failed(message) => (MigrationState::Failed, message.clone()),
        }
    }
}

/// How what a dead server held comes to be served again. It begins with the transaction in which
/// the server is declared dead, and ends when everybody has freed what they held of its log.
///
/// What backups tell of the log is not written down: it is asked for again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recovery {
    pub(crate) dead: ServerId,
    pub(crate) created: UnixMillis,
    pub(crate) stage: RecoveryStage,
}

/// Where a recovery stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RecoveryStage {
    /// The dead server owns something still, or a migration needs its log.
    Recovering {
        /// What was handed out and is not served yet. In no order, without overlap, each within
        /// one tablet of the dead server.
        parts: Vec<Part>,
        loss: AcceptedLoss,
    },
    /// Nothing depends on the log.
    Freeing,
}

/// A part that was handed out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) range: HashRange,
    pub(crate) master: ServerId,
    pub(crate) epoch: OwnershipEpoch,
    pub(crate) tenures: Vec<Tenure>,
    /// The migration that was moving it, if its target did not have all of it. A master that is a
    /// side of the migration keeps what it has.
    pub(crate) lineage: Option<MigrationId>,
}

/// What operators have decided to go on without. What was missing later is not among it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptedLoss {
    /// If nobody has the directory, then all segments that anybody has make up the log.
    pub(crate) directory: bool,
    pub(crate) segments: BTreeSet<SegmentId>,
}

impl Recovery {
    pub(crate) fn new(dead: ServerId, created: UnixMillis) -> Recovery {
        let stage = RecoveryStage::Recovering { parts: Vec::new(), loss: AcceptedLoss::default() };
        Recovery { dead, created, stage }
    }

    /// What was handed out and is not served yet.
    pub(crate) fn parts(&self) -> &[Part] {
        match &self.stage {
            RecoveryStage::Recovering { parts, .. } => parts,
            RecoveryStage::Freeing => &[],
        }
    }

    /// The same with only those parts that fit. `None`: all do.
    pub(crate) fn with_parts(&self, fits: impl Fn(&Part) -> bool) -> Option<Recovery> {
        let RecoveryStage::Recovering { parts, loss } = &self.stage else { return None };
        if parts.iter().all(&fits) {
            return None;
        }
        let parts = parts.iter().filter(|part| fits(part)).cloned().collect();
        let stage = RecoveryStage::Recovering { parts, loss: loss.clone() };
        Some(Recovery { stage, ..self.clone() })
    }
}

/// How the load of a server was spread when that was last written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Will {
    pub(crate) server: ServerId,
    pub(crate) will: wire::control::Will,
}

/// A place in the metadata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Identity,
    Term,
    Counters,
    /// Why this may not be the cluster that it should be.
    Doubt,
    /// The term of this number.
    History(u64),
    Server(ServerId),
    Tablet(KeyHash),
    Migration(MigrationId),
    /// Of the dead server.
    Recovery(ServerId),
    Will(ServerId),
}

pub(crate) const HISTORY: &str = "history/";
pub(crate) const SERVERS: &str = "server/";
pub(crate) const TABLETS: &str = "tablet/";
pub(crate) const MIGRATIONS: &str = "migration/";
pub(crate) const RECOVERIES: &str = "recovery/";
pub(crate) const WILLS: &str = "will/";

impl Key {
    /// The key's text.
    pub(crate) fn text(self) -> String {
        match self {
            Key::Identity => "identity".to_owned(),
            Key::Term => "term".to_owned(),
            Key::Counters => "counters".to_owned(),
            Key::Doubt => "doubt".to_owned(),
            Key::History(term) => format!("{HISTORY}{term:016x}"),
            Key::Server(server) => format!("{SERVERS}{:016x}", server.0),
            Key::Tablet(first) => format!("{TABLETS}{:016x}", first.0),
            Key::Migration(migration) => format!("{MIGRATIONS}{:016x}", migration.0),
            Key::Recovery(dead) => format!("{RECOVERIES}{:016x}", dead.0),
            Key::Will(server) => format!("{WILLS}{:016x}", server.0),
        }
    }
}
