//! How much memory is used for what.
#![forbid(unsafe_code)]

use super::{
    arena::HugePages,
    segment::{Place, SegmentState, Segments},
};

/// Memory of a log, in bytes unless said otherwise. Summed while others work: approximate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The arena.
    pub total_bytes: u64,
    /// Free segments that writers may have: without those reserved or kept back for the cleaner.
    pub free_bytes: u64,
    /// Entries written and not dead.
    pub live_bytes: u64,
    /// Of the live: tombstones that no word of the index points at, and that are needed still.
    pub pinned_bytes: u64,
    /// Chunks held by the index.
    pub chunk_bytes: u64,
    /// Touched at least once, hence in the resident set (as far as huge pages do not round it up).
    pub resident_bytes: u64,
    /// Size of one segment.
    pub segment_bytes: u64,
    /// Number of segments in each state.
    pub segments: SegmentCounts,
    /// Whether huge pages were asked for and taken.
    pub huge_pages: HugePages,
}

/// Number of segments by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Nobody's; reserved and kept ones included.
    pub free: u32,
    /// A head appends to it, or keeps it back for deletes.
    pub open: u32,
    /// Part of a side log.
    pub side: u32,
    /// Written to its end.
    pub closed: u32,
    /// Being cleaned.
    pub cleaning: u32,
    /// Waiting until no reader can see it.
    pub retired: u32,
    /// Cut into chunks.
    pub chunks: u32,
    /// Of a durable log: cleaned, and something in it may still live.
    pub visited: u32,
    /// Of a durable log: to be dropped from its directory when all that was written since is
    /// stable.
    pub leaving: u32,
}

impl SegmentCounts {
    fn count(&mut self, state: SegmentState) {
        *match state {
            SegmentState::Free => &mut self.free,
            SegmentState::Open => &mut self.open,
            SegmentState::Side => &mut self.side,
            SegmentState::Closed => &mut self.closed,
            SegmentState::Cleaning => &mut self.cleaning,
            SegmentState::Retired => &mut self.retired,
            SegmentState::Chunks => &mut self.chunks,
            SegmentState::Visited => &mut self.visited,
            SegmentState::Leaving => &mut self.leaving,
        } += 1;
    }
}

pub(super) fn usage(segments: &Segments, chunk_bytes: usize) -> Usage {
    let segment_bytes = segments.segment_bytes() as u64;
    let mut counts = SegmentCounts::default();
    let (mut live_bytes, mut resident_bytes) = (0, 0);
    for place in (0..segments.count() as u32).map(Place) {
        let glance = segments.glance(place);
        if glance.state == SegmentState::Free && place >= segments.first_spare() {
            // Not part of the memory unless it is used.
            continue;
        }
        counts.count(glance.state);
        live_bytes += u64::from(glance.live());
        resident_bytes += u64::from(glance.touched);
    }
    Usage {
        total_bytes: segments.count() as u64 * segment_bytes,
        free_bytes: segments.ordinary() as u64 * segment_bytes,
        live_bytes,
        pinned_bytes: 0,
        chunk_bytes: chunk_bytes as u64,
        resident_bytes,
        segment_bytes,
        segments: counts,
        huge_pages: segments.huge_pages(),
    }
}
