//! Locked leaves: all leaves of a multi-key operation, or one at a time of a bulk walk.
//!
//! An operation locks its leaves in ascending order of tables and key hashes, so that two operations
//! cannot deadlock. All leaves stay locked until the operation ends; lock-free readers see odd sequences
//! meanwhile. A bulk walk never waits for one leaf while it holds another.

use super::record::PerKey;
use super::stall::Stall;
use super::view::{Lookup, TableViews, View};
use super::write::WriteTarget;
use crate::index::{LeafGuard, NoRoom};
use types::{KeyHash, TableId};

/// Locked leaves of all keys of an operation.
pub(super) struct Leaves<'t> {
    guards: PerKey<(TableId, LeafGuard<'t>)>,
    /// Positions of the keys, ascending by table, hash and position.
    order: PerKey<usize>,
    /// Per key, the index of its leaf's guard.
    guard_of: PerKey<usize>,
}

impl<'t> Leaves<'t> {
    pub(super) fn lock(
        views: &TableViews<'t>,
        targets: &[WriteTarget<'_, '_>],
    ) -> Result<Leaves<'t>, Stall> {
        let mut order: PerKey<usize> = (0..targets.len()).collect();
        order.sort_unstable_by_key(|&at| (targets[at].table, targets[at].key.hash, at));
        let mut guards: PerKey<(TableId, LeafGuard<'t>)> = PerKey::new();
        let mut guard_of = PerKey::from_elem(0, targets.len());
        for &at in &order {
            let WriteTarget { table, key, .. } = targets[at];
            let covers =
                |(of, guard): &(TableId, LeafGuard<'_>)| *of == table && guard.covers(key.hash);
            if !guards.last().is_some_and(covers) {
                guards.push((table, views.of(table).lock(key.hash)?));
            }
            guard_of[at] = guards.len() - 1;
        }
        let place = |(table, guard): &(TableId, LeafGuard<'_>)| (*table, guard.range());
        debug_assert!(
            guards.iter().map(place).is_sorted_by(|(table, low), (next, high)| {
                table < next || (table == next && low.last() < high.first())
            }),
            "leaves are locked out of order"
        );
        Ok(Leaves { guards, order, guard_of })
    }

    /// Finds the entries of all keys.
    pub(super) fn find_all(
        &self,
        views: &TableViews<'t>,
        targets: &[WriteTarget<'_, '_>],
    ) -> PerKey<Lookup<'t>> {
        let mut found = PerKey::with_capacity(targets.len());
        for (target, &guard) in targets.iter().zip(&self.guard_of) {
            found.push(views.of(target.table).find_locked(&self.guards[guard].1, target.key));
        }
        found
    }

    /// Returns the leaf of the key at this position.
    pub(super) fn of(&mut self, at: usize) -> &mut LeafGuard<'t> {
        &mut self.guards[self.guard_of[at]].1
    }

    /// Returns the positions of the keys, ascending by table and hash. Equal keys are adjacent
    /// unless another key has the same hash.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    /// Makes room for these keys, so that their insertion cannot fail. `inserted` lists positions
    /// in the order of the keys.
    pub(super) fn make_room(
        &mut self,
        targets: &[WriteTarget<'_, '_>],
        inserted: &[usize],
    ) -> Result<(), NoRoom> {
        if inserted.is_empty() {
            return Ok(());
        }
        let mut hashes: PerKey<KeyHash> = PerKey::new();
        let Leaves { guards, guard_of, .. } = self;
        for run in inserted.chunk_by(|&a, &b| guard_of[a] == guard_of[b]) {
            hashes.clear();
            hashes.extend(run.iter().map(|&at| targets[at].key.hash));
            guards[guard_of[run[0]]].1.make_room(&hashes)?;
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
