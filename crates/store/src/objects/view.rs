//! The [`View`]: log and index of one table within a turn, from a key to its entry.

use super::publications::Publications;
use super::record::{Key, Record};
use super::stall::Stall;
use super::store::Store;
use crate::address::Address;
use crate::index::{Find, Index, LeafGuard, WalkBudget, Word, WordKind};
use crate::log::{Dependency, Log, Turn};
use planted::Bug;
use std::cell::RefCell;
use std::ops::ControlFlow;
use types::{HashRange, KeyHash, Slot, TableId, UnixMillis, Version};
use wire::entry::{Body, Entry};

/// Checks of a leaf during a publication before the writer is assumed to be descheduled.
const SPINS: usize = 64;

/// Bytes of an entry that are prefetched to compare its key.
const RIVAL_BYTES: usize = 64;

/// Bytes of an entry that usually include the key. A walk prefetches as many.
const KEY_ENDS: usize = 64;

/// Log and index of one table, within a turn.
#[derive(Clone, Copy)]
pub(super) struct View<'t> {
    pub(super) table: TableId,
    publications: &'t Publications,
    /// Collector of the reply's durability dependencies; `None` if the store is not durable or
    /// the reader is internal.
    dependency: Option<&'t ReplyDependency>,
    pub(super) log: &'t Log,
    pub(super) index: &'t Index,
    pub(super) turn: &'t Turn<'t>,
}

/// Views of the tables of one client's operation.
#[derive(Clone, Copy)]
pub(super) struct TableViews<'t> {
    pub(super) store: &'t Store,
    pub(super) turn: &'t Turn<'t>,
    pub(super) dependency: &'t ReplyDependency,
}

impl<'t> TableViews<'t> {
    #[inline]
    pub(super) fn of(&self, table: TableId) -> View<'t> {
        View::for_client(self.store, table, self.turn, self.dependency)
    }
}

/// Durability dependency of the replies to clients: log positions they reveal that are not
/// acknowledged.
#[derive(Debug, Default)]
pub(super) struct ReplyDependency(RefCell<Option<Dependency>>);

impl ReplyDependency {
    pub(super) fn take(&mut self) -> Option<Dependency> {
        self.0.get_mut().take()
    }

    #[inline]
    fn note(&self, log: &Log, address: Address, bytes: u32) {
        log.note_shown(address, bytes, &mut self.0.borrow_mut());
    }
}

/// Search result for a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lookup<'t> {
    /// Neither a record nor a tombstone.
    Nothing,
    /// Index word with its entry: a record or a tombstone.
    Here(Word, Entry<'t>),
}

impl<'t> View<'t> {
    #[inline]
    pub(super) fn new(store: &'t Store, table: TableId, turn: &'t Turn<'t>) -> View<'t> {
        let index = store.index_or_new(table);
        let publications = &store.publications;
        View { table, publications, dependency: None, log: &store.log, index, turn }
    }

    /// Returns a view for a client's operation, which also collects durability dependencies.
    #[inline]
    pub(super) fn for_client(
        store: &'t Store,
        table: TableId,
        turn: &'t Turn<'t>,
        dependency: &'t ReplyDependency,
    ) -> View<'t> {
        let dependency = store.log.is_durable().then_some(dependency);
        View { dependency, ..View::new(store, table, turn) }
    }

    /// Records that the client's reply depends on a found entry.
    #[inline]
    pub(super) fn note_found(&self, found: &Lookup<'_>) {
        if let (Some(dependency), Lookup::Here(word, entry)) = (self.dependency, found)
            && !planted::is(Bug::ReadNotGated)
        {
            dependency.note(self.log, word.address(), entry.encoded_bytes() as u32);
        }
    }

    /// Records that the client's reply depends on an entry in the log.
    #[inline]
    pub(super) fn note(&self, address: Address, bytes: u32) {
        if let Some(dependency) = self.dependency
            && !planted::is(Bug::WriteNotGated)
        {
            dependency.note(self.log, address, bytes);
        }
    }

    /// Searches for a key without a lock.
    #[inline]
    pub(super) fn find(&self, key: Key<'_>) -> Result<Lookup<'t>, Stall> {
        let mut entry = None;
        match self.index.find(key.hash, self.turn, |word| self.is_it(word, key, &mut entry)) {
            Find::Hit(word) => {
                if self.publications.may_be_partial() {
                    self.wait_for_publication(key.hash)?;
                }
                Ok(Lookup::of(word, entry))
            }
            Find::Miss => Ok(Lookup::Nothing),
            Find::Contended => Err(Stall::Contended),
        }
    }

    #[inline]
    pub(super) fn lock(&self, hash: KeyHash) -> Result<LeafGuard<'t>, Stall> {
        Ok(self.index.lock(hash, self.turn)?)
    }

    /// Creates the slot's leaf, if there is none, for as many records as `expected` returns.
    /// Without memory it does nothing: the leaf then grows as others do.
    #[inline]
    pub(super) fn make_leaf(&self, slot: Slot, expected: impl FnOnce() -> Option<u32>) {
        if !self.index.is_used(slot)
            && let Some(records) = expected()
        {
            let _ = self.index.reserve(slot, records, self.turn);
        }
    }

    /// Adds the words of a range to `words`, each with the lowest hash that it may have, and
    /// prefetches the headers and keys of their entries. Returns where to resume.
    pub(super) fn gather(
        &self,
        range: HashRange,
        buckets: usize,
        words: &mut Vec<(KeyHash, Word)>,
    ) -> Option<KeyHash> {
        let budget = WalkBudget { entries: usize::MAX, buckets };
        self.index.walk(range, budget, self.turn, |hash, word| {
            self.log.prefetch(word.address(), KEY_ENDS);
            words.push((hash, word));
            ControlFlow::Continue(())
        })
    }

    /// Prefetches the entries that may have the same key. The hash's bucket is expected to be in
    /// the cache.
    #[inline]
    pub(super) fn prefetch_rivals(&self, hash: KeyHash) {
        self.index.candidates(hash, self.turn, |word| {
            self.log.prefetch(word.address(), RIVAL_BYTES);
        });
    }

    /// Waits until all words that were published together with a found word are visible.
    #[inline(never)]
    fn wait_for_publication(&self, hash: KeyHash) -> Result<(), Stall> {
        for _ in 0..SPINS {
            if self.index.sequence(hash, self.turn).is_some() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        Err(Stall::Contended)
    }

    /// Searches for a key in a locked leaf.
    #[inline(always)]
    pub(super) fn find_locked(&self, leaf: &LeafGuard<'_>, key: Key<'_>) -> Lookup<'t> {
        let mut entry = None;
        match leaf.find(key.hash, |word| self.is_it(word, key, &mut entry)) {
            Some(word) => Lookup::of(word, entry),
            None => Lookup::Nothing,
        }
    }

    /// Returns the entry of a word that was found within this turn.
    #[inline(always)]
    pub(super) fn entry(&self, word: Word) -> Entry<'t> {
        self.log.entry(word.address(), self.turn)
    }

    /// Releases an entry that no word points at any more. The entry is marked as dead, but a
    /// tombstone of a durable store stays live as long as it is needed. The caller holds the
    /// leaf's lock.
    #[inline]
    pub(super) fn retire(&self, old: Placed) {
        if self.log.is_durable() && old.word.kind() == WordKind::Tombstone {
            self.retire_tombstone(old);
        } else {
            self.log.mark_dead(old.word.address(), old.bytes);
        }
    }

    fn retire_tombstone(&self, tombstone: Placed) {
        match self.entry(tombstone.word).body {
            Body::Tombstone { dead } => {
                self.log.durable_log().retire_tombstone(
                    tombstone.word.address(),
                    tombstone.bytes,
                    dead,
                );
            }
            Body::Object { .. } | Body::CopiesOf(_) => unreachable!("the word says tombstone"),
        }
    }

    #[inline(always)]
    fn is_it(&self, word: Word, key: Key<'_>, entry: &mut Option<Entry<'t>>) -> bool {
        let candidate = self.entry(word);
        let is_it = candidate.key == key.bytes;
        if is_it {
            *entry = Some(candidate);
        }
        is_it
    }
}

impl<'t> Lookup<'t> {
    #[inline]
    fn of(word: Word, entry: Option<Entry<'t>>) -> Lookup<'t> {
        Lookup::Here(word, entry.expect("the word was found by its entry"))
    }

    /// Returns whether there is neither a record nor a tombstone.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Lookup::Nothing)
    }

    /// Returns whether the entry is a record with an expiry.
    #[inline]
    pub(super) fn may_expire(&self) -> bool {
        matches!(self, Lookup::Here(word, _) if word.kind() == WordKind::Expiring)
    }

    /// Returns the record, if it exists at this time.
    #[inline]
    pub(super) fn record(&self, now: UnixMillis) -> Option<Record<'t>> {
        match self {
            Lookup::Nothing => None,
            Lookup::Here(_, entry) => record_of(entry, now),
        }
    }

    /// Returns the word that a change of the key must replace or remove.
    #[inline]
    pub(super) fn old(&self) -> Option<Placed> {
        match self {
            Lookup::Nothing => None,
            Lookup::Here(word, entry) => Some(Placed::new(*word, entry)),
        }
    }
}

/// An index word and the length of its entry in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) word: Word,
    pub(super) bytes: u32,
}

impl Placed {
    #[inline]
    pub(super) fn new(word: Word, entry: &Entry<'_>) -> Placed {
        Placed { word, bytes: entry.encoded_bytes() as u32 }
    }

    /// Returns word and length as the index takes them.
    #[inline]
    pub(super) fn tuple(self) -> (Word, u32) {
        (self.word, self.bytes)
    }
}

/// Returns the kind of an entry's index word.
#[inline]
pub(super) fn kind_of(entry: &Entry<'_>) -> WordKind {
    match entry.body {
        Body::Object { expiry: None, .. } => WordKind::Object,
        Body::Object { expiry: Some(_), .. } => WordKind::Expiring,
        Body::Tombstone { .. } => WordKind::Tombstone,
        Body::CopiesOf(_) => unreachable!("the index never points at a note"),
    }
}

/// Returns the sort key that decides between two entries of one key: the higher rank wins,
/// independently of the order in which a log is read. At equal versions the tombstone wins: a
/// tombstone derived by the cleaner from an object must win over the version that the object
/// replaced.
#[inline]
pub(super) fn rank(version: Version, kind: WordKind) -> (Version, bool) {
    (version, (kind == WordKind::Tombstone) != planted::is(Bug::TieToObject))
}

/// Returns the record of an entry, if it exists at this time.
#[inline]
pub(super) fn record_of<'t>(entry: &Entry<'t>, now: UnixMillis) -> Option<Record<'t>> {
    match entry.body {
        Body::Object { expiry, value, .. } if expiry.is_none_or(|at| at > now) => {
            Some(Record { value, version: entry.version, expiry, clock: now })
        }
        Body::Object { .. } | Body::Tombstone { .. } | Body::CopiesOf(_) => None,
    }
}
