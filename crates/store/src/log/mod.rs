//! Log-structured memory: everything a client writes is an entry in a segment of the arena.
//!
//! - [`Log`]: the arena with all its segments, shared by the reactors;
//! - [`Head`]: a reactor's place to append to; [`SideLog`]: the same for what a migration brings;
//!   [`Survivors`]: the same for what the cleaner saves;
//! - [`Reclamation`], [`Participant`], [`Turn`]: when memory may be used again;
//! - [`VictimSegment`]: what the cleaner works on; [`Chunk`]: memory for the index.
//!
//! The one idea: bytes are written once, by one writer, and never changed until the whole segment
//! is free again. So appending takes no lock, reading takes no copy, and freeing is by segment. The
//! log does not know which entries live, only how many bytes of each segment: whoever takes an
//! entry out of the index says so ([`Log::kill`]).
//!
//! **Invariant:** the live bytes of a segment are those of its entries that nobody has killed.
//! **Invariant:** memory is used again only when no turn that could have seen it goes on.
//! **Invariant:** an ordinary writer never gets the last segments: some are kept for cleaning, one
//! per head for deletes.
//! **Invariant:** `unsafe` stands in `arena.rs`, `segment.rs` and `chunks.rs` only.
//!
//! Left to others: which entry of a key is the current one (index), versions, tenures and the
//! cleaner's copying (objects), when to clean and when to collect (reactors). Replication and the
//! log directory come with durability. See `docs/design/log.md`.

mod arena;
mod chunks;
mod cleaner;
mod durable;
mod head;
mod ledger;
mod pins;
mod pool;
mod reclamation;
mod safety;
mod segment;
mod side;
mod unsaved;
mod usage;

pub use arena::HugePages;
pub use chunks::Chunk;
pub use cleaner::{Candidate, VictimSegment};
pub(crate) use durable::Written;
pub use head::{Head, Survivors};
pub use ledger::LogChange;
pub use reclamation::{GracePeriod, Participant, Reclaim, Reclamation, Retired, Turn};
pub use safety::{Among, Dependency};
pub use segment::SegmentState;
pub use side::{Reservation, SideLog, Spliced};
pub use unsaved::Unsaved;
pub use usage::{SegmentCounts, Usage};

use crate::{
    address::{ARENA_BYTES_MAX, Address},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use arena::Arena;
use chunks::Chunks;
use cleaner::{Found, Search};
use durable::Durable;
use pool::{Pool, Purpose};
use segment::{Content, OpenSegment, Place, Segments};
use std::{fmt, sync::Arc};
use types::{
    SegmentId,
    limits::{REACTORS_MAX, SEGMENT_BYTES, SEGMENT_BYTES_MIN},
};
use unsaved::Backlog;
use wire::entry::{Entry, NOTE_BYTES};

/// Segments per reactor without which a server cannot work: the open one, the one kept for deletes,
/// those kept for the cleaner, one that survivors stand in, and one for the index.
const SEGMENTS_PER_REACTOR_MIN: usize = 6;

/// With fewer full-size segments than this per reactor, segments are smaller: what each reactor
/// holds open or keeps back stays below a sixteenth of the memory.
const SEGMENTS_PER_REACTOR_PLENTY: usize = 64;

/// Spare places of a durable log, by segments and by segments kept for cleaning: for what a few
/// crashes in a row add, and for an index that has grown in another order.
const SPARE_DIVISOR: usize = 8;
const SPARE_MORE: usize = 4;

/// How large the log is and who uses it.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// Memory for entries and index together; rounded down to whole segments.
    pub memory_bytes: usize,
    /// Reactors that will take part, each with one head.
    pub reactors: u16,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
    /// Whether the log will be read after a crash: somebody takes what [`Log::take_changes`] and
    /// the writers' `hand_out` give.
    pub durable: bool,
    /// Size of a segment; `None`: by the memory that there is. Into less than
    /// [`SEGMENT_BYTES_MIN`] not every entry fits that a client may write: for tests.
    pub segment_bytes: Option<usize>,
}

/// Why there is no log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The reactors' own segments would leave nothing for data.
    #[error("{given} bytes of memory are too little for {reactors} reactors: at least {needed}")]
    TooLittle {
        /// What was given.
        given: usize,
        /// The least that works.
        needed: usize,
        /// For so many reactors.
        reactors: u16,
    },
    /// Addresses do not reach so far.
    #[error("{given} bytes of memory are too much: at most {ARENA_BYTES_MAX}")]
    TooMuch {
        /// What was given.
        given: usize,
    },
    /// Segments cannot have this size.
    #[error(
        "segments of {given} bytes: a power of two up to {SEGMENT_BYTES} is possible, and \
         {SEGMENTS_PER_REACTOR_MIN} of them per reactor must fit into the memory"
    )]
    SegmentBytes {
        /// What was given.
        given: usize,
    },
    /// The system does not give the address space.
    #[error("the system refuses to map {bytes} bytes of memory: {error}")]
    Refused {
        /// What was asked for.
        bytes: usize,
        /// What the system said.
        error: rustix::io::Errno,
    },
}

/// There is no free segment for this purpose. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub struct OutOfMemory;

/// One server's log: the arena, its segments, and their reclamation.
pub struct Log {
    segments: Arc<Segments>,
    reclamation: Reclamation,
    chunks: Chunks,
    reactors: u16,
    /// What a log is that will be read after a crash.
    durable: Option<Durable>,
    /// The last number given to a segment of a log that is not durable.
    last_id: AtomicU64,
    /// Segments that the memory is worth; those in spare places come on top.
    count: usize,
    /// Below this many free segments the cleaner works.
    low: usize,
    /// Free segments that a reservation was refused for want of, until one is granted or the
    /// cleaner finds nothing more to do.
    asked: AtomicUsize,
    /// Where the next search for a victim begins.
    search_from: AtomicU32,
    /// Windows of the table that were searched in vain, one after the other.
    vain_searches: AtomicU32,
    /// See [`Log::is_exhausted`].
    is_exhausted: AtomicBool,
}

impl Log {
    /// Maps the memory; touches none of it.
    pub fn new(config: &LogConfig) -> Result<Arc<Log>, LogError> {
        let &LogConfig { memory_bytes: given, reactors, huge_pages, durable, .. } = config;
        let segment_bytes = segment_bytes_for(config)?;
        let count = given / segment_bytes;
        let kept_for_cleaning = usize::from(reactors) + cleaner::KEPT_MORE;
        let pool = Pool::new(count as u32, kept_for_cleaning);
        let spare =
            if durable { count / SPARE_DIVISOR + SPARE_MORE * kept_for_cleaning } else { 0 };
        let spare = spare.min(ARENA_BYTES_MAX / segment_bytes - count);
        let bytes = (count + spare) * segment_bytes;
        let arena = Arena::map(bytes, segment_bytes, huge_pages)
            .map_err(|error| LogError::Refused { bytes, error })?;
        let shift = segment_bytes.trailing_zeros();
        let pool = pool.with_spare(spare as u32);
        let segments = Arc::new(Segments::new(arena, shift, pool, durable));
        Ok(Arc::new(Log {
            reclamation: Reclamation::new(reactors, segments.clone()),
            chunks: Chunks::new(),
            reactors,
            durable: durable.then(Durable::new),
            last_id: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
            low: (count * cleaner::LOW_PERCENT).div_ceil(100),
            count,
            search_from: AtomicU32::new(0),
            vain_searches: AtomicU32::new(0),
            is_exhausted: AtomicBool::new(false),
            segments,
        }))
    }

    /// When memory may be used again.
    #[inline]
    pub fn reclamation(&self) -> &Reclamation {
        &self.reclamation
    }

    /// A place to append to: one per reactor. Keeps a segment back for deletes from now on; opens
    /// its first segment when it is written to.
    pub fn head(self: &Arc<Self>) -> Head {
        Head::new(Arc::clone(self))
    }

    /// A side log without a reservation; see [`Reservation::side_log`].
    pub fn side_log(self: &Arc<Self>) -> SideLog {
        SideLog::new(Arc::clone(self), None, Some(Vec::new()))
    }

    /// A side log whose segments do not wait for each other to be spliced.
    pub fn side_log_of_recoveries(self: &Arc<Self>) -> SideLog {
        SideLog::new(Arc::clone(self), None, None)
    }

    /// The same for what is not safe anywhere else.
    pub fn side_log_of_unsettled(self: &Arc<Self>) -> SideLog {
        SideLog::of_writes(Arc::clone(self))
    }

    /// Where a cleaner puts what lives: one per reactor. At most one victim at a time per
    /// survivors: the segments kept for cleaning are counted on that.
    pub fn survivors(self: &Arc<Self>) -> Survivors {
        Survivors::new(Arc::clone(self))
    }

    /// The entry at an address that was found within the turn.
    #[inline(always)]
    pub fn entry<'t>(&self, address: Address, turn: &'t Turn<'_>) -> Entry<'t> {
        parse(self.segments.encoded(address, turn))
    }

    /// The bytes of the entry at an address that was found within the turn, padding included.
    #[inline]
    pub fn encoded<'t>(&self, address: Address, turn: &'t Turn<'_>) -> &'t [u8] {
        self.segments.encoded(address, turn)
    }

    /// Hints that the first `bytes` of the entry will be read soon.
    #[inline]
    pub fn prefetch(&self, address: Address, bytes: usize) {
        self.segments.prefetch(address, bytes);
    }

    /// The entry at the address, with its padding `bytes` long, is dead: nobody who looks from now
    /// on finds it. A closed segment without a live byte is retired at once.
    #[inline]
    pub fn kill(&self, address: Address, bytes: u32) {
        self.kill_in(self.segments.place_of(address), bytes);
    }

    #[inline]
    fn kill_in(&self, place: Place, bytes: u32) {
        if self.segments.kill(place, bytes) {
            self.give_up(place);
        }
    }

    /// The segment in which an entry stands.
    #[inline]
    pub fn segment_of(&self, address: Address) -> SegmentId {
        self.segments.id(self.segments.place_of(address))
    }

    /// Size of a segment.
    #[inline]
    pub fn segment_bytes(&self) -> usize {
        self.segments.segment_bytes()
    }

    /// Memory for entries and index together.
    #[inline]
    pub(crate) fn total_bytes(&self) -> u64 {
        (self.count * self.segment_bytes()) as u64
    }

    /// Most bytes that entries appended in one go may take together.
    #[inline]
    pub fn batch_bytes_max(&self) -> usize {
        self.segment_bytes() - if self.is_durable() { NOTE_BYTES } else { 0 }
    }

    /// How much memory is used for what. Looks at every segment: not for the data path.
    pub fn usage(&self) -> Usage {
        let pinned_bytes = self.durable.as_ref().map_or(0, |durable| durable.pins.bytes());
        let total_bytes = self.total_bytes();
        let usage = usage::usage(&self.segments, self.chunks.used_bytes());
        Usage { total_bytes, pinned_bytes, ..usage }
    }

    /// Whether so little is free that the cleaner should work.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.free_soon() < self.low()
    }

    /// Segments that writers may have, or may have without further cleaning.
    #[inline]
    fn free_soon(&self) -> usize {
        let ending = self.durable.as_ref().map_or(0, |durable| durable.ledger.ending());
        self.segments.ordinary() + ending
    }

    fn low(&self) -> usize {
        self.low.max(self.asked.load(Ordering::Relaxed))
    }

    /// Whether an ordinary writer would get a segment.
    #[inline]
    pub fn has_free(&self) -> bool {
        self.has_free_segments(1)
    }

    /// Whether ordinary writers would get so many.
    #[inline]
    pub fn has_free_segments(&self, count: usize) -> bool {
        self.segments.ordinary() >= count
    }

    /// As [`Log::has_free_segments`]; if not, the cleaner works until they would, or until it finds
    /// nothing more: asking again can help.
    pub fn demand_segments(&self, count: usize) -> bool {
        let is_there = self.has_free_segments(count);
        if !is_there {
            self.asked.fetch_max(count, Ordering::Relaxed);
        }
        is_there
    }

    /// How much memory is missing, in percent: 0 while half of what the cleaner aims at is free, 100
    /// when nothing is.
    #[inline]
    pub fn shortage_percent(&self) -> u8 {
        let half = self.low.div_ceil(2);
        let missing = half.saturating_sub(self.segments.ordinary());
        (100 * missing / half) as u8
    }

    /// Whether waiting brings no memory: it is all taken, and the cleaner has found that nothing
    /// more can be won.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed) && !self.has_free()
    }

    /// Claims the closed segment with the fewest live bytes, if cleaning it is worth it.
    pub fn emptiest(self: &Arc<Self>) -> Option<VictimSegment> {
        let count = self.segments.count() as u32;
        let window = count.min(cleaner::SEARCH_SEGMENTS as u32);
        let from = self.search_from.fetch_add(window, Ordering::Relaxed) % count;
        let places = (0..window).map(|i| Place((from + i) % count));
        let free = self.free_soon();
        // What is not safe yet may still be waited for where it stands.
        let may_go =
            |place: &Place| !self.is_durable() || self.segments.is_wholly_acknowledged(*place);
        let places = places.filter(may_go);
        let live_bytes_max = cleaner::live_bytes_max(self.segment_bytes(), free, self.low());
        let search = Search { segment_bytes: self.segment_bytes(), live_bytes_max };
        match search.among(places, |place| self.segments.glance(place)) {
            Found::Victim(place) => {
                self.forget_searches();
                let claimed = self.segments.claim(place);
                claimed.then(|| VictimSegment::new(Arc::clone(self), place))
            }
            Found::UnderWay => {
                self.forget_searches();
                None
            }
            Found::Nothing => {
                let vain = self.vain_searches.fetch_add(1, Ordering::Relaxed) + 1;
                if vain >= count.div_ceil(window) {
                    self.forget_searches();
                    self.asked.store(0, Ordering::Relaxed);
                    self.is_exhausted.store(free == 0, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// What was searched in vain may be worth it now.
    fn forget_searches(&self) {
        self.vain_searches.store(0, Ordering::Relaxed);
        self.is_exhausted.store(false, Ordering::Relaxed);
    }

    /// Sets free segments aside for `bytes` of side logs; `None` if there are not so many. One
    /// segment per reactor is left to the writers. After a refusal the cleaner works until there
    /// are so many, however much is free already: asking again can help.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let count = usize::try_from(bytes.div_ceil(self.segment_bytes() as u64)).ok()?;
        let margin = usize::from(self.reactors);
        let is_there = self.segments.reserve(count, margin);
        let asked = if is_there { 0 } else { count + margin };
        self.asked.store(if self.could_free(asked) { asked } else { 0 }, Ordering::Relaxed);
        is_there.then(|| Reservation::new(Arc::clone(self), count))
    }

    /// Whether so many segments would be free if nothing dead took any room.
    fn could_free(&self, count: usize) -> bool {
        let Usage { total_bytes, live_bytes, chunk_bytes, segment_bytes, .. } = self.usage();
        let room = total_bytes.saturating_sub(live_bytes + chunk_bytes);
        count as u64 <= room / segment_bytes
    }

    /// Whether the turn is one of this log's reactors': what it finds in the arena stays there.
    #[inline]
    pub(crate) fn vouches_for(&self, turn: &Turn<'_>) -> bool {
        turn.keeps(&*self.segments)
    }

    /// Takes 64 KiB for the index, zeroed.
    pub fn take_chunk(&self) -> Option<Chunk> {
        self.chunks.take(&self.segments)
    }

    /// Takes a chunk back that nobody reads any more.
    pub fn give_chunk(&self, chunk: Chunk) {
        self.chunks.give(&self.segments, chunk);
    }

    /// Looks at the `within` segments that will be opened next and touches the pages of the first
    /// `most` that need it, so that no reactor pays for them; returns how many it touched. For a
    /// helper thread: each takes a millisecond or more. Where the system cannot do that, nothing
    /// happens, and the pages come when they are used.
    pub fn prepare_segments(&self, within: usize, most: usize) -> usize {
        self.segments.prepare(within, most)
    }

    fn open(&self, purpose: Purpose, state: SegmentState) -> Option<OpenSegment> {
        let open = self.segments.open(purpose, state);
        if open.is_some() {
            self.forget_searches();
        }
        open
    }

    /// Makes an open segment part of the log: its first bytes are about to be written.
    fn begin(&self, mut open: OpenSegment, content: Content) -> OpenSegment {
        match &self.durable {
            Some(durable) => {
                durable.ledger.open(&self.segments, open.place(), content);
                match content {
                    // Room for the note that what lives in it needs when it is copied.
                    Content::Writes => open.keep_free(NOTE_BYTES),
                    Content::Copies => {}
                }
            }
            None => {
                let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
                self.segments.name(open.place(), SegmentId(id), content);
            }
        }
        open
    }

    /// Its writer is done with a segment.
    fn end(&self, full: OpenSegment, backlog: &mut Backlog) {
        let place = full.place();
        self.seal(full, backlog);
        self.close(place, SegmentState::Open);
    }

    /// Nothing will be written to the segment any more; it is not to be cleaned yet.
    fn seal(&self, full: OpenSegment, backlog: &mut Backlog) {
        if let Some(durable) = &self.durable {
            durable.ledger.close(full.id(), full.written());
            backlog.push(full);
        }
    }

    fn close(&self, place: Place, from: SegmentState) {
        if self.segments.close(place, from) {
            self.give_up(place);
        }
    }

    /// An open segment that was never begun is free again.
    fn discard(&self, open: OpenSegment) {
        self.segments.discard(open.place());
        self.retire(open.place());
    }

    fn unclaim(&self, place: Place) {
        if self.segments.unclaim(place) {
            self.give_up(place);
        }
    }

    fn end_visit(&self, place: Place) {
        self.ours().ledger.count_visited();
        if self.segments.end_visit(place) {
            self.give_up(place);
        }
    }

    /// Nothing lives in the segment, and nothing in it is to be saved.
    fn give_up(&self, place: Place) {
        match &self.durable {
            Some(durable) => durable.ledger.begin_leaving(&self.segments, place),
            None => self.retire(place),
        }
    }

    fn retire(&self, place: Place) {
        self.forget_searches();
        let owner = Arc::clone(&self.segments) as Arc<dyn Reclaim>;
        self.reclamation.retire(Retired::Numbered { owner, number: u64::from(place.0) });
    }
}

/// The size of a segment.
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

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// An entry in our own memory.
#[inline]
fn parse(encoded: &[u8]) -> Entry<'_> {
    Entry::parse(encoded).expect("an entry in the log is as it was written")
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
