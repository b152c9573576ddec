//! Lock-free reads of one record, or of several records as a consistent snapshot.
//!
//! A snapshot is consistent if no leaf changed between the first and the last search. After a few
//! attempts the reader locks the leaves instead.

use super::access::Access;
use super::expired::reclaim_touched;
use super::leaves::Leaves;
use super::record::{Key, Record};
use super::stall::{NotHereYet, Stall};
use super::store::Store;
use super::tablets::{Tablet, TabletState};
use super::view::{Lookup, View};
use super::worker::Worker;
use super::write::Writer;
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
        if let [key] = keys {
            return self.read_one(table, *key, |record| f(&[record]));
        }
        let accesses = self.tablets.accesses(table, keys)?;
        let turn = self.participant.turn();
        let view = View::for_client(&self.store, table, &turn, &self.dependency);
        let found = look(&view, table, keys, &accesses)?;
        found.iter().for_each(|found| view.note_found(found));
        Ok(f(&records(&self.store, &found, &accesses)))
    }
}

/// Returns the records that have not expired by their ranges' clocks.
pub(super) fn records<'t>(
    store: &Store,
    found: &[Lookup<'t>],
    accesses: &[Access<'_>],
) -> Vec<Option<Record<'t>>> {
    let judged = found.iter().zip(accesses);
    judged.map(|(found, access)| found.record(access.clock(store))).collect()
}

/// Finds the entries of the keys as a consistent snapshot. Fails if an absent record may still
/// arrive.
fn look<'t>(
    view: &View<'t>,
    table: TableId,
    keys: &[Key<'_>],
    accesses: &[Access<'_>],
) -> Result<Vec<Lookup<'t>>, Stall> {
    // Per key, whether the record may still arrive. Evaluated before the search that it decides.
    let mut judgment: Option<Vec<bool>> = None;
    for _ in 0..TRIES {
        let Some(found) = look_once(view, keys) else { continue };
        let may_miss = |(found, access): (&Lookup<'_>, &Access<'_>)| {
            found.is_nothing() && access.arrival.is_some()
        };
        if !found.iter().zip(accesses).any(may_miss) {
            return Ok(found);
        }
        if let Some(may_arrive) = judgment {
            return judge(table, keys, accesses, &may_arrive, found);
        }
        judgment = Some(may_arrive(table, keys, accesses));
    }
    let leaves = Leaves::lock(view, keys)?;
    let found = leaves.find_all(view, keys);
    judge(table, keys, accesses, &may_arrive(table, keys, accesses), found)
}

/// Searches once without a lock; returns `None` if a leaf changed meanwhile.
fn look_once<'t>(view: &View<'t>, keys: &[Key<'_>]) -> Option<Vec<Lookup<'t>>> {
    let sequences: Option<Vec<_>> =
        keys.iter().map(|key| view.index.sequence(key.hash, view.turn)).collect();
    let found: Result<Vec<_>, Stall> = keys.iter().map(|key| view.find(*key)).collect();
    let is_unchanged = sequences?.iter().all(|sequence| view.index.is_unchanged(sequence));
    found.ok().filter(|_| is_unchanged)
}

/// Returns per key whether an absent record may still arrive.
pub(super) fn may_arrive(table: TableId, keys: &[Key<'_>], accesses: &[Access<'_>]) -> Vec<bool> {
    keys.iter().zip(accesses).map(|(key, access)| access.may_arrive(table, key.hash)).collect()
}

/// Returns the found entries, or the stall that lists every absent record that may still arrive.
pub(super) fn judge<'t>(
    table: TableId,
    keys: &[Key<'_>],
    accesses: &[Access<'_>],
    may_arrive: &[bool],
    found: Vec<Lookup<'t>>,
) -> Result<Vec<Lookup<'t>>, Stall> {
    debug_assert!(keys.len() == found.len() && keys.len() == accesses.len(), "a key is lost");
    let waits = !planted::is(Bug::PartnerReadAsAbsent);
    let is_missing = |&at: &usize| waits && may_arrive[at] && found[at].is_nothing();
    let missing: Vec<usize> = (0..keys.len()).filter(is_missing).collect();
    let arrivals = missing.iter().filter_map(|&at| accesses[at].arrival);
    let Some(arrival) = arrivals.min_by_key(|arrival| arrival.range()) else { return Ok(found) };
    // Missing keys of other migrations are reported when the operation restarts.
    let hashes = missing.iter().map(|&at| keys[at].hash);
    let hashes = hashes.filter(|&hash| arrival.range().contains(hash)).collect();
    Err(Stall::missing(arrival.migration(), table, hashes))
}
