//! Log-structured memory: every write of a client is an entry in a segment of the arena.
//!
//! - [`Log`]: the arena with all its segments, shared by the reactors;
//! - [`Head`]: the append position of one reactor; [`SideLog`]: the same for records that arrive
//!   or are recovered; [`Survivors`]: the same for the cleaner's copies;
//! - [`Reclamation`], [`Participant`], [`Turn`]: the rules for reusing memory;
//! - [`VictimSegment`]: the segment that a cleaner works on; [`Chunk`]: memory for the index.
//!
//! The log knows how many bytes of each segment are live, but not which entries. The caller that
//! removes an entry from the index marks it as dead ([`Log::mark_dead`]). The idea and the
//! invariants are in `docs/design/log.md`. Only `arena.rs`, `segment.rs` and `chunks.rs` contain
//! `unsafe`.
//!
//! Outside this module: the current entry of a key (index); versions, incarnations and the
//! cleaner's copying (objects); when to clean and when to collect (reactors); replication and the
//! segment manifest (`server`, `protocols`).

mod appender;
mod arena;
mod chunks;
mod cleaner;
mod durable;
mod head;
mod marks;
mod persistence;
mod pins;
mod pool;
mod readiness;
mod ready_segments;
mod reclamation;
mod registry;
mod safety;
mod segment;
mod send_order;
mod side;
mod state;
mod unsaved;
mod usage;

pub use arena::HugePages;
pub use chunks::Chunk;
pub use cleaner::{Candidate, VictimSegment};
pub use head::{Head, Survivors};
pub(crate) use marks::MarkBarrier;
pub(crate) use persistence::EntryEnd;
pub use readiness::{Preparation, WakeHelpers};
pub use ready_segments::ReadySegments;
pub use reclamation::{GracePeriod, Participant, Reclaim, Reclamation, Turn};
pub use registry::LogChange;
pub use safety::{Among, Dependency};
pub use side::{Reservation, SideLog, SideLogKind};
pub use state::SegmentState;
pub use unsaved::{Backlog, Unsaved};
pub use usage::{LogLength, SegmentCounts, Usage};

use crate::address::{ARENA_BYTES_MAX, Address};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use arena::Arena;
use chunks::ChunkTable;
use cleaner::{CleaningDemand, VictimChoice, VictimCriteria};
use durable::DurableLog;
use pool::{Pool, SegmentPurpose};
use segment::{OpenSegment, Segments, SegmentsConfig};
use state::{ContentKind, Place};
use std::sync::Arc;
use types::SegmentId;
use types::limits::{REACTORS_MAX, SEGMENT_BYTES, SEGMENT_BYTES_MIN};
use wire::entry::{Entry, NOTE_BYTES};

/// Minimum number of segments per reactor: the open one, the one kept for deletes, those kept for
/// the cleaner, one with survivors, and one for the index.
const SEGMENTS_PER_REACTOR_MIN: usize = 6;

/// Number of full-size segments per reactor below which segments are smaller, because of the open
/// and reserved ones: the cleaner copies more for each byte that they withhold
/// (`docs/design/cleaner.md`).
const SEGMENTS_PER_REACTOR_PLENTY: usize = 256;

/// Live bytes above which records should be evicted, in percent of the memory that writers can use.
/// See `docs/design/eviction.md`, "The limit".
const LIVE_PERCENT_MAX: usize = 90;

/// Segments of a reactor that hold few live bytes: the one kept for deletes, and the free parts of
/// its head and survivors.
const OCCUPIED_PER_REACTOR: usize = 2;

/// Spare places of a durable log: a part of its segments, and a multiple of the segments kept for
/// cleaning. They absorb the growth from a few crashes in a row, and an index that grew in
/// another order.
const SPARE_DIVISOR: usize = 8;
const SPARE_MORE: usize = 4;

/// Size and use of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// Memory for entries and index together, in bytes; rounded down to whole segments.
    pub memory_bytes: usize,
    /// Number of reactors, each with one head.
    pub reactors: u16,
    /// Set if the log requests huge pages.
    pub huge_pages: bool,
    /// Set if the log is read again after a crash. The caller must then process
    /// [`Log::take_changes`] and the writers' `hand_out`.
    pub durable: bool,
    /// Segment size in bytes; `None` derives it from the memory size. Not every entry that a
    /// client may write fits into less than [`SEGMENT_BYTES_MIN`]: such sizes are for tests.
    pub segment_bytes: Option<usize>,
}

/// The reason why a log cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The reactors' own segments would leave no memory for data.
    #[error("{given} bytes of memory are too few for {reactors} reactors: needs at least {needed}")]
    TooLittle {
        /// Memory given, in bytes.
        given: usize,
        /// Minimum that works, in bytes.
        needed: usize,
        /// Number of reactors.
        reactors: u16,
    },
    /// Addresses do not reach so far.
    #[error("{given} bytes of memory are too much: give at most {ARENA_BYTES_MAX}")]
    TooMuch {
        /// Memory given, in bytes.
        given: usize,
    },
    /// Segments cannot have this size.
    #[error(
        "segments cannot have {given} bytes: use a power of two up to {SEGMENT_BYTES}, of which \
         {SEGMENTS_PER_REACTOR_MIN} per reactor fit into the memory"
    )]
    SegmentBytes {
        /// Segment size given, in bytes.
        given: usize,
    },
    /// The operating system refuses the address space.
    #[error("the operating system refuses to map {bytes} bytes of memory: {error}")]
    Refused {
        /// Bytes requested.
        bytes: usize,
        /// Error of the operating system.
        error: rustix::io::Errno,
    },
}

/// Error of a request for a segment: no free segment for this purpose. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub struct OutOfMemory;

/// One server's log: the arena, its segments, and their reclamation.
pub struct Log {
    segments: Arc<Segments>,
    reclamation: Reclamation,
    chunks: ChunkTable,
    reactors: u16,
    /// State of a durable log; `None` if the log is not read after a crash.
    durable: Option<DurableLog>,
    /// Last number given to a segment of a log that is not durable.
    last_id: AtomicU64,
    /// Number of segments that fit into the memory, without spare places.
    count: usize,
    /// Number of these segments above the memory limit in effect.
    withheld: AtomicUsize,
    /// Free segments that the cleaner must provide.
    demand: CleaningDemand,
    /// Bytes that cleaners have copied.
    copied: AtomicU64,
}

impl Log {
    /// Creates a log and maps its memory without touching it.
    pub fn new(config: &LogConfig) -> Result<Arc<Log>, LogError> {
        let &LogConfig { memory_bytes: given, reactors, huge_pages, durable, .. } = config;
        let segment_bytes = segment_bytes_for(config)?;
        let count = given / segment_bytes;
        let kept_for_cleaning = usize::from(reactors) + cleaner::KEPT_MORE;
        assert!(count > kept_for_cleaning, "{count} segments leave none for writers");
        let pool = Pool::new(count as u32, kept_for_cleaning);
        let spare =
            if durable { count / SPARE_DIVISOR + SPARE_MORE * kept_for_cleaning } else { 0 };
        let spare = spare.min(ARENA_BYTES_MAX / segment_bytes - count);
        let bytes = (count + spare) * segment_bytes;
        let arena = Arena::map(bytes, segment_bytes, huge_pages)
            .map_err(|error| LogError::Refused { bytes, error })?;
        let shift = segment_bytes.trailing_zeros();
        let pool = pool.with_spare(spare as u32);
        let config = SegmentsConfig { shift, reactors, is_durable: durable };
        let segments = Arc::new(Segments::new(arena, pool, config));
        Ok(Arc::new(Log {
            reclamation: Reclamation::new(reactors, segments.clone()),
            chunks: ChunkTable::new(),
            reactors,
            durable: durable.then(|| DurableLog::new(Arc::clone(&segments))),
            last_id: AtomicU64::new(0),
            demand: CleaningDemand::new(count, reactors),
            count,
            withheld: AtomicUsize::new(0),
            copied: AtomicU64::new(0),
            segments,
        }))
    }

    /// Returns the reclamation, which decides when memory may be reused.
    #[inline]
    pub fn reclamation(&self) -> &Reclamation {
        &self.reclamation
    }

    /// Returns a head: one per reactor. The head reserves a segment for deletes immediately and
    /// opens its first segment at the first write.
    pub fn head(self: &Arc<Self>) -> Head {
        Head::new(Arc::clone(self))
    }

    /// Returns a side log.
    pub fn side_log(self: &Arc<Self>, kind: SideLogKind) -> SideLog {
        SideLog::new(Arc::clone(self), kind)
    }

    /// Returns the cleaner's copy destination: one per reactor. Each may work on at most one
    /// victim at a time; the number of segments kept for cleaning relies on this.
    pub fn survivors(self: &Arc<Self>) -> Survivors {
        Survivors::new(Arc::clone(self))
    }

    /// Returns the entry at an address that was found within the turn.
    #[inline(always)]
    pub fn entry<'t>(&self, address: Address, turn: &'t Turn<'_>) -> Entry<'t> {
        parse(self.segments.encoded(address, turn))
    }

    /// Returns the encoded entry, with padding, at an address that was found within the turn.
    #[inline]
    pub fn encoded<'t>(&self, address: Address, turn: &'t Turn<'_>) -> &'t [u8] {
        self.segments.encoded(address, turn)
    }

    /// Prefetches the first `bytes` of the entry.
    #[inline]
    pub fn prefetch(&self, address: Address, bytes: usize) {
        self.segments.prefetch(address, bytes);
    }

    /// Marks the entry at the address as dead. `bytes` is its length with padding. No search may
    /// find the entry any more. A closed segment without live bytes is retired immediately.
    #[inline]
    pub fn mark_dead(&self, address: Address, bytes: u32) {
        self.mark_dead_in(self.segments.place_of(address), bytes);
    }

    #[inline]
    fn mark_dead_in(&self, place: Place, bytes: u32) {
        if self.segments.mark_dead(place, bytes) {
            self.give_up(place);
        }
    }

    /// Returns the number of the segment that contains an entry.
    #[inline]
    pub fn segment_of(&self, address: Address) -> SegmentId {
        self.segments.id(self.segments.place_of(address))
    }

    /// Returns the size of a segment in bytes.
    #[inline]
    pub fn segment_bytes(&self) -> usize {
        self.segments.segment_bytes()
    }

    /// Returns the memory limit in effect, for entries and index together, in bytes.
    #[inline]
    pub(crate) fn total_bytes(&self) -> u64 {
        (self.limit_segments() * self.segment_bytes()) as u64
    }

    #[inline]
    fn limit_segments(&self) -> usize {
        self.count - self.withheld.load(Ordering::Relaxed)
    }

    /// Returns the lowest memory limit with which the reactors can work, in bytes.
    pub fn limit_min(&self) -> usize {
        SEGMENTS_PER_REACTOR_MIN * usize::from(self.reactors) * self.segment_bytes()
    }

    /// Changes the memory limit, up to the one at the creation. Writers get no segment above it;
    /// what is stored stays.
    pub fn set_limit(&self, bytes: u64) {
        let segments = usize::try_from(bytes).unwrap_or(usize::MAX) / self.segment_bytes();
        let withheld = self.count - segments.clamp(1, self.count);
        assert!(withheld < self.count, "{withheld} segments are withheld of {}", self.count);
        if self.withheld.swap(withheld, Ordering::Relaxed) != withheld {
            self.segments.change_pool(|pool| pool.set_withheld(withheld));
            self.demand.reset_searches();
        }
    }

    /// Returns the live bytes of entries and index that leave the cleaner enough to win: above
    /// this limit, records should be evicted.
    pub fn live_bytes_max(&self) -> u64 {
        let reactors = usize::from(self.reactors);
        let kept = reactors * OCCUPIED_PER_REACTOR + reactors + cleaner::KEPT_MORE;
        let reserved = self.segments.free_counts().reserved;
        let usable = self.limit_segments().saturating_sub(kept + reserved).max(1);
        debug_assert!(usable <= self.count, "{usable} segments are usable of {}", self.count);
        (usable * self.segment_bytes() / 100 * LIVE_PERCENT_MAX) as u64
    }

    /// Returns whether more memory is in use than records may need. Only then may the live bytes
    /// exceed [`Log::live_bytes_max`].
    #[inline]
    pub fn may_be_crowded(&self) -> bool {
        self.segments.ordinary() * 100 < self.limit_segments() * (100 - LIVE_PERCENT_MAX)
    }

    /// Adds up the live bytes of entries in `count` places from `first` on, and returns the place
    /// that follows. At the end, where that is 0, the sum includes the index, and leaves out what
    /// only the cleaner can free.
    pub fn live_bytes_from(&self, first: u32, count: u32) -> (i64, u32) {
        let places = self.segments.count() as u32;
        assert!(first < places && count > 0, "{count} places from {first} on");
        let next = first.saturating_add(count).min(places);
        let live = |place| i64::from(self.segments.glance(Place(place)).live());
        let bytes = (first..next).map(live).sum::<i64>();
        if next < places {
            return (bytes, next);
        }
        let pinned = self.durable.as_ref().map_or(0, |durable| durable.pins.bytes());
        (bytes + self.chunks.used_bytes() as i64 - pinned as i64, 0)
    }

    /// Returns the maximum total length of entries that are appended as a batch, in bytes.
    #[inline]
    pub fn batch_bytes_max(&self) -> usize {
        self.segment_bytes() - if self.is_durable() { NOTE_BYTES } else { 0 }
    }

    /// Returns the memory usage. Scans all segments: not for the data path.
    pub fn usage(&self) -> Usage {
        let pinned_bytes = self.durable.as_ref().map_or(0, |durable| durable.pins.bytes());
        let total_bytes = self.total_bytes();
        let copied_bytes = self.copied.load(Ordering::Relaxed);
        let usage = usage::usage(&self.segments, self.chunks.used_bytes());
        Usage { total_bytes, pinned_bytes, copied_bytes, ..usage }
    }

    /// Returns the length of a durable log in segments, without scanning them.
    pub fn length(&self) -> Option<LogLength> {
        self.durable.as_ref().map(|durable| durable.registry.length())
    }

    /// Returns whether so little memory is free that the cleaner should work.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.free_soon() < self.demand.segments()
    }

    /// Returns the number of segments that ordinary writers may take, now or without further
    /// cleaning.
    #[inline]
    fn free_soon(&self) -> usize {
        let ending = self.durable.as_ref().map_or(0, |durable| durable.registry.ending());
        self.segments.ordinary() + ending
    }

    /// Returns whether an ordinary writer would get a segment.
    #[inline]
    pub fn has_free(&self) -> bool {
        self.segments.ordinary() > 0
    }

    /// Returns whether ordinary writers would get `count` segments. If not, the cleaner works until
    /// they would or it finds no more victims: a retry can help.
    pub fn demand_segments(&self, count: usize) -> bool {
        let is_there = self.segments.ordinary() >= count;
        if !is_there {
            self.demand.raise(count);
        }
        is_there
    }

    /// Withdraws all demands: the cleaner works only while memory is low.
    pub fn withdraw_demands(&self) {
        self.demand.set(0);
    }

    /// Returns the memory shortage in percent: 0 while half of the cleaner's target is free, 100
    /// when nothing is.
    #[inline]
    pub fn shortage_percent(&self) -> u8 {
        self.demand.shortage_percent(self.segments.ordinary())
    }

    /// Returns whether waiting cannot free memory: all segments are taken, and the cleaner has
    /// found nothing to win.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        self.demand.is_exhausted() && !self.has_free()
    }

    /// Claims the closed segment of the next search window that is most worth cleaning, if one is.
    /// A window has all segments of an arena of up to 2,048 segments.
    pub fn claim_victim(self: &Arc<Self>) -> Option<VictimSegment> {
        let count = self.segments.count() as u32;
        let free = self.free_soon();
        let newest = match &self.durable {
            Some(durable) => durable.registry.last(),
            None => SegmentId(self.last_id.load(Ordering::Relaxed)),
        };
        // Unacknowledged bytes stay in place, because pending replies may refer to their
        // position.
        let may_go = |place| !self.is_durable() || self.segments.is_wholly_acknowledged(place);
        let age = |place| newest.0.saturating_sub(self.segments.id(place).0) + 1;
        let age = |place| may_go(place).then(|| age(place));
        let places = self.demand.next_window(count);
        let criteria = VictimCriteria { segment_bytes: self.segment_bytes() };
        match criteria.choose(places, age, |place| self.segments.glance(place)) {
            VictimChoice::Victim(place) => {
                self.demand.reset_searches();
                let claimed = self.segments.claim(place);
                claimed.then(|| VictimSegment::new(Arc::clone(self), place))
            }
            VictimChoice::UnderWay => {
                self.demand.reset_searches();
                None
            }
            VictimChoice::Nothing => {
                self.demand.record_vain_search(count, free);
                None
            }
        }
    }

    /// Reserves free segments for `bytes` of side logs; `None` if there are not enough. One
    /// segment per reactor is left to the writers. After a refusal the cleaner works until there
    /// are enough, however much is free already: a retry can help.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let count = usize::try_from(bytes.div_ceil(self.segment_bytes() as u64)).ok()?;
        let margin = usize::from(self.reactors);
        let is_there = self.segments.reserve(count, margin);
        let asked = if is_there { 0 } else { count + margin };
        self.demand.set(if self.could_free(asked) { asked } else { 0 });
        is_there.then(|| Reservation::new(Arc::clone(self), count))
    }

    /// Returns whether `count` segments would be free if dead entries took no room.
    fn could_free(&self, count: usize) -> bool {
        let Usage { total_bytes, live_bytes, chunk_bytes, segment_bytes, .. } = self.usage();
        let room = total_bytes.saturating_sub(live_bytes + chunk_bytes);
        count as u64 <= room / segment_bytes
    }

    /// Returns whether the turn belongs to a reactor of this log. Only then do found entries stay
    /// valid during the turn.
    #[inline]
    pub(crate) fn vouches_for(&self, turn: &Turn<'_>) -> bool {
        turn.keeps(&*self.segments)
    }

    /// Takes a zeroed chunk of 64 KiB for the index.
    pub fn take_chunk(&self) -> Option<Chunk> {
        self.chunks.take(&self.segments)
    }

    /// Gives the index a segment that the caller has drawn from a reservation.
    fn lend_to_index(&self) {
        let is_there = self.chunks.add_segment(&self.segments, SegmentPurpose::Reserved);
        assert!(is_there, "a reserved segment is free");
    }

    /// Returns a chunk to the log. No reader may use it any more.
    pub fn give_chunk(&self, chunk: Chunk) {
        self.chunks.give(&self.segments, chunk);
    }

    fn open(&self, purpose: SegmentPurpose, state: SegmentState) -> Option<OpenSegment> {
        let open = self.segments.open(purpose, state);
        if open.is_some() {
            self.demand.reset_searches();
        }
        open
    }

    /// Adds an open segment to the log, before its first byte is written.
    fn begin(&self, mut open: OpenSegment, content: ContentKind) -> OpenSegment {
        assert!(open.written() == 0, "a segment is written to before it is in the log");
        match &self.durable {
            Some(durable) => {
                durable.registry.open(&self.segments, open.place(), content);
                match content {
                    // Reserves space for the copy-origin note that a cleaner adds when it copies
                    // the segment.
                    ContentKind::Writes => open.keep_free(NOTE_BYTES),
                    ContentKind::Copies => {}
                }
            }
            None => {
                let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
                self.segments.name(open.place(), SegmentId(id), content);
            }
        }
        open
    }

    fn close(&self, place: Place, from: SegmentState) {
        if self.segments.close(place, from) {
            self.give_up(place);
        }
    }

    fn unclaim(&self, place: Place) {
        if self.segments.unclaim(place) {
            self.give_up(place);
        }
    }

    fn end_visit(&self, place: Place) {
        self.durable_log().registry.count_visited();
        if self.segments.end_visit(place) {
            self.give_up(place);
        }
    }

    /// Retires a segment without live entries, or begins its removal from a durable log.
    fn give_up(&self, place: Place) {
        match &self.durable {
            Some(durable) => durable.registry.begin_leaving(&self.segments, place),
            None => self.retire(place),
        }
    }

    fn retire(&self, place: Place) {
        let state = self.segments.glance(place).state;
        assert!(state == SegmentState::Retired, "{place:?} is retired, but is {state:?}");
        self.demand.reset_searches();
        let owner = Arc::clone(&self.segments) as Arc<dyn Reclaim>;
        self.reclamation.retire(owner, u64::from(place.0));
    }
}

/// Returns the size of a segment in bytes.
fn segment_bytes_for(config: &LogConfig) -> Result<usize, LogError> {
    let &LogConfig { memory_bytes: given, reactors, segment_bytes, .. } = config;
    assert!((1..=REACTORS_MAX).contains(&usize::from(reactors)), "{reactors} reactors");
    let per_reactor = given / usize::from(reactors);
    let is_plenty = per_reactor >= SEGMENTS_PER_REACTOR_PLENTY * SEGMENT_BYTES;
    let chosen = if is_plenty { SEGMENT_BYTES } else { SEGMENT_BYTES_MIN };
    let needed = |bytes: usize| SEGMENTS_PER_REACTOR_MIN * usize::from(reactors) * bytes;
    let is_possible =
        |bytes: usize| bytes.is_power_of_two() && (Chunk::BYTES..=SEGMENT_BYTES).contains(&bytes);
    if given > ARENA_BYTES_MAX {
        return Err(LogError::TooMuch { given });
    }
    match segment_bytes {
        Some(bytes) if is_possible(bytes) && given >= needed(bytes) => Ok(bytes),
        Some(given) => Err(LogError::SegmentBytes { given }),
        None if given >= needed(SEGMENT_BYTES_MIN) => Ok(chosen),
        None => Err(LogError::TooLittle { given, needed: needed(SEGMENT_BYTES_MIN), reactors }),
    }
}

/// Parses an entry in the arena, which is always valid.
#[inline]
fn parse(encoded: &[u8]) -> Entry<'_> {
    Entry::parse(encoded).expect("an entry in the log is as it was written")
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
