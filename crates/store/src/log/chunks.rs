//! Chunks: pieces of the arena for the index's leaves. See `docs/design/log.md`, "Chunks". An empty
//! segment returns to the log immediately, because the caller that frees a chunk has waited for its
//! readers.
//!
//! `unsafe` is needed here for two reasons: a chunk is exclusive memory of its holder, so it may
//! move between threads; and a chunk is zeroed when it is taken.
#![expect(unsafe_code, reason = "a chunk is zeroed memory of a segment")]

use super::pool::SegmentPurpose;
use super::{segment::Segments, state::Place};
use crate::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

/// 64 KiB of the arena, aligned to their size, zeroed when taken, and exclusive to the holder. A
/// chunk that is dropped without being given back leaks until the log is dropped.
#[must_use = "a chunk that is not given back is lost"]
#[derive(Debug)]
pub struct Chunk {
    place: Place,
    piece: u32,
    base: NonNull<u8>,
}

// SAFETY: a chunk is exclusive to its holder, on whatever thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Size of a chunk in bytes.
    pub const BYTES: usize = 64 << 10;

    /// Returns the start of the chunk: a multiple of [`Chunk::BYTES`]. Valid until the chunk is
    /// given back, and while the log lives.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
}

/// The segments that are divided into chunks.
pub(super) struct ChunkTable {
    state: Mutex<ChunkTableState>,
}

#[derive(Default)]
struct ChunkTableState {
    segments: BTreeMap<Place, Pieces>,
    /// Segments with a free chunk.
    with_space: BTreeSet<Place>,
    used: usize,
}

/// Chunks of a segment: at most 128.
struct Pieces {
    /// One bit per chunk, set if it is free.
    free: u128,
    /// First chunk that was never used: it and later ones are zero.
    zero_from: u32,
}

impl ChunkTable {
    pub(super) fn new() -> ChunkTable {
        ChunkTable { state: Mutex::new(ChunkTableState::default()) }
    }

    pub(super) fn take(&self, segments: &Segments) -> Option<Chunk> {
        let (place, piece, is_zero) = self.state.lock().expect(LOCK).take(segments)?;
        let base = segments.memory(place, piece as usize * Chunk::BYTES, Chunk::BYTES);
        assert!((base.as_ptr() as usize).is_multiple_of(Chunk::BYTES), "{base:?} is not aligned");
        segments.touch(place, (piece + 1) * Chunk::BYTES as u32);
        if !is_zero {
            // SAFETY: these bytes are within the arena, by `memory`, and exclusive: the piece was
            // free and is now marked as taken.
            unsafe { base.write_bytes(0, Chunk::BYTES) };
        }
        Some(Chunk { place, piece, base })
    }

    /// Divides a further segment into chunks. Returns whether there was one for this purpose.
    pub(super) fn add_segment(&self, segments: &Segments, purpose: SegmentPurpose) -> bool {
        self.state.lock().expect(LOCK).add_segment(segments, purpose).is_some()
    }

    pub(super) fn give(&self, segments: &Segments, chunk: Chunk) {
        let emptied = self.state.lock().expect(LOCK).give(segments, &chunk);
        if let Some(place) = emptied {
            segments.give_chunks(place);
        }
    }

    /// Returns the bytes of all chunks in use.
    pub(super) fn used_bytes(&self) -> usize {
        self.state.lock().expect(LOCK).used * Chunk::BYTES
    }
}

const LOCK: &str = "nothing panics while it holds the chunks' lock";

impl ChunkTableState {
    /// Takes a chunk. Returns also whether it is known to be zero.
    fn take(&mut self, segments: &Segments) -> Option<(Place, u32, bool)> {
        let place = match self.with_space.first() {
            Some(&place) => place,
            None => self.add_segment(segments, SegmentPurpose::Other)?,
        };
        let pieces = self.segments.get_mut(&place).expect("a segment with space is a segment");
        assert!(pieces.free != 0, "{place:?} has no free chunk, but is listed with space");
        let piece = pieces.free.trailing_zeros();
        pieces.free &= !(1 << piece);
        let is_zero = piece >= pieces.zero_from;
        pieces.zero_from = pieces.zero_from.max(piece + 1);
        if pieces.free == 0 {
            self.with_space.remove(&place);
        }
        self.used += 1;
        Some((place, piece, is_zero))
    }

    fn add_segment(&mut self, segments: &Segments, purpose: SegmentPurpose) -> Option<Place> {
        let (place, is_zero) = segments.take_for_chunks(purpose)?;
        let zero_from = if is_zero { 0 } else { u32::MAX };
        self.segments.insert(place, Pieces { free: all_free(segments), zero_from });
        self.with_space.insert(place);
        Some(place)
    }

    /// Frees a chunk. Returns its segment if no other chunk of it is in use.
    fn give(&mut self, segments: &Segments, chunk: &Chunk) -> Option<Place> {
        let pieces = self.segments.get_mut(&chunk.place).expect("the chunk is of this log");
        assert!(pieces.free & 1 << chunk.piece == 0, "{chunk:?} is given back twice");
        pieces.free |= 1 << chunk.piece;
        self.with_space.insert(chunk.place);
        self.used -= 1;
        if pieces.free != all_free(segments) {
            return None;
        }
        self.with_space.remove(&chunk.place);
        self.segments.remove(&chunk.place);
        assert!(
            !self.segments.is_empty() || self.used == 0,
            "{} chunks are in no segment",
            self.used
        );
        Some(chunk.place)
    }
}

fn all_free(segments: &Segments) -> u128 {
    let count = segments.segment_bytes() / Chunk::BYTES;
    u128::MAX >> (128 - count)
}

const _: () = assert!(types::limits::SEGMENT_BYTES / Chunk::BYTES <= 128);
