//! The permission of an operation on a hash, by the state of its tablet.

use super::arrival::Arrival;
use super::range_clock::RangeClock;
use super::recovery::Recovery;
use super::stall::Stall;
use super::store::Store;
use super::tablets::{Tablet, TabletMap, TabletState};
use super::view::View;
use planted::Bug;
use std::sync::Arc;
use types::{HashRange, Incarnation, KeyHash, TableId, UnixMillis};

/// Permission of an operation on a hash that this server owns.
#[derive(Clone, Copy)]
pub(super) struct Access<'m> {
    /// Incarnation that is written into new entries.
    pub(super) incarnation: Incarnation,
    clock: &'m RangeClock,
    /// Set where records may still arrive.
    pub(super) arrival: Option<&'m Arc<Arrival>>,
    /// Set where recovered records depend on another log.
    pub(super) recovery: Option<&'m Recovery>,
}

impl TabletMap {
    /// Returns the permission of an operation on this hash, by the tablet's state alone.
    #[inline]
    pub(super) fn access(&self, table: TableId, hash: KeyHash) -> Result<Access<'_>, Stall> {
        self.at(hash).ok_or(Stall::NotOwned)?.access(table)
    }

    /// Returns the ranges from `cursor` on in which records may be changed, in ascending order.
    pub(super) fn accessible_from(
        &self,
        table: TableId,
        cursor: KeyHash,
    ) -> impl Iterator<Item = (HashRange, Access<'_>)> {
        let ahead = self.iter().filter(move |tablet| cursor <= tablet.range.last());
        ahead.filter_map(move |tablet| {
            let access = tablet.access(table).ok()?;
            Some((HashRange::new(cursor.max(tablet.range.first()), tablet.range.last()), access))
        })
    }
}

impl Tablet {
    /// Returns the same permission as [`TabletMap::access`], for any hash of the tablet.
    #[inline]
    pub(super) fn access(&self, table: TableId) -> Result<Access<'_>, Stall> {
        let (arrival, recovery) = match &self.state {
            TabletState::Serving => (None, None),
            TabletState::Arriving(arrival) if arrival.is_suspended() => return Err(Stall::Held),
            TabletState::Arriving(arrival) => (Some(arrival), None),
            TabletState::Securing(recovery) => (None, Some(&**recovery)),
            TabletState::Recovering(_) if planted::is(Bug::ServedBeforeReplayed) => (None, None),
            TabletState::Frozen | TabletState::Recovering(_) => return Err(Stall::Held),
            TabletState::Leaving if planted::is(Bug::CopyServedAfterLeaving) => (None, None),
            TabletState::Leaving => return Err(Stall::NotOwned),
        };
        if self.flushing.contains(table) {
            return Err(Stall::Held);
        }
        let incarnation = self.incarnations[usize::from(table.0)];
        Ok(Access { incarnation, clock: &self.clock, arrival, recovery })
    }
}

impl Access<'_> {
    /// Returns the range's clock, which decides expiry. It is loaded anew for each decision: see
    /// [`Store::clock`].
    #[inline]
    pub(super) fn clock(&self, store: &Store) -> UnixMillis {
        if planted::is(Bug::RangeClockIgnored) {
            return store.clock();
        }
        self.clock.read(store.clock())
    }

    /// Returns whether another log may hold an older version of a record. If so, a removal must
    /// leave a tombstone.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.arrival.is_some() || self.recovery.is_some()
    }

    /// Returns whether an absent record may still arrive.
    #[inline]
    pub(super) fn may_arrive(&self, table: TableId, hash: KeyHash) -> bool {
        self.arrival.is_some_and(|arrival| arrival.may_arrive(table, hash))
    }

    /// Creates the slot's leaf at its expected final size, if records arrive and there is no
    /// leaf.
    #[inline]
    pub(super) fn make_leaf(&self, view: &View<'_>, hash: KeyHash) {
        if let Some(arrival) = self.arrival {
            let slot = hash.slot();
            view.make_leaf(slot, || Some(arrival.expected_records(view.table, slot)));
        }
    }
}
