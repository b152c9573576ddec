//! Replay: inserts records that another server sent, unless a newer version is present.
//!
//! The records come from a batch of a migration (this file) or from the log of a dead server
//! (`replay_log.rs`). Half of the cost of a migration is here, so three things are optimized:
//! - A window of records is parsed and their buckets are prefetched before the first insertion.
//! - The run of a batch gives the slot, so only the hash within the slot is computed.
//! - A leaf stays locked while the next record belongs to it.

use super::arrival::{Arrival, PartitionProgress};
use super::leaves::HeldLeaf;
use super::record::Key;
use super::recovery::Recovery;
use super::replay_counters::ReplayCounters;
use super::side_logs::SideLogPurpose;
use super::stall::Stall;
use super::store::Store;
use super::tablets::{TabletMap, TabletState};
use super::view::{Lookup, Placed, View, kind_of, rank};
use super::worker::Worker;
use crate::address::Address;
use crate::index::{Word, WordKind};
use crate::log::{OutOfMemory, Reservation, SideLog, Turn};
use planted::Bug;
use std::sync::Arc;
use types::{
    HashRange, Incarnation, KeyHash, MigrationId, Slot, TableId, TypedValue, Version,
    key_hash_in_slot, slot_of,
};
use wire::Corrupt;
use wire::batch::{BatchEntry, BatchReader};
use wire::entry::{Body, Dead, Entry};

/// Records parsed ahead of the one that is inserted. Measured by `store_bench`; 8 to 32 perform
/// alike.
const WINDOW: usize = 16;

/// Result of a quantum of replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Offset in the batch at which to resume; `None` at its end.
    pub next: Option<usize>,
    /// Number of records inserted into the index.
    pub records: u64,
    /// Bytes of these records in the log.
    pub bytes: u64,
    /// Number of records that were not needed.
    pub dropped: u64,
}

/// The reason why a batch cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The bytes of the batch are damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// No memory for the records. The caller may retry: records that were already replayed are
    /// dropped.
    #[error("not enough memory for the replayed records")]
    OutOfMemory,
}

impl Worker {
    /// Replays at most `entries_max` records of a batch, starting at offset `from`. Stops early
    /// at a leaf that another thread keeps locked, and when the index gets a reserved segment.
    /// `from` is 0 or the `next` of an earlier call.
    pub fn replay(
        &mut self,
        arrival: &Arc<Arrival>,
        batch: &[u8],
        from: usize,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let reader = BatchReader::resume(batch, from)?;
        let mut source = BatchSource { reader, bytes: batch.len(), arrival, run: None };
        self.replay_from(ReplayOrigin::Arrival(arrival), &mut source, entries_max)
    }

    pub(super) fn replay_from<'b>(
        &mut self,
        origin: ReplayOrigin<'_>,
        source: &mut impl EntrySource<'b>,
        entries_max: usize,
    ) -> Result<Replayed, ReplayError> {
        let turn = self.participant.turn();
        let (purpose, reservation) = (origin.purpose(), origin.reservation());
        let side_log = self.side_logs.get_or_open(purpose, reservation, &self.store.log);
        let destination =
            ReplayDestination { store: &self.store, tablets: &self.tablets, origin, turn: &turn };
        let (decision, done, tombstones) = (None, ReplayCounters::default(), Vec::new());
        let mut replay = Replay { destination, side_log, decision, done, tombstones };
        let result = replay.run(source, entries_max);
        let Replay { done, mut tombstones, .. } = replay;
        match origin {
            ReplayOrigin::Arrival(arrival) => arrival.counts().add(&done),
            ReplayOrigin::Recovery { recovery, .. } => {
                recovery.counts().add(&done);
                recovery.note_tombstone(&mut tombstones);
            }
        }
        let ReplayCounters { records, bytes, dropped } = done;
        result.map(|next| Replayed { next, records, bytes, dropped })
    }

    /// Splices this worker's side log of a migration into the log.
    pub fn splice(&mut self, migration: MigrationId) {
        self.side_logs.splice(migration);
    }
}

/// Range for which records are replayed.
#[derive(Clone, Copy)]
pub(super) enum ReplayOrigin<'t> {
    /// A range that a migration delivers.
    Arrival(&'t Arc<Arrival>),
    /// A range that is being recovered.
    Recovery {
        /// Recovery of the range.
        recovery: &'t Arc<Recovery>,
        /// Set if the dead server's log holds the record durably, for any later reader.
        is_common: bool,
    },
}

impl<'t> ReplayOrigin<'t> {
    /// Returns the purpose of the side log that takes the records.
    fn purpose(self) -> SideLogPurpose {
        match self {
            ReplayOrigin::Arrival(arrival) => SideLogPurpose::Migration(arrival.migration()),
            ReplayOrigin::Recovery { is_common: true, .. } => SideLogPurpose::Recoveries,
            ReplayOrigin::Recovery { is_common: false, .. } => SideLogPurpose::Divergent,
        }
    }

    /// Returns whether a planted bug loses the records of this table.
    #[inline]
    fn loses(self, table: TableId) -> bool {
        let of_recovery = matches!(self, ReplayOrigin::Recovery { .. });
        match (table, of_recovery) {
            (TableId::COMPLETIONS, false) => planted::is(Bug::CompletionNotMoved),
            (TableId::COMPLETIONS, true) => planted::is(Bug::CompletionNotRecovered),
            (TableId::PAGES, false) => planted::is(Bug::PageNotMoved),
            (TableId::PAGES, true) => planted::is(Bug::PageNotRecovered),
            _ => false,
        }
    }

    /// Returns the reservation that provides the segments of replay, if there is one.
    fn reservation(self) -> Option<&'t Arc<Reservation>> {
        match self {
            ReplayOrigin::Arrival(arrival) => arrival.reservation(),
            ReplayOrigin::Recovery { .. } => None,
        }
    }
}

/// Parser of the records from one origin.
pub(super) trait EntrySource<'b> {
    /// Parses at most `count` records and prefetches the memory that their insertion touches. An
    /// empty window means the end.
    fn fill(
        &mut self,
        destination: &ReplayDestination<'_>,
        count: usize,
        window: &mut Vec<ParsedRecord<'b>>,
    ) -> Result<(), Corrupt>;

    /// Returns the offset at which to resume; `None` at the end.
    fn next_offset(&self) -> Option<usize>;
}

/// Destination of the records.
#[derive(Clone, Copy)]
pub(super) struct ReplayDestination<'t> {
    pub(super) store: &'t Store,
    tablets: &'t TabletMap,
    origin: ReplayOrigin<'t>,
    pub(super) turn: &'t Turn<'t>,
}

/// One quantum of replay.
struct Replay<'t, 's> {
    destination: ReplayDestination<'t>,
    side_log: &'s mut SideLog,
    /// Decision for the previous record; most records share it with the one before.
    decision: Option<RangeDecision<'t>>,
    done: ReplayCounters,
    /// Tombstones of a recovery that this quantum has put into the index.
    tombstones: Vec<(TableId, KeyHash)>,
}

/// A range of one table with the decision whether its records are wanted.
#[derive(Clone, Copy)]
struct RangeDecision<'t> {
    table: TableId,
    range: HashRange,
    wanted: Option<WantedRange<'t>>,
}

/// Treatment of wanted records.
#[derive(Clone, Copy)]
struct WantedRange<'t> {
    view: View<'t>,
    limit: Limit<'t>,
    /// Incarnation that is written into the stored records.
    incarnation: Incarnation,
}

/// Condition that ends the need for records.
#[derive(Clone, Copy)]
enum Limit<'t> {
    /// The progress has passed the record's hash.
    PartitionProgress(PartitionProgress<'t>),
    /// The recovery has replayed everything.
    Recovery(&'t Recovery),
}

impl Limit<'_> {
    #[inline]
    fn has_passed(self, hash: KeyHash) -> bool {
        match self {
            Limit::PartitionProgress(progress) => progress.has_passed(hash),
            Limit::Recovery(recovery) => recovery.is_over(),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct ParsedRecord<'b> {
    /// Table of the record; `None` if the record is to be dropped.
    pub(super) table: Option<TableId>,
    pub(super) hash: KeyHash,
    pub(super) entry: Entry<'b>,
    pub(super) encoded: &'b [u8],
    /// Start offset of the record in its source.
    pub(super) offset: usize,
}

/// A batch of a migration.
struct BatchSource<'b> {
    reader: BatchReader<'b>,
    bytes: usize,
    arrival: &'b Arrival,
    /// Table and slot of the last record.
    run: Option<(TableId, Slot)>,
}

impl BatchSource<'_> {
    /// Checks that the first record of a run lies in the run's slot and in the arriving range. A
    /// faulty source names a wrong slot for all records of a run; a check of each would take a
    /// fifth more instructions.
    #[inline(never)]
    fn check(&self, slot: Slot, hash: KeyHash, key: &[u8]) -> Result<(), Corrupt> {
        if slot_of(key) == slot && self.arrival.range().contains(hash) {
            return Ok(());
        }
        Err(Corrupt::Invalid { what: "slot of a batch's entry" })
    }
}

impl<'b> EntrySource<'b> for BatchSource<'b> {
    fn fill(
        &mut self,
        destination: &ReplayDestination<'_>,
        count: usize,
        window: &mut Vec<ParsedRecord<'b>>,
    ) -> Result<(), Corrupt> {
        for _ in 0..count {
            let offset = self.reader.offset();
            let Some(record) = self.reader.next().transpose()? else { break };
            let BatchEntry { table, slot, entry, encoded } = record;
            let hash = key_hash_in_slot(destination.store.seed(), slot, entry.key);
            if self.run != Some((table, slot)) {
                self.check(slot, hash, entry.key)?;
                self.run = Some((table, slot));
            }
            let parsed = ParsedRecord { table: Some(table), hash, entry, encoded, offset };
            let is_same_slot =
                |last: &ParsedRecord<'_>| last.table == parsed.table && last.hash.slot() == slot;
            if !window.last().is_some_and(is_same_slot) {
                let view = View::new(destination.store, table, destination.turn);
                view.make_leaf(slot, || Some(self.arrival.expected_records(table, slot)));
            }
            destination.store.index_or_new(table).prefetch(hash, destination.turn);
            window.push(parsed);
        }
        Ok(())
    }

    fn next_offset(&self) -> Option<usize> {
        Some(self.reader.offset()).filter(|&offset| offset < self.bytes)
    }
}

/// Reason for ending a quantum of replay before its budget is used.
enum Halt {
    /// Another thread holds the leaf of the record at this offset, or the index got memory for it.
    At(usize),
    Failed(ReplayError),
}

impl<'t> Replay<'t, '_> {
    /// Replays up to `entries_max` records. Returns where to resume.
    fn run<'b>(
        &mut self,
        source: &mut impl EntrySource<'b>,
        mut entries_max: usize,
    ) -> Result<Option<usize>, ReplayError> {
        let mut window = Vec::with_capacity(WINDOW);
        while entries_max > 0 {
            window.clear();
            source.fill(&self.destination, entries_max.min(WINDOW), &mut window)?;
            if window.is_empty() {
                return Ok(None);
            }
            assert!(window.len() <= entries_max, "a window of {} records", window.len());
            entries_max -= window.len();
            let highest = window.iter().map(|parsed| parsed.entry.version).max();
            if !planted::is(Bug::VersionsGoBack) {
                self.destination.store.raise_version(highest.unwrap_or(Version(0)));
            }
            // Held for one window only: a client that needs the leaf waits less than a
            // microsecond.
            let mut held = HeldLeaf::none();
            for parsed in &window {
                match self.insert(parsed, &mut held) {
                    Ok(()) => {}
                    Err(Halt::At(offset)) => return Ok(Some(offset)),
                    Err(Halt::Failed(error)) => return Err(error),
                }
            }
        }
        Ok(source.next_offset())
    }

    #[inline]
    fn insert(&mut self, parsed: &ParsedRecord<'_>, held: &mut HeldLeaf<'t>) -> Result<(), Halt> {
        let &ParsedRecord { table, hash, ref entry, .. } = parsed;
        let Some(wanted) = table.and_then(|table| self.wanted(table, hash)) else {
            self.done.dropped += 1;
            return Ok(());
        };
        let WantedRange { view, limit, incarnation } = wanted;
        if matches!(limit, Limit::Recovery(_))
            && kind_of(entry) == WordKind::Tombstone
            && planted::is(Bug::TombstoneNotReplayed)
        {
            return Ok(());
        }
        if self.destination.origin.loses(view.table) {
            return Ok(());
        }
        let leaf = match held.lock(&view, hash) {
            Ok(leaf) => leaf,
            Err(Stall::OutOfMemory) => return Err(self.without_room(parsed.offset)),
            Err(_) => return Err(Halt::At(parsed.offset)),
        };
        let kind = kind_of(entry);
        let found = view.find_locked(leaf, Key { hash, bytes: entry.key });
        let is_old = matches!(&found, Lookup::Here(word, here)
            if rank(here.version, word.kind()) >= rank(entry.version, kind));
        let is_old = is_old && !planted::is(Bug::OlderVersionReplayed);
        // Checked under the lock: a record must not return after its tombstone was reclaimed.
        if is_old || limit.has_passed(hash) {
            self.done.dropped += 1;
            return Ok(());
        }
        let incarnation = match planted::is(Bug::IncarnationOfSource) {
            true => parsed.entry.incarnation,
            false => incarnation,
        };
        let (address, bytes) = self.append(parsed, incarnation, found.old())?;
        let word = Word::new(hash, kind, address);
        let new = Placed { word, bytes };
        match found.old() {
            Some(old) => {
                leaf.replace(hash, old.tuple(), new.tuple());
                if !planted::is(Bug::ReplacedStaysLive) {
                    view.retire(old);
                }
            }
            None => {
                if leaf.insert(hash, word, new.bytes).is_err() {
                    self.side_log.revoke(address, new.bytes);
                    return Err(self.without_room(parsed.offset));
                }
            }
        }
        match kind {
            WordKind::Tombstone => self.note_tombstone(view.table, hash),
            WordKind::Object | WordKind::Expiring => {}
        }
        self.done.records += 1;
        self.done.bytes += u64::from(new.bytes);
        Ok(())
    }

    /// Returns how to go on with the record at this offset when the index has no memory for it.
    /// The reservation of a migration includes the index, but clients may have taken what was left
    /// beside it.
    #[cold]
    fn without_room(&mut self, offset: usize) -> Halt {
        match self.side_log.lend_to_index() {
            true => Halt::At(offset),
            false => Halt::Failed(ReplayError::OutOfMemory),
        }
    }

    /// Records a tombstone that was put into the index. Its leaf is locked.
    fn note_tombstone(&mut self, table: TableId, hash: KeyHash) {
        match self.destination.origin {
            ReplayOrigin::Arrival(arrival) => arrival.note_tombstone(table, hash),
            // Tombstones of a recovery are reclaimed only after everything has been replayed.
            ReplayOrigin::Recovery { .. } => self.tombstones.push((table, hash)),
        }
    }

    /// Appends the record and returns its address and length. The encoded bytes are copied
    /// unchanged where possible. The entry is encoded anew if it names a version that it replaced
    /// in the source's log, or if it replaces a version in this log that must stay superseded.
    #[inline]
    fn append(
        &mut self,
        parsed: &ParsedRecord<'_>,
        incarnation: Incarnation,
        old: Option<Placed>,
    ) -> Result<(Address, u32), OutOfMemory> {
        let log = &self.destination.store.log;
        let old = old.filter(|_| log.is_durable());
        let here = old.map(|old| log.location_of(old.word.address()));
        let body = match parsed.entry.body {
            Body::Object { replaces: None, .. } if here.is_none() => None,
            Body::Object { expiry, mut value, .. } => {
                if planted::is(Bug::TypeLost) {
                    value = TypedValue::string(value.bytes);
                }
                Some(Body::Object { expiry, replaces: here, value })
            }
            Body::Tombstone { .. } => {
                Some(Body::Tombstone { dead: here.map_or(Dead::Nothing, Dead::At) })
            }
            Body::CopiesOf(_) => unreachable!("no table has notes"),
        };
        match body {
            None => {
                let address = self.side_log.append_encoded(parsed.encoded, incarnation)?;
                Ok((address, parsed.encoded.len() as u32))
            }
            Some(body) => {
                let mut entry = Entry { incarnation, body, ..parsed.entry };
                let address = self.side_log.append_replacing(&mut entry)?;
                Ok((address, entry.encoded_bytes() as u32))
            }
        }
    }

    /// Returns the treatment of a record; `None` if it is not wanted any more.
    #[inline]
    fn wanted(&mut self, table: TableId, hash: KeyHash) -> Option<WantedRange<'t>> {
        match self.decision {
            Some(decision) if decision.table == table && decision.range.contains(hash) => {
                decision.wanted
            }
            Some(_) | None => self.enter(table, hash),
        }
    }

    fn enter(&mut self, table: TableId, hash: KeyHash) -> Option<WantedRange<'t>> {
        let ReplayDestination { store, tablets, origin, turn } = self.destination;
        let tablet = tablets.at(hash)?;
        let found = match (&tablet.state, origin) {
            (TabletState::Arriving(current), ReplayOrigin::Arrival(arrival))
                if Arc::ptr_eq(current, arrival) && !arrival.is_flushed(table) =>
            {
                let progress = arrival.progress_at(hash);
                Some((Limit::PartitionProgress(progress), progress.range()))
            }
            (TabletState::Recovering(current), ReplayOrigin::Recovery { recovery, .. })
                if Arc::ptr_eq(current, recovery) =>
            {
                Some((Limit::Recovery(recovery), recovery.range()))
            }
            _ => None,
        };
        let mut decision = RangeDecision { table, range: tablet.range, wanted: None };
        if let Some((limit, range)) = found.filter(|_| !tablet.flushing.contains(table)) {
            decision.range = range.intersection(tablet.range)?;
            let incarnation = tablet.incarnations[usize::from(table.0)];
            decision.wanted =
                Some(WantedRange { view: View::new(store, table, turn), limit, incarnation });
        }
        debug_assert!(decision.range.contains(hash), "{hash} is not in {}", decision.range);
        self.decision = Some(decision);
        decision.wanted
    }
}

impl<E: Into<Stall>> From<E> for Halt {
    fn from(_: E) -> Halt {
        Halt::Failed(ReplayError::OutOfMemory)
    }
}
