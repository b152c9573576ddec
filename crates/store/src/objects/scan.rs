//! Scans over all records of a table, for clients: SCAN, KEYS and similar commands.

use super::access::Access;
use super::arrival::Arrival;
use super::expired::reclaim_touched;
use super::record::{Key, Record};
use super::stall::Stall;
use super::store::behind;
use super::tablets::{TabletMap, TabletState};
use super::view::{Lookup, View, record_of};
use super::worker::Worker;
use super::write::Writer;
use planted::Bug;
use std::sync::Arc;
use types::{HashRange, KeyHash, TableId, key_hash_in_slot};

impl Worker {
    /// Returns why an operation on this hash would stall, as far as the tablets decide that.
    pub fn check_access(&self, table: TableId, hash: KeyHash) -> Result<(), Stall> {
        self.tablets.access(table, hash).map(drop)
    }

    /// Passes every record of a table in the owned tablets to `f`, from `cursor` on, in a bounded
    /// step. Returns where to resume; `None` at the end.
    ///
    /// A record that exists throughout the scan is passed exactly once; others may be.
    pub fn scan(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
        mut f: impl FnMut(&[u8], Record<'_>),
    ) -> Result<Option<KeyHash>, Stall> {
        let Some((range, access)) = scannable(&self.tablets, table, cursor)? else {
            return Ok(None);
        };
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        self.words.clear();
        let next = view.gather(range, buckets_max, &mut self.words);
        assert!(next.is_none_or(|next| next > range.first()), "a scan of {range} stands still");
        let covered =
            HashRange::new(range.first(), next.map_or(range.last(), |next| KeyHash(next.0 - 1)));
        let now = access.clock(&self.store);
        let mut expired = Vec::new();
        for &(lowest, word) in &self.words {
            let entry = view.entry(word);
            view.note_found(&Lookup::Here(word, entry));
            if entry.is_expired(now) {
                expired.push((lowest.slot(), entry.key));
            }
            if let Some(record) = record_of(&entry, now)
                && covered.contains(key_hash_in_slot(self.store.seed(), lowest.slot(), entry.key))
            {
                f(entry.key, record);
            }
        }
        let view = View::new(&self.store, table, &turn);
        for (slot, bytes) in expired {
            let key = Key { hash: key_hash_in_slot(self.store.seed(), slot, bytes), bytes };
            if range.contains(key.hash) {
                let (head, tombstones) = (&mut self.head, &mut self.tombstones);
                reclaim_touched(Writer { store: &self.store, head, tombstones, view }, key, access);
            }
        }
        Ok(next.or_else(|| behind(range.last())))
    }
}

/// Returns the next range to scan: within one tablet, and below the progress if it is arriving.
fn scannable(
    tablets: &TabletMap,
    table: TableId,
    cursor: KeyHash,
) -> Result<Option<(HashRange, Access<'_>)>, Stall> {
    let ours = tablets.iter().find(|tablet| {
        cursor <= tablet.range.last() && !matches!(tablet.state, TabletState::Leaving)
    });
    let Some(tablet) = ours else { return Ok(None) };
    let access = tablet.access(table)?;
    let rest = HashRange::new(cursor.max(tablet.range.first()), tablet.range.last());
    match access.arrival {
        None => Ok(Some((rest, access))),
        Some(arrival) if arrival.is_flushed(table) => Ok(Some((rest, access))),
        Some(_) if planted::is(Bug::ScanNotWaiting) => Ok(Some((rest, access))),
        Some(arrival) => Ok(Some((arrived(arrival, rest)?, access))),
    }
}

/// Returns the part of the range, from its beginning, that is below the progress.
fn arrived(arrival: &Arc<Arrival>, range: HashRange) -> Result<HashRange, Stall> {
    match arrival.arrived_from(range.first()) {
        Some(last) => Ok(HashRange::new(range.first(), last.min(range.last()))),
        None => Err(Stall::NotArrived { migration: arrival.migration(), from: range.first() }),
    }
}
