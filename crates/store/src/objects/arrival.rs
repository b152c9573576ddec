//! The [`Arrival`]: state of a migration at its target, as far as the store needs it. Below a
//! partition's progress, an absent record does not exist. Above it, an absent record may still
//! arrive, unless the source has reported it absent or the table has been flushed since the flip.
//!
//! Invariants:
//! - Progress only rises. It is advanced after the replay that it covers, by a release store that
//!   pairs with the readers' acquire load.
//! - A delete above the progress leaves a tombstone in the index and is recorded here, so that
//!   [`super::Worker::sweep`] finds it when the progress has passed.
//!
//! Outside this module: requesting records and deciding the progress (`protocols::migration`).

use super::replay_counters::{ReplayCounters, ReplayCounts};
use super::table_set::TableSet;
use crate::log::Reservation;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use types::{HashRange, KeyHash, MigrationId, ServerId, Slot, TableId};
use wire::peer::RecordCounts;

/// Progress of a partition that has arrived completely.
const END: u64 = u64::MAX;

/// The target's side of one migration.
pub struct Arrival {
    migration: MigrationId,
    source: ServerId,
    range: HashRange,
    partitions: Box<[Partition]>,
    /// Record counts that the source has reported: each leaf is created once at its final size.
    expected: RecordCounts,
    /// Set while operations on the range must wait.
    is_suspended: AtomicBool,
    /// Set when no more records arrive, and no operation sees the range as an arriving one.
    is_over: AtomicBool,
    /// Tables flushed since the flip.
    flushed: AtomicU32,
    /// Segments reserved for arriving records; released when the arrival is dropped.
    reservation: Option<Arc<Reservation>>,
    counts: ReplayCounts,
}

/// A part of the range that is pulled on its own.
struct Partition {
    range: HashRange,
    /// Hash below which everything has arrived; [`END`] if the whole partition has.
    progress: AtomicU64,
    notes: Mutex<Notes>,
}

/// Facts about hashes above the progress.
#[derive(Default)]
struct Notes {
    /// Hashes for which the source has no record.
    absent: BTreeSet<(KeyHash, TableId)>,
    /// Tombstones in the index.
    tombstones: BTreeSet<(KeyHash, TableId)>,
}

/// Parameters of an [`Arrival`].
pub struct ArrivalPlan {
    /// Number of the migration.
    pub migration: MigrationId,
    /// Server that sends the records.
    pub source: ServerId,
    /// Range that arrives.
    pub range: HashRange,
    /// Partitions of the range: ascending, without gaps.
    pub partitions: Vec<HashRange>,
    /// Record counts at the source.
    pub expected: RecordCounts,
    /// Memory reserved for the records, if any.
    pub reservation: Option<Arc<Reservation>>,
}

impl Arrival {
    /// Creates an arrival without arrived records.
    ///
    /// # Panics
    /// If the partitions do not exactly cover the range: a bug of the caller.
    pub fn new(plan: ArrivalPlan) -> Arrival {
        let ArrivalPlan { migration, source, range, partitions, expected, reservation } = plan;
        let ends = partitions.first().zip(partitions.last());
        let (first, last) = ends.expect("an arrival has a partition");
        assert_eq!((first.first(), last.last()), (range.first(), range.last()));
        for pair in partitions.windows(2) {
            assert_eq!(pair[0].last().0 + 1, pair[1].first().0, "a gap between partitions");
        }
        let partitions = partitions
            .into_iter()
            .map(|range| Partition {
                range,
                progress: AtomicU64::new(range.first().0),
                notes: Mutex::new(Notes::default()),
            })
            .collect();
        Arrival {
            migration,
            source,
            range,
            partitions,
            expected,
            is_suspended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            flushed: AtomicU32::new(0),
            reservation,
            counts: ReplayCounts::default(),
        }
    }

    /// Suspends or resumes the operations on the range.
    pub fn suspend(&self, is_suspended: bool) {
        self.is_suspended.store(is_suspended, Ordering::Release);
    }

    /// Returns whether operations on the range must wait.
    #[inline]
    pub fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Acquire)
    }

    /// Ends the arrival, complete or not. Every reactor must have begun a turn without the arriving
    /// tablet.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns whether the arrival has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns the number of the migration.
    pub fn migration(&self) -> MigrationId {
        self.migration
    }

    /// Returns the server that sends the records.
    pub fn source(&self) -> ServerId {
        self.source
    }

    /// Returns the range that arrives.
    pub fn range(&self) -> HashRange {
        self.range
    }

    /// Returns whether every record with this hash has been replayed.
    #[inline]
    pub fn is_below_progress(&self, hash: KeyHash) -> bool {
        self.progress_at(hash).has_passed(hash)
    }

    /// Advances the progress of a partition: everything below `to` has been replayed, or the
    /// whole partition if `to` is `None`.
    pub fn advance(&self, partition: u16, to: Option<KeyHash>) {
        let partition = &self.partitions[usize::from(partition)];
        // The highest hash cannot serve as a bound, because [`END`] has the same value: it counts
        // as one less.
        let to = to.map_or(END, |hash| hash.0.min(END - 1));
        partition.progress.fetch_max(to, Ordering::Release);
        let mut notes = partition.notes();
        if to == END {
            notes.absent.clear();
        } else {
            notes.absent = notes.absent.split_off(&(KeyHash(to), TableId(0)));
        }
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u16 {
        self.partitions.len() as u16
    }

    /// Returns the progress of a partition; `None` if it has arrived completely.
    pub fn progress(&self, partition: u16) -> Option<KeyHash> {
        let progress = self.partitions[usize::from(partition)].progress.load(Ordering::Acquire);
        (progress != END).then_some(KeyHash(progress))
    }

    /// Returns the ranges that have not arrived, ascending.
    pub fn missing(&self) -> Vec<HashRange> {
        let rest = |partition: &Partition| {
            let progress = partition.progress.load(Ordering::Acquire);
            let first = KeyHash(progress.max(partition.range.first().0));
            (progress != END).then(|| HashRange::try_from((first, partition.range.last())).ok())
        };
        self.partitions.iter().filter_map(|partition| rest(partition).flatten()).collect()
    }

    /// Returns whether every partition has arrived.
    pub fn is_complete(&self) -> bool {
        self.partitions.iter().all(|p| p.progress.load(Ordering::Acquire) == END)
    }

    /// Records that the source has no further record with this hash: it has none, or all of its
    /// records with this hash have been replayed.
    pub fn note_absent(&self, table: TableId, hash: KeyHash) {
        let partition = self.partition_of(hash);
        let mut notes = partition.notes();
        if !self.is_below_progress(hash) {
            notes.absent.insert((hash, table));
        }
    }

    /// Returns whether the source is known to have no further record with this hash.
    pub fn is_absent(&self, table: TableId, hash: KeyHash) -> bool {
        self.partition_of(hash).notes().absent.contains(&(hash, table))
    }

    /// Returns the progress of the partition that contains this hash.
    pub(super) fn progress_at(&self, hash: KeyHash) -> PartitionProgress<'_> {
        PartitionProgress { partition: self.partition_of(hash) }
    }

    /// Returns the last hash of the contiguous arrived stretch that begins at this hash, within
    /// its partition. `None` if the hash itself has not arrived.
    pub(super) fn arrived_from(&self, hash: KeyHash) -> Option<KeyHash> {
        let partition = self.partition_of(hash);
        match partition.progress.load(Ordering::Acquire) {
            END => Some(partition.range.last()),
            progress => (hash.0 < progress).then(|| KeyHash(progress - 1)),
        }
    }

    /// Ends the arrival of a table's records. The caller must block operations on the table by
    /// [`super::Tablet::flushing`] and wait for a grace period first.
    pub fn flush_table(&self, table: TableId) {
        self.flushed.fetch_or(TableSet::of(table).bits(), Ordering::Release);
    }

    /// Returns whether the table has been flushed since the flip.
    #[inline]
    pub fn is_flushed(&self, table: TableId) -> bool {
        TableSet::from_bits(self.flushed.load(Ordering::Acquire)).contains(table)
    }

    /// Returns the totals of replay so far.
    pub fn counters(&self) -> ReplayCounters {
        self.counts.load()
    }

    /// Returns whether an absent record may still arrive. Every miss in an arriving range depends
    /// on this.
    #[inline]
    pub(super) fn may_arrive(&self, table: TableId, hash: KeyHash) -> bool {
        !self.is_below_progress(hash) && !self.is_flushed(table) && !self.is_absent(table, hash)
    }

    /// Records a tombstone that was put into the index under this hash.
    pub(super) fn note_tombstone(&self, table: TableId, hash: KeyHash) {
        self.partition_of(hash).notes().tombstones.insert((hash, table));
    }

    /// Moves up to `max` tombstones that the progress has passed into `out`; after the end, up to
    /// `max` of all.
    pub(super) fn take_tombstones(&self, max: usize, out: &mut Vec<(TableId, KeyHash)>) {
        let is_over = self.is_over();
        for partition in &self.partitions {
            let progress = partition.progress.load(Ordering::Acquire);
            let mut notes = partition.notes();
            debug_assert!(
                notes.tombstones.iter().all(|(hash, _)| partition.range.contains(*hash)),
                "a partition has a tombstone of another"
            );
            while out.len() < max
                && let Some(&(hash, table)) = notes.tombstones.first()
                && (is_over || hash.0 < progress || progress == END)
            {
                notes.tombstones.pop_first();
                out.push((table, hash));
            }
        }
    }

    /// Returns the number of records that the source has reported for a slot.
    pub(super) fn expected_records(&self, table: TableId, slot: Slot) -> u32 {
        self.expected.in_slot(table, slot)
    }

    /// Returns the reservation that provides the segments of replay.
    pub(super) fn reservation(&self) -> Option<&Arc<Reservation>> {
        self.reservation.as_ref()
    }

    /// Returns the totals that replay updates.
    pub(super) fn counts(&self) -> &ReplayCounts {
        &self.counts
    }

    #[inline]
    fn partition_of(&self, hash: KeyHash) -> &Partition {
        debug_assert!(self.range.contains(hash), "{hash} is not in {}", self.range);
        let at = self.partitions.partition_point(|partition| partition.range.last() < hash);
        &self.partitions[at]
    }
}

#[derive(Clone, Copy)]
pub(super) struct PartitionProgress<'a> {
    partition: &'a Partition,
}

impl PartitionProgress<'_> {
    /// Returns the range of the partition.
    pub(super) fn range(self) -> HashRange {
        self.partition.range
    }

    /// Returns whether every record with this hash has been replayed. The hash must lie in the
    /// partition.
    #[inline]
    pub(super) fn has_passed(self, hash: KeyHash) -> bool {
        let progress = self.partition.progress.load(Ordering::Acquire);
        hash.0 < progress || progress == END
    }
}

impl Partition {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("nothing panics while it holds the notes' lock")
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} from {}", self.migration, self.range, self.source)
    }
}
