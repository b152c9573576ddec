//! Locked leaves: all leaves of a multi-key operation, or one at a time of a bulk walk.
//!
//! An operation locks its leaves in ascending order of key hashes, so that two operations cannot
//! deadlock. All leaves stay locked until the operation ends; lock-free readers see odd sequences
//! meanwhile. A bulk walk never waits for one leaf while it holds another.

use super::record::Key;
use super::stall::Stall;
use super::view::{Lookup, View};
use crate::index::{LeafGuard, NoRoom};
use types::KeyHash;

/// Locked leaves of all keys of an operation.
pub(super) struct Leaves<'t> {
    guards: Vec<LeafGuard<'t>>,
    /// Positions of the keys, ascending by hash and then by position.
    order: Vec<usize>,
    /// Per key, the index of its leaf's guard.
    guard_of: Vec<usize>,
}

impl<'t> Leaves<'t> {
    pub(super) fn lock(view: &View<'t>, keys: &[Key<'_>]) -> Result<Leaves<'t>, Stall> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&key| (keys[key].hash, key));
        let mut guards: Vec<LeafGuard<'t>> = Vec::new();
        let mut guard_of = vec![0; keys.len()];
        for &key in &order {
            let hash = keys[key].hash;
            if !guards.last().is_some_and(|guard| guard.covers(hash)) {
                guards.push(view.lock(hash)?);
            }
            guard_of[key] = guards.len() - 1;
        }
        debug_assert!(
            guards.is_sorted_by(|low, high| low.range().last() < high.range().first()),
            "leaves are locked out of order"
        );
        Ok(Leaves { guards, order, guard_of })
    }

    /// Finds the entries of all keys.
    pub(super) fn find_all(&self, view: &View<'t>, keys: &[Key<'_>]) -> Vec<Lookup<'t>> {
        let leaves = self.guard_of.iter().map(|&guard| &self.guards[guard]);
        leaves.zip(keys).map(|(leaf, key)| view.find_locked(leaf, *key)).collect()
    }

    /// Returns the leaf of the key at this position.
    pub(super) fn of(&mut self, at: usize) -> &mut LeafGuard<'t> {
        &mut self.guards[self.guard_of[at]]
    }

    /// Returns the positions of the keys, ascending by hash. Equal keys are adjacent unless
    /// another key has the same hash.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    /// Makes room for these keys, so that their insertion cannot fail. `inserted` lists positions
    /// in the order of their hashes.
    pub(super) fn make_room(&mut self, keys: &[Key<'_>], inserted: &[usize]) -> Result<(), NoRoom> {
        let mut hashes = Vec::with_capacity(inserted.len());
        let Leaves { guards, guard_of, .. } = self;
        for run in inserted.chunk_by(|&a, &b| guard_of[a] == guard_of[b]) {
            hashes.clear();
            hashes.extend(run.iter().map(|&at| keys[at].hash));
            guards[guard_of[run[0]]].make_room(&hashes)?;
        }
        Ok(())
    }
}

/// Leaf of the previous record of a bulk walk, which is often also the leaf of the next.
pub(super) struct HeldLeaf<'t>(Option<(View<'t>, LeafGuard<'t>)>);

impl<'t> HeldLeaf<'t> {
    /// Returns a holder without a leaf.
    pub(super) fn none() -> HeldLeaf<'t> {
        HeldLeaf(None)
    }

    /// Locks the hash's leaf in this table, if it is not the held one. Unlocks the held one
    /// first.
    #[inline]
    pub(super) fn lock(
        &mut self,
        view: &View<'t>,
        hash: KeyHash,
    ) -> Result<&mut LeafGuard<'t>, Stall> {
        let is_it = |(held, leaf): &(View<'_>, LeafGuard<'_>)| {
            held.table == view.table && leaf.covers(hash)
        };
        if !self.0.as_ref().is_some_and(is_it) {
            self.0 = None;
            self.0 = Some((*view, view.lock(hash)?));
        }
        match &mut self.0 {
            Some((_, leaf)) => Ok(leaf),
            None => unreachable!("it has just been locked"),
        }
    }
}
