//! Reply gating: the replies of a reactor wait until the entries that they depend on are
//! acknowledged.

use crate::Engine;
use crate::replicated::LogPlacement;
use types::Instant;

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

    /// Returns whether a write would get fewer backups than required.
    #[inline]
    pub fn lacks_replicas(&self) -> bool {
        self.log_master.lacks_replicas()
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
        self.log_master.replication.acknowledgments.count()
    }

    /// Returns whether bytes were not sent yet: they wait for entries of other segments, or for
    /// the next turn.
    pub fn keeps_back(&self) -> bool {
        self.node.durability().placement() != LogPlacement::Nowhere && self.worker.has_unsaved()
    }

    /// Records whether this reactor has pending replies, to wake it for acknowledgments. It is
    /// woken for them as well while it keeps bytes back.
    pub fn note_held(&mut self, holds: bool) {
        let holds = holds || self.keeps_back();
        let was_holding = std::mem::replace(&mut self.gating.holds, holds);
        if holds != was_holding {
            let reactors = usize::from(self.node.settings().reactors);
            self.log_master.replication.acknowledgments.note_holder(holds, reactors);
        }
    }
}
