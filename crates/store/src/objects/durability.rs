//! Log bytes that a worker must replicate, and the durability dependencies of its replies.

use super::worker::Worker;
use crate::log::{Dependency, Unsaved};
use types::SegmentId;

impl Worker {
    /// Passes the bytes that this worker has appended and not yet sent to `save`, and each closed
    /// segment once at its end. If `save` returns `true` the bytes count as sent; otherwise a
    /// later call offers them again.
    ///
    /// Bytes that are durable elsewhere are not urgent: they are offered one piece at a time, and
    /// arriving records only after their splice, unless memory is short. The replicas'
    /// acknowledgments go to [`crate::log::Log::raise_acknowledged`] and
    /// [`crate::log::Log::raise_synced`].
    #[inline]
    pub fn hand_out(&mut self, mut save: impl FnMut(Unsaved<'_>) -> bool) {
        self.side_logs.hand_out_spliced(&self.store.log, &mut save);
        self.survivors.hand_out(&mut save);
        self.side_logs.hand_out_open(&self.store.log, &mut save);
        self.head.hand_out(&mut save);
    }

    /// Returns whether operations of this worker have appended bytes that were not sent yet.
    pub fn has_unsaved(&self) -> bool {
        self.head.has_unsaved()
    }

    /// Sets whether [`Worker::hand_out`] skips recovered records while there is enough memory.
    /// They are durable elsewhere, and other bytes may be more urgent.
    pub fn keep_recovered_back(&mut self, keeps: bool) {
        self.side_logs.keep_recovered_back(keeps);
    }

    /// Returns bytes `from..to` of a segment, if some worker has sent them. `None` if not, or if
    /// the segment is no longer part of the durable log.
    pub fn read_segment(&self, segment: SegmentId, from: u32, to: u32) -> Option<&[u8]> {
        let (_, bytes) =
            self.store.log.durable_log().handed_out(segment, &self.participant.turn())?;
        bytes.get(from as usize..to as usize)
    }

    /// Returns the unacknowledged log positions that the operations since the last call wrote or
    /// read. Their replies must not leave before these are acknowledged.
    #[inline]
    pub fn take_dependency(&mut self) -> Option<Dependency> {
        self.dependency.take()
    }
}
