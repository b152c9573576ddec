//! One table as an operation sees it within a turn: from a key to its entry.

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

/// Looks at a leaf whose writer is publishing before the writer is taken to be away.
const SPINS: usize = 64;

/// Of an entry that may be of the same key: what it takes to compare the keys.
const RIVAL_BYTES: usize = 64;

/// Where the key of an entry ends, as a rule: what a walk asks for.
const KEY_ENDS: usize = 64;

/// Log and index of one table, within a turn.
#[derive(Clone, Copy)]
pub(super) struct View<'t> {
    pub(super) table: TableId,
    publications: &'t Publications,
    /// Where is noted what is shown to a client; `None`: nothing has to be.
    shown: Option<&'t Shown>,
    pub(super) log: &'t Log,
    pub(super) index: &'t Index,
    pub(super) turn: &'t Turn<'t>,
}

/// What the replies to clients tell that is not safe yet.
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

/// What stands in the index under a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'t> {
    /// Nothing.
    Nothing,
    /// The entry of a word: a record, or the tombstone of one.
    Here(Word, Entry<'t>),
}

impl<'t> View<'t> {
    #[inline]
    pub(super) fn new(store: &'t Store, table: TableId, turn: &'t Turn<'t>) -> View<'t> {
        let index = store.index_or_new(table);
        let publications = &store.publications;
        View { table, publications, shown: None, log: &store.log, index, turn }
    }

    /// As [`View::new`] for an operation of a client.
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

    /// The client's reply tells of what was found.
    #[inline]
    pub(super) fn note_found(&self, found: &Found<'_>) {
        if let (Some(shown), Found::Here(word, entry)) = (self.shown, found) {
            shown.note(self.log, word.address(), entry.encoded_bytes() as u32);
        }
    }

    /// The client's reply tells of an entry in the log.
    #[inline]
    pub(super) fn note(&self, address: Address, bytes: u32) {
        if let Some(shown) = self.shown {
            shown.note(self.log, address, bytes);
        }
    }

    /// Looks without a lock.
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

    /// The leaf of this hash, locked.
    #[inline]
    pub(super) fn lock(&self, hash: KeyHash) -> Result<LeafGuard<'t>, Stall> {
        Ok(self.index.lock(hash, self.turn)?)
    }

    /// Adds the words of a range, each with the lowest hash that it may have, to `words`, and asks
    /// for the headers and keys of their entries. Returns where to go on.
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

    /// Asks for what may stand under the same key already. The hash's bucket is here by now.
    #[inline]
    pub(super) fn prefetch_rivals(&self, hash: KeyHash) {
        self.index.candidates(hash, self.turn, |word| {
            self.log.prefetch(word.address(), RIVAL_BYTES);
        });
    }

    /// A word was found in the leaf: returns when all that was published with it can be found.
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

    /// Looks in a leaf that is locked.
    #[inline(always)]
    pub(super) fn find_locked(&self, leaf: &LeafGuard<'_>, key: Key<'_>) -> Found<'t> {
        let mut entry = None;
        match leaf.find(key.hash, |word| self.is_it(word, key, &mut entry)) {
            Some(word) => Found::of(word, entry),
            None => Found::Nothing,
        }
    }

    /// The entry of a word that was found within this turn.
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

    /// Whether not even a tombstone stands there.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Found::Nothing)
    }

    /// Returns whether it is a record with an expiry.
    #[inline]
    pub(super) fn may_expire(&self) -> bool {
        matches!(self, Found::Here(word, _) if word.kind() == Kind::Expiring)
    }

    /// The record, if one exists at this time.
    #[inline]
    pub(super) fn record(&self, now: UnixMillis) -> Option<Record<'t>> {
        match self {
            Found::Nothing => None,
            Found::Here(_, entry) => record_of(entry, now),
        }
    }

    /// What must be taken out of the index, or replaced there, when the key changes.
    #[inline]
    pub(super) fn old(&self) -> Option<Placed> {
        match self {
            Found::Nothing => None,
            Found::Here(word, entry) => Some(Placed::new(*word, entry)),
        }
    }
}

/// A word and the bytes that its entry takes in the log.
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

    /// As the index takes it.
    #[inline]
    pub(super) fn tuple(self) -> (Word, u32) {
        (self.word, self.bytes)
    }
}

/// What an entry's word says of it.
#[inline]
pub(super) fn kind_of(entry: &Entry<'_>) -> Kind {
    match entry.body {
        Body::Object { expiry: None, .. } => Kind::Object,
        Body::Object { expiry: Some(_), .. } => Kind::Expiring,
        Body::Tombstone { .. } => Kind::Tombstone,
        Body::CopiesOf(_) => unreachable!("the index never points at a note"),
    }
}

/// Which of two entries of a key counts, of those that were read from a log in any order: the higher
/// one. Of equal versions the tombstone, so that one that a cleaner derived from an object wins over
/// what the object replaced.
#[inline]
pub(super) fn rank(version: Version, kind: Kind) -> (Version, bool) {
    (version, (kind == Kind::Tombstone) != planted::is(Bug::TieToObject))
}

/// The record that an entry stands for, if it exists at this time.
#[inline]
pub(super) fn record_of<'t>(entry: &Entry<'t>, now: UnixMillis) -> Option<Record<'t>> {
    match entry.body {
        Body::Object { expiry, value, .. } if expiry.is_none_or(|at| at > now) => {
            Some(Record { value, version: entry.version, expiry })
        }
        Body::Object { .. } | Body::Tombstone { .. } | Body::CopiesOf(_) => None,
    }
}
