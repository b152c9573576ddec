//! Reclamation of tombstones that are needed only while a range arrives or is recovered.
//!
//! They go when the progress has passed them, or when the whole recovery has been replayed.

use super::arrival::Arrival;
use super::recovery::Recovery;
use super::stall::Stall;
use super::store::Store;
use super::tablets::TabletState;
use super::tombstones::{IndexedTombstone, TombstoneQueue};
use super::view::{Placed, View};
use super::worker::Worker;
use crate::index::{Word, WordKind};
use planted::Bug;
use std::sync::Arc;
use types::{KeyHash, TableId, key_hash};

impl Worker {
    /// Reclaims up to `max` tombstones that the progress has passed; after the arrival's end, up
    /// to `max` of all. Returns `false` if none was left.
    ///
    /// If the source has died, a recovery reads the records that had not arrived from its log, and
    /// needs the tombstones: they become the recovery's.
    pub fn sweep(&mut self, arrival: &Arrival, max: usize) -> bool {
        let mut passed = Vec::new();
        if !planted::is(Bug::TombstonesLeft) {
            arrival.take_tombstones(max, &mut passed);
        }
        let has_some = !passed.is_empty();
        passed.retain(|&(table, hash)| match self.tablets.at(hash).map(|it| &it.state) {
            Some(TabletState::Recovering(recovery) | TabletState::Securing(recovery)) => {
                recovery.note_tombstone(&mut vec![(table, hash)]);
                false
            }
            Some(_) | None => true,
        });
        let left = self.reclaim_passed(&passed, |state| match state {
            TabletState::Arriving(current) => std::ptr::eq(Arc::as_ptr(current), arrival),
            TabletState::Serving | TabletState::Frozen => true,
            TabletState::Leaving | TabletState::Recovering(_) | TabletState::Securing(_) => false,
        });
        left.into_iter().for_each(|(table, hash)| arrival.note_tombstone(table, hash));
        has_some
    }

    /// Reclaims up to `max` tombstones of a recovery. Everything must be replayed and durable
    /// here; this call rules out further replay. Returns `false` if none was left.
    pub fn sweep_recovery(&mut self, recovery: &Recovery, max: usize) -> bool {
        recovery.end();
        let passed = recovery.take_tombstones(max);
        let mut left = self.reclaim_passed(&passed, |state| match state {
            TabletState::Recovering(current) | TabletState::Securing(current) => {
                std::ptr::eq(Arc::as_ptr(current), recovery)
            }
            TabletState::Serving | TabletState::Frozen => true,
            TabletState::Leaving | TabletState::Arriving(_) => false,
        });
        recovery.note_tombstone(&mut left);
        !passed.is_empty()
    }

    /// Reclaims the tombstones with these hashes in tablets that satisfy `is_still_here`, a
    /// condition on the tablet's state. Once a range has left, `forget` removes its tombstones
    /// with its records; later tombstones at the same hash belong to a later arrival, which needs
    /// them. Returns the tombstones that could not be reclaimed now.
    fn reclaim_passed(
        &mut self,
        tombstones: &[(TableId, KeyHash)],
        is_still_here: impl Fn(&TabletState) -> bool,
    ) -> Vec<(TableId, KeyHash)> {
        let turn = self.participant.turn();
        let mut left = Vec::new();
        for &(table, hash) in tombstones {
            if !self.tablets.at(hash).is_some_and(|tablet| is_still_here(&tablet.state)) {
                continue;
            }
            let view = View::new(&self.store, table, &turn);
            let done = match self.store.log.is_durable() {
                false => remove_tombstones(&view, &self.store, hash),
                true => schedule_removal(&view, &self.store, hash, &mut self.tombstones),
            };
            if done.is_err() {
                left.push((table, hash));
            }
        }
        left
    }
}

/// Schedules every tombstone with this hash for ordinary reclamation of a durable store.
fn schedule_removal(
    view: &View<'_>,
    store: &Store,
    hash: KeyHash,
    tombstones: &mut TombstoneQueue,
) -> Result<(), Stall> {
    let leaf = view.lock(hash)?;
    leaf.find(hash, |word| {
        if word.kind() == WordKind::Tombstone
            && key_hash(store.seed(), view.entry(word).key) == hash
        {
            let Placed { bytes, .. } = Placed::new(word, &view.entry(word));
            let (table, version) = (view.table, view.entry(word).version);
            let written = view.log.end_of(word.address(), bytes);
            tombstones.push(IndexedTombstone { table, hash, version, written });
        }
        false
    });
    Ok(())
}

/// Removes every tombstone with this hash.
fn remove_tombstones(view: &View<'_>, store: &Store, hash: KeyHash) -> Result<(), Stall> {
    let mut leaf = view.lock(hash)?;
    let is_it = |word: Word| {
        word.kind() == WordKind::Tombstone && key_hash(store.seed(), view.entry(word).key) == hash
    };
    while let Some(word) = leaf.find(hash, is_it) {
        let tombstone = Placed::new(word, &view.entry(word));
        leaf.remove(hash, word, tombstone.bytes);
        view.log.mark_dead(word.address(), tombstone.bytes);
    }
    Ok(())
}
