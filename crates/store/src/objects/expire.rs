//! The walk that reclaims expired records. They are invisible already; this releases their
//! memory.

use super::expired::{Expiring, reclaim};
use super::record::Key;
use super::store::behind;
use super::view::View;
use super::worker::Worker;
use super::write::Writer;
use crate::index::WordKind;
use types::{KeyHash, TableId, key_hash_in_slot};

impl Worker {
    /// Returns the statistics of [`Worker::expire`] since the last call.
    pub fn take_expiring(&mut self) -> Expiring {
        std::mem::take(&mut self.expiring)
    }

    /// Returns whether the table has, or had, a record.
    pub fn uses(&self, table: TableId) -> bool {
        self.store.index(table).is_some()
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
        let (range, access) = self.tablets.accessible_from(table, cursor).next()?;
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        self.words.clear();
        let next = view.gather(range, buckets_max, &mut self.words);
        let clock = access.clock(&self.store);
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let mut writer = Writer { store: &self.store, head, tombstones, view };
        for &(lowest, word) in &self.words {
            let expiry = match word.kind() {
                WordKind::Expiring => view.entry(word).expiry(),
                WordKind::Object | WordKind::Tombstone => None,
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
