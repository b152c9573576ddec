//! The state of eviction at one reactor: hands that walk through the records, and the best
//! candidates that they have met.
//!
//! Candidates are found by walking, not by random picks: slots may be unevenly filled, and a walk
//! in the order of hashes passes each record equally often. Several hands walk far apart, so that
//! consecutive candidates do not share a slot. The table of a step is drawn by the sizes of the
//! indexes.

use super::sketch::{AccessMoment, AccessSketch, Accessed};
use super::store::Store;
use crate::index::Word;
use std::sync::Arc;
use types::limits::DATABASES;
use types::{EvictionOrder, EvictionPolicy, KeyHash, ReactorId, SplitMix64, TableId};

/// Number of places at which candidates are sampled in turns.
const HANDS: usize = 8;

/// Best candidates that are remembered, as in Redis.
const POOL_MAX: usize = 16;

/// The rule by which records are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionRule {
    /// Order and kind of the records.
    pub policy: EvictionPolicy,
    /// Fewest candidates that are compared for each evicted record.
    pub samples: u16,
}

/// The state of eviction at one reactor.
pub(super) struct Evictor {
    /// The store's sketch, as of the current turn.
    sketch: Option<Arc<AccessSketch>>,
    random: SplitMix64,
    /// Positions of the hands in each table.
    hands: [[KeyHash; DATABASES]; HANDS],
    /// Hand that makes the next step.
    next: usize,
    rule: EvictionRule,
    /// The best candidates of the last samples.
    pool: Vec<EvictionCandidate>,
    /// Position of a search through all tables, while the hands find no candidate.
    search: Option<WalkPosition>,
}

/// A record that may be evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionCandidate {
    /// The higher, the sooner it is evicted.
    pub(super) score: u64,
    pub(super) table: TableId,
    /// Lowest hash that the record may have.
    pub(super) lowest: KeyHash,
    pub(super) word: Word,
}

/// A position in all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WalkPosition {
    pub(super) table: TableId,
    pub(super) cursor: KeyHash,
}

impl Evictor {
    /// Creates the state of one reactor.
    pub(super) fn new(store: &Store, reactor: ReactorId) -> Evictor {
        let mut random = SplitMix64::new(store.seed().number() ^ u64::from(reactor.0) << 32);
        let hands = std::array::from_fn(|_| [KeyHash(random.draw()); DATABASES]);
        Evictor {
            sketch: store.sketch(),
            random,
            hands,
            next: 0,
            rule: EvictionRule::default(),
            pool: Vec::new(),
            search: None,
        }
    }

    pub(super) fn set_sketch(&mut self, sketch: Option<Arc<AccessSketch>>) {
        self.sketch = sketch;
    }

    #[inline]
    pub(super) fn sketch(&self) -> Option<&AccessSketch> {
        self.sketch.as_deref()
    }

    /// Returns the sketch, and the moment of an access to note in it.
    #[inline]
    pub(super) fn access(&mut self, store: &Store) -> Option<(&AccessSketch, AccessMoment)> {
        let moment = AccessMoment { now: store.clock(), random: self.random.draw() };
        Some((self.sketch.as_deref()?, moment))
    }

    /// Forgets the candidates of another rule.
    pub(super) fn follow(&mut self, rule: EvictionRule) {
        if self.rule != rule {
            self.rule = rule;
            self.pool.clear();
            self.search = None;
        }
    }

    /// Returns whether all records are searched, because the hands have found no candidate.
    pub(super) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Begins a step: returns the place at which it looks for candidates.
    pub(super) fn begin_step(&mut self, store: &Store) -> WalkPosition {
        if let Some(position) = self.search {
            return position;
        }
        self.next = (self.next + 1) % HANDS;
        let databases = || store.indexes().filter(|(table, _)| table.is_database());
        let sizes = || databases().map(|(table, index)| (table, index.memory()));
        let total = sizes().map(|(_, size)| size).sum::<u64>().max(1);
        let mut drawn = self.random.draw() % total;
        let mut chosen = sizes().skip_while(|(_, size)| {
            let is_before = drawn >= *size;
            drawn = drawn.saturating_sub(*size);
            is_before
        });
        let table = chosen.next().map_or(TableId(0), |(table, _)| table);
        assert!(table.is_database(), "{table:?} is never evicted");
        WalkPosition { table, cursor: self.hands[self.next][usize::from(table.0)] }
    }

    /// Ends a step, which found `found` candidates and goes on at `to`, or at the end of the table.
    /// Returns whether a search through all records has found none.
    pub(super) fn end_step(
        &mut self,
        step: WalkPosition,
        to: Option<KeyHash>,
        found: usize,
    ) -> bool {
        assert!(to.is_none_or(|to| to > step.cursor), "{step:?} goes back to {to:?}");
        let is_vain = found == 0 && self.pool.is_empty();
        match self.search {
            None => {
                let hand = &mut self.hands[self.next][usize::from(step.table.0)];
                *hand = to.unwrap_or(KeyHash(0));
                let start = WalkPosition { table: TableId(0), cursor: KeyHash(0) };
                self.search = is_vain.then_some(start);
                false
            }
            Some(_) => {
                let next = TableId(step.table.0 + 1);
                let next = next.is_database().then_some(next);
                let next_table = next.map(|table| WalkPosition { table, cursor: KeyHash(0) });
                let within = to.map(|cursor| WalkPosition { cursor, ..step });
                self.search = within.or(next_table).filter(|_| is_vain);
                is_vain && self.search.is_none()
            }
        }
    }

    /// Adds a candidate unless it is known, or worse than all of a full pool.
    pub(super) fn offer(&mut self, new: EvictionCandidate) {
        let is_new = |old: &EvictionCandidate| (old.table, old.word) != (new.table, new.word);
        if !self.pool.iter().all(is_new) {
            return;
        }
        if self.pool.len() < POOL_MAX {
            return self.pool.push(new);
        }
        assert!(self.pool.len() == POOL_MAX, "the pool is bounded");
        let worst = self.pool.iter_mut().min_by_key(|candidate| candidate.score);
        if let Some(worst) = worst.filter(|worst| worst.score < new.score) {
            *worst = new;
        }
    }

    /// Takes the best candidate out of the pool.
    pub(super) fn take_best(&mut self) -> Option<EvictionCandidate> {
        let numbered = self.pool.iter().enumerate();
        let (best, _) = numbered.max_by_key(|(_, candidate)| candidate.score)?;
        debug_assert!(self.pool.len() <= POOL_MAX, "{} candidates in the pool", self.pool.len());
        Some(self.pool.swap_remove(best))
    }

    /// Returns the present score of a candidate. If it is in the order of expiry, it keeps its
    /// score.
    pub(super) fn score(
        &mut self,
        store: &Store,
        order: EvictionOrder,
        candidate: &EvictionCandidate,
    ) -> u64 {
        let EvictionCandidate { table, lowest, .. } = *candidate;
        match order {
            EvictionOrder::Recency | EvictionOrder::Frequency => {
                let sketch = self.sketch();
                match sketch.map(|sketch| sketch.accessed(table, lowest, store.clock())) {
                    Some(Accessed::Before { millis }) => millis,
                    Some(Accessed::Times { count }) => u64::from(u8::MAX - count),
                    None => 0,
                }
            }
            EvictionOrder::Random => self.random.draw(),
            EvictionOrder::Expiry => candidate.score,
        }
    }
}
