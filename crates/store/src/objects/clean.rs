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
use super::view::View;
use super::worker::Worker;
use super::write::Writer;
use crate::index::Find;
use crate::log::{Candidate, Head, Survivors, Turn, VictimSegment};
use planted::Bug;
use std::{collections::VecDeque, sync::Arc};
use types::{Incarnation, KeyHash, TableId, Version, key_hash};
use wire::entry::{Body, Dead, Entry};

/// Entries looked up ahead of the one that is copied. More would need more cache lines at once than
/// a core can wait for: three each.
const WINDOW: usize = 8;

/// Bytes of the victim after which a quantum ends: 20-50 µs.
const QUANTUM_BYTES: usize = 64 << 10;

/// Entries after which a quantum ends.
const QUANTUM_ENTRIES: usize = 256;

/// Reason for cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleaningOccasion {
    /// Writers may find no memory: a segment is cleaned if memory is low.
    LowMemory,
    /// A durable log is too long although memory is free.
    Rest,
}

impl Worker {
    /// Runs one quantum of cleaning. Returns `false` if there is nothing to clean or the cleaner
    /// cannot continue now.
    pub fn clean(&mut self, occasion: CleaningOccasion) -> bool {
        let claim = || match occasion {
            CleaningOccasion::LowMemory => self.store.next_victim(),
            CleaningOccasion::Rest => self.store.log.claim_victim(),
        };
        let Some(mut victim) = self.victim.take().or_else(claim) else { return false };
        // At least as new as the victim's entries: an incarnation that is not in the map is over.
        let tablets = match self.store.log.is_durable() {
            true => self.store.tablets(),
            false => Arc::clone(&self.tablets),
        };
        let turn = self.participant.turn();
        let cleaner = Cleaner { store: &self.store, tablets: &tablets, turn: &turn };
        let mut output = CleanerOutput {
            head: &mut self.head,
            tombstones: &mut self.tombstones,
            survivors: &mut self.survivors,
            moved: 0,
        };
        let progress = cleaner.run(&mut victim, &mut output);
        victim.mark_moved(output.moved);
        if progress != CleaningProgress::Complete {
            self.victim = Some(victim);
        }
        progress != CleaningProgress::Stalled
    }
}

impl Store {
    /// Returns a segment to clean, if memory is low.
    fn next_victim(&self) -> Option<VictimSegment> {
        if self.log.is_low() { self.log.claim_victim() } else { None }
    }
}

/// References needed to decide whether an entry is live.
struct Cleaner<'t> {
    store: &'t Store,
    tablets: &'t TabletMap,
    turn: &'t Turn<'t>,
}

/// Result of a quantum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleaningProgress {
    /// The quantum is over.
    Partial,
    /// The end of the victim was reached.
    Complete,
    /// An entry cannot be moved now. The victim is continued there.
    Stalled,
}

/// Parts of the worker to which the cleaner writes.
struct CleanerOutput<'w> {
    /// Tombstones of expired records.
    head: &'w mut Head,
    tombstones: &'w mut TombstoneQueue,
    /// Copies of live entries.
    survivors: &'w mut Survivors,
    /// Bytes of the victim that have been moved, but not yet marked as dead.
    moved: u32,
}

/// An entry of the victim, with its key hash.
struct HashedCandidate<'t> {
    candidate: Candidate<'t>,
    hash: KeyHash,
    /// Table of the entry's incarnation, whose index alone may point at it. `None`: any may.
    table: Option<TableId>,
}

impl<'t> Cleaner<'t> {
    /// Cleans a part of the victim. Always looks up the same number of entries ahead, so that their
    /// cache lines arrive while others are copied.
    fn run(&self, victim: &mut VictimSegment, output: &mut CleanerOutput<'_>) -> CleaningProgress {
        let mut window = VecDeque::with_capacity(WINDOW);
        let (mut bytes, mut entries) = (0, 0);
        let progress = loop {
            self.fill(victim, &mut window);
            let Some(entry) = window.front() else { return CleaningProgress::Complete };
            if bytes >= QUANTUM_BYTES || entries == QUANTUM_ENTRIES {
                break CleaningProgress::Partial;
            }
            if self.settle(entry, output).is_err() {
                break CleaningProgress::Stalled;
            }
            bytes += entry.candidate.encoded.len();
            entries += 1;
            window.pop_front();
        };
        if let Some(next) = window.front() {
            victim.go_back(&next.candidate);
        }
        progress
    }

    /// Takes the next entries of the victim, and prefetches what a change of their words touches.
    #[inline]
    fn fill(&self, victim: &mut VictimSegment, window: &mut VecDeque<HashedCandidate<'t>>) {
        while window.len() < WINDOW
            && let Some(candidate) = victim.peek(self.turn)
        {
            victim.advance(&candidate);
            let hash = key_hash(self.store.seed(), candidate.entry.key);
            let table = self.table_of(candidate.entry.incarnation, hash);
            if let Some(table) = table {
                self.store.index_or_new(table).prefetch_for_change(hash, self.turn);
            }
            window.push_back(HashedCandidate { candidate, hash, table });
        }
    }

    /// Returns the table of an incarnation; `None` if the incarnation is not in the map (a flushed
    /// table).
    #[inline]
    fn table_of(&self, incarnation: Incarnation, hash: KeyHash) -> Option<TableId> {
        let incarnations = &self.tablets.at(hash)?.incarnations;
        incarnations.iter().position(|&it| it == incarnation).map(|table| TableId(table as u8))
    }

    /// Moves the entry if it is live. In a durable log, otherwise preserves what the entry keeps
    /// superseded.
    fn settle(
        &self,
        entry: &HashedCandidate<'t>,
        output: &mut CleanerOutput<'_>,
    ) -> Result<(), Stall> {
        let is_moved = match entry.table {
            Some(table) => self.move_if_live(entry, table, output)?,
            // Any table may point at an entry of an unknown incarnation.
            None => {
                let mut tables = self.store.indexes().map(|(table, _)| table);
                tables.try_fold(false, |is_moved, table| match is_moved {
                    true => Ok(true),
                    false => self.move_if_live(entry, table, output),
                })?
            }
        };
        if !is_moved && self.store.log.is_durable() {
            self.keep_dead(entry, output.survivors)?;
        }
        Ok(())
    }

    /// Copies the entry and points the index at the copy, or reclaims the entry if it is expired and
    /// there is memory for the tombstone that this may need. Returns `false` if the table's index
    /// does not point at the entry, or not any more.
    fn move_if_live(
        &self,
        entry: &HashedCandidate<'t>,
        table: TableId,
        output: &mut CleanerOutput<'_>,
    ) -> Result<bool, Stall> {
        let view = View::new(self.store, table, self.turn);
        if entry.candidate.entry.expiry().is_some() {
            match self.reclaim_if_expired(entry, view, output) {
                // Survivors have memory of their own, and the record can expire later.
                Ok(()) | Err(Stall::OutOfMemory) => {}
                Err(stall) => return Err(stall),
            }
        }
        let Candidate { address, encoded, .. } = entry.candidate;
        let Some(mut leaf) = view.index.lock_existing(entry.hash, self.turn)? else {
            return Ok(false);
        };
        let survivors = &mut *output.survivors;
        let is_moved = leaf.redirect(entry.hash, address, || {
            survivors.append_copy(encoded, view.log.segment_of(address))
        })?;
        if is_moved {
            output.moved += encoded.len() as u32;
        }
        Ok(is_moved)
    }

    /// Reclaims the entry if it is live and expired, and its range is served here.
    fn reclaim_if_expired(
        &self,
        entry: &HashedCandidate<'t>,
        view: View<'t>,
        output: &mut CleanerOutput<'_>,
    ) -> Result<(), Stall> {
        let Candidate { address, entry: fields, .. } = entry.candidate;
        match view.index.find(entry.hash, self.turn, |word| word.address() == address) {
            Find::Miss => return Ok(()),
            Find::Contended => return Err(Stall::Contended),
            Find::Hit(_) => {}
        }
        if let Ok(access) = self.tablets.access(view.table, entry.hash)
            && fields.is_expired(access.clock(self.store))
        {
            let (head, tombstones) = (&mut *output.head, &mut *output.tombstones);
            let mut writer = Writer { store: self.store, head, tombstones, view };
            reclaim(&mut writer, Key { hash: entry.hash, bytes: fields.key }, access)?;
        }
        Ok(())
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
        if log.durable_log().ignores(log.segment_of(address), fields.version) {
            return Ok(());
        }
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
