//! Records that go without a trace: those that a source forgets, and those of a flushed table.
//!
//! Nobody operates on such a range meanwhile. Only the cleaner may still relocate its entries, so
//! each leaf is locked and each record looked up again before it goes.

use super::leaves::HeldLeaf;
use super::store::behind;
use super::tablets::TabletState;
use super::view::View;
use super::{Key, Worker};
use types::{HashRange, KeyHash, TableId, key_hash_in_slot};

impl Worker {
    /// Drops every record of all tables in the range, from `cursor` on, in a bounded step. Returns
    /// where to go on; `None`: nothing is left. Nobody may operate on the range: it is leaving, and
    /// a grace period has passed since that was published.
    pub fn forget(
        &mut self,
        range: HashRange,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let mut rest = HashRange::new(cursor.max(range.first()), range.last());
        let mut next = None;
        let tables: Vec<TableId> = self.store.indexes().map(|(table, _)| table).collect();
        for table in tables {
            if let Some(stopped) = self.drop_records(table, rest, buckets_max) {
                // The other tables go no further, and this one goes on from there.
                next = Some(stopped);
                if stopped <= rest.first() {
                    return next;
                }
                rest = HashRange::new(rest.first(), KeyHash(stopped.0 - 1));
            }
        }
        next
    }

    /// Drops every record of a table in the tablets that hold its operations
    /// ([`super::Tablet::flushing`]), from `cursor` on, in a bounded step. To be called when a
    /// grace period has passed since those were published. Returns where to go on; `None`: nothing
    /// is left.
    pub fn flush_step(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let tablets = std::sync::Arc::clone(&self.tablets);
        let tablet = tablets.iter().find(|tablet| {
            let is_ours = match tablet.state {
                TabletState::Serving | TabletState::Arriving(_) => true,
                TabletState::Frozen | TabletState::Leaving => false,
            };
            cursor <= tablet.range.last() && is_ours && tablet.flushing.contains(table)
        })?;
        let first = cursor.max(tablet.range.first());
        let rest = HashRange::new(first, tablet.range.last());
        let next = self.drop_records(table, rest, buckets_max);
        next.or_else(|| behind(tablet.range.last()))
    }

    /// Drops the records of one table. Returns where to go on.
    fn drop_records(
        &mut self,
        table: TableId,
        range: HashRange,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        self.words.clear();
        let next = view.gather(range, buckets_max, &mut self.words);
        let mut held = HeldLeaf::none();
        for &(slot, word) in &self.words {
            let key = view.entry(word).key;
            let key = Key { hash: key_hash_in_slot(self.store.seed(), slot, key), bytes: key };
            if !range.contains(key.hash) {
                continue;
            }
            // Only the cleaner can hold the leaf, and not for long.
            let Ok(leaf) = held.lock(&view, key.hash) else { return Some(range.first()) };
            if let Some(old) = view.find_locked(leaf, key).old() {
                leaf.remove(key.hash, old.word, old.bytes);
                view.log.kill(old.word.address(), old.bytes);
            }
        }
        next
    }
}
