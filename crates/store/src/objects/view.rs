//! The [`View`]: log and index of one table within a turn, from a key to its entry.

use super::batch::Publications;
use super::store::Store;
use super::{Key, Record, Stall};
use crate::address::Address;
use crate::index::{Find, Index, Kind, LeafGuard, WalkBudget, Word};
use crate::log::{Dependency, Log, Turn};
use planted::Bug;
use std::cell::RefCell;
use std::ops::ControlFlow;
use types::{HashRange, KeyHash, TableId, UnixMillis, Version};
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
    shown: Option<&'t Shown>,
    pub(super) log: &'t Log,
    pub(super) index: &'t Index,
    pub(super) turn: &'t Turn<'t>,
}

/// Durability dependency of the replies to clients: log positions they reveal that are not
/// acknowledged.
#[derive(Debug, Default)]
pub(super) struct Shown(RefCell<Option<Dependency>>);

impl Shown {
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
pub(super) enum Found<'t> {
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
        View { table, publications, shown: None, log: &store.log, index, turn }
    }

    /// Returns a view for a client's operation, which also collects durability dependencies.
    #[inline]
    pub(super) fn for_client(
        store: &'t Store,
        table: TableId,
        turn: &'t Turn<'t>,
        shown: &'t Shown,
    ) -> View<'t> {
        let shown = store.log.is_durable().then_some(shown);
        View { shown, ..View::new(store, table, turn) }
    }

    /// Records that the client's reply depends on a found entry.
    #[inline]
    pub(super) fn note_found(&self, found: &Found<'_>) {
        if let (Some(shown), Found::Here(word, entry)) = (self.shown, found) {
            shown.note(self.log, word.address(), entry.encoded_bytes() as u32);
        }
    }

    /// Records that the client's reply depends on an entry in the log.
    #[inline]
    pub(super) fn note(&self, address: Address, bytes: u32) {
        if let Some(shown) = self.shown {
            shown.note(self.log, address, bytes);
        }
    }

    /// Searches for a key without a lock.
    #[inline]
    pub(super) fn find(&self, key: Key<'_>) -> Result<Found<'t>, Stall> {
        let mut entry = None;
        match self.index.find(key.hash, self.turn, |word| self.is_it(word, key, &mut entry)) {
            Find::Hit(word) => {
                if self.publications.may_be_partial() {
                    self.wait_for_publication(key.hash)?;
                }
                Ok(Found::of(word, entry))
            }
            Find::Miss => Ok(Found::Nothing),
            Find::Contended => Err(Stall::Contended),
        }
    }

    /// Locks the leaf of this hash.
    #[inline]
    pub(super) fn lock(&self, hash: KeyHash) -> Result<LeafGuard<'t>, Stall> {
        Ok(self.index.lock(hash, self.turn)?)
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
    pub(super) fn find_locked(&self, leaf: &LeafGuard<'_>, key: Key<'_>) -> Found<'t> {
        let mut entry = None;
        match leaf.find(key.hash, |word| self.is_it(word, key, &mut entry)) {
            Some(word) => Found::of(word, entry),
            None => Found::Nothing,
        }
    }

    /// Returns the entry of a word that was found within this turn.
    #[inline(always)]
    pub(super) fn entry(&self, word: Word) -> Entry<'t> {
        self.log.entry(word.address(), self.turn)
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

impl<'t> Found<'t> {
    #[inline]
    fn of(word: Word, entry: Option<Entry<'t>>) -> Found<'t> {
        Found::Here(word, entry.expect("the word was found by its entry"))
    }

    /// Returns whether there is neither a record nor a tombstone.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Found::Nothing)
    }

    /// Returns whether the entry is a record with an expiry.
    #[inline]
    pub(super) fn may_expire(&self) -> bool {
        matches!(self, Found::Here(word, _) if word.kind() == Kind::Expiring)
    }

    /// Returns the record, if it exists at this time.
    #[inline]
    pub(super) fn record(&self, now: UnixMillis) -> Option<Record<'t>> {
        match self {
            Found::Nothing => None,
            Found::Here(_, entry) => record_of(entry, now),
        }
    }

    /// Returns the word that a change of the key must replace or remove.
    #[inline]
    pub(super) fn old(&self) -> Option<Placed> {
        match self {
            Found::Nothing => None,
            Found::Here(word, entry) => Some(Placed::new(*word, entry)),
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
pub(super) fn kind_of(entry: &Entry<'_>) -> Kind {
    match entry.body {
        Body::Object { expiry: None, .. } => Kind::Object,
        Body::Object { expiry: Some(_), .. } => Kind::Expiring,
        Body::Tombstone { .. } => Kind::Tombstone,
        Body::CopiesOf(_) => unreachable!("the index never points at a note"),
    }
}

/// Returns the sort key that decides between two entries of one key: the higher rank wins,
/// independently of the order in which a log is read. At equal versions the tombstone wins: a
/// tombstone derived by the cleaner from an object must win over the version that the object
/// replaced.
#[inline]
pub(super) fn rank(version: Version, kind: Kind) -> (Version, bool) {
    (version, (kind == Kind::Tombstone) != planted::is(Bug::TieToObject))
}

/// Returns the record of an entry, if it exists at this time.
#[inline]
pub(super) fn record_of<'t>(entry: &Entry<'t>, now: UnixMillis) -> Option<Record<'t>> {
    match entry.body {
        Body::Object { expiry, value, .. } if expiry.is_none_or(|at| at > now) => {
            Some(Record { value, version: entry.version, expiry })
        }
        Body::Object { .. } | Body::Tombstone { .. } | Body::CopiesOf(_) => None,
    }
}
