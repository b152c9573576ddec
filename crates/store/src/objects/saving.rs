//! What a worker owes the replicas, and what its replies wait for.

use super::Worker;
use super::worker::Cause;
use crate::log::{Dependency, Unsaved};
use types::SegmentId;

impl Worker {
    /// Shows whatever this worker has written and not handed out, and each closed segment once at
    /// its end. What `save` takes (`true`) is not shown again; the rest comes again. What is safe
    /// elsewhere is not urgent: one piece of it at a time is shown, and what arrives not before it is
    /// spliced, unless memory is short. The replicas' answers go to
    /// [`crate::log::Log::raise_acknowledged`] and [`crate::log::Log::raise_stable`].
    #[inline]
    pub fn hand_out(&mut self, mut save: impl FnMut(Unsaved<'_>) -> bool) {
        self.spliced.hand_out(&self.store.log, &mut save);
        self.survivors.hand_out(&mut save);
        for (cause, side_log) in &mut self.side_logs {
            let keeps_back = match cause {
                Cause::Migration(_) => true,
                Cause::Recoveries => self.keeps_recovered_back,
                Cause::Unsettled => false,
            };
            // Nothing that dies frees memory while something is kept back.
            if !keeps_back || self.store.log.is_low() {
                side_log.hand_out(&mut save);
            }
        }
        self.side_logs.retain(|(cause, log)| match cause {
            Cause::Migration(_) => true,
            Cause::Recoveries | Cause::Unsettled => !log.is_idle(),
        });
        self.head.hand_out(&mut save);
    }

    /// Returns whether operations of this worker have appended something that was not handed out yet.
    pub fn has_unsaved(&self) -> bool {
        self.head.has_unsaved()
    }

    /// Whether [`Worker::hand_out`] leaves out what has been recovered, as long as there is memory:
    /// it is safe elsewhere, and something else may be more urgent.
    pub fn keep_recovered_back(&mut self, keeps: bool) {
        self.keeps_recovered_back = keeps;
    }

    /// The bytes of a segment from one place to another, which have been handed out, by whatever
    /// worker. `None`: they have not, or the segment is not the durable log's any more.
    pub fn read_segment(&self, segment: SegmentId, from: u32, to: u32) -> Option<&[u8]> {
        let (_, bytes) = self.store.log.handed_out(segment, &self.participant.turn())?;
        bytes.get(from as usize..to as usize)
    }

    /// What the operations since the last call wrote or showed that is not acknowledged. A reply
    /// must not leave before that is.
    #[inline]
    pub fn take_dependency(&mut self) -> Option<Dependency> {
        self.shown.take()
    }
}
