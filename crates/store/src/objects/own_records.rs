//! Walks over the records of a table, and the removal of those of the server's own tables that
//! nothing needs: completion records and pages.

use super::record::{Key, Record};
use super::stall::Stall;
use super::store::behind;
use super::view::{View, record_of};
use super::worker::Worker;
use crate::index::{Find, WordKind};
use planted::Bug;
use types::{KeyHash, TableId, UnixMillis, Version};

/// A table of the server's own, for its collection.
pub struct OwnTable<'w> {
    worker: &'w mut Worker,
    table: TableId,
}

impl Worker {
    /// Returns a table of the server's own.
    ///
    /// # Panics
    /// If clients can select the table.
    pub fn own_table(&mut self, table: TableId) -> OwnTable<'_> {
        assert!(!table.is_database(), "{table:?} belongs to clients");
        OwnTable { worker: self, table }
    }

    /// Passes the records of any table in the ranges that this server serves alone to `f`, like
    /// [`OwnTable::walk`].
    pub fn walk_served(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
        mut f: impl FnMut(&[u8], Record<'_>),
    ) -> Option<KeyHash> {
        self.store.index(table)?;
        let mut accessible = self.tablets.accessible_from(table, cursor);
        let (range, access) =
            accessible.find(|(_, access)| !access.is_inherited() || sweeps_arriving(table))?;
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        self.words.clear();
        let next = view.gather(range, buckets_max, &mut self.words);
        assert!(next.is_none_or(|next| next > range.first()), "a walk of {range} stands still");
        let now = access.clock(&self.store);
        for &(_, word) in &self.words {
            let entry = view.entry(word);
            if let Some(record) = record_of(&entry, now) {
                f(entry.key, record);
            }
        }
        next.or_else(|| behind(range.last()))
    }
}

impl OwnTable<'_> {
    /// Passes the records of the table in the ranges that this server serves alone to `f`, with their
    /// keys, from `cursor` on, in a bounded step. Those of ranges that arrive or leave, or depend on
    /// another server's log, are skipped. Returns where to resume; `None` at the end.
    pub fn walk(
        &mut self,
        cursor: KeyHash,
        buckets_max: usize,
        f: impl FnMut(&[u8], Record<'_>),
    ) -> Option<KeyHash> {
        self.worker.walk_served(self.table, cursor, buckets_max, f)
    }

    /// Returns whether `is_it` accepts a record with this hash in another table. An expired record
    /// counts as one.
    pub fn other_has(
        &mut self,
        table: TableId,
        hash: KeyHash,
        is_it: impl Fn(Record<'_>) -> bool,
    ) -> Result<bool, Stall> {
        let turn = self.worker.participant.turn();
        let view = View::new(&self.worker.store, table, &turn);
        let accepts = |word| record_of(&view.entry(word), UnixMillis(0)).is_some_and(&is_it);
        match view.index.find(hash, &turn, accepts) {
            Find::Miss => Ok(false),
            Find::Hit(_) => Ok(true),
            Find::Contended => Err(Stall::Contended),
        }
    }

    /// Returns the key of a record with this hash in another table that `is_it` accepts, even of an
    /// expired one.
    pub fn other_key(
        &mut self,
        table: TableId,
        hash: KeyHash,
        is_it: impl Fn(Record<'_>) -> bool,
    ) -> Result<Option<Box<[u8]>>, Stall> {
        let turn = self.worker.participant.turn();
        let view = View::new(&self.worker.store, table, &turn);
        let accepts = |word| record_of(&view.entry(word), UnixMillis(0)).is_some_and(&is_it);
        match view.index.find(hash, &turn, accepts) {
            Find::Miss => Ok(None),
            Find::Hit(word) => Ok(Some(view.entry(word).key.into())),
            Find::Contended => Err(Stall::Contended),
        }
    }

    /// Removes the record of this version, which no operation can reach any more, in a range that
    /// this server serves alone. It leaves no tombstone: after a restart or a recovery, the record is
    /// found to be unreachable again. A record that has replaced it stays. Returns whether it was
    /// there.
    pub fn unlink(&mut self, key: Key<'_>, version: Version) -> Result<bool, Stall> {
        self.unlink_if(key, |found| found == version)
    }

    /// Removes the record of this key like [`OwnTable::unlink`], whatever its version: the caller knows
    /// that no operation can reach any record of this key.
    pub fn unlink_any(&mut self, key: Key<'_>) -> Result<bool, Stall> {
        self.unlink_if(key, |_| true)
    }

    fn unlink_if(&mut self, key: Key<'_>, is_it: impl Fn(Version) -> bool) -> Result<bool, Stall> {
        let access = self.worker.tablets.access(self.table, key.hash)?;
        if access.is_inherited() && !sweeps_arriving(self.table) {
            return Err(Stall::Held);
        }
        let turn = self.worker.participant.turn();
        let view = View::new(&self.worker.store, self.table, &turn);
        let mut leaf = view.lock(key.hash)?;
        let Key { hash, .. } = key;
        let is_record = |kind| matches!(kind, WordKind::Object | WordKind::Expiring);
        let is_seen = |word| is_it(view.entry(word).version);
        let old = view.find_locked(&leaf, key).old();
        let old = old.filter(|old| is_record(old.word.kind()) && is_seen(old.word));
        let Some(old) = old else { return Ok(false) };
        leaf.remove(hash, old.word, old.bytes);
        view.retire(old);
        Ok(true)
    }
}

/// Planted bug: pages are also collected where their root may be missing.
fn sweeps_arriving(table: TableId) -> bool {
    table == TableId::PAGES && planted::is(Bug::ArrivingPageSwept)
}
