//! Reclamation of expired records. They are invisible already; this releases their memory.

use super::store::behind;
use super::tablets::TabletMap;
use super::view::{Found, View};
use super::worker::Access;
use super::write::{WriteTarget, Writer};
use super::{Key, Stall, Worker};
use crate::index::Kind;
use crate::sync::atomic::Ordering;
use planted::Bug;
use types::{HashRange, KeyHash, TableId, key_hash_in_slot};

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

impl Worker {
    /// Returns the statistics of [`Worker::expire`] since the last call.
    pub fn take_expiring(&mut self) -> Expiring {
        std::mem::take(&mut self.expiring)
    }

    /// Reclaims expired records of one table, from `cursor` on, in a bounded step. Skips tablets
    /// that are frozen, leaving or being flushed. Returns where to resume; `None` at the end.
    pub fn expire(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        self.store.index(table)?;
        let (range, access) = accessible_from(&self.tablets, table, cursor)?;
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        self.words.clear();
        let next = view.gather(range, buckets_max, &mut self.words);
        let clock = access.clock(&self.store);
        let (head, graves) = (&mut self.head, &mut self.graves);
        let mut writer = Writer { store: &self.store, head, graves, view };
        for &(lowest, word) in &self.words {
            let expiry = match word.kind() {
                Kind::Expiring => view.entry(word).expiry(),
                Kind::Object | Kind::Tombstone => None,
            };
            let Some(expiry) = expiry else { continue };
            if expiry > clock {
                let left_millis = expiry.0 - clock.0;
                self.expiring.add(Expiring { records: 1, left_millis, expired: 0 });
            } else {
                self.expiring.expired += 1;
                let key = view.entry(word).key;
                let hash = key_hash_in_slot(self.store.seed(), lowest.slot(), key);
                if range.contains(hash) {
                    // A record that cannot be reclaimed now is met again by the next walk.
                    let _ = reclaim(&mut writer, Key { hash, bytes: key }, access);
                }
            }
        }
        next.or_else(|| behind(range.last()))
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
        found @ Found::Here(_, entry) if entry.is_expired(access.clock(writer.store)) => {
            let log = writer.view.log;
            let Some(old) = found.old() else { return Ok(()) };
            if !log.is_durable() || access.is_inherited() {
                writer.remove(&mut leaf, WriteTarget { key, access }, Some(old))?;
            } else if log.is_stable(&log.end_of(old.word.address(), old.bytes))
                || planted::is(Bug::ReclaimedUnstable)
            {
                leaf.remove(key.hash, old.word, old.bytes);
                writer.view.retire(old);
            } else {
                return Ok(());
            }
            writer.store.expired.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Found::Here(..) | Found::Nothing => Ok(()),
    }
}

/// Reclaims a record that a client's operation has found expired. If that fails, the expiry walk
/// meets the record again.
#[cold]
pub(super) fn reclaim_touched(mut writer: Writer<'_, '_>, key: Key<'_>, access: Access<'_>) {
    let _ = reclaim(&mut writer, key, access);
}

/// Returns the next tablet with records that may be changed, from `cursor` on.
fn accessible_from(
    tablets: &TabletMap,
    table: TableId,
    cursor: KeyHash,
) -> Option<(HashRange, Access<'_>)> {
    let ahead = tablets.iter().filter(|tablet| cursor <= tablet.range.last());
    let mut accessible = ahead.filter_map(|tablet| {
        let access = tablet.access(table).ok()?;
        Some((HashRange::new(cursor.max(tablet.range.first()), tablet.range.last()), access))
    });
    accessible.next()
}
