//! The number of replicas of one writer at each backup.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use types::ServerId;

/// The number of replicas at each backup, over all segments of one writer.
///
/// **Invariant:** every listed backup has at least one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaCounts {
    backups: BTreeMap<ServerId, usize>,
}

impl ReplicaCounts {
    pub(super) fn add(&mut self, backup: ServerId) {
        *self.backups.entry(backup).or_default() += 1;
    }

    /// Removes one of the backup's replicas.
    pub(super) fn remove(&mut self, backup: ServerId) {
        assert!(self.has_replicas(backup), "{backup} loses a replica that it does not have");
        if let Entry::Occupied(mut entry) = self.backups.entry(backup) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// Returns the number of replicas at all backups together.
    pub(super) fn total(&self) -> usize {
        self.backups.values().sum()
    }

    pub(super) fn has_replicas(&self, backup: ServerId) -> bool {
        self.backups.contains_key(&backup)
    }

    /// Returns the backups with replicas, each with the number of its replicas.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServerId, usize)> {
        self.backups.iter().map(|(backup, count)| (*backup, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "s2 loses a replica that it does not have")]
    fn a_backup_loses_only_replicas_that_it_has() {
        let mut counts = ReplicaCounts::default();
        counts.add(ServerId(2));
        counts.remove(ServerId(2));
        counts.remove(ServerId(2));
    }
}
