//! The access sketch: when, or how often, records were accessed, for eviction and `OBJECT`.
//!
//! Entries of the log are immutable, and index words have no spare bits. So the numbers are in
//! cells beside the index: in sets of four, chosen by the hash, each with a tag of its record. A
//! set that is full forgets the record that is closest to its eviction. Cells without tags were
//! tried: a record that shares one with a hot record is never evicted, and such records gather.
//!
//! Cells are read and written without order between them: a lost update changes only how soon a
//! record is evicted. Layout of a cell: `docs/design/eviction.md`, "Cells".
//!
//! Invariant: no time and no random number comes from here. Both are arguments.

use crate::index::UNSEEN_BITS;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::OnceLock;
use types::{EvictionOrder, KeyHash, TableId, UnixMillis};

/// Bytes of memory for one cell. With records of 300 bytes, two in five cells are in use.
const BYTES_PER_CELL: u64 = 128;

/// Cells of a set.
const WAYS: usize = 4;

/// Cells of a page, the unit in which the sketch is allocated and aged.
const PAGE_CELLS: usize = 2048;
const PAGE_SETS: usize = PAGE_CELLS / WAYS;

/// Bits of a cell below its tag.
const TAG_SHIFT: u32 = 16;

/// Count of a record that was just created, so that it is not evicted before it is read.
const COUNT_AT_START: u8 = 5;

/// Divisor of the probability that an access raises a count: a count of 255 means about a million
/// accesses.
const LOG_FACTOR: u64 = 10;

/// Time after which a count that is not raised falls by one.
const DECAY_MILLIS: u64 = 60_000;

/// Unit of recent stamps, as a power of two of milliseconds, and of old ones.
const FINE_SHIFT: u32 = 6;
const COARSE_SHIFT: u32 = 14;

/// Set in a stamp in coarse units.
const COARSE: u16 = 1 << 15;
const STAMP_MASK: u64 = (1 << 15) - 1;

/// Most units by which a stamp lies back. Older ones become coarse, or stay at this age.
const UNITS_MAX: u64 = 1 << 14;

/// The sketch of a server. It exists while a policy needs it.
#[derive(Debug)]
pub(super) struct AccessSketch {
    kind: SketchKind,
    /// Clock at the creation, when all records count as accessed.
    created: UnixMillis,
    /// Pages, each allocated at the first access to one of its cells.
    pages: Box<[OnceLock<Box<[AtomicU32]>>]>,
    /// Next page to age.
    hand: AtomicUsize,
}

/// Meaning of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SketchKind {
    /// Time of the last access.
    Recency,
    /// Logarithmic count of accesses, and the time of its last change.
    Frequency,
}

/// A moment of accesses: the clock, and a random number.
#[derive(Clone, Copy)]
pub(super) struct AccessMoment {
    pub(super) now: UnixMillis,
    pub(super) random: u64,
}

impl SketchKind {
    /// Returns the kind that an order needs, if it needs a sketch.
    pub(super) fn for_order(order: EvictionOrder) -> Option<SketchKind> {
        match order {
            EvictionOrder::Recency => Some(SketchKind::Recency),
            EvictionOrder::Frequency => Some(SketchKind::Frequency),
            EvictionOrder::Random | EvictionOrder::Expiry => None,
        }
    }
}

impl AccessSketch {
    /// Creates the sketch of a store with this much memory.
    pub(super) fn new(kind: SketchKind, memory_bytes: u64, now: UnixMillis) -> AccessSketch {
        let cells = memory_bytes / BYTES_PER_CELL;
        let pages = cells.div_ceil(PAGE_CELLS as u64).max(1);
        let pages: Box<[_]> = (0..pages).map(|_| OnceLock::new()).collect();
        assert!(!pages.is_empty(), "a sketch without cells");
        AccessSketch { kind, created: now, pages, hand: AtomicUsize::new(0) }
    }

    pub(super) fn kind(&self) -> SketchKind {
        self.kind
    }

    /// Returns the number of pages, allocated or not.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Records that a client has read the record.
    #[inline]
    pub(super) fn note_read(&self, table: TableId, hash: KeyHash, at: AccessMoment) {
        self.change(self.place(table, hash), at.now, |old| match self.kind {
            SketchKind::Recency => stamp(at.now),
            SketchKind::Frequency => count_data(raised(count_of(old, at.now), at.random), at.now),
        });
    }

    /// Records that a client has written the record, and perhaps created it: a low count becomes
    /// that of a new record. A deleted record leaves its count to the next one of its key.
    #[inline]
    pub(super) fn note_written(&self, table: TableId, hash: KeyHash, at: AccessMoment) {
        self.change(self.place(table, hash), at.now, |old| match self.kind {
            SketchKind::Recency => stamp(at.now),
            SketchKind::Frequency => match count_of(old, at.now) {
                ..=COUNT_AT_START => count_data(COUNT_AT_START, at.now),
                count => count_data(raised(count, at.random), at.now),
            },
        });
    }

    /// Sets how long the record was not accessed, or its count.
    pub(super) fn set(&self, table: TableId, hash: KeyHash, now: UnixMillis, new: Accessed) {
        let new = match (self.kind, new) {
            (SketchKind::Recency, Accessed::Before { millis }) => stamp_of_age(millis, now),
            (SketchKind::Frequency, Accessed::Times { count }) => count_data(count, now),
            (SketchKind::Recency, Accessed::Times { .. })
            | (SketchKind::Frequency, Accessed::Before { .. }) => return,
        };
        self.change(self.place(table, hash), now, |_| new);
    }

    /// Forgets a record that was evicted.
    pub(super) fn forget(&self, table: TableId, hash: KeyHash) {
        if let Some((cell, _)) = self.find(self.place(table, hash)) {
            cell.store(0, Ordering::Relaxed);
        }
    }

    /// Returns how long the record was not accessed, or its count.
    #[inline]
    pub(super) fn accessed(&self, table: TableId, hash: KeyHash, now: UnixMillis) -> Accessed {
        let found = self.find(self.place(table, hash));
        let data = found.map_or_else(|| self.initial(now), |(_, data)| data);
        match self.kind {
            SketchKind::Recency => Accessed::Before { millis: age_millis(data, now) },
            SketchKind::Frequency => Accessed::Times { count: count_of(data, now) },
        }
    }

    /// Ages the cells of up to `pages_max` pages, so that no time in them wraps around. All pages
    /// must be aged once in 15 minutes.
    pub(super) fn age(&self, pages_max: usize, now: UnixMillis) {
        for _ in 0..pages_max.min(self.pages.len()) {
            let page = self.hand.fetch_add(1, Ordering::Relaxed) % self.pages.len();
            let Some(cells) = self.pages[page].get() else { continue };
            assert!(cells.len() == PAGE_CELLS, "a page has {} cells", cells.len());
            for cell in cells {
                let old = cell.load(Ordering::Relaxed);
                let aged = match self.kind {
                    _ if old == 0 => continue,
                    SketchKind::Recency => stamp_of_age(age_millis(old as u16, now), now),
                    SketchKind::Frequency => count_data(count_of(old as u16, now), now),
                };
                if aged != old as u16 {
                    cell.store(tag_of(old) | u32::from(aged), Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns the data of a record that has no cell: it was not accessed since the creation, or
    /// others of its set are less likely to be evicted.
    fn initial(&self, now: UnixMillis) -> u16 {
        let age = now.0.saturating_sub(self.created.0);
        match self.kind {
            SketchKind::Recency => stamp_of_age(age, now),
            SketchKind::Frequency => {
                let decayed = u8::try_from(age / DECAY_MILLIS).unwrap_or(u8::MAX);
                count_data(COUNT_AT_START.saturating_sub(decayed), now)
            }
        }
    }

    /// Changes the data of a record. If it has no cell it gets one, at the expense of the record
    /// of its set that would be evicted first.
    #[inline]
    fn change(&self, place: CellPlace, now: UnixMillis, new: impl Fn(u16) -> u16) {
        let cells = self.pages[place.page].get_or_init(|| {
            let empty = || AtomicU32::new(0);
            std::iter::repeat_with(empty).take(PAGE_CELLS).collect()
        });
        if let Some((cell, old)) = self.find(place) {
            let new = new(old);
            if new != old {
                cell.store(place.tag | u32::from(new), Ordering::Relaxed);
            }
            return;
        }
        let set = cells[place.first..].iter().take(WAYS);
        let value = |cell: &&AtomicU32| self.value(cell.load(Ordering::Relaxed), now);
        if let Some(cell) = set.min_by_key(value) {
            cell.store(place.tag | u32::from(new(self.initial(now))), Ordering::Relaxed);
        }
    }

    /// Returns the value of a cell: the lower, the sooner its record is evicted.
    fn value(&self, cell: u32, now: UnixMillis) -> u64 {
        match self.kind {
            _ if cell == 0 => 0,
            SketchKind::Recency => u64::MAX - age_millis(cell as u16, now),
            SketchKind::Frequency => 1 + u64::from(count_of(cell as u16, now)),
        }
    }

    /// Returns the cell of a record with its data.
    #[inline]
    fn find(&self, place: CellPlace) -> Option<(&AtomicU32, u16)> {
        let cells = self.pages[place.page].get()?;
        let set = cells[place.first..].iter().take(WAYS);
        let mut found = set.map(|cell| (cell, cell.load(Ordering::Relaxed)));
        let (cell, content) = found.find(|(_, content)| tag_of(*content) == place.tag)?;
        Some((cell, content as u16))
    }

    #[inline]
    fn place(&self, table: TableId, hash: KeyHash) -> CellPlace {
        let seen = (hash.0 >> UNSEEN_BITS) ^ u64::from(table.0) << (u64::BITS - UNSEEN_BITS);
        let mixed = seen.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = mixed ^ mixed >> 32;
        let sets = (self.pages.len() * PAGE_SETS) as u128;
        let set = ((u128::from(mixed) * sets) >> u64::BITS) as usize;
        debug_assert!(set / PAGE_SETS < self.pages.len(), "{hash:?} is behind the last page");
        let tag = (mixed as u32 & 0xffff).max(1) << TAG_SHIFT;
        CellPlace { page: set / PAGE_SETS, first: set % PAGE_SETS * WAYS, tag }
    }
}

/// The place of a record's cell.
#[derive(Clone, Copy)]
struct CellPlace {
    page: usize,
    /// First cell of the set within the page.
    first: usize,
    /// Tag in the upper bits of a cell, not 0: an empty cell is 0.
    tag: u32,
}

#[inline]
fn tag_of(cell: u32) -> u32 {
    cell >> TAG_SHIFT << TAG_SHIFT
}

/// The accesses to a record, as far as a sketch knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessed {
    /// The last access was so long ago. At most three days.
    Before {
        /// Time since the last access, in milliseconds.
        millis: u64,
    },
    /// The logarithmic count of accesses.
    Times {
        /// The count. It falls by one in each minute.
        count: u8,
    },
}

/// Returns the stamp of an access at this time.
#[inline]
fn stamp(now: UnixMillis) -> u16 {
    ((now.0 >> FINE_SHIFT) & STAMP_MASK) as u16
}

/// Returns the stamp of an access that was `millis` ago.
fn stamp_of_age(millis: u64, now: UnixMillis) -> u16 {
    let fine = millis >> FINE_SHIFT;
    if fine <= UNITS_MAX {
        let unit = (now.0 >> FINE_SHIFT).wrapping_sub(fine);
        return (unit & STAMP_MASK) as u16;
    }
    let coarse = (millis >> COARSE_SHIFT).min(UNITS_MAX);
    debug_assert!(coarse > 0, "an age of {millis} ms is a fine one");
    let unit = (now.0 >> COARSE_SHIFT).wrapping_sub(coarse);
    (unit & STAMP_MASK) as u16 | COARSE
}

/// Returns the age of a stamp in milliseconds, in whole units.
#[inline]
fn age_millis(stamp: u16, now: UnixMillis) -> u64 {
    let shift = if stamp & COARSE == 0 { FINE_SHIFT } else { COARSE_SHIFT };
    let age = (now.0 >> shift).wrapping_sub(u64::from(stamp & !COARSE)) & STAMP_MASK;
    debug_assert!(age <= STAMP_MASK, "an age wraps around");
    age << shift
}

/// Returns the data of a count that was last changed at this time.
#[inline]
fn count_data(count: u8, now: UnixMillis) -> u16 {
    u16::from(count) << 8 | ((now.0 / DECAY_MILLIS) & 0xff) as u16
}

/// Returns a count, less what it has lost since its last change.
#[inline]
fn count_of(data: u16, now: UnixMillis) -> u8 {
    let lost = (now.0 / DECAY_MILLIS).wrapping_sub(u64::from(data & 0xff)) & 0xff;
    ((data >> 8) as u8).saturating_sub(lost as u8)
}

/// Returns the count after one more access: a Morris counter, as Redis has it.
#[inline]
fn raised(count: u8, random: u64) -> u8 {
    let odds = u64::from(count.saturating_sub(COUNT_AT_START)) * LOG_FACTOR + 1;
    if random.is_multiple_of(odds) { count.saturating_add(1) } else { count }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
