//! Rules that are checked while a run goes on.

use crate::acknowledged::AcknowledgedRecords;
use crate::failure::Rule;
use crate::fleet::ServerFleet;
use crate::inspect::PassedKey;
use crate::losses::Losses;
use crate::range_clocks::RangeClockMonitor;
use crate::timeline::{ReactorPlace, RunTimeline};
use crate::workload::Register;
use std::collections::BTreeMap;
use store::TabletState;
use types::{HashRange, KeyHash, MigrationId, OwnershipEpoch, ServerId, Slot};
use wire::peer::PeerMessage;

/// Maximal number of requests for a hash that the source reported as absent. Late answers are
/// ignored, and requests in transit arrive once more.
const REQUESTED_AGAIN_MAX: u32 = 5;

/// Earlier observations, which later ones must not contradict.
#[derive(Debug, Default)]
pub(crate) struct RuleMonitor {
    /// Newest map version of each server.
    map_versions: BTreeMap<ServerId, u64>,
    /// For each slot with keys, the highest epoch under which it was served.
    epochs: BTreeMap<Slot, OwnershipEpoch>,
    /// For each hash that a reactor learned to be absent at the source, the number of later
    /// requests.
    reported_absent: BTreeMap<(ReactorPlace, MigrationId, KeyHash), u32>,
    /// Clocks by which ranges judge expiry.
    pub(crate) clocks: RangeClockMonitor,
    /// Records that dead servers had.
    pub(crate) acknowledged: AcknowledgedRecords,
}

impl RuleMonitor {
    /// Checks the ownership of ranges, if a server's tablets have changed.
    pub(crate) fn check_tablets(
        &mut self,
        place: usize,
        servers: &mut ServerFleet,
        slots: &[Slot],
        losses: &Losses,
        timeline: &mut RunTimeline,
    ) {
        let server = &mut servers[place];
        let version = server.node.tablets_version();
        if std::mem::replace(&mut server.tablets_version, version) != version {
            self.check_rise(place, servers, slots, timeline);
            check_owners(place, servers, losses, timeline);
            self.clocks.read_all(place, servers, timeline);
            if let Err(failure) = self.acknowledged.check(&mut servers[place]) {
                timeline.fail(failure);
            }
        }
    }

    /// Checks that a server's map versions and a range's epochs only rise.
    fn check_rise(
        &mut self,
        place: usize,
        servers: &ServerFleet,
        slots: &[Slot],
        timeline: &mut RunTimeline,
    ) {
        let server = &servers[place];
        if server.is_dead {
            return;
        }
        let (id, map) = (server.id, server.node.map().version);
        let seen = self.map_versions.entry(id).or_insert(0);
        if map < *seen {
            timeline.fail(Rule::MapsRise.broken(format!("{id} goes from map {seen} to {map}")));
        }
        *seen = map;
        // A server that was declared dead may not know it yet.
        if !server.may_serve(timeline.now) {
            return;
        }
        let tablets = server.node.store().tablets();
        for &slot in slots {
            let tablet = tablets.at(slot.first_hash());
            let served = tablet.filter(|tablet| match tablet.state {
                TabletState::Serving | TabletState::Arriving(_) | TabletState::Securing(_) => true,
                TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => false,
            });
            let Some(tablet) = served else { continue };
            let highest = self.epochs.entry(slot).or_insert(tablet.epoch);
            if tablet.epoch < *highest {
                let text = format!("{id} serves {slot:?} under {}, after {highest}", tablet.epoch);
                timeline.fail(Rule::EpochsRise.broken(text));
            }
            *highest = tablet.epoch;
        }
    }

    /// Forgets the epochs of a range whose source may serve again under an earlier epoch.
    pub(crate) fn forget_epochs(&mut self, range: HashRange) {
        self.epochs.retain(|slot, _| !range.contains(slot.first_hash()));
    }

    /// Checks that a reactor does not repeatedly ask for hashes that its source reported as
    /// absent.
    pub(crate) fn check_requests(
        &mut self,
        reactor: ReactorPlace,
        message: &PeerMessage,
        timeline: &mut RunTimeline,
    ) {
        let PeerMessage::PriorityPull(pull) = message else { return };
        for &(_, hash) in &pull.hashes {
            if let Some(times) = self.reported_absent.get_mut(&(reactor, pull.migration, hash)) {
                *times += 1;
                if *times > REQUESTED_AGAIN_MAX {
                    let text = format!("{hash} of {} by {reactor:?}", pull.migration);
                    timeline.fail(Rule::AskedOnce.broken(text));
                }
            }
        }
    }

    /// Records the hashes of a migration that a reactor learns to be absent at its source.
    pub(crate) fn record_absent(
        &mut self,
        reactor: ReactorPlace,
        migration: MigrationId,
        hashes: &[KeyHash],
    ) {
        for hash in hashes {
            self.reported_absent.entry((reactor, migration, *hash)).or_insert(0);
        }
    }
}

/// Checks that a server has everything that its progress has just passed.
pub(crate) fn check_progress(
    place: usize,
    servers: &mut ServerFleet,
    registers: &[Register],
    timeline: &mut RunTimeline,
) {
    for passed in servers[place].inspector.newly_passed(registers) {
        let PassedKey { migration, source, table, hash } = passed;
        // The target may have reclaimed records that have expired by its clock.
        let clock = servers[place].node.store().latest_clock();
        let from = servers.place(source);
        let is_there =
            from.is_some_and(|from| servers[from].inspector.has(table, hash, Some(clock)));
        if is_there && !servers[place].inspector.knows(table, hash) {
            let text = format!("{migration} has passed {hash}, which only {source} has");
            timeline.fail(Rule::ProgressFollowsReplay.broken(text));
        }
    }
}

/// Checks that no two servers serve the same hash.
fn check_owners(place: usize, servers: &ServerFleet, losses: &Losses, timeline: &mut RunTimeline) {
    let ranges = servers.iter().map(|server| server.served(timeline.now)).collect::<Vec<_>>();
    let here = &ranges[place];
    if let Some(failure) = losses.check_lost(servers[place].id, here) {
        timeline.fail(failure);
    }
    for (other, there) in ranges.iter().enumerate().filter(|(other, _)| *other != place) {
        let shared = here.iter().flat_map(|a| there.iter().find_map(|b| a.intersection(*b)));
        if let Some(range) = shared.into_iter().next() {
            let (one, two) = (servers[place].id, servers[other].id);
            timeline.fail(Rule::OneOwner.broken(format!("{one} and {two} serve {range}")));
        }
    }
}
