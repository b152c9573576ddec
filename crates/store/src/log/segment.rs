//! Segments: their states, their live bytes, and the rules for access to their bytes.
//!
//! ```text
//!  Free ──▶ Open ─────────┐           ┌──▶ Retired ──(grace period)──▶ Free
//!   ▲  └──▶ Side ──splice─┴─▶ Closed ─┤       ▲
//!   │                          ▲      └──▶ Cleaning (claimed; back to Closed if live bytes remain)
//!   └──▶ Chunks ──▶ Free       └──────────────┘
//! ```
//!
//! A segment of a durable log has two more states: Cleaning ──▶ Visited ──▶ Leaving ──▶ Retired.
//! It is visited when a cleaner has processed all of it, is leaving when it has no live bytes,
//! and is retired when it may leave the log (`registry.rs`).
//!
//! **Access to bytes.** The bytes below `written` do not change until the segment is free again.
//! The bytes above belong exclusively to its [`OpenSegment`]. So a writer needs no lock and a
//! reader no copy. Readers get an address from the index. The index word is stored (release)
//! after the entry was written and loaded (acquire) before it is read. A segment becomes free
//! only through [`Reclamation`](super::Reclamation), after every turn that can have found it.
//!
//! **Live bytes.** The writer counts written bytes, and all threads count dead bytes: live =
//! written - dead. State and dead bytes share one word. So the later of "the last entry died" and
//! "the segment was closed" sees the earlier one, and exactly one of them retires the segment.
#![expect(unsafe_code, reason = "a segment has one writer and readers without a lock")]

use super::arena::{Arena, HugePages};
use super::pool::{FreeCounts, Pool, SegmentPurpose};
use super::readiness::Readiness;
use super::reclamation::{Reclaim, Turn};
use super::state::{ContentKind, LogPosition, Place, SegmentSnapshot, SegmentState, StateWord};
use crate::address::{ADDRESS_UNIT, Address};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crossbeam_utils::CachePadded;
use std::{ptr::NonNull, slice, sync::Arc};
use types::SegmentId;
use wire::entry::{HEADER_BYTES, encoded_bytes_of};

/// Metadata of a segment: one cache line in which all threads count dead bytes, and one that
/// changes only while the segment is open.
#[repr(align(64))]
struct Segment {
    word: AtomicU64,
    /// Number of the segment at this place; 0 if nothing was written since it was free.
    id: AtomicU64,
    /// Value of `written` when the segment was closed; 0 before.
    length: AtomicU32,
    /// Touched bytes from the beginning, except those of the open segment.
    touched: AtomicU32,
    /// End of the last entry that later writes in other segments must not outlive; see
    /// `send_order.rs`.
    ordered: AtomicU32,
    /// Set if bytes may be nonzero.
    is_used: AtomicBool,
    /// Set if the writer has sent all bytes and the end of the segment.
    is_handed_out: AtomicBool,
    tail: Tail,
}

/// Progress of a segment: appended, sent, acknowledged, synced.
#[repr(align(64))]
pub(super) struct Tail {
    /// Appended bytes. Only the writer stores this.
    pub(super) written: AtomicU32,
    /// Bytes that the replicas have acknowledged.
    pub(super) acknowledged: AtomicU32,
    /// Bytes that all replicas have that are left after the loss of one.
    pub(super) held: AtomicU32,
    /// Bytes that the replicas have synced.
    pub(super) synced: AtomicU32,
    /// Bytes that were sent to the replicas or read from them. Only the writer stores this.
    handed_out: AtomicU32,
    /// Set if the contents are durable elsewhere until they are durable here.
    pub(super) is_copy: AtomicBool,
    /// Set if the writer has been asked to continue in another segment.
    is_ending: AtomicBool,
}

/// Size and use of the segments.
#[derive(Clone, Copy)]
pub(super) struct SegmentsConfig {
    /// Base-2 logarithm of the segment size.
    pub(super) shift: u32,
    pub(super) reactors: u16,
    pub(super) is_durable: bool,
}

/// All segments of a server, with their memory.
pub(super) struct Segments {
    arena: Arena,
    /// Base-2 logarithm of the segment size.
    shift: u32,
    table: Box<[Segment]>,
    pool: Mutex<Pool>,
    /// Cached `pool.ordinary()`, for frequent readers.
    ordinary: CachePadded<AtomicUsize>,
    pub(super) readiness: Readiness,
    /// First spare place (see `pool.rs`).
    first_spare: Place,
    is_durable: bool,
}

impl Segments {
    /// Divides `arena` into segments of `1 << shift` bytes.
    pub(super) fn new(arena: Arena, pool: Pool, config: SegmentsConfig) -> Segments {
        let SegmentsConfig { shift, reactors, is_durable } = config;
        let places = u32::try_from(arena.bytes() >> shift).expect("arenas end at 2 TiB");
        assert!(pool.first_spare().0 <= places, "the pool has more places than the arena");
        let table = (0..places).map(|_| Segment {
            word: AtomicU64::new(StateWord::new(SegmentState::Free, 0).raw()),
            id: AtomicU64::new(0),
            length: AtomicU32::new(0),
            touched: AtomicU32::new(0),
            ordered: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
            is_handed_out: AtomicBool::new(false),
            tail: Tail {
                written: AtomicU32::new(0),
                acknowledged: AtomicU32::new(0),
                held: AtomicU32::new(0),
                synced: AtomicU32::new(0),
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
            readiness: Readiness::new(reactors, 1 << shift, pool.counts()),
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

    /// Returns the number of free segments that ordinary writers may take. One relaxed load.
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

    pub(super) fn glance(&self, place: Place) -> SegmentSnapshot {
        let segment = self.segment(place);
        let word = StateWord::from_raw(segment.word.load(Ordering::Acquire));
        let written = segment.tail.written.load(Ordering::Acquire);
        let touched = segment.touched.load(Ordering::Relaxed).max(written);
        SegmentSnapshot { state: word.state(), written, dead: word.dead(), touched }
    }

    /// Returns the encoded entry at `address`, with padding. `append` must have returned the
    /// address, and the caller must have found it within the turn.
    #[inline(always)]
    pub(super) fn encoded<'t>(&self, address: Address, turn: &'t Turn<'_>) -> &'t [u8] {
        assert!(turn.keeps(self), "a turn of another store");
        debug_assert!(self.is_written(address), "{address:?} is not written");
        let start = self.arena.at(address.bytes(), HEADER_BYTES);
        // SAFETY: `at` checks that the range is in the arena, which is mapped and initialized
        // while the turn lives, since the turn keeps these segments. A complete entry is below
        // `written`, and does not change while the turn lasts (see "Access to bytes").
        let header: &'t [u8; HEADER_BYTES] = unsafe { start.cast().as_ref() };
        let bytes = encoded_bytes_of(header);
        let start = self.arena.at(address.bytes(), bytes);
        // SAFETY: as above, for all bytes of the entry: its own header contains the length.
        unsafe { slice::from_raw_parts(start.as_ptr(), bytes) }
    }

    /// Returns the sent bytes of a segment that belongs to the log at some moment of the turn.
    pub(super) fn handed_out<'p>(&self, place: Place, turn: &Turn<'p>) -> &'p [u8] {
        assert!(turn.keeps(self), "a turn of another store");
        let length = self.segment(place).tail.handed_out.load(Ordering::Acquire) as usize;
        let start = self.arena.at((place.0 as usize) << self.shift, length);
        // SAFETY: `at` checks that the range is in the arena. The turn's participant keeps the
        // arena for as long as it is borrowed, and begins no other turn meanwhile. Sent bytes are
        // written and do not change while the turn lasts: their writer changes only bytes that
        // were not sent (see "Access to bytes", and `OpenSegment::revise`).
        unsafe { slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// Prefetches the first `bytes` of the entry into the second-level cache, because the first
    /// level supports few outstanding lines. (Measured by `store_bench`, collect with huge pages:
    /// 50 ns per record, 55 into the first level.)
    #[inline]
    pub(super) fn prefetch(&self, address: Address, bytes: usize) {
        let start = self.arena.at(address.bytes(), HEADER_BYTES).as_ptr();
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines_of(start as usize, bytes) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a prefetch has no visible effect, and it cannot fault.
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

    /// Takes a free segment for `purpose` and opens it in `state`.
    pub(super) fn open(
        self: &Arc<Self>,
        purpose: SegmentPurpose,
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

    /// Assigns a number to an open segment, before its first byte is written.
    pub(super) fn name(&self, place: Place, id: SegmentId, content: ContentKind) {
        let segment = self.segment(place);
        segment.tail.is_copy.store(content == ContentKind::Copies, Ordering::Relaxed);
        let before = segment.id.swap(id.0, Ordering::Release);
        assert!(before == 0, "{place:?} gets number {id}, but has number {before}");
    }

    /// Closes a segment that its writer has completed. Returns whether it has no live bytes. Then
    /// the caller must retire it, and no other thread does.
    #[must_use]
    pub(super) fn close(&self, place: Place, from: SegmentState) -> bool {
        let segment = self.segment(place);
        let written = segment.tail.written.load(Ordering::Relaxed);
        let before = segment.length.swap(written, Ordering::Relaxed);
        assert!(before == 0, "{place:?} is closed twice");
        segment.touched.fetch_max(written, Ordering::Relaxed);
        self.change(place, from, SegmentState::Closed);
        self.retires_if_dead(place)
    }

    /// Counts bytes as dead. Returns whether the caller must retire the segment, as `close` does.
    #[inline]
    #[must_use]
    pub(super) fn mark_dead(&self, place: Place, bytes: u32) -> bool {
        debug_assert!(bytes > 0 && bytes as usize <= self.segment_bytes(), "{bytes} bytes die");
        let segment = self.segment(place);
        let before =
            StateWord::from_raw(segment.word.fetch_add(u64::from(bytes), Ordering::AcqRel));
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

    /// Claims a closed segment for cleaning. Returns whether it was still closed.
    pub(super) fn claim(&self, place: Place) -> bool {
        let word = &self.segment(place).word;
        let claimed = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            let now = StateWord::from_raw(now);
            (now.state() == SegmentState::Closed)
                .then(|| StateWord::new(SegmentState::Cleaning, now.dead()).raw())
        });
        claimed.is_ok()
    }

    /// Ends a claim. Returns whether the caller must retire the segment, as `close` does.
    #[must_use]
    pub(super) fn unclaim(&self, place: Place) -> bool {
        self.change(place, SegmentState::Cleaning, SegmentState::Closed);
        self.retires_if_dead(place)
    }

    /// Completes cleaning: everything needed has been copied. Returns the same as `close`.
    #[must_use]
    pub(super) fn end_visit(&self, place: Place) -> bool {
        self.change(place, SegmentState::Cleaning, SegmentState::Visited);
        self.retires_if_dead(place)
    }

    /// Moves a segment that leaves the log to the retired state. The caller retires it.
    pub(super) fn end_leaving(&self, place: Place) {
        assert!(self.is_handed_out(place), "{place:?} leaves before all of it was sent");
        self.change(place, SegmentState::Leaving, SegmentState::Retired);
    }

    /// Takes a free segment for chunks. Returns also whether it is still zeroed.
    pub(super) fn take_for_chunks(&self, purpose: SegmentPurpose) -> Option<(Place, bool)> {
        let place = self.take(purpose, SegmentState::Chunks)?;
        let was_used = self.segment(place).is_used.swap(true, Ordering::Relaxed);
        Some((place, !was_used))
    }

    /// Records that the first `bytes` of a segment have been touched.
    pub(super) fn touch(&self, place: Place, bytes: u32) {
        self.segment(place).touched.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Frees a segment without used chunks immediately: the chunks' user has already waited for
    /// readers.
    pub(super) fn give_chunks(&self, place: Place) {
        self.change(place, SegmentState::Chunks, SegmentState::Free);
        self.give(place);
    }

    /// Reserves free segments for a migration. Returns whether there are enough.
    pub(super) fn reserve(&self, count: usize, margin: usize) -> bool {
        self.change_pool(|pool| pool.reserve(count, margin))
    }

    /// Begins or ends the adoption of segments from before a crash.
    pub(super) fn set_adopting(&self, is_adopting: bool) {
        self.change_pool(|pool| pool.set_adopting(is_adopting));
    }

    /// Returns reserved segments that were not taken.
    pub(super) fn unreserve(&self, count: usize) {
        self.change_pool(|pool| pool.unreserve(count));
    }

    /// Keeps one free segment for deletes. Returns whether there was one.
    pub(super) fn keep_for_deletes(&self) -> bool {
        self.ordinary() > 0 && self.change_pool(Pool::keep_for_deletes)
    }

    /// Returns a segment that was kept for deletes and not taken.
    pub(super) fn release_for_deletes(&self) {
        self.change_pool(Pool::release_for_deletes);
    }

    /// Makes writers wait for ready segments.
    pub(super) fn set_has_helpers(&self) {
        self.change_pool(Pool::set_has_helpers);
    }

    /// Returns the number of free segments by readiness.
    pub(super) fn free_counts(&self) -> FreeCounts {
        self.lock_pool().counts()
    }

    /// Makes the next fresh segment ready if fewer than `wanted` are, with `shares` also one that
    /// another thread prepares. Returns `false` if there is nothing to do.
    pub(super) fn prepare_next(&self, wanted: usize, shares: bool) -> bool {
        let next = self.lock_pool().begin_preparing(wanted, shares);
        let Some(place) = next else { return false };
        let bytes = self.segment_bytes();
        // Another thread may take the segment meanwhile: populating does not change its content.
        // Where populating is not supported, a touched segment is as good as any other.
        if self.arena.populate((place.0 as usize) << self.shift, bytes) {
            self.touch(place, bytes as u32);
        }
        self.change_pool(|pool| pool.set_ready(place));
        self.readiness.count_prepared();
        true
    }

    /// Gives the memory of ready segments back to the operating system, except `level` of them
    /// and those that were used since the last call. Returns the number of segments.
    pub(super) fn trim(&self, level: usize) -> usize {
        let mut trimmed = 0;
        while let Some(place) = self.change_pool(|pool| pool.take_to_trim(level)) {
            let offset = (place.0 as usize) << self.shift;
            // SAFETY: the segment is free, so no reader can find an address in it. It is in no
            // list of the pool, so no writer can take it, and no helper thread touches it.
            let is_zero = unsafe { self.arena.give_back(offset, self.segment_bytes()) };
            if is_zero {
                self.segment(place).touched.store(0, Ordering::Relaxed);
                self.segment(place).is_used.store(false, Ordering::Relaxed);
                trimmed += 1;
            }
            self.change_pool(|pool| pool.give(place, !is_zero));
            if !is_zero {
                break;
            }
        }
        self.change_pool(Pool::end_trimming);
        trimmed
    }

    /// Returns a pointer to `length` bytes of the arena, for a chunk.
    pub(super) fn memory(&self, place: Place, offset: usize, length: usize) -> NonNull<u8> {
        self.arena.at(((place.0 as usize) << self.shift) + offset, length)
    }

    #[inline]
    pub(super) fn tail(&self, place: Place) -> &Tail {
        &self.segment(place).tail
    }

    #[inline]
    pub(super) fn ordered(&self, place: Place) -> &AtomicU32 {
        &self.segment(place).ordered
    }

    /// Asks the segment's writer to continue in another one.
    pub(super) fn set_ending(&self, place: Place) {
        self.segment(place).tail.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns whether the writer has closed the segment and sent all of it.
    pub(super) fn is_handed_out(&self, place: Place) -> bool {
        self.segment(place).is_handed_out.load(Ordering::Acquire)
    }

    /// Returns the offset of the address in its segment.
    #[inline]
    pub(super) fn offset(&self, address: Address) -> u32 {
        (address.bytes() & (self.segment_bytes() - 1)) as u32
    }

    #[inline]
    fn segment(&self, place: Place) -> &Segment {
        &self.table[place.0 as usize]
    }

    fn take(&self, purpose: SegmentPurpose, state: SegmentState) -> Option<Place> {
        let is_ordinary = matches!(purpose, SegmentPurpose::Writes | SegmentPurpose::Other);
        if is_ordinary && self.ordinary() == 0 {
            // A full server checks this repeatedly, so it must not take the lock.
            return None;
        }
        let place = self.change_pool(|pool| {
            let place = pool.take(purpose);
            if place.is_none() && pool.counts().ready == 0 {
                self.readiness.await_ready();
            }
            place
        })?;
        self.change(place, SegmentState::Free, state);
        Some(place)
    }

    /// Returns a free segment to the pool. It is ready if all of it has been touched.
    fn give(&self, place: Place) {
        let touched = self.segment(place).touched.load(Ordering::Relaxed);
        let is_ready = touched as usize == self.segment_bytes();
        self.change_pool(|pool| pool.give(place, is_ready));
    }

    /// Changes the pool, and then the numbers for readers without a lock.
    pub(super) fn change_pool<T>(&self, change: impl FnOnce(&mut Pool) -> T) -> T {
        let mut pool = self.lock_pool();
        let result = change(&mut pool);
        self.ordinary.store(pool.ordinary(), Ordering::Relaxed);
        self.readiness.publish(pool.counts());
        drop(pool);
        self.readiness.wake_helpers();
        result
    }

    /// Changes the state and keeps the dead bytes, which are reset for a free segment.
    fn change(&self, place: Place, from: SegmentState, to: SegmentState) {
        assert!(from.may_become(to), "{place:?} cannot change from {from:?} to {to:?}");
        let update = |now| {
            let now = StateWord::from_raw(now);
            assert!(now.state() == from, "{place:?} is {:?}, not {from:?}", now.state());
            let dead = if to == SegmentState::Free { 0 } else { now.dead() };
            Some(StateWord::new(to, dead).raw())
        };
        let word = &self.segment(place).word;
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update).expect("it always updates");
    }

    /// Changes a closed segment without live bytes to retired, for exactly one caller. In a
    /// durable log it changes a visited segment to leaving.
    fn retires_if_dead(&self, place: Place) -> bool {
        let segment = self.segment(place);
        let length = segment.length.load(Ordering::Relaxed);
        let (from, to) = match self.is_durable {
            false => (SegmentState::Closed, SegmentState::Retired),
            true => (SegmentState::Visited, SegmentState::Leaving),
        };
        let (dead, retired) =
            (StateWord::new(from, length).raw(), StateWord::new(to, length).raw());
        let word = &segment.word;
        word.compare_exchange(dead, retired, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn lock_pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("nothing panics while it holds the pool's lock")
    }
}

const LINE_BYTES: usize = 64;

/// Returns the number of cache lines that `bytes` from this address on touch.
#[inline]
fn lines_of(start: usize, bytes: usize) -> usize {
    (start % LINE_BYTES + bytes).div_ceil(LINE_BYTES)
}

impl Reclaim for Segments {
    fn reclaim(&self, number: u64) {
        let place = Place(u32::try_from(number).expect("retired by its place"));
        let SegmentSnapshot { state, written, dead, .. } = self.glance(place);
        assert!(state == SegmentState::Retired, "{place:?} is {state:?} and cannot be reused");
        assert!(written == dead, "{place:?} is reused with {written} bytes, {dead} of them dead");
        let segment = self.segment(place);
        segment.id.store(0, Ordering::Relaxed);
        segment.length.store(0, Ordering::Relaxed);
        segment.ordered.store(0, Ordering::Relaxed);
        segment.is_handed_out.store(false, Ordering::Relaxed);
        segment.tail.written.store(0, Ordering::Relaxed);
        segment.tail.acknowledged.store(0, Ordering::Relaxed);
        segment.tail.held.store(0, Ordering::Relaxed);
        segment.tail.synced.store(0, Ordering::Relaxed);
        segment.tail.handed_out.store(0, Ordering::Relaxed);
        segment.tail.is_ending.store(false, Ordering::Relaxed);
        self.change(place, SegmentState::Retired, SegmentState::Free);
        self.give(place);
    }
}

/// The exclusive writer of a segment that is open or part of a side log.
pub(super) struct OpenSegment {
    segments: Arc<Segments>,
    place: Place,
    base: NonNull<u8>,
    /// Limit of appended bytes.
    capacity: usize,
    written: usize,
    /// Bytes that were sent to the replicas.
    handed_out: usize,
}

// SAFETY: the owner is the segment's only writer, on whatever thread; `base` points into the
// arena, which `segments` keeps.
unsafe impl Send for OpenSegment {}

impl OpenSegment {
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Returns the number of bytes that still fit.
    #[inline]
    pub(super) fn space(&self) -> usize {
        self.capacity - self.written
    }

    /// Lets `write` fill the next `bytes`, a multiple of 8, and returns their address.
    ///
    /// # Panics
    /// If they do not fit: a bug of the caller, which must check `space` first.
    #[inline]
    pub(super) fn append(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) -> Address {
        assert!(bytes <= self.space() && bytes.is_multiple_of(ADDRESS_UNIT));
        // SAFETY: `written + bytes` lies within the segment, by the assertion. Bytes from
        // `written` on are exclusive to this writer: no address in there was returned since the
        // segment was free, and a segment becomes free only when no reader can access it.
        let out = unsafe { slice::from_raw_parts_mut(self.base.add(self.written).as_ptr(), bytes) };
        write(out);
        let offset = self.written;
        self.written += bytes;
        let segment = self.segments.segment(self.place);
        segment.tail.written.store(self.written as u32, Ordering::Release);
        self.segments.address(self.place, offset)
    }

    /// Lets `change` modify the last appended entry, which is not visible to any reader.
    ///
    /// # Panics
    /// If it has been sent, or is in another segment: a bug of the caller.
    pub(super) fn revise(&mut self, last: Address, change: impl FnOnce(&mut [u8])) {
        assert!(self.segments.place_of(last) == self.place);
        let offset = self.segments.offset(last) as usize;
        assert!(self.handed_out <= offset && offset < self.written);
        let length = self.written - offset;
        // SAFETY: this writer wrote these bytes, and they are still exclusive to it: only its
        // caller knows their address, and the caller discards it.
        let entry = unsafe { slice::from_raw_parts_mut(self.base.add(offset).as_ptr(), length) };
        change(entry);
    }

    /// Returns the number of appended bytes.
    pub(super) fn written(&self) -> u32 {
        self.written as u32
    }

    /// Lets `write` fill the whole unwritten segment and return the number of valid bytes.
    pub(super) fn fill(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        assert!(self.written == 0, "a segment that has been written to is filled");
        let bytes = self.segments.segment_bytes();
        // SAFETY: all of the segment, exclusive to this writer: as in `append`.
        let out = unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), bytes) };
        self.written = write(out);
        assert!(self.written <= bytes, "{} bytes in a segment of {bytes}", self.written);
        let written = &self.segments.segment(self.place).tail.written;
        written.store(self.written as u32, Ordering::Release);
    }

    /// Returns the segment's number in the log.
    #[inline]
    pub(super) fn id(&self) -> SegmentId {
        self.segments.id(self.place)
    }

    /// Reserves `bytes` at the end.
    pub(super) fn keep_free(&mut self, bytes: usize) {
        assert!(bytes <= self.space(), "{bytes} bytes are kept free of {}", self.space());
        self.capacity -= bytes;
    }

    /// Returns whether appended bytes have not been sent.
    #[inline]
    pub(super) fn has_unsaved(&self) -> bool {
        self.handed_out != self.written
    }

    /// Returns the offset of the first unsent byte, and all unsent bytes.
    pub(super) fn unsaved(&self) -> (u32, &[u8]) {
        debug_assert!(self.handed_out <= self.written, "more was sent than was appended");
        let length = self.written - self.handed_out;
        // SAFETY: these bytes lie below `written`: this writer wrote them, and they do not
        // change. They stay valid while the writer exists, since a segment is not released before
        // it is sent.
        let bytes =
            unsafe { slice::from_raw_parts(self.base.add(self.handed_out).as_ptr(), length) };
        (self.handed_out as u32, bytes)
    }

    /// Returns the number of unsent bytes before this offset.
    pub(super) fn unsaved_before(&self, offset: u32) -> usize {
        (offset as usize).min(self.written).saturating_sub(self.handed_out)
    }

    /// Marks all appended bytes as sent.
    pub(super) fn set_handed_out(&mut self) {
        self.advance_handed_out(self.written - self.handed_out);
    }

    /// Marks `bytes` more as sent.
    pub(super) fn advance_handed_out(&mut self, bytes: usize) {
        self.handed_out += bytes;
        assert!(self.handed_out <= self.written, "more bytes are handed out than were written");
        let handed_out = &self.segments.segment(self.place).tail.handed_out;
        handed_out.store(self.handed_out as u32, Ordering::Release);
    }

    /// Returns whether the replicas have acknowledged all sent bytes.
    pub(super) fn is_acknowledged(&self) -> bool {
        let (place, segment, end) = (self.place, self.id(), self.handed_out as u32);
        self.segments.is_acknowledged(&LogPosition { place, segment, end })
    }

    /// Returns whether the writer must continue in another segment.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.segments.segment(self.place).tail.is_ending.load(Ordering::Relaxed)
    }

    /// Marks all bytes and the end of the segment as sent.
    pub(super) fn set_closed_handed_out(&mut self) {
        self.set_handed_out();
        let is_handed_out = &self.segments.segment(self.place).is_handed_out;
        let was_sent = is_handed_out.swap(true, Ordering::Release);
        assert!(!was_sent, "the end of {:?} is sent twice", self.place);
    }
}
