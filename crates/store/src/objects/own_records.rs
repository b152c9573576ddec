//! Walks over the records of the server's own tables, and the removal of those that nothing needs:
//! completion records and pages.

use super::access::Access;
use super::record::{Key, Record, TableKey};
use super::stall::Stall;
use super::store::behind;
use super::view::{View, record_of};
use super::worker::Worker;
use crate::index::{Find, WordKind};
use planted::Bug;
use types::{KeyHash, TableId, UnixMillis};

/// Returns whether this server serves a range alone: everything has arrived.
fn is_alone(access: Access<'_>) -> bool {
    !access.is_inherited() || planted::is(Bug::ArrivingPageSwept)
}

impl Worker {
    /// Passes the records of a table in the ranges that this server serves alone to `f`, with their
    /// keys, from `cursor` on, in a bounded step. Those of ranges that arrive or leave, or depend on
    /// another server's log, are skipped. Returns where to resume; `None` at the end.
    pub fn own_records(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
        mut f: impl FnMut(&[u8], Record<'_>),
    ) -> Option<KeyHash> {
        self.store.index(table)?;
        let mut accessible = self.tablets.accessible_from(table, cursor);
        let (range, access) = accessible.find(|(_, access)| is_alone(*access))?;
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

    /// Returns whether `is_it` accepts a record with this hash. An expired record counts as one.
    pub fn any_with_hash(
        &mut self,
        table: TableId,
        hash: KeyHash,
        is_it: impl Fn(Record<'_>) -> bool,
    ) -> Result<bool, Stall> {
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        let accepts = |word| record_of(&view.entry(word), UnixMillis(0)).is_some_and(&is_it);
        match view.index.find(hash, &turn, accepts) {
            Find::Miss => Ok(false),
            Find::Hit(_) => Ok(true),
            Find::Contended => Err(Stall::Contended),
        }
    }

    /// Removes a record that no operation can reach any more, in a range that this server serves
    /// alone. It leaves no tombstone: after a restart or a recovery, the record is found to be
    /// unreachable again. Returns whether it was there.
    pub fn unlink(&mut self, TableKey { table, key }: TableKey<'_>) -> Result<bool, Stall> {
        let access = self.tablets.access(table, key.hash)?;
        if !is_alone(access) {
            return Err(Stall::Held);
        }
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        let mut leaf = view.lock(key.hash)?;
        let Key { hash, .. } = key;
        let is_record = |kind| matches!(kind, WordKind::Object | WordKind::Expiring);
        let old = view.find_locked(&leaf, key).old().filter(|old| is_record(old.word.kind()));
        let Some(old) = old else { return Ok(false) };
        leaf.remove(hash, old.word, old.bytes);
        view.retire(old);
        Ok(true)
    }
}
