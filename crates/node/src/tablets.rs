//! Changes of the tablets that this server holds: pure functions from one list to the next.
//!
//! A tablet is split where a migration's range cuts it, and keeps its epoch and incarnations on both
//! sides. Tablets are never merged.

use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Arrival, RangeClock, TableSet, Tablet, TabletState};
use types::limits::TABLES_MAX;
use types::{HashRange, Incarnation, OwnershipEpoch, ServerId, TableId, UnixMillis};
use wire::control::{ClusterMap, TabletInfo};

/// Applies `change` to the parts of tablets in `range`. A part that becomes `None` is dropped.
pub(crate) fn carve(
    tablets: impl IntoIterator<Item = Tablet>,
    range: HashRange,
    mut change: impl FnMut(Tablet) -> Option<Tablet>,
) -> Vec<Tablet> {
    let mut carved = Vec::new();
    for tablet in tablets {
        let Some(inside) = tablet.range.intersection(range) else {
            carved.push(tablet);
            continue;
        };
        let outside = tablet.range.without(range);
        carved
            .extend(outside.into_iter().flatten().map(|range| Tablet { range, ..tablet.clone() }));
        carved.extend(change(Tablet { range: inside, ..tablet }));
    }
    carved.sort_by_key(|tablet| tablet.range);
    let are_apart = |pair: &[Tablet]| pair[0].range.last() < pair[1].range.first();
    assert!(carved.windows(2).all(are_apart), "tablets of a server share no hash");
    carved
}

/// Returns whether serving tablets under this epoch cover all of `range`.
pub(crate) fn serves<'t>(
    tablets: impl IntoIterator<Item = &'t Tablet>,
    range: HashRange,
    epoch: OwnershipEpoch,
) -> bool {
    let mut missing = vec![range];
    for tablet in tablets {
        let is_served = match tablet.state {
            TabletState::Serving => tablet.epoch == epoch,
            TabletState::Frozen
            | TabletState::Leaving
            | TabletState::Arriving(_)
            | TabletState::Recovering(_)
            | TabletState::Securing(_) => false,
        };
        if is_served {
            missing = missing.into_iter().flat_map(|m| m.without(tablet.range)).flatten().collect();
        }
    }
    missing.is_empty()
}

/// Returns the arrival of a tablet whose records arrive.
pub(crate) fn arrival_of(tablet: &Tablet) -> Option<&Arc<Arrival>> {
    match &tablet.state {
        TabletState::Arriving(arrival) => Some(arrival),
        TabletState::Serving
        | TabletState::Frozen
        | TabletState::Leaving
        | TabletState::Recovering(_)
        | TabletState::Securing(_) => None,
    }
}

/// Sets the state of the tablets in `range`.
pub(crate) fn with_state(
    tablets: impl IntoIterator<Item = Tablet>,
    range: HashRange,
    state: &TabletState,
) -> Vec<Tablet> {
    carve(tablets, range, |tablet| Some(Tablet { state: state.clone(), ..tablet }))
}

/// Returns the tablet that the store serves for an entry of the coordinator's map.
pub(crate) fn serving(info: &TabletInfo) -> Tablet {
    Tablet {
        range: info.range,
        epoch: info.epoch,
        incarnations: incarnations(&info.incarnations),
        state: TabletState::Serving,
        clock: RangeClock::OWN,
        flushing: TableSet::NONE,
    }
}

/// Returns the latest clock by which expiry has been judged in any part of the range.
pub(crate) fn clock_of<'t>(
    tablets: impl IntoIterator<Item = &'t Tablet>,
    range: HashRange,
    own: UnixMillis,
) -> UnixMillis {
    let inside = tablets.into_iter().filter(|tablet| tablet.range.overlaps(range));
    inside.map(|tablet| tablet.clock.read(own)).max().unwrap_or(own)
}

/// Returns the incarnations by table; tables that are not in the list get incarnation 0.
pub(crate) fn incarnations(list: &[Incarnation]) -> [Incarnation; TABLES_MAX] {
    let mut incarnations = [Incarnation(0); TABLES_MAX];
    incarnations.iter_mut().zip(list).for_each(|(place, incarnation)| *place = *incarnation);
    incarnations
}

/// Newly assigned ranges that a server may begin without receiving data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MayBegin<'a> {
    /// All ranges: the server's own log, which was proved to be complete, has their data.
    Any,
    /// Ranges, with their epochs, that an earlier map assigned as born (never served).
    Born(&'a BTreeSet<(HashRange, OwnershipEpoch)>),
}

/// Result of a new map.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    pub(crate) tablets: Vec<Tablet>,
    /// Set if the tablets are others than before.
    pub(crate) is_changed: bool,
    /// Born ranges with their epochs. They begin with the map that clears `is_born`.
    pub(crate) births: BTreeSet<(HashRange, OwnershipEpoch)>,
    /// Ranges that the map assigns to this server and that it does not hold.
    pub(crate) not_held: Vec<HashRange>,
}

/// Applies a new map. A range that is assigned to this server but not held begins empty only if
/// it was born here and the coordinator has recorded the confirmation. Otherwise another server
/// may have served it. Changes of the incarnations of held tablets are handled by [`renewed`].
///
/// A recovered range is served when a map assigns it under the recovery's epoch, which is the
/// recovery's number. If a migration of a range has lost its other side, the range still has its
/// old epoch, so a map with that epoch changes nothing. A range held in any other state than in
/// the map is in a migration; the messages of the migration decide.
pub(crate) fn adopt(
    mut tablets: Vec<Tablet>,
    map: &ClusterMap,
    me: ServerId,
    may_begin: MayBegin<'_>,
) -> Adopted {
    tablets.sort_by_key(|tablet| tablet.range);
    let (mut given, mut is_changed) = (Vec::new(), false);
    let (mut births, mut not_held) = (BTreeSet::new(), Vec::new());
    for info in map.tablets.iter().filter(|info| info.owner == me) {
        let mut unknown = vec![info.range];
        // Both lists may have thousands of elements, so only overlapping ones are compared.
        let from = tablets.partition_point(|tablet| tablet.range.last() < info.range.first());
        let sharing = tablets[from..].iter_mut();
        for tablet in sharing.take_while(|tablet| tablet.range.first() <= info.range.last()) {
            unknown = unknown.into_iter().flat_map(|u| u.without(tablet.range)).flatten().collect();
            if tablet.epoch == info.epoch
                && info.range.covers(tablet.range)
                && let TabletState::Recovering(recovery) = &tablet.state
                && recovery.number() == info.epoch.0
            {
                tablet.state = TabletState::Securing(recovery.clone());
                is_changed = true;
            }
        }
        let name = (info.range, info.epoch);
        let begins = match may_begin {
            MayBegin::Any => true,
            MayBegin::Born(born) => born.contains(&name),
        };
        match (info.is_born, begins) {
            (true, _) => drop(births.insert(name)),
            (false, true) => {
                given.extend(unknown.into_iter().map(|range| Tablet { range, ..serving(info) }));
            }
            (false, false) => not_held.extend(unknown),
        }
    }
    is_changed |= !given.is_empty();
    tablets.append(&mut given);
    tablets.sort_by_key(|tablet| tablet.range);
    Adopted { tablets, is_changed, births, not_held }
}

/// Returns the incarnations that the map assigns to a range of this server, under any epoch.
pub(crate) fn assigned(
    range: HashRange,
    map: &ClusterMap,
    me: ServerId,
) -> Option<(OwnershipEpoch, [Incarnation; TABLES_MAX])> {
    let info = map.tablet_at(range.first());
    let info = info.filter(|info| info.owner == me && info.range.covers(range))?;
    Some((info.epoch, incarnations(&info.incarnations)))
}

/// Returns the incarnations that the map assigns to a held tablet, and the tables with changed
/// incarnations. Data of those tables under the old incarnations is void.
pub(crate) fn renewed(
    tablet: &Tablet,
    map: &ClusterMap,
    me: ServerId,
) -> ([Incarnation; TABLES_MAX], TableSet) {
    let assigned = assigned(tablet.range, map, me).filter(|(epoch, _)| *epoch == tablet.epoch);
    let new = assigned.map_or(tablet.incarnations, |(_, incarnations)| incarnations);
    let tables = (0..TABLES_MAX).filter(|table| new[*table] != tablet.incarnations[*table]);
    (new, tables.fold(TableSet::NONE, |set, table| set.with(TableId(table as u8))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Recovery, RecoveryPlan};
    use types::{ClusterId, Slot};

    fn slots(first: u16, last: u16) -> HashRange {
        HashRange::of_slots(Slot(first), Slot(last))
    }

    fn info(first: u16, last: u16, owner: u32, epoch: u64) -> TabletInfo {
        TabletInfo {
            range: slots(first, last),
            owner: ServerId(owner),
            epoch: OwnershipEpoch(epoch),
            incarnations: vec![Incarnation(epoch); TABLES_MAX],
            is_born: false,
        }
    }

    /// Returns the tablets of server 1 after a map, if its log has the data of every range.
    fn taken(tablets: Vec<Tablet>, map: &ClusterMap) -> Vec<Tablet> {
        adopt(tablets, map, ServerId(1), MayBegin::Any).tablets
    }

    fn map(tablets: Vec<TabletInfo>) -> ClusterMap {
        let (servers, moving) = (Vec::new(), Vec::new());
        ClusterMap { version: 1, cluster: ClusterId(1), servers, tablets, moving }
    }

    fn describe(tablets: &[Tablet]) -> Vec<String> {
        tablets
            .iter()
            .map(|t| {
                let state = match t.state {
                    TabletState::Serving => "serving",
                    TabletState::Frozen => "frozen",
                    TabletState::Leaving => "leaving",
                    TabletState::Arriving(_) => "arriving",
                    TabletState::Recovering(_) => "recovering",
                    TabletState::Securing(_) => "securing",
                };
                format!("{} {state} {} {}", t.range, t.epoch, t.incarnations[0])
            })
            .collect()
    }

    #[test]
    #[should_panic(expected = "tablets of a server share no hash")]
    fn no_hash_is_in_two_tablets() {
        let tablets = [info(0, 9, 1, 3), info(9, 19, 1, 3)].map(|info| serving(&info));
        with_state(tablets, slots(0, 4), &TabletState::Frozen);
    }

    #[test]
    fn a_range_is_frozen_and_the_rest_is_served_on() {
        let tablets = taken(Vec::new(), &map(vec![info(0, 99, 1, 3)]));
        assert!(serves(&tablets, slots(10, 19), OwnershipEpoch(3)));
        let frozen = with_state(tablets, slots(10, 19), &TabletState::Frozen);
        assert_eq!(
            describe(&frozen),
            ["slots 0-9 serving e3 n3", "slots 10-19 frozen e3 n3", "slots 20-99 serving e3 n3"]
        );
        assert!(!serves(&frozen, slots(10, 20), OwnershipEpoch(3)));
        assert!(serves(&frozen, slots(20, 99), OwnershipEpoch(3)));
        assert!(!serves(&frozen, slots(20, 99), OwnershipEpoch(2)), "another epoch");
        assert!(!serves(&frozen, slots(20, 100), OwnershipEpoch(3)), "beyond our range");
    }

    #[test]
    fn a_map_gives_what_we_lack_and_leaves_what_moves_alone() {
        let tablets = taken(Vec::new(), &map(vec![info(0, 99, 1, 3)]));
        let leaving = with_state(tablets, slots(10, 19), &TabletState::Leaving);
        let newer = map(vec![info(0, 99, 1, 3), info(100, 109, 2, 4), info(110, 119, 1, 5)]);
        assert_eq!(
            describe(&taken(leaving, &newer)),
            [
                "slots 0-9 serving e3 n3",
                "slots 10-19 leaving e3 n3",
                "slots 20-99 serving e3 n3",
                "slots 110-119 serving e5 n5",
            ]
        );
    }

    #[test]
    fn a_range_begins_empty_only_where_it_was_born_and_the_coordinator_knows_its_owner() {
        let (me, none) = (ServerId(1), BTreeSet::new());
        let born = |is_born, epoch| map(vec![TabletInfo { is_born, ..info(0, 99, 1, epoch) }]);
        let first = adopt(Vec::new(), &born(true, 3), me, MayBegin::Born(&none));
        let births = BTreeSet::from([(slots(0, 99), OwnershipEpoch(3))]);
        assert_eq!((first.tablets.len(), &first.births), (0, &births));
        let begun = |map| adopt(Vec::new(), &map, me, MayBegin::Born(&births));
        assert_eq!(describe(&begun(born(false, 3)).tablets), ["slots 0-99 serving e3 n3"]);
        // The same range under a later epoch has another server's history.
        let later = begun(born(false, 4));
        assert_eq!((later.tablets.len(), later.not_held), (0, vec![slots(0, 99)]));
        let granted = adopt(Vec::new(), &born(false, 3), me, MayBegin::Born(&none));
        assert_eq!((granted.tablets.len(), granted.not_held), (0, vec![slots(0, 99)]));
        let held = with_state(begun(born(false, 3)).tablets, slots(0, 9), &TabletState::Leaving);
        let again = adopt(held, &born(false, 3), me, MayBegin::Born(&none));
        assert_eq!((again.tablets.len(), again.not_held), (2, vec![]));
    }

    #[test]
    fn other_incarnations_are_told_of_tablets_that_have_the_maps_epoch() {
        let me = ServerId(1);
        let tablets = taken(Vec::new(), &map(vec![info(0, 9, 1, 3)]));
        let flushed = |first, last, epoch| {
            let mut info = info(first, last, 1, epoch);
            info.incarnations[2] = Incarnation(8);
            map(vec![info])
        };
        let adopted = taken(tablets, &flushed(0, 9, 3));
        assert_eq!(describe(&adopted), ["slots 0-9 serving e3 n3"], "not before it is empty");
        let (incarnations, tables) = renewed(&adopted[0], &flushed(0, 9, 3), me);
        assert_eq!(
            (incarnations[1], incarnations[2], tables),
            (Incarnation(3), Incarnation(8), TableSet::of(TableId(2)))
        );
        for other in [flushed(0, 9, 4), flushed(0, 8, 3), map(vec![info(0, 9, 2, 3)])] {
            assert_eq!(renewed(&adopted[0], &other, me), (adopted[0].incarnations, TableSet::NONE));
        }
    }

    #[test]
    fn what_is_recovered_is_served_when_a_map_gives_it_under_its_epoch() {
        let recovering = |number| {
            let plan = RecoveryPlan { number, range: slots(10, 19), old_incarnations: Vec::new() };
            let state = TabletState::Recovering(Arc::new(Recovery::new(plan)));
            vec![Tablet { state, ..serving(&info(10, 19, 1, 7)) }]
        };
        let adopted = |map| describe(&taken(recovering(7), &map));
        let waits = ["slots 10-19 recovering e7 n7"];
        assert_eq!(adopted(map(vec![info(0, 99, 2, 3)])), waits, "it is still the dead server's");
        assert_eq!(adopted(map(vec![info(10, 19, 2, 8)])), waits, "it has another owner now");
        assert_eq!(adopted(map(vec![info(10, 19, 1, 8)])), waits, "under another epoch");
        let ours = map(vec![info(0, 9, 2, 3), info(10, 19, 1, 7)]);
        assert_eq!(adopted(ours.clone()), ["slots 10-19 securing e7 n7"]);
        // The range had this epoch before it had to be recovered.
        assert_eq!(describe(&taken(recovering(8), &ours)), waits);
    }

    /// Does the same as [`adopt`], but compares every tablet with every entry of the map.
    fn adopt_naively(mut tablets: Vec<Tablet>, map: &ClusterMap, me: ServerId) -> Vec<Tablet> {
        for info in map.tablets.iter().filter(|info| info.owner == me) {
            let mut unknown = vec![info.range];
            for tablet in &mut tablets {
                let rest = unknown.into_iter().flat_map(|range| range.without(tablet.range));
                unknown = rest.flatten().collect();
            }
            tablets.extend(unknown.into_iter().map(|range| Tablet { range, ..serving(info) }));
        }
        tablets.sort_by_key(|tablet| tablet.range);
        tablets
    }

    /// Returns ranges of slots from 0 on, with gaps.
    fn pieces(random: &mut fastrand::Rng) -> Vec<TabletInfo> {
        let mut first = 0;
        let mut pieces = Vec::new();
        while first < 100 {
            let last = first + random.u16(..12);
            let (owner, epoch) = (random.u32(1..3), random.u64(1..4));
            if random.u8(..5) > 0 {
                pieces.push(info(first, last, owner, epoch));
            }
            first = last + 1;
        }
        pieces
    }

    #[test]
    fn any_map_is_adopted_as_by_looking_at_everything() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..2_000 {
            let held: Vec<Tablet> = pieces(&mut random).iter().map(serving).collect();
            let newer = map(pieces(&mut random));
            let adopted = taken(held.clone(), &newer);
            assert_eq!(describe(&adopted), describe(&adopt_naively(held, &newer, ServerId(1))));
        }
    }
}
