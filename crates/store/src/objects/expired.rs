//! Expired records: statistics, and the reclamation of one record.

use super::access::Access;
use super::record::{Key, Need};
use super::stall::Stall;
use super::view::Lookup;
use super::write::{WriteTarget, Writer};
use crate::sync::atomic::Ordering;
use planted::Bug;

/// Statistics of the records with an expiry that a walk has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiring {
    /// Number of records that have not expired yet.
    pub records: u64,
    /// Sum of their remaining times to live, in milliseconds.
    pub left_millis: u64,
    /// Number of records that had expired.
    pub expired: u64,
}

impl Expiring {
    /// Adds the statistics of another part of the walk.
    pub fn add(&mut self, other: Expiring) {
        self.records += other.records;
        self.left_millis = self.left_millis.saturating_add(other.left_millis);
        self.expired += other.expired;
    }
}

/// Removes the key if its record has expired.
///
/// In a range that arrives or depends on another log, this leaves a tombstone: an older version
/// without expiry must not come back. Elsewhere even a durable store needs no tombstone, because
/// the expired record itself supersedes older versions. But the record must be synced first: a
/// reader that finds no word could not determine its durability dependency.
pub(super) fn reclaim(
    writer: &mut Writer<'_, '_>,
    key: Key<'_>,
    access: Access<'_>,
) -> Result<(), Stall> {
    let mut leaf = writer.view.lock(key.hash)?;
    match writer.view.find_locked(&leaf, key) {
        found @ Lookup::Here(_, entry) if entry.is_expired(access.clock(writer.store)) => {
            let log = writer.view.log;
            let Some(old) = found.old() else { return Ok(()) };
            if !log.is_durable() || access.is_inherited() {
                // The record's expiry is the reason: without it the tombstone must not be left.
                let (table, need) = (writer.view.table, Need::Records);
                let target = WriteTarget { table, key, access, need };
                writer.remove(&mut leaf, target, Some(old))?;
            } else if log.is_synced(&log.end_of(old.word.address(), old.bytes))
                || planted::is(Bug::ReclaimedUnsynced)
            {
                leaf.remove(key.hash, old.word, old.bytes);
                writer.view.retire(old);
            } else {
                return Ok(());
            }
            writer.store.expired.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Lookup::Here(..) | Lookup::Nothing => Ok(()),
    }
}

/// Reclaims a record that a client's operation has found expired. If that fails, the expiry walk
/// meets the record again.
#[cold]
pub(super) fn reclaim_touched(mut writer: Writer<'_, '_>, key: Key<'_>, access: Access<'_>) {
    let _ = reclaim(&mut writer, key, access);
}
