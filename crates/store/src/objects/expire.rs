//! Records whose time has come give back their memory. They are invisible already.

use super::store::behind;
use super::tablets::TabletMap;
use super::view::{Found, View};
use super::worker::Access;
use super::write::Writer;
use super::{Key, Stall, Worker};
use crate::index::Kind;
use crate::sync::atomic::Ordering;
use planted::Bug;
use types::{HashRange, KeyHash, TableId, key_hash_in_slot};

impl Worker {
    /// Reclaims records whose expiry has come, of one table from `cursor` on, in a bounded step.
    /// Leaves alone what is frozen, leaving or being flushed. Returns where to go on; `None`: at
    /// the end.
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
        let (head, graves) = (&mut self.head, &mut self.graves);
        let mut writer = Writer { store: &self.store, head, graves, view };
        for &(lowest, word) in &self.words {
            let may_expire = match word.kind() {
                Kind::Expiring => true,
                Kind::Object | Kind::Tombstone => false,
            };
            if may_expire && view.entry(word).is_expired(access.clock(&self.store)) {
                let key = view.entry(word).key;
                let hash = key_hash_in_slot(self.store.seed(), lowest.slot(), key);
                if range.contains(hash) {
                    // One that cannot go now is met again by the next walk.
                    let _ = reclaim(&mut writer, Key { hash, bytes: key }, access);
                }
            }
        }
        next.or_else(|| behind(range.last()))
    }
}

/// Removes the key if its record has expired. In a range that arrives, or depends on
/// another log, this leaves a tombstone: an older version without expiry must not come back. Elsewhere also a durable store
/// needs none, since the record itself says that it has expired; but it must be stable first: who
/// finds nothing could not tell that it waits for that.
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
                writer.remove(&mut leaf, (key, access), Some(old))?;
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

/// The next tablet whose records may be changed, from `cursor` on.
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
