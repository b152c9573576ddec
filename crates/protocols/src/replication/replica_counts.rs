//! The number of replicas of one writer at each backup.

use std::collections::BTreeMap;
use types::ServerId;

/// The number of replicas at each backup, over all segments of one writer.
///
/// **Invariant:** every listed backup has at least one replica.
#[derive(Debug, Default)]
pub(super) struct ReplicaCounts {
    backups: BTreeMap<ServerId, usize>,
}

impl ReplicaCounts {
    pub(super) fn add(&mut self, backup: ServerId) {
        *self.backups.entry(backup).or_default() += 1;
    }

    /// Removes one of the backup's replicas.
    pub(super) fn remove(&mut self, backup: ServerId) {
        if let Some(count) = self.backups.get_mut(&backup) {
            *count -= 1;
            if *count == 0 {
                self.backups.remove(&backup);
            }
        }
    }

    pub(super) fn has_replicas(&self, backup: ServerId) -> bool {
        self.backups.contains_key(&backup)
    }

    /// Returns the backups with replicas, each with the number of its replicas.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServerId, usize)> {
        self.backups.iter().map(|(backup, count)| (*backup, *count))
    }
}
