//! Memory usage of a log.

use super::arena::HugePages;
use super::segment::Segments;
use super::state::{Place, SegmentState};

/// Memory usage of a log, in bytes unless stated otherwise. Summed while other threads work:
/// approximate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Memory for entries and index, without the spare places of a durable log.
    pub total_bytes: u64,
    /// Free segments that ordinary writers may take, without those reserved or kept for the
    /// cleaner.
    pub free_bytes: u64,
    /// Free segments whose pages are all resident, in bytes. Writers wait for them.
    pub ready_bytes: u64,
    /// Segments that are reserved for migrations and not taken yet, in bytes.
    pub reserved_bytes: u64,
    /// Number of segments that were taken before their pages were resident, so that reactors
    /// touched them while they served.
    pub unready_takes: u64,
    /// Live entries.
    pub live_bytes: u64,
    /// Part of the live bytes: tombstones without an index word that are still needed.
    pub pinned_bytes: u64,
    /// Chunks held by the index.
    pub chunk_bytes: u64,
    /// Bytes touched at least once, hence resident (unless huge pages round this up).
    pub resident_bytes: u64,
    /// Bytes that cleaners have copied so far, except into segments that are still open.
    pub copied_bytes: u64,
    /// Size of one segment.
    pub segment_bytes: u64,
    /// Number of segments in each state.
    pub segments: SegmentCounts,
    /// Use of huge pages.
    pub huge_pages: HugePages,
}

/// Numbers of segments of a durable log that are known without a scan of all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLength {
    /// Segments that no cleaner has processed completely, open ones included.
    pub unvisited: usize,
    /// Segments without live entries that have not left the log.
    pub leaving: usize,
}

/// Number of segments by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Unused; includes reserved and kept ones.
    pub free: u32,
    /// Open at a head, or kept by it for deletes.
    pub open: u32,
    /// Part of a side log.
    pub side: u32,
    /// Completely written.
    pub closed: u32,
    /// Being cleaned.
    pub cleaning: u32,
    /// Waiting until no reader can see them.
    pub retired: u32,
    /// Divided into chunks.
    pub chunks: u32,
    /// Durable log only: cleaned, possibly with live entries left.
    pub visited: u32,
    /// Durable log only: without live entries, waiting until they may leave the log.
    /// That happens when everything written until then is synced.
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
            // An unused spare place is not part of the memory.
            continue;
        }
        counts.count(glance.state);
        live_bytes += u64::from(glance.live());
        resident_bytes += u64::from(glance.touched);
    }
    let free = segments.free_counts();
    Usage {
        total_bytes: segments.count() as u64 * segment_bytes,
        free_bytes: segments.ordinary() as u64 * segment_bytes,
        ready_bytes: free.ready as u64 * segment_bytes,
        reserved_bytes: free.reserved as u64 * segment_bytes,
        unready_takes: free.unready_takes,
        live_bytes,
        pinned_bytes: 0,
        chunk_bytes: chunk_bytes as u64,
        resident_bytes,
        copied_bytes: 0,
        segment_bytes,
        segments: counts,
        huge_pages: segments.huge_pages(),
    }
}
