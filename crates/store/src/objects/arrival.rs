//! A range that is arriving: what the store must know of a migration at its target.
//!
//! The one idea: each partition of the range has a *progress*, the hash below which everything has
//! been replayed. Below it, what is not here does not exist. Above it, a record that is not here
//! may still arrive, unless the source has said that it has none (a note), or the table has been
//! flushed since.
//!
//! Invariants:
//! - progress only rises, and is advanced after the replay it stands for, by a release store that
//!   readers meet with an acquire load;
//! - a delete above the progress leaves a tombstone in the index and is noted here, so that the
//!   sweep finds it when the progress has passed.
//!
//! Asking for records, and judging what has been replayed: `protocols::migration`.

use super::replay::{ReplayCounters, ReplayCounts};
use super::tablets::TableSet;
use super::view::View;
use crate::log::Reservation;
use crate::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use types::{HashRange, KeyHash, MigrationId, ServerId, Slot, TableId};
use wire::peer::RecordCounts;

/// Progress of a partition that has arrived to its end.
const END: u64 = u64::MAX;

/// The target's side of one migration.
pub struct Arrival {
    migration: MigrationId,
    source: ServerId,
    range: HashRange,
    partitions: Box<[Partition]>,
    /// Records that the source has told of: their leaves are made once at their final size.
    expected: RecordCounts,
    /// Operations on the range are held.
    is_suspended: AtomicBool,
    /// Tables flushed since the flip.
    flushed: AtomicU16,
    /// Segments set aside for what arrives; given back when the arrival is dropped.
    reservation: Option<Arc<Reservation>>,
    counts: ReplayCounts,
}

/// A part of the range that is pulled on its own.
struct Partition {
    range: HashRange,
    /// Every hash below has arrived; [`END`]: every hash of the partition has.
    progress: AtomicU64,
    notes: Mutex<Notes>,
}

/// What is known about hashes above the progress.
#[derive(Default)]
struct Notes {
    /// The source has no record with this hash.
    absent: BTreeSet<(KeyHash, TableId)>,
    /// A tombstone stands in the index.
    buried: BTreeSet<(KeyHash, TableId)>,
}

/// What a migration's target asks an [`Arrival`] to be made of.
pub struct ArrivalPlan {
    /// The migration.
    pub migration: MigrationId,
    /// Who has the records.
    pub source: ServerId,
    /// What arrives.
    pub range: HashRange,
    /// The range, divided: ascending, without gap.
    pub partitions: Vec<HashRange>,
    /// Records at the source.
    pub expected: RecordCounts,
    /// Memory set aside for them, if there is to be any.
    pub reservation: Option<Arc<Reservation>>,
}

impl Arrival {
    /// An arrival of which nothing has arrived.
    ///
    /// # Panics
    /// If the partitions are not the range, divided: our bug.
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
            flushed: AtomicU16::new(0),
            reservation,
            counts: ReplayCounts::default(),
        }
    }

    /// Holds operations on the range from now on, or lets them go on.
    pub fn suspend(&self, is_suspended: bool) {
        self.is_suspended.store(is_suspended, Ordering::Release);
    }

    /// Returns whether operations on the range are held.
    #[inline]
    pub fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Acquire)
    }

    /// The migration.
    pub fn migration(&self) -> MigrationId {
        self.migration
    }

    /// Who has the records.
    pub fn source(&self) -> ServerId {
        self.source
    }

    /// What arrives.
    pub fn range(&self) -> HashRange {
        self.range
    }

    /// Whether every record with this hash has been replayed.
    #[inline]
    pub fn is_below_progress(&self, hash: KeyHash) -> bool {
        self.progress_at(hash).has_passed(hash)
    }

    /// Everything of the partition below `to` has been replayed; `None`: all of it.
    pub fn advance(&self, partition: u16, to: Option<KeyHash>) {
        let partition = &self.partitions[usize::from(partition)];
        // The highest hash of all is no bound that tells "below" from "all": it counts as one less.
        let to = to.map_or(END, |hash| hash.0.min(END - 1));
        partition.progress.fetch_max(to, Ordering::Release);
        let mut notes = partition.notes();
        if to == END {
            notes.absent.clear();
        } else {
            notes.absent = notes.absent.split_off(&(KeyHash(to), TableId(0)));
        }
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u16 {
        self.partitions.len() as u16
    }

    /// Where the partition has got to; `None`: to its end.
    pub fn progress(&self, partition: u16) -> Option<KeyHash> {
        let progress = self.partitions[usize::from(partition)].progress.load(Ordering::Acquire);
        (progress != END).then_some(KeyHash(progress))
    }

    /// What of the range has not arrived, ascending.
    pub fn missing(&self) -> Vec<HashRange> {
        let rest = |partition: &Partition| {
            let progress = partition.progress.load(Ordering::Acquire);
            let first = KeyHash(progress.max(partition.range.first().0));
            (progress != END).then(|| HashRange::try_from((first, partition.range.last())).ok())
        };
        self.partitions.iter().filter_map(|partition| rest(partition).flatten()).collect()
    }

    /// Whether every partition has arrived.
    pub fn is_complete(&self) -> bool {
        self.partitions.iter().all(|p| p.progress.load(Ordering::Acquire) == END)
    }

    /// The source holds no record with this hash, and never will. Also said when all that it holds
    /// has been replayed.
    pub fn note_absent(&self, table: TableId, hash: KeyHash) {
        let partition = self.partition_of(hash);
        let mut notes = partition.notes();
        if !self.is_below_progress(hash) {
            notes.absent.insert((hash, table));
        }
    }

    /// Whether the source is known to hold nothing more under this hash.
    pub fn is_absent(&self, table: TableId, hash: KeyHash) -> bool {
        self.partition_of(hash).notes().absent.contains(&(hash, table))
    }

    /// The progress that this hash waits for.
    pub(super) fn progress_at(&self, hash: KeyHash) -> Progress<'_> {
        Progress { partition: self.partition_of(hash) }
    }

    /// The last hash of the stretch that has arrived without a gap from this hash on, within its
    /// partition; `None` if the hash itself has not.
    pub(super) fn arrived_from(&self, hash: KeyHash) -> Option<KeyHash> {
        let partition = self.partition_of(hash);
        match partition.progress.load(Ordering::Acquire) {
            END => Some(partition.range.last()),
            progress => (hash.0 < progress).then(|| KeyHash(progress - 1)),
        }
    }

    /// Nothing of the table arrives from here on. To be called while operations on the table are
    /// held by [`super::Tablet::flushing`] and a grace period after that was published.
    pub fn flush_table(&self, table: TableId) {
        self.flushed.fetch_or(TableSet::of(table).bits(), Ordering::Release);
    }

    /// Whether the table has been flushed since the flip.
    #[inline]
    pub fn is_flushed(&self, table: TableId) -> bool {
        TableSet::from_bits(self.flushed.load(Ordering::Acquire)).contains(table)
    }

    /// How much has arrived so far.
    pub fn counters(&self) -> ReplayCounters {
        self.counts.load()
    }

    /// Whether a record that is not here may still come: the one question of every miss.
    #[inline]
    pub(super) fn may_arrive(&self, table: TableId, hash: KeyHash) -> bool {
        !self.is_below_progress(hash) && !self.is_flushed(table) && !self.is_absent(table, hash)
    }

    /// A tombstone has been put into the index under this hash.
    pub(super) fn note_buried(&self, table: TableId, hash: KeyHash) {
        self.partition_of(hash).notes().buried.insert((hash, table));
    }

    /// Takes up to `max` tombstones that the progress has passed, into `out`.
    pub(super) fn take_buried(&self, max: usize, out: &mut Vec<(TableId, KeyHash)>) {
        for partition in &self.partitions {
            let progress = partition.progress.load(Ordering::Acquire);
            let mut notes = partition.notes();
            while out.len() < max
                && let Some(&(hash, table)) = notes.buried.first()
                && (hash.0 < progress || progress == END)
            {
                notes.buried.pop_first();
                out.push((table, hash));
            }
        }
    }

    /// Makes the slot's leaf at the size that it will have, if there is none. Without memory for
    /// it nothing happens: it grows as others do.
    pub(super) fn make_leaf(&self, view: &View<'_>, slot: Slot) {
        if view.index.is_used(slot) {
            return;
        }
        let _ = view.index.reserve(slot, self.expected.in_slot(view.table, slot), view.turn);
    }

    /// Where replay takes its segments from.
    pub(super) fn reservation(&self) -> Option<&Arc<Reservation>> {
        self.reservation.as_ref()
    }

    /// Where what has arrived is counted.
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

/// One partition's progress.
#[derive(Clone, Copy)]
pub(super) struct Progress<'a> {
    partition: &'a Partition,
}

impl Progress<'_> {
    /// The hashes of the partition.
    pub(super) fn range(self) -> HashRange {
        self.partition.range
    }

    /// Whether every record with this hash, which lies in the range, has been replayed.
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
