//! Segments: their states, their live bytes, and who may touch which of their bytes.
//!
//! ```text
//!  Free ──▶ Open ─────────┐           ┌──▶ Retired ──(grace period)──▶ Free
//!   ▲  └──▶ Side ──splice─┴─▶ Closed ─┤       ▲
//!   │                          ▲      └──▶ Cleaning (claimed; back to Closed if something lives)
//!   └──▶ Chunks ──▶ Free       └──────────────┘
//! ```
//!
//! A durable log's segment takes a longer way: Cleaning ──▶ Visited ──▶ Leaving ──▶ Retired. It is
//! visited when a cleaner has walked all of it, leaves when nothing in it lives, and is retired
//! when the log's directory has dropped it (`ledger.rs`).
//!
//! **Who may touch which bytes.** A segment's bytes below `written` never change until it is free
//! again; those above belong to the one [`OpenSegment`] that stands for it. So a writer needs no
//! lock and a reader no copy. Readers learn an address from the index, which is stored (release)
//! after the entry was written and loaded (acquire) before it is read; a segment becomes free only
//! through [`Reclamation`](super::Reclamation), when no reader's turn can have found it.
//!
//! **Live bytes.** The writer counts what it writes, everybody counts what dies: live = written -
//! dead. State and dead bytes share one word, so that of "the last entry died" and "the segment
//! was closed" whichever comes second sees the other, and exactly one retires the segment.

use super::{
    arena::{Arena, HugePages},
    pool::{Pool, Purpose},
    reclamation::{Reclaim, Turn},
};
use crate::{
    address::{ADDRESS_UNIT, Address},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};
use crossbeam_utils::CachePadded;
use std::{ptr::NonNull, slice, sync::Arc};
use types::SegmentId;
use wire::entry::{HEADER_BYTES, encoded_bytes_of};

/// Which piece of the arena: it holds one segment after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

/// What a segment is doing. The numbers stand in the word that counts its dead bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Nobody's.
    Free = 0,
    /// A head appends to it.
    Open = 1,
    /// Part of a side log: its entries live, and it is not the log's yet.
    Side = 2,
    /// Written to its end. Its live bytes only fall.
    Closed = 3,
    /// Claimed by a cleaner, which copies what lives.
    Cleaning = 4,
    /// Nothing in it lives; it waits until no reader can see it.
    Retired = 5,
    /// Cut into chunks for the index; holds no entries.
    Chunks = 6,
    /// Of a durable log: a cleaner has walked all of it and saved what is needed.
    Visited = 7,
    /// Of a durable log: visited, and nothing in it lives. It may still be read after a crash.
    Leaving = 8,
}

impl SegmentState {
    /// How many states there are.
    pub(super) const COUNT: usize = 9;

    const ALL: [SegmentState; SegmentState::COUNT] = [
        SegmentState::Free,
        SegmentState::Open,
        SegmentState::Side,
        SegmentState::Closed,
        SegmentState::Cleaning,
        SegmentState::Retired,
        SegmentState::Chunks,
        SegmentState::Visited,
        SegmentState::Leaving,
    ];
}

/// State (high half) and dead bytes (low half) of a segment, changed as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(state: SegmentState, dead: u32) -> Word {
        Word((state as u64) << 32 | u64::from(dead))
    }

    fn state(self) -> SegmentState {
        SegmentState::ALL[(self.0 >> 32) as usize]
    }

    fn dead(self) -> u32 {
        self.0 as u32
    }
}

/// What is known of one segment: a cache line that everybody counts the dead in, and one that
/// hardly changes but while the segment is open.
#[repr(align(64))]
struct Segment {
    word: AtomicU64,
    /// [`SegmentId`] of what stands here; 0: nothing has been written since it was free.
    id: AtomicU64,
    /// `written` as it was when the segment was closed; 0 before.
    length: AtomicU32,
    /// Bytes from the beginning that have been touched, except those of the open segment.
    touched: AtomicU32,
    /// Whether the bytes may be other than zero.
    is_used: AtomicBool,
    /// Whether its writer has handed out all of it, and that it is closed.
    is_handed_out: AtomicBool,
    tail: Tail,
}

/// How far a segment is written and safe.
#[repr(align(64))]
pub(super) struct Tail {
    /// Bytes written. Only the writer stores it.
    pub(super) written: AtomicU32,
    /// Bytes that the replicas have.
    pub(super) acknowledged: AtomicU32,
    /// Bytes that the replicas have for good.
    pub(super) stable: AtomicU32,
    /// Bytes that have been given to the replicas, or were read from them. Only the writer stores it.
    handed_out: AtomicU32,
    /// Whether what is written here is safe somewhere else until it is here.
    pub(super) is_copy: AtomicBool,
    /// Whether its writer has been asked to go on in another segment.
    is_ending: AtomicBool,
}

/// What a segment is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// What clients write.
    Writes,
    /// What is safe somewhere else until it is here: survivors, records that arrive.
    Copies,
}

/// A place in a segment up to which something is to be safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) place: Place,
    pub(super) segment: SegmentId,
    pub(super) end: u32,
}

/// What a scan sees of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glance {
    pub(super) state: SegmentState,
    pub(super) written: u32,
    pub(super) dead: u32,
    /// Bytes of it that are resident, as far as we know.
    pub(super) touched: u32,
}

impl Glance {
    pub(super) fn live(&self) -> u32 {
        // A free or chunked segment has no entries; the two loads are not one, so never below 0.
        self.written.saturating_sub(self.dead)
    }
}

/// All segments of a server with the memory that they stand in.
pub(super) struct Segments {
    arena: Arena,
    /// Base-2 logarithm of the segment size.
    shift: u32,
    table: Box<[Segment]>,
    pool: Mutex<Pool>,
    /// `pool.ordinary()`, for those who ask often.
    ordinary: CachePadded<AtomicUsize>,
    /// Places from here on are spare (see `pool.rs`).
    first_spare: Place,
    is_durable: bool,
}

impl Segments {
    /// `arena` is cut into segments of `1 << shift` bytes.
    pub(super) fn new(arena: Arena, shift: u32, pool: Pool, is_durable: bool) -> Segments {
        let places = u32::try_from(arena.bytes() >> shift).expect("arenas end at 2 TiB");
        let table = (0..places).map(|_| Segment {
            word: AtomicU64::new(Word::new(SegmentState::Free, 0).0),
            id: AtomicU64::new(0),
            length: AtomicU32::new(0),
            touched: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
            is_handed_out: AtomicBool::new(false),
            tail: Tail {
                written: AtomicU32::new(0),
                acknowledged: AtomicU32::new(0),
                stable: AtomicU32::new(0),
                handed_out: AtomicU32::new(0),
                is_copy: AtomicBool::new(false),
                is_ending: AtomicBool::new(false),
            },
        });
        Segments {
            arena,
            shift,
            table: table.collect(),
            ordinary: CachePadded::new(AtomicUsize::new(pool.ordinary())),
            first_spare: pool.first_spare(),
            pool: Mutex::new(pool),
            is_durable,
        }
    }

    #[inline]
    pub(super) fn segment_bytes(&self) -> usize {
        1 << self.shift
    }

    pub(super) fn count(&self) -> usize {
        self.table.len()
    }

    pub(super) fn first_spare(&self) -> Place {
        self.first_spare
    }

    pub(super) fn huge_pages(&self) -> HugePages {
        self.arena.huge_pages()
    }

    /// Free segments that ordinary takers may have. One relaxed load.
    #[inline]
    pub(super) fn ordinary(&self) -> usize {
        self.ordinary.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn place_of(&self, address: Address) -> Place {
        Place((address.bytes() >> self.shift) as u32)
    }

    #[inline]
    pub(super) fn address(&self, place: Place, offset: usize) -> Address {
        let bytes = ((place.0 as usize) << self.shift) + offset;
        Address::from_units((bytes / ADDRESS_UNIT) as u64)
    }

    #[inline]
    pub(super) fn id(&self, place: Place) -> SegmentId {
        SegmentId(self.segment(place).id.load(Ordering::Relaxed))
    }

    pub(super) fn glance(&self, place: Place) -> Glance {
        let segment = self.segment(place);
        let word = Word(segment.word.load(Ordering::Acquire));
        let written = segment.tail.written.load(Ordering::Acquire);
        let touched = segment.touched.load(Ordering::Relaxed).max(written);
        Glance { state: word.state(), written, dead: word.dead(), touched }
    }

    /// The bytes of the entry at `address`, padding included. An address that `append` gave out and
    /// that was found within the turn; anything else is our bug.
    #[inline(always)]
    pub(super) fn encoded<'t>(&self, address: Address, turn: &'t Turn<'_>) -> &'t [u8] {
        assert!(turn.keeps(self), "a turn of another store");
        debug_assert!(self.is_written(address), "{address:?} is not written");
        let start = self.arena.at(address.bytes(), HEADER_BYTES);
        // SAFETY: in the arena, by `at`, which is mapped and initialized while the turn lives,
        // since the turn keeps these segments. An entry stands there in full below `written`, and
        // does not change while the turn lasts (see "Who may touch which bytes").
        let header: &'t [u8; HEADER_BYTES] = unsafe { start.cast().as_ref() };
        let bytes = encoded_bytes_of(header);
        let start = self.arena.at(address.bytes(), bytes);
        // SAFETY: as above, for all bytes of the entry: its own header tells how many.
        unsafe { slice::from_raw_parts(start.as_ptr(), bytes) }
    }

    /// What has been handed out of a segment, which is the log's at some moment of the turn.
    pub(super) fn handed_out<'p>(&self, place: Place, turn: &Turn<'p>) -> &'p [u8] {
        assert!(turn.keeps(self), "a turn of another store");
        let length = self.segment(place).tail.handed_out.load(Ordering::Acquire) as usize;
        let start = self.arena.at((place.0 as usize) << self.shift, length);
        // SAFETY: in the arena, by `at`, which the turn's participant keeps for as long as it is
        // borrowed; it begins no other turn meanwhile. Bytes that were handed out are written, and
        // do not change while the turn lasts: their writer changes only what was not handed out
        // (see "Who may touch which bytes", and `OpenSegment::revise`).
        unsafe { slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// Asks for the first `bytes` of the entry to be brought near, into the second-level cache: the
    /// first level has few places for lines under way. (Measured by `store_bench`, collect with
    /// huge pages: 50 ns per record, 55 into the first level.)
    #[inline]
    pub(super) fn prefetch(&self, address: Address, bytes: usize) {
        let start = self.arena.at(address.bytes(), HEADER_BYTES).as_ptr();
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines_of(start as usize, bytes) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a prefetch reads nothing that could be seen, and it cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(line * LINE_BYTES).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, bytes);
    }

    fn is_written(&self, address: Address) -> bool {
        let offset = address.bytes() & (self.segment_bytes() - 1);
        let written = &self.segment(self.place_of(address)).tail.written;
        offset < written.load(Ordering::Acquire) as usize
    }

    /// Takes a free segment for `purpose` and opens it as `state`.
    pub(super) fn open(
        self: &Arc<Self>,
        purpose: Purpose,
        state: SegmentState,
    ) -> Option<OpenSegment> {
        let place = self.take(purpose, state)?;
        let segment = self.segment(place);
        segment.is_used.store(true, Ordering::Relaxed);
        let offset = (place.0 as usize) << self.shift;
        Some(OpenSegment {
            base: self.arena.at(offset, self.segment_bytes()),
            segments: Arc::clone(self),
            place,
            capacity: self.segment_bytes(),
            written: 0,
            handed_out: 0,
        })
    }

    /// Gives an open segment its number, before its first byte is written.
    pub(super) fn name(&self, place: Place, id: SegmentId, content: Content) {
        let segment = self.segment(place);
        segment.tail.is_copy.store(content == Content::Copies, Ordering::Relaxed);
        segment.id.store(id.0, Ordering::Release);
    }

    /// Free again without having been written to. The caller retires it.
    pub(super) fn discard(&self, place: Place) {
        assert!(self.glance(place).written == 0, "{place:?} has been written to");
        self.change(place, SegmentState::Open, SegmentState::Retired);
    }

    /// The writer is done with the segment. Returns whether nothing in it lives: the caller then
    /// retires it, and nobody else does.
    #[must_use]
    pub(super) fn close(&self, place: Place, from: SegmentState) -> bool {
        let segment = self.segment(place);
        let written = segment.tail.written.load(Ordering::Relaxed);
        segment.length.store(written, Ordering::Relaxed);
        segment.touched.fetch_max(written, Ordering::Relaxed);
        self.change(place, from, SegmentState::Closed);
        self.retires_if_dead(place)
    }

    /// Counts bytes as dead. Returns whether the caller is to retire the segment, as for `close`.
    #[inline]
    #[must_use]
    pub(super) fn kill(&self, place: Place, bytes: u32) -> bool {
        let segment = self.segment(place);
        let before = Word(segment.word.fetch_add(u64::from(bytes), Ordering::AcqRel));
        match before.state() {
            SegmentState::Open | SegmentState::Side => false,
            SegmentState::Closed | SegmentState::Cleaning | SegmentState::Visited => {
                let dead = before.dead() + bytes;
                let length = segment.length.load(Ordering::Relaxed);
                assert!(dead <= length, "{dead} bytes dead of {length} written");
                dead == length && self.retires_if_dead(place)
            }
            SegmentState::Free
            | SegmentState::Retired
            | SegmentState::Chunks
            | SegmentState::Leaving => {
                panic!("{bytes} bytes die in {place:?}, which is {:?}", before.state())
            }
        }
    }

    /// Claims a closed segment for cleaning; whether it was still closed.
    pub(super) fn claim(&self, place: Place) -> bool {
        let word = &self.segment(place).word;
        let claimed = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            let now = Word(now);
            (now.state() == SegmentState::Closed)
                .then(|| Word::new(SegmentState::Cleaning, now.dead()).0)
        });
        claimed.is_ok()
    }

    /// Ends a claim. Returns whether the caller is to retire the segment, as for `close`.
    #[must_use]
    pub(super) fn unclaim(&self, place: Place) -> bool {
        self.change(place, SegmentState::Cleaning, SegmentState::Closed);
        self.retires_if_dead(place)
    }

    /// Ends a claim for good: all that is needed has been saved. Returns as `close` does.
    #[must_use]
    pub(super) fn end_visit(&self, place: Place) -> bool {
        self.change(place, SegmentState::Cleaning, SegmentState::Visited);
        self.retires_if_dead(place)
    }

    /// The directory has dropped the segment. The caller retires it.
    pub(super) fn end_leaving(&self, place: Place) {
        self.change(place, SegmentState::Leaving, SegmentState::Retired);
    }

    /// Takes a free segment to be cut into chunks. Returns also whether it is still all zero.
    pub(super) fn take_for_chunks(&self) -> Option<(Place, bool)> {
        let place = self.take(Purpose::Ordinary, SegmentState::Chunks)?;
        let was_used = self.segment(place).is_used.swap(true, Ordering::Relaxed);
        Some((place, !was_used))
    }

    /// The first `bytes` of a segment of chunks have been handed out.
    pub(super) fn touch(&self, place: Place, bytes: u32) {
        self.segment(place).touched.fetch_max(bytes, Ordering::Relaxed);
    }

    /// A segment of chunks without a used chunk is free at once: its user has waited already.
    pub(super) fn give_chunks(&self, place: Place) {
        self.change(place, SegmentState::Chunks, SegmentState::Free);
        self.give(place);
    }

    /// Sets free segments aside for a migration; whether they are there.
    pub(super) fn reserve(&self, count: usize, margin: usize) -> bool {
        let mut pool = self.lock_pool();
        let is_there = pool.reserve(count, margin);
        self.ordinary.store(pool.ordinary(), Ordering::Relaxed);
        is_there
    }

    /// Segments of before a crash are being adopted, or no more.
    pub(super) fn set_adopting(&self, is_adopting: bool) {
        let mut pool = self.lock_pool();
        pool.set_adopting(is_adopting);
        self.ordinary.store(pool.ordinary(), Ordering::Relaxed);
    }

    /// Ends the setting aside of segments that were not taken.
    pub(super) fn unreserve(&self, count: usize) {
        let mut pool = self.lock_pool();
        pool.unreserve(count);
        self.ordinary.store(pool.ordinary(), Ordering::Relaxed);
    }

    /// Touches the first `most` of the next `within` free segments that are not resident yet; how
    /// many.
    pub(super) fn prepare(&self, within: usize, most: usize) -> usize {
        let next: Vec<Place> = self.lock_pool().next().take(within).collect();
        let bytes = self.segment_bytes();
        let is_missing = |place: &Place| self.glance(*place).touched < bytes as u32;
        // Somebody may take such a segment meanwhile: populating disturbs no content.
        let populate = |place: &Place| {
            let done = self.arena.populate((place.0 as usize) << self.shift, bytes);
            if done {
                self.touch(*place, bytes as u32);
            }
            done
        };
        let missing = next.iter().filter(|place| is_missing(place)).take(most);
        missing.filter(|place| populate(place)).count()
    }

    /// `length` bytes of the arena, for a chunk.
    pub(super) fn memory(&self, place: Place, offset: usize, length: usize) -> NonNull<u8> {
        self.arena.at(((place.0 as usize) << self.shift) + offset, length)
    }

    #[inline]
    pub(super) fn tail(&self, place: Place) -> &Tail {
        &self.segment(place).tail
    }

    /// Asks the segment's writer to go on in another one.
    pub(super) fn set_ending(&self, place: Place) {
        self.segment(place).tail.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether its writer is done with it, and has handed out all of it.
    pub(super) fn is_handed_out(&self, place: Place) -> bool {
        self.segment(place).is_handed_out.load(Ordering::Acquire)
    }

    /// Bytes from the segment's beginning to the address.
    #[inline]
    pub(super) fn offset(&self, address: Address) -> u32 {
        (address.bytes() & (self.segment_bytes() - 1)) as u32
    }

    #[inline]
    fn segment(&self, place: Place) -> &Segment {
        &self.table[place.0 as usize]
    }

    fn take(&self, purpose: Purpose, state: SegmentState) -> Option<Place> {
        if purpose == Purpose::Ordinary && self.ordinary() == 0 {
            // A full server is asked again and again: no lock for that.
            return None;
        }
        let mut pool = self.lock_pool();
        let place = pool.take(purpose)?;
        self.ordinary.store(pool.ordinary(), Ordering::Relaxed);
        drop(pool);
        self.change(place, SegmentState::Free, state);
        Some(place)
    }

    fn give(&self, place: Place) {
        let mut pool = self.lock_pool();
        pool.give(place);
        self.ordinary.store(pool.ordinary(), Ordering::Relaxed);
    }

    /// From one state to another, keeping the dead bytes; a free segment has none.
    fn change(&self, place: Place, from: SegmentState, to: SegmentState) {
        let update = |now| {
            let now = Word(now);
            assert!(now.state() == from, "{place:?} is {:?}, not {from:?}", now.state());
            let dead = if to == SegmentState::Free { 0 } else { now.dead() };
            Some(Word::new(to, dead).0)
        };
        let word = &self.segment(place).word;
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update).expect("it always updates");
    }

    /// Closed and without a live byte becomes retired, for exactly one caller. Of a durable log:
    /// visited becomes leaving.
    fn retires_if_dead(&self, place: Place) -> bool {
        let segment = self.segment(place);
        let length = segment.length.load(Ordering::Relaxed);
        let (from, to) = match self.is_durable {
            false => (SegmentState::Closed, SegmentState::Retired),
            true => (SegmentState::Visited, SegmentState::Leaving),
        };
        let (dead, retired) = (Word::new(from, length).0, Word::new(to, length).0);
        let word = &segment.word;
        word.compare_exchange(dead, retired, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn lock_pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("nothing panics while it holds the pool's lock")
    }
}

const LINE_BYTES: usize = 64;

/// Cache lines that so many bytes from this address on touch.
#[inline]
fn lines_of(start: usize, bytes: usize) -> usize {
    (start % LINE_BYTES + bytes).div_ceil(LINE_BYTES)
}

impl Reclaim for Segments {
    fn reclaim(&self, number: u64) {
        let place = Place(u32::try_from(number).expect("retired by its place"));
        let segment = self.segment(place);
        segment.id.store(0, Ordering::Relaxed);
        segment.length.store(0, Ordering::Relaxed);
        segment.is_handed_out.store(false, Ordering::Relaxed);
        segment.tail.written.store(0, Ordering::Relaxed);
        segment.tail.acknowledged.store(0, Ordering::Relaxed);
        segment.tail.stable.store(0, Ordering::Relaxed);
        segment.tail.handed_out.store(0, Ordering::Relaxed);
        segment.tail.is_ending.store(false, Ordering::Relaxed);
        self.change(place, SegmentState::Retired, SegmentState::Free);
        self.give(place);
    }
}

/// The one writer of a segment that is open or part of a side log.
pub(super) struct OpenSegment {
    segments: Arc<Segments>,
    place: Place,
    base: NonNull<u8>,
    /// Most bytes that are written.
    capacity: usize,
    written: usize,
    /// Bytes that have been given to the replicas.
    handed_out: usize,
}

// SAFETY: whoever owns it is the segment's only writer, on whatever thread; `base` points into the
// arena, which `segments` keeps.
unsafe impl Send for OpenSegment {}

impl OpenSegment {
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Bytes that still fit.
    #[inline]
    pub(super) fn space(&self) -> usize {
        self.capacity - self.written
    }

    /// Lets `write` fill the next `bytes`, a multiple of 8, and returns where they stand.
    ///
    /// # Panics
    /// If they do not fit: our bug, since callers ask for `space` first.
    #[inline]
    pub(super) fn append(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) -> Address {
        assert!(bytes <= self.space() && bytes.is_multiple_of(ADDRESS_UNIT));
        // SAFETY: `written + bytes` lies within the segment, by the assertion. Bytes from `written`
        // on are this writer's alone: no address in there has been given out since the segment was
        // free, and a segment becomes free only when nobody can read it.
        let out = unsafe { slice::from_raw_parts_mut(self.base.add(self.written).as_ptr(), bytes) };
        write(out);
        let offset = self.written;
        self.written += bytes;
        let segment = self.segments.segment(self.place);
        segment.tail.written.store(self.written as u32, Ordering::Release);
        self.segments.address(self.place, offset)
    }

    /// Lets `change` change the last entry appended, which nobody has been told of.
    ///
    /// # Panics
    /// If it has been handed out, or stands in another segment: our bug.
    pub(super) fn revise(&mut self, last: Address, change: impl FnOnce(&mut [u8])) {
        assert!(self.segments.place_of(last) == self.place);
        let offset = self.segments.offset(last) as usize;
        assert!(self.handed_out <= offset && offset < self.written);
        let length = self.written - offset;
        // SAFETY: these bytes were written by this writer, and are still its alone: their address
        // has been given out to its caller only, who takes it back.
        let entry = unsafe { slice::from_raw_parts_mut(self.base.add(offset).as_ptr(), length) };
        change(entry);
    }

    /// Bytes written so far.
    pub(super) fn written(&self) -> u32 {
        self.written as u32
    }

    /// Lets `write` fill the whole segment, which nothing was written to, and say how much of it
    /// counts as written.
    pub(super) fn fill(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        assert!(self.written == 0, "a segment that has been written to is filled");
        let bytes = self.segments.segment_bytes();
        // SAFETY: all of the segment, and this writer's alone: as in `append`.
        let out = unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), bytes) };
        self.written = write(out);
        assert!(self.written <= bytes, "{} bytes in a segment of {bytes}", self.written);
        let written = &self.segments.segment(self.place).tail.written;
        written.store(self.written as u32, Ordering::Release);
    }

    /// The number under which it is part of the log.
    #[inline]
    pub(super) fn id(&self) -> SegmentId {
        self.segments.id(self.place)
    }

    /// Keeps so many bytes at the end free.
    pub(super) fn keep_free(&mut self, bytes: usize) {
        self.capacity -= bytes;
    }

    /// Whether something has been written that was not handed out.
    #[inline]
    pub(super) fn has_unsaved(&self) -> bool {
        self.handed_out != self.written
    }

    /// Where what was not handed out begins, and its bytes.
    pub(super) fn unsaved(&self) -> (u32, &[u8]) {
        let length = self.written - self.handed_out;
        // SAFETY: these bytes lie below `written`: they were written by this writer, do not change,
        // and stay while it exists: the segment is not given up before it is handed out.
        let bytes =
            unsafe { slice::from_raw_parts(self.base.add(self.handed_out).as_ptr(), length) };
        (self.handed_out as u32, bytes)
    }

    /// All that is written counts as handed out.
    pub(super) fn set_handed_out(&mut self) {
        self.advance_handed_out(self.written - self.handed_out);
    }

    /// So many more bytes count as handed out.
    pub(super) fn advance_handed_out(&mut self, bytes: usize) {
        self.handed_out += bytes;
        assert!(self.handed_out <= self.written, "more is handed out than was written");
        let handed_out = &self.segments.segment(self.place).tail.handed_out;
        handed_out.store(self.handed_out as u32, Ordering::Release);
    }

    /// Whether the replicas have all that was handed out.
    pub(super) fn is_acknowledged(&self) -> bool {
        let (place, segment, end) = (self.place, self.id(), self.handed_out as u32);
        self.segments.is_acknowledged(&Position { place, segment, end })
    }

    /// Whether nothing more is to be written to it.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.segments.segment(self.place).tail.is_ending.load(Ordering::Relaxed)
    }

    /// As [`OpenSegment::set_handed_out`], and that it is closed.
    pub(super) fn set_closed_handed_out(&mut self) {
        self.set_handed_out();
        self.segments.segment(self.place).is_handed_out.store(true, Ordering::Release);
    }
}
