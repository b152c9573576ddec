//! What is needed only while a range arrives goes when the progress has passed it: tombstones.

use super::arrival::Arrival;
use super::graves::{Grave, Graves};
use super::tablets::{TabletMap, TabletState};
use super::view::{Placed, View};
use super::{Stall, Worker};
use crate::index::Kind;
use std::sync::Arc;
use types::{KeyHash, key_hash};

impl Worker {
    /// Drops up to `max` tombstones that the progress has passed. `false`: there is none left.
    pub fn sweep(&mut self, arrival: &Arrival, max: usize) -> bool {
        let turn = self.participant.turn();
        let mut passed = Vec::new();
        arrival.take_buried(max, &mut passed);
        for &(table, hash) in &passed {
            if !is_still_here(&self.tablets, arrival, hash) {
                continue;
            }
            let view = View::new(&self.store, table, &turn);
            let done = match self.store.log.is_durable() {
                false => drop_tombstones(&view, &self.store, hash),
                true => mourn_tombstones(&view, &self.store, hash, &mut self.graves),
            };
            if done.is_err() {
                arrival.note_buried(table, hash);
            }
        }
        !passed.is_empty()
    }
}

/// Whether tombstones with this hash may be from this arrival. Once the range has left, its records
/// are forgotten with their tombstones; what stands there afterwards belongs to a later arrival, which
/// needs it.
fn is_still_here(tablets: &TabletMap, arrival: &Arrival, hash: KeyHash) -> bool {
    match tablets.at(hash).map(|tablet| &tablet.state) {
        Some(TabletState::Arriving(current)) => std::ptr::eq(Arc::as_ptr(current), arrival),
        Some(TabletState::Serving | TabletState::Frozen) => true,
        Some(TabletState::Leaving) | None => false,
    }
}

/// Every tombstone with this hash is needed no more than any other of a durable store.
fn mourn_tombstones(
    view: &View<'_>,
    store: &super::Store,
    hash: KeyHash,
    graves: &mut Graves,
) -> Result<(), Stall> {
    let leaf = view.lock(hash)?;
    leaf.find(hash, |word| {
        if word.kind() == Kind::Tombstone && key_hash(store.seed(), view.entry(word).key) == hash {
            let Placed { bytes, .. } = Placed::new(word, &view.entry(word));
            let (table, version) = (view.table, view.entry(word).version);
            let written = view.log.end_of(word.address(), bytes);
            graves.push_back(Grave { table, hash, version, written });
        }
        false
    });
    Ok(())
}

/// Drops every tombstone with this hash.
fn drop_tombstones(view: &View<'_>, store: &super::Store, hash: KeyHash) -> Result<(), Stall> {
    let mut leaf = view.lock(hash)?;
    let is_it = |word: crate::index::Word| {
        word.kind() == Kind::Tombstone && key_hash(store.seed(), view.entry(word).key) == hash
    };
    while let Some(word) = leaf.find(hash, is_it) {
        let tombstone = Placed::new(word, &view.entry(word));
        leaf.remove(hash, word, tombstone.bytes);
        view.log.kill(word.address(), tombstone.bytes);
    }
    Ok(())
}
