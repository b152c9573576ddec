//! The walk over completion records, for the collection of those that are not needed any more.

use super::record::Record;
use super::store::behind;
use super::view::{View, record_of};
use super::worker::Worker;
use types::{KeyHash, TableId};

impl Worker {
    /// Passes the completion records of the ranges that this server serves alone to `f`, with
    /// their keys, from `cursor` on, in a bounded step. Those of ranges that arrive or leave, or
    /// depend on another server's log, are skipped. Returns where to resume; `None` at the end.
    pub fn completions(
        &mut self,
        cursor: KeyHash,
        buckets_max: usize,
        mut f: impl FnMut(&[u8], Record<'_>),
    ) -> Option<KeyHash> {
        let table = TableId::COMPLETIONS;
        self.store.index(table)?;
        let mut accessible = self.tablets.accessible_from(table, cursor);
        let (range, access) = accessible.find(|(_, access)| !access.is_inherited())?;
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
