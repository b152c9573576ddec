//! Where everything is by now that a reactor has written: for `WAIT` and `WAITAOF`.
//!
//! A connection belongs to one reactor, so what holds for all that the reactor has written holds for
//! what the connection has written. What was copied by the cleaner since is not looked at: an
//! original is given up only when its copy is as safe.

use super::{Engine, Mode};
use protocols::replication::Holders;

/// Copies of all that a reactor has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Safety {
    /// Other servers that hold all of it.
    pub(crate) others: usize,
    /// Other servers that have all of it on disk, as far as they have said.
    pub(crate) others_on_disk: usize,
    /// It is on this server's own disk.
    pub(crate) is_on_disk: bool,
    /// Other servers that get what is written next.
    pub(crate) reach: usize,
}

impl Engine {
    /// Returns where all is that this reactor has written so far.
    pub(crate) fn safety(&self) -> Safety {
        let reach = self.master.as_ref().map_or(0, |master| master.reach());
        if self.worker.has_unsaved() {
            return Safety { reach, ..Safety::default() };
        }
        let mode = self.node.persistence();
        let Holders { taken, stable } =
            self.master.as_ref().map(|master| master.holders()).unwrap_or_default();
        Safety {
            others: taken,
            // A backup that leaves writing to its operating system does not know.
            others_on_disk: if mode == Some(Mode::Memory) { 0 } else { stable },
            is_on_disk: self.can_sync() && self.saving.is_all_stable(),
            reach,
        }
    }

    /// Returns whether this server writes its log to a disk of its own, and waits for the disk.
    pub(crate) fn can_sync(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.mode() != Mode::Memory)
    }
}
