//! Persistence interface of a durable log: manifest changes, acknowledgment, adoption after a
//! restart, and release of segments.

use super::durable::DurableLog;
use super::pool::SegmentPurpose;
use super::registry::LogChange;
use super::safety::{Among, Dependency};
use super::state::LogPosition;
use super::{Log, OutOfMemory, SegmentState};
use crate::address::Address;
use crate::sync::atomic::Ordering;
use types::SegmentId;
use wire::entry::Location;

impl Log {
    /// Returns whether the log is read again after a crash.
    #[inline]
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// Returns whether [`Log::take_changes`] would return something. One relaxed load.
    #[inline]
    pub fn has_changes(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.registry.has_changes())
    }

    /// Returns the changes of the log's segments since the last call, in order.
    pub fn take_changes(&self) -> Vec<LogChange> {
        self.durable.as_ref().map_or_else(Vec::new, |durable| durable.registry.take_changes())
    }

    /// Releases a segment that the log has reported as dead: its memory is free after a grace
    /// period. No later change may precede the segment's drop in the manifest.
    ///
    /// # Panics
    /// If the log has not reported the segment as dead: a bug of the caller.
    pub fn release(&self, segment: SegmentId) {
        let place = self.durable_log().release(segment);
        self.retire(place);
    }

    /// Records that the replicas have acknowledged the segment up to this length. Ignores a
    /// segment that has left the log.
    pub fn raise_acknowledged(&self, segment: SegmentId, length: u32) {
        if let Some(place) = self.durable_log().registry.place(segment) {
            self.segments.raise_acknowledged(place, length);
        }
    }

    /// Records that later bytes of other segments may rely on the segment up to this length,
    /// although it is not acknowledged: all replicas that it has left have it.
    pub fn raise_held(&self, segment: SegmentId, length: u32) {
        if let Some(place) = self.durable_log().registry.place(segment) {
            self.segments.tail(place).held.fetch_max(length, Ordering::AcqRel);
        }
    }

    /// Records that the segment is synced up to this length: it survives every crash that the
    /// `durability` setting covers. The bytes are acknowledged, too.
    pub fn raise_synced(&self, segment: SegmentId, length: u32) {
        let registry = &self.durable_log().registry;
        if let Some(place) = registry.place(segment) {
            self.segments.raise_acknowledged(place, length);
            self.segments.raise_synced(place, length);
            registry.advance(&self.segments);
        }
    }

    /// Returns whether all positions of a dependency are acknowledged.
    pub fn is_acknowledged(&self, dependency: &Dependency) -> bool {
        dependency.all(|position| self.segments.is_acknowledged(position))
    }

    /// Returns the positions of everything appended and unacknowledged, by all writers. This
    /// includes copies that readers may already see because they are durable elsewhere. Scans
    /// every segment.
    pub fn unacknowledged(&self, among: Among) -> Option<Dependency> {
        let mut all = None;
        self.segments.unacknowledged(among).for_each(|end| Dependency::add(&mut all, end));
        all
    }

    /// Returns the segments that would be read after a crash, ascending.
    pub fn segments_in_log(&self) -> Vec<SegmentId> {
        self.durable_log().registry.all().into_iter().map(|(segment, _)| segment).collect()
    }

    /// Adopts a segment of the log from before the crash. `fill` receives the bytes of a whole
    /// segment, writes the recovered data and returns its length. All of it counts as synced.
    /// Segments opened later have higher numbers.
    pub fn adopt(
        &self,
        segment: SegmentId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), OutOfMemory> {
        let durable = self.durable_log();
        durable.begin_adoption();
        let mut open =
            self.segments.open(SegmentPurpose::Adoption, SegmentState::Open).ok_or(OutOfMemory)?;
        let place = open.place();
        open.fill(fill);
        durable.registry.adopt(&self.segments, place, segment);
        self.segments.set_safe(place);
        open.set_closed_handed_out();
        self.close(place, SegmentState::Open);
        Ok(())
    }

    /// Leaves out the segment numbers up to `last`, because replicas of them may be on the disk.
    pub fn skip_segment_numbers(&self, last: SegmentId) {
        self.durable_log().registry.skip_to(last);
    }

    /// Returns the location of the entry, as other entries name it.
    #[inline]
    pub(crate) fn location_of(&self, address: Address) -> Location {
        self.segments.location(address)
    }

    #[inline]
    pub(crate) fn end_of(&self, address: Address, bytes: u32) -> EntryEnd {
        EntryEnd(self.segments.end_of(address, bytes))
    }

    /// Adds the entry to an operation's dependency, if it is neither acknowledged nor durable
    /// elsewhere.
    #[inline]
    pub(crate) fn note_shown(&self, address: Address, bytes: u32, to: &mut Option<Dependency>) {
        if !self.segments.may_be_shown(address, bytes) {
            Dependency::add(to, self.segments.end_of(address, bytes));
        }
    }

    /// Returns whether an entry must be acknowledged before later writes that replace it are sent:
    /// it may be a part of a batch (see `send_order.rs`).
    #[inline]
    pub(crate) fn may_be_ordered(&self, address: Address, bytes: u32) -> bool {
        self.segments.may_be_ordered(address, bytes)
    }

    /// Returns whether the entry is synced at its place.
    #[inline]
    pub(crate) fn is_synced(&self, written: &EntryEnd) -> bool {
        self.segments.is_synced(&written.0)
    }

    /// Asks the segment's writer to continue in another one, at the latest when it sends the next
    /// bytes. It then also sends the end of the segment. Any thread may call this. A segment that
    /// is not open, or not in the log, is not affected.
    pub fn end_segment(&self, segment: SegmentId) {
        self.durable_log().registry.end(&self.segments, segment);
    }

    /// Returns the part that exists only for a durable log.
    ///
    /// # Panics
    /// If the log is not durable: a bug of the caller.
    pub(crate) fn durable_log(&self) -> &DurableLog {
        self.durable.as_ref().expect("the log is durable")
    }
}

/// End of an entry, for checking its durability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryEnd(LogPosition);
