//! The cleaner's copying: moves the live entries out of a nearly empty segment, so that the
//! segment becomes free.
//!
//! An entry is live if the index points at its address, whatever the tablet's state: a frozen
//! range is relocated as any other. Entries are looked up in windows, so that the next buckets
//! are prefetched while one entry is copied.

use super::expired::reclaim;
use super::record::Key;
use super::stall::Stall;
use super::store::Store;
use super::tablets::TabletMap;
use super::tombstones::TombstoneQueue;
use super::view::{View, kind_of};
use super::worker::Worker;
use super::write::Writer;
use crate::index::{Find, Word};
use crate::log::{Candidate, Head, Survivors, Turn, VictimSegment};
use planted::Bug;
use std::sync::Arc;
use types::{Incarnation, KeyHash, TableId, Version, key_hash};
use wire::entry::{Body, Dead, Entry};

/// Entries looked up ahead of the one that is copied.
const WINDOW: usize = 16;

/// Bytes of the victim after which a quantum ends: 20-50 µs.
const QUANTUM_BYTES: usize = 64 << 10;

/// Entries after which a quantum ends.
const QUANTUM_ENTRIES: usize = 16 * WINDOW;

impl Worker {
    /// Runs one quantum of cleaning. Returns `false` if there is nothing to clean or the cleaner
    /// cannot continue now.
    pub fn clean(&mut self) -> bool {
        let Some(mut victim) = self.victim.take().or_else(|| self.store.next_victim()) else {
            return false;
        };
        // At least as new as the victim's entries: an incarnation that is not in the map is over.
        let tablets = match self.store.log.is_durable() {
            true => self.store.tablets(),
            false => Arc::clone(&self.tablets),
        };
        let turn = self.participant.turn();
        let cleaner = Cleaner { store: &self.store, tablets: &tablets, turn: &turn };
        let mut window = Vec::with_capacity(WINDOW);
        let (mut bytes, mut entries) = (0, 0);
        while bytes < QUANTUM_BYTES && entries < QUANTUM_ENTRIES {
            cleaner.fill(&mut victim, &mut window);
            if window.is_empty() {
                // Freed if no live entry is left; a later pass retries entries that could not be
                // moved.
                drop(victim);
                return true;
            }
            entries += window.len();
            for entry in window.drain(..) {
                bytes += entry.candidate.encoded.len();
                let output = CleanerOutput {
                    head: &mut self.head,
                    tombstones: &mut self.tombstones,
                    survivors: &mut self.survivors,
                };
                if cleaner.settle(&entry, output).is_err() {
                    if self.store.log.is_durable() {
                        // A durable segment must be scanned completely, so the cleaner resumes
                        // here.
                        victim.go_back(&entry.candidate);
                        self.victim = Some(victim);
                    }
                    return false;
                }
            }
        }
        self.victim = Some(victim);
        true
    }
}

impl Store {
    /// Returns a segment to clean, if memory is low.
    fn next_victim(&self) -> Option<VictimSegment> {
        if self.log.is_low() { self.log.emptiest() } else { None }
    }
}

/// References needed to decide whether an entry is live.
struct Cleaner<'t> {
    store: &'t Store,
    tablets: &'t TabletMap,
    turn: &'t Turn<'t>,
}

/// Parts of the worker to which the cleaner writes.
struct CleanerOutput<'w> {
    /// Tombstones of expired records.
    head: &'w mut Head,
    tombstones: &'w mut TombstoneQueue,
    /// Copies of live entries.
    survivors: &'w mut Survivors,
}

/// An entry of the victim, with its key hash.
struct HashedCandidate<'t> {
    candidate: Candidate<'t>,
    hash: KeyHash,
}

impl<'t> Cleaner<'t> {
    /// Takes the next entries of the victim and prefetches their buckets.
    fn fill(&self, victim: &mut VictimSegment, window: &mut Vec<HashedCandidate<'t>>) {
        assert!(window.is_empty(), "{} entries of the last window are left", window.len());
        while window.len() < WINDOW
            && let Some(candidate) = victim.peek(self.turn)
        {
            victim.advance(&candidate);
            let hash = key_hash(self.store.seed(), candidate.entry.key);
            for table in self.tables_of(candidate.entry.incarnation, hash) {
                self.store.index_or_new(table).prefetch(hash, self.turn);
            }
            window.push(HashedCandidate { candidate, hash });
        }
    }

    /// Returns the tables that may point at an entry: the table of its incarnation. If the
    /// incarnation is not in the map (a flushed table), it may be any table.
    fn tables_of(
        &self,
        incarnation: Incarnation,
        hash: KeyHash,
    ) -> impl Iterator<Item = TableId> + use<'t> {
        let incarnations = self.tablets.at(hash).map(|tablet| &tablet.incarnations);
        let of_incarnation = incarnations
            .and_then(|incarnations| incarnations.iter().position(|&t| t == incarnation));
        let known = of_incarnation.map(|table| TableId(table as u8));
        let unknown = self.store.indexes().map(|(table, _)| table);
        known.into_iter().chain(unknown.filter(move |_| known.is_none()))
    }

    /// Moves the entry if it is live. In a durable log, otherwise preserves what the entry keeps
    /// superseded.
    fn settle(&self, entry: &HashedCandidate<'t>, output: CleanerOutput<'_>) -> Result<(), Stall> {
        let CleanerOutput { head, tombstones, survivors } = output;
        let address = entry.candidate.address;
        for table in self.tables_of(entry.candidate.entry.incarnation, entry.hash) {
            let view = View::new(self.store, table, self.turn);
            // Searched without the lock first: a dead entry stays dead.
            match view.index.find(entry.hash, self.turn, |word| word.address() == address) {
                Find::Miss => continue,
                Find::Contended => return Err(Stall::Contended),
                Find::Hit(_) => {}
            }
            let key = Key { hash: entry.hash, bytes: entry.candidate.entry.key };
            let access = self.tablets.access(table, entry.hash);
            if let Ok(access) = access
                && entry.candidate.entry.is_expired(access.clock(self.store))
            {
                let mut writer = Writer { store: self.store, head, tombstones, view };
                reclaim(&mut writer, key, access)?;
            }
            if relocate(&view, entry, survivors)? {
                return Ok(());
            }
            break;
        }
        if self.store.log.is_durable() { self.keep_dead(entry, survivors) } else { Ok(()) }
    }

    /// Preserves the effect of a dead entry: the versions that it superseded must not return when
    /// its segment leaves the log. Leaves a tombstone where one is needed.
    fn keep_dead(
        &self,
        entry: &HashedCandidate<'t>,
        survivors: &mut Survivors,
    ) -> Result<(), Stall> {
        let Candidate { address, entry: fields, encoded } = entry.candidate;
        let log = &self.store.log;
        let (dead, is_tombstone) = match fields.body {
            Body::Object { replaces: Some(location), .. } => (Dead::At(location), false),
            Body::Tombstone { dead } => (dead, true),
            Body::Object { replaces: None, .. } | Body::CopiesOf(_) => return Ok(()),
        };
        let forgets =
            if is_tombstone { Bug::TombstoneDroppedEarly } else { Bug::OverwriteForgotten };
        if is_tombstone && planted::is(forgets) {
            log.durable_log().unpin_tombstone(address, encoded.len() as u32, dead);
            return Ok(());
        }
        if !log.durable_log().needs_tombstone(address, dead) || planted::is(forgets) {
            return Ok(());
        }
        match (is_tombstone, self.is_over(fields.incarnation, entry.hash)) {
            (true, true) => log.durable_log().unpin_tombstone(address, encoded.len() as u32, dead),
            (true, false) => {
                let copy = survivors.append_encoded(encoded)?;
                log.durable_log().move_tombstone(address, copy, encoded.len() as u32, dead);
            }
            (false, true) => {}
            (false, false) => {
                // One below the object's version, because a live copy of the object may exist.
                let version = Version(fields.version.0 - 1);
                let tombstone = Entry { version, body: Body::Tombstone { dead }, ..fields };
                let bytes = tombstone.encoded_bytes() as u32;
                log.durable_log().retire_tombstone(survivors.append_one(&tombstone)?, bytes, dead);
            }
        }
        Ok(())
    }

    /// Returns whether the incarnation is over, so that its entries are void.
    fn is_over(&self, incarnation: Incarnation, hash: KeyHash) -> bool {
        self.tablets.at(hash).is_none_or(|tablet| !tablet.incarnations.contains(&incarnation))
    }
}

/// Copies the entry and points the index at the copy. Returns `false` if the index no longer
/// points at the original.
fn relocate(
    view: &View<'_>,
    entry: &HashedCandidate<'_>,
    survivors: &mut Survivors,
) -> Result<bool, Stall> {
    let Candidate { address, entry: fields, encoded } = entry.candidate;
    let mut leaf = view.lock(entry.hash)?;
    let found = leaf.find(entry.hash, |word| word.address() == address);
    if let Some(word) = found {
        let copy = survivors.append_copy(encoded, view.log.segment_of(address))?;
        debug_assert!(copy != address, "an entry at {address:?} is copied to itself");
        let bytes = encoded.len() as u32;
        let moved = Word::new(entry.hash, kind_of(&fields), copy);
        leaf.replace(entry.hash, (word, bytes), (moved, bytes));
        view.log.mark_dead(address, bytes);
    }
    Ok(found.is_some())
}
