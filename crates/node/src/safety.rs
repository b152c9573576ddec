//! Durability of everything that a reactor has written, for `WAIT` and `WAITAOF`.
//!
//! A connection belongs to one reactor. So a statement about all writes of the reactor also holds
//! for those of the connection. Later copies by the cleaner are ignored: an original is released
//! only when its copy is equally durable.

use crate::replicated::LogPlacement;
use crate::{Engine, Mode};
use protocols::replication::BackupCounts;

/// Number and kind of the copies of everything that a reactor has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Safety {
    /// Number of other servers that hold all of it.
    pub others: usize,
    /// Number of other servers that have reported all of it as synced.
    pub others_on_disk: usize,
    /// Set if all of it is synced to this server's own disk.
    pub is_on_disk: bool,
    /// Number of other servers that will receive the next write.
    pub(crate) reach: usize,
}

impl Engine {
    /// Returns where everything that this reactor has written so far is stored.
    pub fn safety(&self) -> Safety {
        let has_others = self.node.durability().is_with_others();
        let reach = if has_others { self.log_master.reach() } else { 0 };
        if self.worker.has_unsaved() {
            return Safety { reach, ..Safety::default() };
        }
        let mode = self.node.persistence();
        let BackupCounts { taken, synced } = match has_others {
            true => self.log_master.holders(),
            false => BackupCounts::default(),
        };
        Safety {
            others: taken,
            // In this mode backups never sync, so they cannot report anything as synced.
            others_on_disk: if mode == Some(Mode::Memory) { 0 } else { synced },
            is_on_disk: self.can_sync() && self.log_master.is_synced_here(),
            reach,
        }
    }

    /// Returns whether this server writes its log to its own disk and syncs it.
    pub fn can_sync(&self) -> bool {
        let durability = self.node.durability();
        durability.placement() == LogPlacement::OwnDisk && durability.mode() != Some(Mode::Memory)
    }
}
