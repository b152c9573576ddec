//! Reply gating: the replies of a reactor wait until the entries that they depend on are
//! acknowledged.

use super::Engine;
use crate::replicated::LogPlacement;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use types::Instant;

/// Notifies reactors with pending replies that more bytes are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgments {
    /// Version that rises when more bytes are acknowledged.
    count: AtomicU64,
    /// Number of reactors with pending replies.
    holders: AtomicUsize,
}

impl Acknowledgments {
    /// Records that more bytes are acknowledged. Returns whether reactors other than the caller
    /// have pending replies and must be woken.
    pub(crate) fn tell(&self, caller_holds: bool) -> bool {
        // Sequentially consistent with `Engine::note_held`. Its caller reads the count once more
        // afterwards, so it cannot miss a rise.
        self.count.fetch_add(1, Ordering::SeqCst);
        let holders = self.holders.load(Ordering::SeqCst);
        assert!(holders >= usize::from(caller_holds), "a reactor with pending replies is counted");
        holders > usize::from(caller_holds)
    }
}

impl Engine {
    /// Returns whether the log is being loaded. Only commands that need no data are served then.
    #[inline]
    pub fn is_loading(&self) -> bool {
        self.log_master.replication.loading().is_on()
    }

    /// Returns whether writes cannot be persisted at the moment.
    #[inline]
    pub fn refuses_writes(&self) -> bool {
        self.log_master.replication.refuses_writes()
    }

    /// Sends the bytes appended since the last call to the backups. The caller must call this
    /// before it sends any output of the turn.
    #[inline]
    pub fn commit(&mut self, now: Instant) {
        match self.node.durability().placement() {
            LogPlacement::Nowhere => {}
            LogPlacement::OwnDisk | LogPlacement::OtherServers => self.replicate_all(now),
        }
    }

    /// Returns the unacknowledged entries that the operations since the last call depend on.
    #[inline]
    pub fn take_dependency(&mut self) -> Option<store::log::Dependency> {
        self.worker.take_dependency()
    }

    /// Returns whether all entries of the dependency are acknowledged.
    #[inline]
    pub fn is_acknowledged(&self, dependency: &store::log::Dependency) -> bool {
        self.node.store().log().is_acknowledged(dependency)
    }

    /// Returns a version that rises whenever more bytes are acknowledged.
    pub fn acknowledgments(&self) -> u64 {
        self.log_master.replication.acknowledgments.count.load(Ordering::SeqCst)
    }

    /// Records whether this reactor has pending replies, to wake it for acknowledgments.
    pub fn note_held(&mut self, holds: bool) {
        let was_holding = std::mem::replace(&mut self.gating.holds, holds);
        let Acknowledgments { holders, .. } = &self.log_master.replication.acknowledgments;
        if holds != was_holding {
            let reactors = usize::from(self.node.settings().reactors);
            if holds {
                let before = holders.fetch_add(1, Ordering::SeqCst);
                assert!(before < reactors, "each reactor with pending replies is counted once");
            } else {
                let before = holders.fetch_sub(1, Ordering::SeqCst);
                assert!(before > 0, "a reactor with pending replies was counted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a reactor with pending replies is counted")]
    fn a_reactor_that_holds_replies_is_counted_before_it_waits() {
        let acknowledgments = Acknowledgments::default();
        assert!(!acknowledgments.tell(false), "no other reactor waits");
        acknowledgments.tell(true);
    }
}
