//! The walk that reclaims expired records. They are invisible already; this releases their
//! memory.

use super::access::Access;
use super::expired::{Expiring, reclaim};
use super::record::Key;
use super::store::behind;
use super::view::View;
use super::worker::Worker;
use super::write::Writer;
use crate::index::{Word, WordKind};
use types::{HashRange, KeyHash, TableId, key_hash_in_slot};

impl Worker {
    /// Returns the statistics of [`Worker::expire`] since the last call.
    pub fn take_expiring(&mut self) -> Expiring {
        std::mem::take(&mut self.expiring)
    }

    /// Returns whether the table has, or had, a record.
    pub fn uses(&self, table: TableId) -> bool {
        self.store.index(table).is_some()
    }

    /// Reclaims expired records of one table, from `cursor` on, in a bounded step over any number
    /// of tablets. Skips tablets that are frozen, leaving or being flushed. Returns where to
    /// resume; `None` at the end.
    pub fn expire(
        &mut self,
        table: TableId,
        cursor: KeyHash,
        buckets_max: usize,
    ) -> Option<KeyHash> {
        self.store.index(table)?;
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let mut writer = Writer { store: &self.store, head, tombstones, view };
        let mut buckets_left = buckets_max;
        for (range, access) in self.tablets.accessible_from(table, cursor) {
            self.words.clear();
            let next = view.gather(range, buckets_left, &mut self.words);
            reclaim_expired(&mut writer, range, access, &self.words, &mut self.expiring);
            if next.is_some() {
                return next;
            }
            let walked = 1 + slots_in(range) / SLOTS_PER_BUCKET + self.words.len() / BUCKET_WORDS;
            buckets_left = buckets_left.saturating_sub(walked);
            if buckets_left == 0 {
                return behind(range.last());
            }
        }
        None
    }
}

/// Empty slots, and words, that cost as much as one bucket.
const SLOTS_PER_BUCKET: usize = 8;
const BUCKET_WORDS: usize = 4;

fn slots_in(range: HashRange) -> usize {
    let (first, last) = range.slots();
    usize::from(last.0 - first.0) + 1
}

/// Reclaims the expired records among these words of a range.
fn reclaim_expired(
    writer: &mut Writer<'_, '_>,
    range: HashRange,
    access: Access<'_>,
    words: &[(KeyHash, Word)],
    expiring: &mut Expiring,
) {
    let (store, view) = (writer.store, writer.view);
    let clock = access.clock(store);
    for &(lowest, word) in words {
        let expiry = match word.kind() {
            WordKind::Expiring => view.entry(word).expiry(),
            WordKind::Object | WordKind::Tombstone => None,
        };
        let Some(expiry) = expiry else { continue };
        if expiry > clock {
            let left_millis = expiry.0 - clock.0;
            expiring.add(Expiring { records: 1, left_millis, expired: 0 });
            continue;
        }
        expiring.expired += 1;
        let key = view.entry(word).key;
        let hash = key_hash_in_slot(store.seed(), lowest.slot(), key);
        if range.contains(hash) {
            // A record that cannot be reclaimed now is met again by the next walk.
            let _ = reclaim(writer, Key { hash, bytes: key }, access);
        }
    }
}
