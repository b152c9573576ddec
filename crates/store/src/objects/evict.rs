//! Eviction: removal of the records that are least likely to be needed, so that a full server has
//! memory for writes. Design: `docs/design/eviction.md`.
//!
//! Invariants:
//! - an evicted record is removed as a client's DEL removes it;
//! - only records of ranges that this server serves alone are evicted: not where records arrive,
//!   leave, or depend on another server's log.
//!
//! When and how much to evict: `node`.

use super::access::Access;
use super::evictor::{EvictionCandidate, EvictionRule};
use super::expired::reclaim;
use super::record::{Key, Need};
use super::sketch::{AccessSketch, Accessed, SketchKind};
use super::stall::Stall;
use super::store::{Store, behind};
use super::tablets::TabletMap;
use super::view::View;
use super::worker::Worker;
use super::write::{WriteTarget, Writer};
use crate::index::{Find, WalkBudget, WordKind};
use crate::sync::atomic::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;
use types::{EvictionOrder, HashRange, KeyHash, TableId, TypedValue, key_hash_in_slot};
use wire::entry::Body;

/// Most records that one quantum evicts: 20-50 µs.
const QUANTUM_RECORDS: u64 = 32;

/// Most steps of hands in one quantum, and buckets of a step.
const QUANTUM_STEPS: usize = 64;
const STEP_BUCKETS: usize = 16;

/// The result of a quantum of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Number of records that were evicted, or found expired and reclaimed.
    pub records: u64,
    /// Log bytes of these records, and those of the records that belong to them.
    pub bytes: u64,
    /// Set if a search through all records has found none that may be evicted.
    pub found_none: bool,
    /// Set if a record could not be removed now: its leaf is locked, or no memory for a tombstone.
    pub is_blocked: bool,
}

impl Worker {
    /// Returns whether accesses to records are to be noted.
    #[inline]
    pub fn tracks_access(&self) -> bool {
        self.evictor.sketch().is_some()
    }

    /// Adopts a change of [`Store::set_eviction_order`] within a turn.
    pub fn follow_eviction_order(&mut self) {
        self.evictor.set_sketch(self.store.sketch());
    }

    /// Notes that a client has read the record.
    #[inline]
    pub fn note_read(&mut self, table: TableId, hash: KeyHash) {
        if let Some((sketch, moment)) = self.evictor.access(&self.store) {
            sketch.note_read(table, hash, moment);
        }
    }

    /// Notes that a client has written the record.
    #[inline]
    pub fn note_written(&mut self, table: TableId, hash: KeyHash) {
        if let Some((sketch, moment)) = self.evictor.access(&self.store) {
            sketch.note_written(table, hash, moment);
        }
    }

    /// Returns the accesses to the record, as far as they are tracked.
    pub fn accessed(&self, table: TableId, hash: KeyHash) -> Option<Accessed> {
        let sketch = self.evictor.sketch()?;
        Some(sketch.accessed(table, hash, self.store.clock()))
    }

    /// Replaces the accesses to the record. Does nothing if something else is tracked.
    pub fn set_accessed(&mut self, table: TableId, hash: KeyHash, accessed: Accessed) {
        if let Some(sketch) = self.evictor.sketch() {
            sketch.set(table, hash, self.store.clock(), accessed);
        }
    }

    /// Evicts records until `bytes` of the log have become dead, for a bounded time. Passes each
    /// evicted value to `belonging`, which returns the log bytes of further records that nobody
    /// needs without it; they count as dead.
    pub fn evict(
        &mut self,
        rule: EvictionRule,
        bytes: u64,
        mut belonging: impl FnMut(TableId, KeyHash, TypedValue<'_>) -> u64,
    ) -> Evicted {
        let mut evicted = Evicted::default();
        let Some(order) = rule.policy.order() else { return evicted };
        self.evictor.follow(rule);
        let mut steps = 0;
        while evicted.bytes < bytes && evicted.records < QUANTUM_RECORDS && steps < QUANTUM_STEPS {
            let mut sampled = 0;
            while sampled < usize::from(rule.samples.max(1))
                && steps < QUANTUM_STEPS
                && !evicted.found_none
            {
                steps += 1;
                let found = self.sample(rule, order);
                sampled += found.candidates;
                evicted.found_none = found.found_none;
            }
            let Some(candidate) = self.evictor.take_best() else { break };
            match self.evict_one(order, &candidate, &mut belonging) {
                Ok(0) => {}
                Ok(bytes) => {
                    evicted.bytes = evicted.bytes.saturating_add(bytes);
                    evicted.records += 1;
                }
                Err(_) => {
                    evicted.is_blocked = true;
                    break;
                }
            }
        }
        assert!(evicted.records <= QUANTUM_RECORDS && steps <= QUANTUM_STEPS, "{evicted:?}");
        assert!((evicted.bytes > 0) == (evicted.records > 0), "{evicted:?}");
        evicted
    }

    /// Offers candidates from the next step of a hand to the pool.
    fn sample(&mut self, rule: EvictionRule, order: EvictionOrder) -> SampleStep {
        let step = self.evictor.begin_step(&self.store);
        let place = served_from(&self.tablets, step.table, step.cursor);
        let (Some(index), Some((range, _))) = (self.store.index(step.table), place) else {
            let found_none = self.evictor.end_step(step, None, 0);
            return SampleStep { candidates: 0, found_none };
        };
        debug_assert!(range.first() >= step.cursor, "{step:?} looks in {range}");
        let turn = self.participant.turn();
        let entries =
            if self.evictor.is_searching() { usize::MAX } else { usize::from(rule.samples.max(1)) };
        let budget = WalkBudget { entries, buckets: STEP_BUCKETS };
        let words = &mut self.words;
        words.clear();
        let next = index.walk(range, budget, &turn, |lowest, word| {
            let may_go = match word.kind() {
                WordKind::Object => !rule.policy.is_volatile(),
                WordKind::Expiring => true,
                WordKind::Tombstone => false,
            };
            if may_go {
                words.push((lowest, word));
            }
            ControlFlow::Continue(())
        });
        for &(lowest, word) in &self.words {
            let score = match order {
                EvictionOrder::Expiry => {
                    let expiry = self.store.log.entry(word.address(), &turn).expiry();
                    u64::MAX - expiry.map_or(u64::MAX, |expiry| expiry.0)
                }
                EvictionOrder::Recency | EvictionOrder::Frequency | EvictionOrder::Random => 0,
            };
            let mut candidate = EvictionCandidate { score, table: step.table, lowest, word };
            candidate.score = self.evictor.score(&self.store, order, &candidate);
            self.evictor.offer(candidate);
        }
        let candidates = self.words.len();
        let next = next.or_else(|| behind(range.last()));
        let found_none = self.evictor.end_step(step, next, candidates);
        SampleStep { candidates, found_none }
    }

    /// Evicts a record unless it was changed or accessed since it became a candidate. Returns its
    /// bytes with those that `belonging` returns, or 0.
    fn evict_one(
        &mut self,
        order: EvictionOrder,
        candidate: &EvictionCandidate,
        belonging: &mut impl FnMut(TableId, KeyHash, TypedValue<'_>) -> u64,
    ) -> Result<u64, Stall> {
        let EvictionCandidate { score, table, lowest, word } = *candidate;
        let by_access = matches!(order, EvictionOrder::Recency | EvictionOrder::Frequency);
        if by_access && self.evictor.score(&self.store, order, candidate) < score {
            return Ok(0);
        }
        let Some((range, access)) = served_from(&self.tablets, table, lowest) else { return Ok(0) };
        let turn = self.participant.turn();
        let view = View::new(&self.store, table, &turn);
        match view.index.find(lowest, &turn, |found| found == word) {
            Find::Hit(_) => {}
            Find::Miss => return Ok(0),
            Find::Contended => return Err(Stall::Contended),
        }
        let entry = view.entry(word);
        let hash = key_hash_in_slot(self.store.seed(), lowest.slot(), entry.key);
        if !range.contains(hash) {
            return Ok(0);
        }
        let key = Key { hash, bytes: entry.key };
        let (head, tombstones) = (&mut self.head, &mut self.tombstones);
        let mut writer = Writer { store: &self.store, head, tombstones, view };
        let bytes = entry.encoded_bytes() as u64;
        let mut with_belonging = || match entry.body {
            Body::Object { value, .. } => bytes.saturating_add(belonging(table, hash, value)),
            Body::Tombstone { .. } | Body::CopiesOf(_) => bytes,
        };
        if entry.is_expired(access.clock(&self.store)) {
            reclaim(&mut writer, key, access)?;
            return Ok(with_belonging());
        }
        let mut leaf = view.lock(hash)?;
        let old = view.find_locked(&leaf, key).old().filter(|old| old.word == word);
        let Some(old) = old else { return Ok(0) };
        assert!(u64::from(old.bytes) == bytes, "an entry of {bytes} bytes has {}", old.bytes);
        // The record's expiry may be the reason: without it the tombstone must not be left.
        let need = Need::Records;
        let target = WriteTarget { table: writer.view.table, key, access, need };
        writer.remove(&mut leaf, target, Some(old))?;
        self.store.evicted.fetch_add(1, Ordering::Relaxed);
        if let Some(sketch) = self.evictor.sketch() {
            sketch.forget(table, hash);
        }
        Ok(with_belonging())
    }
}

/// The result of one step of a hand.
struct SampleStep {
    candidates: usize,
    /// Set if a search through all records has found no candidate.
    found_none: bool,
}

impl Store {
    /// Sets the order in which records are evicted. If it depends on accesses, they are tracked
    /// from now on, and all records count as just accessed. Each worker begins to track at the
    /// start of its next turn.
    pub fn set_eviction_order(&self, order: Option<EvictionOrder>) {
        let kind = order.and_then(SketchKind::for_order);
        if self.sketch().map(|sketch| sketch.kind()) != kind {
            let new = |kind| AccessSketch::new(kind, self.log.total_bytes(), self.clock());
            self.replace_sketch(kind.map(new).map(Arc::new));
        }
    }

    /// Returns the number of pages of the access sketch; 0 without one. [`Store::age_accesses`]
    /// must pass all of them once in 15 minutes.
    pub fn sketch_pages(&self) -> usize {
        self.sketch().map_or(0, |sketch| sketch.pages())
    }

    /// Ages the next pages of the access sketch.
    pub fn age_accesses(&self, pages: usize) {
        if let Some(sketch) = self.sketch() {
            sketch.age(pages, self.clock());
        }
    }

    /// Returns how many records were evicted.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }
}

/// Returns the next range, from `cursor` on, of which records may be evicted.
fn served_from(
    tablets: &TabletMap,
    table: TableId,
    cursor: KeyHash,
) -> Option<(HashRange, Access<'_>)> {
    let mut accessible = tablets.accessible_from(table, cursor);
    accessible.find(|(_, access)| !access.is_inherited())
}
