//! The cleaner's copying: what lives in a nearly empty segment moves on, so that the segment is
//! free.
//!
//! An entry lives if the index points at its address, whatever the tablet's state: a frozen range
//! is relocated as any other. A window of entries is looked up at a time, so that the buckets of
//! the next ones are on their way while one is copied.

use super::expire::reclaim;
use super::store::Store;
use super::tablets::TabletMap;
use super::view::{View, kind_of};
use super::write::Writer;
use super::{Key, Stall, Worker};
use crate::index::{Find, Word};
use crate::log::{Candidate, Head, Survivors, Turn, VictimSegment};
use types::{KeyHash, TableId, Tenure, key_hash};

/// Entries looked up ahead of the one that is copied.
const WINDOW: usize = 16;

/// A quantum ends when it has read so many bytes of the victim: 20-50 µs.
const QUANTUM_BYTES: usize = 64 << 10;

/// A quantum ends when it has looked at so many entries.
const QUANTUM_ENTRIES: usize = 16 * WINDOW;

impl Worker {
    /// One quantum of cleaning. `false`: nothing is to be cleaned, or nothing can be now.
    pub fn clean(&mut self) -> bool {
        let Some(mut victim) = self.victim.take().or_else(|| self.store.next_victim()) else {
            return false;
        };
        let turn = self.participant.turn();
        let cleaner = Cleaner { store: &self.store, tablets: &self.tablets, turn: &turn };
        let mut window = Vec::with_capacity(WINDOW);
        let (mut bytes, mut entries) = (0, 0);
        while bytes < QUANTUM_BYTES && entries < QUANTUM_ENTRIES {
            cleaner.fill(&mut victim, &mut window);
            if window.is_empty() {
                // Freed if nothing in it lives; what could not be moved is met another time.
                victim.release();
                return true;
            }
            entries += window.len();
            for entry in window.drain(..) {
                bytes += entry.candidate.encoded.len();
                if cleaner.settle(entry, &mut self.head, &mut self.survivors).is_err() {
                    return false;
                }
            }
        }
        self.victim = Some(victim);
        true
    }
}

impl Store {
    /// A segment to clean, if memory is low.
    fn next_victim(&self) -> Option<VictimSegment> {
        if self.log.is_low() { self.log.emptiest() } else { None }
    }
}

/// What it takes to find out whether an entry lives.
struct Cleaner<'t> {
    store: &'t Store,
    tablets: &'t TabletMap,
    turn: &'t Turn<'t>,
}

/// An entry of the victim.
struct Hashed<'t> {
    candidate: Candidate<'t>,
    hash: KeyHash,
}

impl<'t> Cleaner<'t> {
    /// Takes the next entries of the victim and asks for their buckets.
    fn fill(&self, victim: &mut VictimSegment, window: &mut Vec<Hashed<'t>>) {
        while window.len() < WINDOW
            && let Some(candidate) = victim.peek(self.turn)
        {
            victim.advance(&candidate);
            let hash = key_hash(self.store.seed(), candidate.entry.key);
            for table in self.tables_of(candidate.entry.tenure, hash) {
                self.store.index_or_new(table).prefetch(hash, self.turn);
            }
            window.push(Hashed { candidate, hash });
        }
    }

    /// The tables that may point at an entry: the one of its tenure. An entry of a stay that the
    /// map does not tell of (a flushed table's) may be any table's.
    fn tables_of(&self, tenure: Tenure, hash: KeyHash) -> impl Iterator<Item = TableId> + use<'t> {
        let tenures = self.tablets.at(hash).map(|tablet| &tablet.tenures);
        let of_tenure = tenures.and_then(|tenures| tenures.iter().position(|&t| t == tenure));
        let known = of_tenure.map(|table| TableId(table as u8));
        let unknown = self.store.indexes().map(|(table, _)| table);
        known.into_iter().chain(unknown.filter(move |_| known.is_none()))
    }

    /// Moves the entry if it lives.
    fn settle(
        &self,
        entry: Hashed<'t>,
        head: &mut Head,
        survivors: &mut Survivors,
    ) -> Result<(), Stall> {
        let address = entry.candidate.address;
        for table in self.tables_of(entry.candidate.entry.tenure, entry.hash) {
            let view = View::new(self.store, table, self.turn);
            // Without the lock first: what is dead stays dead.
            match view.index.find(entry.hash, self.turn, |word| word.address() == address) {
                Find::Miss => continue,
                Find::Contended => return Err(Stall::Contended),
                Find::Hit(_) => {}
            }
            let key = Key { hash: entry.hash, bytes: entry.candidate.entry.key };
            let access = self.tablets.access(table, entry.hash);
            if let Ok(access) = access
                && entry.candidate.entry.is_expired(self.store.clock())
            {
                reclaim(&mut Writer { store: self.store, head, view }, key, access)?;
            }
            return relocate(&view, &entry, survivors);
        }
        Ok(())
    }
}

/// Copies the entry and points the index at the copy, if it still points at the original.
fn relocate(view: &View<'_>, entry: &Hashed<'_>, survivors: &mut Survivors) -> Result<(), Stall> {
    let Candidate { address, entry: fields, encoded } = entry.candidate;
    let mut leaf = view.lock(entry.hash)?;
    if let Some(word) = leaf.find(entry.hash, |word| word.address() == address) {
        let copy = survivors.append_encoded(encoded)?;
        let bytes = encoded.len() as u32;
        let moved = Word::new(entry.hash, kind_of(&fields), copy);
        leaf.replace(entry.hash, (word, bytes), (moved, bytes));
        view.log.kill(address, bytes);
    }
    Ok(())
}
