//! Links between servers and coordinators.

use super::SimulatedCluster;
use crate::planted::Planted;
use crate::servers::{self, SavedIdentity};
use crate::timeline::PlannedEvent;
use coordinator::{Caller, CoordinatorEvent, Effect, LinkId};
use types::{ClusterId, Generation, ServerId};
use wire::control::{Ask, FromCoordinator, Join, ToCoordinator};

/// Request number of the simulator's own requests to the coordinator.
const OWN_REQUEST: u64 = u64::MAX;

impl SimulatedCluster {
    /// Carries out the effects of a coordinator.
    pub(super) fn apply_effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { message: FromCoordinator::Answer { request, answer }, .. }
                    if request == OWN_REQUEST =>
                {
                    self.moves.record_answer(answer, &mut self.timeline);
                }
                Effect::Send { connection, message } => self.send_down(connection, message),
                Effect::Commit(_) => unreachable!("the store has it"),
                Effect::Close { connection } => {
                    if let Some(place) = self.servers.place_linked_by(connection) {
                        let at = self.servers[place].link.down.max(self.timeline.now);
                        self.timeline.plan_at(at, PlannedEvent::Sever(place, connection));
                    }
                }
            }
        }
    }

    fn send_down(&mut self, connection: LinkId, message: FromCoordinator) {
        let Some(place) = self.servers.place_linked_by(connection) else { return };
        let to = self.servers[place].id;
        self.timeline.note(format_args!("c → {to} {message}"));
        let delay = self.network.delay(&mut self.timeline.rng);
        let link = &mut self.servers[place].link;
        link.down = link.down.max(self.timeline.now + delay);
        let at = link.down;
        self.timeline.plan_at(at, PlannedEvent::Down(place, connection, Box::new(message)));
    }

    /// Opens a connection of a server to the leading coordinator; `None` if there is none. A
    /// process without a generation gets one.
    pub(super) fn open_connection(
        &mut self,
        number: Option<(ClusterId, ServerId)>,
        generation: Option<Generation>,
    ) -> Option<LinkId> {
        let coordinator = self.coordinators.current()?;
        let connection = self.coordinators.connect(coordinator);
        // The number of a process's first connection is unique.
        let generation = generation.unwrap_or(Generation(connection.0));
        let caller = Caller::Server { number, generation };
        let effects = self.coordinate(connection, CoordinatorEvent::Opened { connection, caller });
        self.apply_effects(effects);
        Some(connection)
    }

    /// Links a server to the leading coordinator again.
    pub(crate) fn rejoin(&mut self, place: usize) {
        let server = &self.servers[place];
        if server.link.connection.is_some() {
            return;
        }
        if let Some(fault) = self.faults.lasting.filter(|fault| fault.keeps_unlinked(place)) {
            return self.timeline.plan_at(fault.until, PlannedEvent::Rejoin(place));
        }
        let (rejoin, generation) = (Some((server.node.cluster(), server.id)), server.generation);
        let Some(connection) = self.open_connection(rejoin, Some(generation)) else {
            return self.plan_rejoin(place);
        };
        let saved = self.disks.saved(place);
        let server = &mut self.servers[place];
        server.link.connection = Some(connection);
        server.node.set_linked(true);
        let message = ToCoordinator::Join(self.join_message(place, rejoin, saved));
        let effects =
            self.coordinate(connection, CoordinatorEvent::Received { connection, message });
        self.apply_effects(effects);
        self.check_new_link(place, connection);
    }

    pub(super) fn plan_rejoin(&mut self, place: usize) {
        let is_long = self.timeline.rng.u32(..4) == 0;
        let away = self.draw_outage(if is_long { 2_500_000 } else { 50_000 });
        self.timeline.plan_in(away, PlannedEvent::Rejoin(place));
    }

    /// Returns the first message of a server on a connection.
    pub(super) fn join_message(
        &self,
        place: usize,
        rejoin: Option<(ClusterId, ServerId)>,
        saved: Option<SavedIdentity>,
    ) -> Join {
        let (replicas, rack) = (self.profile.replicas(), self.profile.size.rack(place));
        let mut join = servers::join(place, rejoin, replicas, rack, saved.as_ref());
        match self.profile.settings.planted {
            Some(Planted::OldStoreTrusted) => join.mark = None,
            Some(Planted::ForeignDiskAdmitted) => join.disk = None,
            _ => {}
        }
        join
    }

    /// Sends a question of the simulator itself to the leading coordinator, without network delay
    /// but over a server's link. Returns `false` if no server has a link.
    pub(crate) fn ask(&mut self, ask: Ask) -> bool {
        let coordinators = &self.coordinators;
        let current = self.servers.iter().find_map(|server| {
            server.link.connection.filter(|&connection| coordinators.is_current(connection))
        });
        let Some(connection) = current else { return false };
        let message = ToCoordinator::Ask { request: OWN_REQUEST, ask };
        let effects =
            self.coordinate(connection, CoordinatorEvent::Received { connection, message });
        let is_answered = effects.iter().any(|effect| {
            matches!(effect, Effect::Send { message: FromCoordinator::Answer { .. }, .. })
        });
        self.apply_effects(effects);
        is_answered
    }

    /// Breaks a new link if its coordinator ended while handling the first message.
    pub(super) fn check_new_link(&mut self, place: usize, connection: LinkId) {
        if !self.coordinators.is_served(connection) {
            let soon = self.network.delay(&mut self.timeline.rng);
            self.timeline.plan_in(soon, PlannedEvent::Sever(place, connection));
        }
    }

    /// Breaks a server's link to a coordinator.
    pub(crate) fn break_link(&mut self, place: usize) {
        let server = &mut self.servers[place];
        let Some(connection) = server.link.connection.take() else { return };
        self.timeline.note(format_args!("the link of {} breaks", server.id));
        server.node.set_linked(false);
        self.hang_up(connection);
        self.plan_rejoin(place);
    }

    /// Breaks a server's link to a coordinator, if it is not broken already.
    pub(crate) fn sever(&mut self, place: usize, connection: LinkId) {
        if self.servers[place].link.connection == Some(connection) {
            self.break_link(place);
        }
    }

    /// Notifies the coordinator that a connection has ended.
    pub(crate) fn hang_up(&mut self, connection: LinkId) {
        let until = self.coordinators.paused_until(connection);
        if until > self.timeline.now {
            return self.timeline.plan_at(until, PlannedEvent::Hangup(connection));
        }
        self.losses.record_hung_up(connection);
        let effects = self.coordinate(connection, CoordinatorEvent::Closed { connection });
        self.apply_effects(effects);
    }
}
