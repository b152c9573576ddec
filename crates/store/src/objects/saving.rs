//! What a worker owes the replicas, and what its replies wait for.

use super::Worker;
use crate::log::{Dependency, Unsaved};

impl Worker {
    /// Shows whatever this worker has written and not handed out, and each closed segment once at
    /// its end. What `save` takes (`true`) is not shown again; the rest comes again. The replicas'
    /// answers go to [`crate::log::Log::raise_acknowledged`] and
    /// [`crate::log::Log::raise_stable`].
    #[inline]
    pub fn hand_out(&mut self, mut save: impl FnMut(Unsaved<'_>) -> bool) {
        self.spliced.hand_out(&self.store.log, &mut save);
        self.survivors.hand_out(&mut save);
        for (_, side_log) in &mut self.side_logs {
            side_log.hand_out(&mut save);
        }
        self.head.hand_out(&mut save);
    }

    /// What the operations since the last call wrote or showed that is not acknowledged. A reply
    /// must not leave before that is.
    #[inline]
    pub fn take_dependency(&mut self) -> Option<Dependency> {
        self.shown.take()
    }
}
