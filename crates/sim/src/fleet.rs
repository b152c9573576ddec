//! Servers of a run, and the questions that concern several of them.

use crate::reactor::Inbound;
use crate::servers::SimulatedServer;
use crate::timeline::{PlannedEvent, ReactorPlace, RunTimeline};
use coordinator::LinkId;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::time::Duration;
use store::TabletState;
use types::{Instant, KeyHash, MigrationId, OwnershipEpoch, ServerId, TableId};

/// Longest sleep of an idle reactor.
const IDLE_MAX: Duration = Duration::from_millis(10);

/// Servers by their place. A place keeps its address; the process there may die and be replaced.
#[derive(Default)]
pub(crate) struct ServerFleet {
    servers: Vec<SimulatedServer>,
}

impl Index<usize> for ServerFleet {
    type Output = SimulatedServer;

    fn index(&self, place: usize) -> &SimulatedServer {
        &self.servers[place]
    }
}

impl IndexMut<usize> for ServerFleet {
    fn index_mut(&mut self, place: usize) -> &mut SimulatedServer {
        &mut self.servers[place]
    }
}

impl ServerFleet {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SimulatedServer> {
        self.servers.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SimulatedServer> {
        self.servers.iter_mut()
    }

    /// Returns the server at this place, or `None` if none has started there.
    pub(crate) fn get(&self, place: usize) -> Option<&SimulatedServer> {
        self.servers.get(place)
    }

    /// Returns the number of places at which a server has started.
    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// Puts a process at its place, after the last one or instead of a dead one.
    pub(crate) fn put(&mut self, place: usize, server: SimulatedServer) {
        assert!(place <= self.servers.len(), "places are filled in order");
        match self.servers.get_mut(place) {
            Some(before) => *before = server,
            None => self.servers.push(server),
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &SimulatedServer> {
        self.servers.iter().filter(|server| !server.is_dead)
    }

    /// Returns the place of a live server.
    pub(crate) fn place(&self, id: ServerId) -> Option<usize> {
        self.servers.iter().position(|server| server.id == id && !server.is_dead)
    }

    /// Returns the place of the server that has this connection to a coordinator.
    pub(crate) fn place_linked_by(&self, connection: LinkId) -> Option<usize> {
        self.servers.iter().position(|server| server.link.connection == Some(connection))
    }

    pub(crate) fn draw_live(&self, timeline: &mut RunTimeline) -> Option<usize> {
        self.draw_other_than(None, timeline)
    }

    /// Draws a live server at another place than this one.
    pub(crate) fn draw_other_than(
        &self,
        place: Option<usize>,
        timeline: &mut RunTimeline,
    ) -> Option<usize> {
        let is_eligible = |it: &usize| !self.servers[*it].is_dead && Some(*it) != place;
        let eligible: Vec<usize> = (0..self.len()).filter(is_eligible).collect();
        (!eligible.is_empty()).then(|| eligible[timeline.rng.usize(..eligible.len())])
    }

    /// Returns the epoch under which a server serves a hash. An arriving range counts after its
    /// target has announced that it accepted. Until then a reactor may still use its earlier
    /// tablet map, and no client can know that the range is there.
    pub(crate) fn serving_epoch(
        &self,
        place: usize,
        hash: KeyHash,
        accepted: &BTreeSet<MigrationId>,
    ) -> Option<OwnershipEpoch> {
        let server = Some(&self.servers[place]).filter(|server| !server.is_dead)?;
        let tablets = server.node.store().tablets();
        let tablet = tablets.at(hash)?;
        match tablet.state {
            TabletState::Serving | TabletState::Securing(_) => Some(tablet.epoch),
            TabletState::Arriving(ref arrival) => {
                accepted.contains(&arrival.migration()).then_some(tablet.epoch)
            }
            TabletState::Frozen | TabletState::Leaving | TabletState::Recovering(_) => None,
        }
    }

    /// Returns the place of a live server with an arriving range.
    pub(crate) fn place_of_arrival(&self) -> Option<usize> {
        let is_arriving = |server: &SimulatedServer| {
            let tablets = server.node.store().tablets();
            tablets.iter().any(|tablet| matches!(tablet.state, TabletState::Arriving(_)))
        };
        self.servers.iter().position(|server| !server.is_dead && is_arriving(server))
    }

    /// Returns the number of records that a server counts in a table.
    pub(crate) fn count_records(&mut self, place: usize, table: TableId) -> u64 {
        self.servers[place].inspector.look(|worker| worker.table_records(table))
    }

    /// Returns whether every server serves its ranges and has all the replicas that it needs.
    pub(crate) fn is_whole(&self, now: Instant) -> bool {
        let newest = self.servers.iter().map(|server| server.node.map().version).max();
        self.servers.iter().all(|server| {
            let durability = server.node.durability();
            let has_replicas = durability.is_with_others()
                && durability.is_leased(now)
                && durability.under_replicated() == 0;
            let (map, tablets) = (server.node.map(), server.node.store().tablets());
            let is_recovering =
                tablets.iter().any(|tablet| matches!(tablet.state, TabletState::Recovering(_)));
            let are_there = map.servers.iter().all(|other| self.place(other.id).is_some());
            !server.is_dead
                && server.link.is_connected
                && has_replicas
                && Some(map.version) == newest
                && are_there
                && !is_recovering
        })
    }

    /// Passes input to a reactor, and makes the reactor begin a turn soon.
    pub(crate) fn deliver(
        &mut self,
        at: ReactorPlace,
        inbound: Inbound,
        timeline: &mut RunTimeline,
    ) {
        self.servers[at.server].reactors[at.reactor].inbox.push_back(inbound);
        self.wake(at, timeline);
    }

    /// Makes the reactor begin a turn soon.
    pub(crate) fn wake(&mut self, at: ReactorPlace, timeline: &mut RunTimeline) {
        let soon = timeline.now + timeline.micros(1..10);
        let sleeper = &mut self.servers[at.server].reactors[at.reactor];
        // A reactor in the middle of a turn continues at its planned time.
        if sleeper.due > soon && !sleeper.is_begun {
            sleeper.due = soon;
            timeline.plan_at(soon, PlannedEvent::Turn(at));
        }
    }

    /// Wakes all reactors of a server if one of them asked for it.
    pub(crate) fn wake_all(&mut self, place: usize, timeline: &mut RunTimeline) {
        if self.servers[place].take_wake_all() {
            for reactor in 0..self.servers[place].reactors.len() {
                self.wake(ReactorPlace { server: place, reactor }, timeline);
            }
        }
    }

    /// Begins all reactors of a new process at once.
    pub(crate) fn begin_reactors(&mut self, place: usize, timeline: &mut RunTimeline) {
        for reactor in 0..self.servers[place].reactors.len() {
            self.servers[place].reactors[reactor].due = timeline.now;
            let at = ReactorPlace { server: place, reactor };
            timeline.plan_at(timeline.now, PlannedEvent::Turn(at));
        }
    }

    /// Plans the turn after the one that has just ended.
    pub(crate) fn plan_next_turn(
        &mut self,
        at: ReactorPlace,
        is_busy: bool,
        timeline: &mut RunTimeline,
    ) {
        let reactor = &mut self.servers[at.server].reactors[at.reactor];
        let pause = if is_busy {
            timeline.micros(2..50)
        } else {
            reactor.core.sleep();
            let deadline = reactor.next_deadline().map(|at| at.since(timeline.now));
            deadline.unwrap_or(IDLE_MAX).clamp(Duration::from_micros(1), IDLE_MAX)
        };
        reactor.due = timeline.now + pause;
        timeline.plan_in(pause, PlannedEvent::Turn(at));
    }
}
