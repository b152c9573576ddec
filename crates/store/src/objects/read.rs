//! Lock-free reads of one record, or of several records as a consistent snapshot.
//!
//! A snapshot is consistent if no leaf changed between the first and the last search. After a few
//! attempts the reader locks the leaves instead.

use super::expired::reclaim_touched;
use super::leaves::Leaves;
use super::record::{Key, PerKey, Record, TableKey};
use super::stall::{NotHereYet, Stall};
use super::store::Store;
use super::tablets::{Tablet, TabletState};
use super::view::{Lookup, TableViews, View};
use super::worker::Worker;
use super::write::{WriteTarget, Writer};
use planted::Bug;
use types::{TableId, UnixMillis};

/// Lock-free attempts before several records are read under locks.
const TRIES: usize = 4;

impl Worker {
    /// Reads one record and passes it, or `None`, to `f`.
    #[inline]
    pub fn read_one<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<T, Stall> {
        self.read_if_here(table, key, f)?
            .map_err(|not_here| Stall::missing(not_here.migration, table, vec![key.hash]))
    }

    /// Does the same as [`Worker::read_one`], but reports a record that may still arrive without
    /// an allocation: another server may have the record.
    #[inline(always)]
    pub fn read_if_here<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<Result<T, NotHereYet>, Stall> {
        let access = self.tablets.access(table, key.hash)?;
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        let mut found = view.find(key)?;
        if let (Lookup::Nothing, Some(arrival)) = (&found, access.arrival) {
            // The order matters: the record may arrive between the first search and this check.
            let may_arrive = arrival.may_arrive(table, key.hash);
            found = view.find(key)?;
            if may_arrive && found.is_nothing() && !planted::is(Bug::MissingReadAsAbsent) {
                let (migration, clock) = (arrival.migration(), access.clock(&self.store));
                let epoch = self.tablets.epoch_at(key.hash);
                return Ok(Err(NotHereYet { migration, epoch, clock }));
            }
        }
        view.note_found(&found);
        let record = found.record(access.clock(&self.store));
        let has_expired = record.is_none() && found.may_expire();
        let result = f(record);
        if has_expired {
            let view = View::new(&self.store, table, &turn);
            let (head, tombstones) = (&mut self.head, &mut self.tombstones);
            reclaim_touched(Writer { store: &self.store, head, tombstones, view }, key, access);
        }
        Ok(Ok(result))
    }

    /// Reads one record of the copy that this server keeps after the flip, and passes it, or
    /// `None`, to `f`. An expired record is passed as well: the new owner's clock decides about it.
    /// Returns `None`, without a call of `f`, if the hash is in no leaving range.
    ///
    /// The copy may be deleted at the same time. So `f` must check, after the search, that the
    /// migration still keeps the hash.
    pub fn read_copy<T>(
        &mut self,
        table: TableId,
        key: Key<'_>,
        f: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<Option<T>, Stall> {
        let is_leaving = |tablet: &Tablet| matches!(tablet.state, TabletState::Leaving);
        if !self.tablets.at(key.hash).is_some_and(is_leaving) {
            return Ok(None);
        }
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        let found = view.find(key)?;
        view.note_found(&found);
        Ok(Some(f(found.record(UnixMillis(0)))))
    }

    /// Reads several records as a consistent snapshot.
    pub fn read<T>(
        &mut self,
        table: TableId,
        keys: &[Key<'_>],
        f: impl FnOnce(&[Option<Record<'_>>]) -> T,
    ) -> Result<T, Stall> {
        match keys {
            [key] => self.read_one(table, *key, |record| f(&[record])),
            _ => {
                let keys = keys.iter().map(|&key| TableKey { table, key });
                self.read_tables(&keys.collect::<Vec<TableKey<'_>>>(), f)
            }
        }
    }

    /// Reads records of several tables like [`Worker::read`].
    pub fn read_tables<T>(
        &mut self,
        keys: &[TableKey<'_>],
        f: impl FnOnce(&[Option<Record<'_>>]) -> T,
    ) -> Result<T, Stall> {
        let targets = WriteTarget::of_keys(&self.tablets, keys.iter().copied())?;
        let turn = self.participant.turn();
        let views = TableViews { store: &self.store, turn: &turn, dependency: &self.dependency };
        let found = look(&views, &targets)?;
        let Some(first) = targets.first() else { return Ok(f(&[])) };
        let view = views.of(first.table);
        found.iter().for_each(|found| view.note_found(found));
        Ok(f(&records(&self.store, &found, &targets)))
    }
}

/// Returns the records that have not expired by their ranges' clocks.
pub(super) fn records<'t>(
    store: &Store,
    found: &[Lookup<'t>],
    targets: &[WriteTarget<'_, '_>],
) -> PerKey<Option<Record<'t>>> {
    let mut records = PerKey::with_capacity(found.len());
    for (found, target) in found.iter().zip(targets) {
        records.push(found.record(target.access.clock(store)));
    }
    records
}

/// Finds the entries of the keys as a consistent snapshot. Fails if an absent record may still
/// arrive.
fn look<'t>(
    views: &TableViews<'t>,
    targets: &[WriteTarget<'_, '_>],
) -> Result<PerKey<Lookup<'t>>, Stall> {
    // Per key, whether the record may still arrive. Evaluated before the search that it decides.
    let mut judgment: Option<PerKey<bool>> = None;
    for _ in 0..TRIES {
        let Some(found) = look_once(views, targets) else { continue };
        let may_miss = |(found, target): (&Lookup<'_>, &WriteTarget<'_, '_>)| {
            found.is_nothing() && target.access.arrival.is_some()
        };
        if !found.iter().zip(targets).any(may_miss) {
            return Ok(found);
        }
        if let Some(may_arrive) = judgment {
            return judge(targets, &may_arrive, &found).map(|()| found);
        }
        judgment = Some(may_arrive(targets));
    }
    let leaves = Leaves::lock(views, targets)?;
    let found = leaves.find_all(views, targets);
    judge(targets, &may_arrive(targets), &found).map(|()| found)
}

/// Searches once without a lock; returns `None` if a leaf changed meanwhile.
fn look_once<'t>(
    views: &TableViews<'t>,
    targets: &[WriteTarget<'_, '_>],
) -> Option<PerKey<Lookup<'t>>> {
    let mut sequences: PerKey<_> = PerKey::with_capacity(targets.len());
    for target in targets {
        sequences.push(views.of(target.table).index.sequence(target.key.hash, views.turn)?);
    }
    let mut found = PerKey::with_capacity(targets.len());
    for target in targets {
        found.push(views.of(target.table).find(target.key).ok()?);
    }
    let is_unchanged = sequences
        .iter()
        .zip(targets)
        .all(|(sequence, target)| views.of(target.table).index.is_unchanged(sequence));
    is_unchanged.then_some(found)
}

/// Returns per key whether an absent record may still arrive. Empty if none may.
pub(super) fn may_arrive(targets: &[WriteTarget<'_, '_>]) -> PerKey<bool> {
    if targets.iter().all(|target| target.access.arrival.is_none()) {
        return PerKey::new();
    }
    let may_arrive =
        |target: &WriteTarget<'_, '_>| target.access.may_arrive(target.table, target.key.hash);
    targets.iter().map(may_arrive).collect()
}

/// Fails with the stall that lists every absent record of one table and migration that may still
/// arrive, if there are any.
pub(super) fn judge(
    targets: &[WriteTarget<'_, '_>],
    may_arrive: &[bool],
    found: &[Lookup<'_>],
) -> Result<(), Stall> {
    debug_assert!(may_arrive.len() <= found.len() && targets.len() == found.len(), "a key is lost");
    let waits = !planted::is(Bug::PartnerReadAsAbsent);
    let is_missing = |&at: &usize| waits && may_arrive[at] && found[at].is_nothing();
    let missing: Vec<usize> = (0..may_arrive.len()).filter(is_missing).collect();
    let first = missing.iter().filter_map(|&at| Some((targets[at].access.arrival?, at)));
    let first = first.min_by_key(|&(arrival, at)| (arrival.range(), targets[at].table));
    let Some((arrival, first)) = first else { return Ok(()) };
    // Missing keys of other migrations and tables are reported when the operation restarts.
    let table = targets[first].table;
    let missing = missing
        .iter()
        .map(|&at| &targets[at])
        .filter(|target| target.table == table && arrival.range().contains(target.key.hash));
    let hashes = missing.map(|target| target.key.hash).collect();
    Err(Stall::missing(arrival.migration(), table, hashes))
}
